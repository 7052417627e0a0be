"""Draw who_waits.png from a live run on this machine: ``python docs/figures/who_waits.py``; needs ``matplotlib``.

Four ranks train a small model. So that the picture does not depend on the machine, each sleeps in its forward pass for
as long as its samples take at its speed. Sizes are equal during the warm-up, and balanced afterwards.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SPEEDS = {"rank 0": 1600.0, "rank 1": 1600.0, "rank 2, at half speed": 800.0, "rank 3, at three quarters": 1200.0}
"""Samples per second."""

GLOBAL_BATCH, WARMUP, SHOWN = 256, 30, 4
BLUE, GRAY = "#0072B2", "#D9D9D9"


def train(rank: int, folder: str) -> None:
    """Train on one rank; rank 0 writes the run down."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import TensorDataset

    from paceline.coordinator import Policy
    from paceline.recording import sinks
    from paceline.torch import BalancedLoader, attach

    class Slow(torch.nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            time.sleep(len(rows) / list(SPEEDS.values())[rank])
            return super().forward(rows)

    store = dist.FileStore(f"{folder}/store", len(SPEEDS))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(SPEEDS))
    torch.manual_seed(0)  # the same data on every rank
    model = DistributedDataParallel(Slow(8, 1))
    loader = BalancedLoader(TensorDataset(torch.randn(64 * GLOBAL_BATCH, 8)), global_batch=GLOBAL_BATCH, seed=0)
    balance = attach(model, loader, policy=Policy(warmup=WARMUP))
    if rank == 0:
        balance.on_iteration.extend(sinks(f"{folder}/run.jsonl"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (rows,) in loader:
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
    balance.close()
    dist.destroy_process_group()


def draw(record: Path, path: Path) -> None:
    """Draw what each rank does in some iterations before sizes are balanced, and in as many at the end."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    from paceline.recording import read_run

    run = read_run(record)
    equal = np.flatnonzero(np.ptp(run.sizes, axis=1) == 0)[-SHOWN:]
    rows = {"equal batches": equal, "balanced": np.arange(len(run) - SHOWN, len(run))}
    figure = Figure(figsize=(9.0, 3.6), dpi=120, layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    for panel, (title, iterations) in zip(panels, rows.items(), strict=True):
        begin = 0.0
        for seconds_W, sizes_W in zip(run.seconds[iterations], run.sizes[iterations], strict=True):
            end = float(seconds_W.max())
            for w, seconds in enumerate(seconds_W):
                panel.barh(w, seconds, left=begin, color=BLUE, height=0.7)
                panel.barh(w, end - seconds, left=begin + seconds, color=GRAY, height=0.7)
                panel.text(begin + 0.002, w, f"{sizes_W[w]:.0f}", va="center", fontsize=8, color="white")
            begin += end
            panel.axvline(begin, color="black", linewidth=0.8)
        waiting = 1 - run.seconds[iterations].mean() / run.seconds[iterations].max(axis=1).mean()
        panel.set_title(f"{title}: {begin / SHOWN * 1e3:.0f} ms an iteration, {waiting:.0%} of it waiting", loc="left")
        panel.set_yticks(range(len(SPEEDS)), list(SPEEDS))
        panel.invert_yaxis()
        print(panel.get_title(loc="left"))
    panels[-1].set_xlabel("seconds; the number is the rank's batch")
    figure.legend(handles=[Patch(color=BLUE, label="computes"), Patch(color=GRAY, label="waits")], loc="outside right")
    figure.savefig(path)


def main() -> None:
    """Train on four processes, and draw what they did."""
    import torch.multiprocessing as processes

    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(train, (folder,), nprocs=len(SPEEDS))
        draw(Path(folder) / "run.jsonl", Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    sys.exit(main())
