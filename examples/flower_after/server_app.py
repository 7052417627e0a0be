"""The server: federated averaging over all clients."""

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from task import network

from paceline.integrations.flower import BalancedStrategy

app = ServerApp()


@app.main()
def main(grid, context):
    """Train for some rounds and print the result."""
    strategy = BalancedStrategy(FedAvg(min_train_nodes=2, fraction_evaluate=0.0))
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=int(context.run_config.get("num-server-rounds", 5)),
        train_config=ConfigRecord({"batch-size": 32, "local-steps": 10, "rate": 0.1}),
    )
    print(f"loss of the last round: {result.train_metrics_clientapp.popitem()[1]['loss']:.3f}")
