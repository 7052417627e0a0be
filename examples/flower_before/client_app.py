"""The client: trains on its own data and replies with its model and its number of samples."""

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import network, part_of, train

app = ClientApp()


@app.train()
def local_training(message, context):
    """Train the received model, and return it."""
    client, clients = context.node_config["partition-id"], context.node_config["num-partitions"]
    model, part = network(), part_of(client, clients)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    config = message.content["config"]
    loss = train(model, part, config["batch-size"], config["local-steps"], config["rate"], client)
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(part[1]), "loss": loss}),
        }
    )
    return Message(content, reply_to=message)
