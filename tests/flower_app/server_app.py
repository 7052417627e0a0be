"""Federated averaging, balanced; with ``equal`` batches all stay as large, so that the two can be compared."""

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from paceline.integrations.flower import BalancedStrategy
from paceline.recording import sinks

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    clients = int(config["clients"])
    bounds = {"min_batch": 10, "largest_multiple": 1.0} if config["equal"] else {}
    strategy = BalancedStrategy(
        FedAvg(min_train_nodes=clients, min_available_nodes=clients, fraction_evaluate=0.0),
        state=config["state"] or None,
        **bounds,
    )
    if config["record"]:
        strategy.on_iteration.extend(sinks(str(config["record"])))
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros(4)]),
        num_rounds=int(config["rounds"]),
        timeout=60,
        train_config=ConfigRecord({"batch-size": 10, "local-steps": 5}),
    )
