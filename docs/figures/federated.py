"""Draw federated.png from two live runs of Flower's simulation: equal batches, and balanced ones.

Run as ``python docs/figures/federated.py``; it needs ``pip install ".[flower,lab]" matplotlib``. The
clients are those of ``examples/flower_after``: four devices of different speeds that train a small network on digits.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_after"
CLIENTS, ROUNDS = 4, 6
COLORS = ("#0072B2", "#009E73", "#D55E00", "#CC79A7")


def run(equal: bool, record: Path) -> None:
    """Train for some rounds in this process, and write down what each took."""
    from client_app import app as client_app
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation
    from task import network

    from paceline.integrations.flower import BalancedStrategy
    from paceline.recording import sinks

    server = ServerApp()

    @server.main()
    def main(grid: Any, context: Any) -> None:
        bounds = {"min_batch": 32, "largest": 1.0} if equal else {}  # no room to move: plain federated averaging
        strategy = BalancedStrategy(FedAvg(min_train_nodes=CLIENTS, fraction_evaluate=0.0), **bounds)
        strategy.on_iteration.extend(sinks(str(record)))
        config = ConfigRecord({"batch-size": 32, "local-steps": 10, "rate": 0.1})
        strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=ROUNDS, train_config=config)

    share = {"client_resources": {"num_cpus": 1 / CLIENTS, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}}
    run_simulation(server_app=server, client_app=client_app, num_supernodes=CLIENTS, backend_config=share)


def draw(records: dict[str, Path], path: Path) -> None:
    """Draw every client's computing in every round; the next round begins when the last has replied."""
    from matplotlib.figure import Figure

    from paceline.recording import read_run

    figure = Figure(figsize=(9.0, 3.8), dpi=120, layout="constrained")
    panels = figure.subplots(len(records), 1, sharex=True)
    for panel, (title, record) in zip(panels, records.items(), strict=True):
        of_run = read_run(record)
        slowest_first = np.argsort(np.nanmean(of_run.seconds / of_run.sizes, axis=0))
        begin = 0.0
        for seconds_W, sizes_W in zip(of_run.seconds, of_run.sizes, strict=True):
            panel.axvline(begin, color="#999999", linewidth=0.8)
            for place, w in enumerate(slowest_first):
                panel.barh(place, seconds_W[w], left=begin, color=COLORS[place], height=0.7)
                panel.text(begin + 0.03, place, f"{sizes_W[w] / 10:.0f}", va="center", fontsize=7, color="white")
            begin += float(np.nanmax(seconds_W))
        panel.axvline(begin, color="#999999", linewidth=0.8)
        even = np.nanmedian(of_run.seconds.max(axis=1) / np.median(of_run.seconds, axis=1))
        panel.set(title=f"{title}: {begin:.1f} s for {len(of_run)} rounds, slowest over median {even:.2f}", yticks=[])
        panel.set_ylabel("clients")
        print(
            f"{title}: {begin:.1f} s, slowest over median {even:.2f}, batches of the last round "
            f"{(of_run.sizes[-1] / 10).astype(int).tolist()}"
        )
    panels[-1].set_xlabel("seconds of computing; the number is the client's batch")
    figure.savefig(path)


def main() -> None:
    """Run both in processes of their own, as Flower's simulation may run once in a process, and draw them."""
    source = os.pathsep.join([str(EXAMPLE), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        records = {"equal batches": Path(folder) / "equal.jsonl", "balanced": Path(folder) / "balanced.jsonl"}
        for title, record in records.items():
            command = [sys.executable, __file__, title, str(record)]
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"})
        draw(records, Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run(sys.argv[1] == "equal batches", Path(sys.argv[2]))
    else:
        main()
