"""Run the trial app in Flower's simulation: ``python flower_simulation.py CLIENTS name=value ...``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "flower_app"))

import client_app
import server_app
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

clients = int(sys.argv[1])
given = dict(word.split("=", 1) for word in sys.argv[2:])
app = ServerApp()


@app.main()
def main(grid, context):
    context.run_config = {
        "record": "",
        "state": "",
        "rounds": 4,
        "clients": clients,
        **given,
        "equal": given.get("equal") == "true",
    }
    server_app.main(grid, context)


# Clients that sleep need no core of their own, and all must run at once.
share = {"client_resources": {"num_cpus": 1 / clients, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}}
run_simulation(server_app=app, client_app=client_app.app, num_supernodes=clients, backend_config=share)
