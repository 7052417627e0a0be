"""A client that sleeps for its samples: twice as long for one client as for the one before."""

import time

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from paceline.integrations.flower import stopwatch

app = ClientApp()


@app.train()
def local_training(message, context):
    client = int(context.node_config["partition-id"])
    config = message.content["config"]
    model = message.content["arrays"].to_numpy_ndarrays()
    watch = stopwatch(message, data=500, device=f"device-{client}")
    for _ in range(config["local-steps"]):
        time.sleep(0.004 * config["batch-size"] * (1 + client))
    record = watch.stop()
    content = RecordDict(
        {
            "arrays": ArrayRecord([np.asarray(each) + 1.0 for each in model]),
            "metrics": MetricRecord({"num-examples": 500}),
            "paceline": record,
        }
    )
    return Message(content, reply_to=message)
