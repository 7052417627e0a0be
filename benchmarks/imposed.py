"""Live balancing beside its own core, on speeds that are imposed: each rank sleeps samples / speed in its forward pass.

python benchmarks/imposed.py                     # about 50 minutes; writes imposed.md
python benchmarks/imposed.py --ranks 2 --ms 20   # these cells only; prints only
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from imposed_rank import Seen, Told, run, settled
from imposed_speeds import PATTERNS, imposed
from machine import machine

from paceline._arrays import Array
from paceline.coordinator import LoadBalancer, Policy
from paceline.coordinator.torch.attach import default_quantum
from paceline.predictors import Report, named
from paceline._curves import Curves
from paceline.solver import split

RANKS, MILLISECONDS, SCHEMES = (2, 4, 8), (8, 20, 50, 100), ("ewma", "auto")
SHARE = 64
"""Samples of a rank in an equal batch."""

SECONDS = 15.0
"""About how long a cell lets each scheme train."""

BLOCK = 50
"""Iterations of a scheme before the next has its turn."""


@dataclass(frozen=True)
class Row:
    """What a scheme did in a cell: speed-ups over equal batches by the imposed speeds, and what it cost."""

    live: float
    core: float
    added: float
    settled: tuple[float, float]


@dataclass(frozen=True)
class Cell:
    """One pattern of speeds, number of ranks and length of an iteration."""

    pattern: str
    ranks: int
    milliseconds: int

    @property
    def iterations(self) -> int:
        """Return how many fit into the time, in whole blocks."""
        return int(np.clip(SECONDS / (self.milliseconds / 1e3) // BLOCK, 4, 12)) * BLOCK

    def speeds(self) -> Array:
        """Return the imposed speeds, ``[T, W]``."""
        return imposed(self.pattern, self.iterations, self.ranks, SHARE, self.milliseconds / 1e3)

    def measured(self, schemes: tuple[str, ...]) -> tuple[float, float, dict[str, Row]]:
        """Return milliseconds beside the sleep of plain training, the oracle's speed-up, and a row per scheme."""
        speed_TW, seen = self.speeds(), self.live(("equal", *schemes))
        equal = busy(np.full(speed_TW.shape, SHARE), speed_TW)
        oracle = equal.sum() / busy(oracle_sizes(speed_TW), speed_TW).sum()
        plain = np.array(seen["equal"].wall_seconds) - blocks(equal)
        rows = {}
        for scheme in schemes:
            sizes_TW, core_TW = np.array(seen[scheme].sizes_TW), core_sizes(scheme, speed_TW)
            taken = busy(sizes_TW, speed_TW)
            beside = np.array(seen[scheme].wall_seconds) - blocks(taken)
            ends = len(speed_TW) * 3 // 4 if self.pattern == "step" else None
            rows[scheme] = Row(
                equal.sum() / taken.sum(),
                equal.sum() / busy(core_TW, speed_TW).sum(),
                float(np.median(beside - plain)) / BLOCK,
                (float("nan"),) * 2 if ends is None else (settled(sizes_TW, ends, 0), settled(core_TW, ends, 0)),
            )
        return float(np.median(plain)) / BLOCK, oracle, rows

    def live(self, schemes: tuple[str, ...]) -> dict[str, Seen]:
        """Return what each scheme did in one live job."""
        context = multiprocessing.get_context("spawn")
        with tempfile.TemporaryDirectory() as folder, context.Pool(self.ranks) as pool:
            told = [
                Told(rank, self.ranks, f"{folder}/store", self.speeds(), SHARE * self.ranks, schemes, BLOCK)
                for rank in range(self.ranks)
            ]
            return pool.map(run, told, chunksize=1)[0]


def busy(sizes_TW: Array, speed_TW: Array) -> Array:
    """Return the seconds of every iteration at the imposed speeds, ``[T]``."""
    seconds: Array = (sizes_TW / speed_TW).max(axis=1)
    return seconds


def blocks(seconds_T: Array) -> Array:
    """Return the seconds of every block."""
    summed: Array = seconds_T.reshape(-1, BLOCK).sum(axis=1)
    return summed


def oracle_sizes(speed_TW: Array) -> Array:
    """Return the best sizes for speeds that are known, ``[T, W]``."""
    ranks = speed_TW.shape[1]
    return np.stack([split(Curves.from_speed(speed_W), SHARE * ranks).sizes for speed_W in speed_TW])


def core_sizes(scheme: str, speed_TW: Array) -> Array:
    """Return what the same balancer decides if it is told every iteration's exact times at once, ``[T, W]``."""
    ranks = speed_TW.shape[1]
    policy = Policy(quantum=default_quantum(SHARE * ranks, ranks))
    balancer = LoadBalancer(named(scheme), workers=range(ranks), global_batch=SHARE * ranks, policy=policy)
    sizes_TW = []
    for speed_W in speed_TW:
        sizes_TW.append(balancer.plan.sizes)
        balancer.step(Report(samples=balancer.plan.sizes, seconds=balancer.plan.sizes / speed_W))
    return np.array(sizes_TW)


def line(cell: Cell, schemes: tuple[str, ...]) -> str:
    plain, oracle, rows = cell.measured(schemes)
    cells = [f"{cell.pattern}", f"{cell.ranks}", f"{cell.milliseconds}", f"{oracle:.2f}", f"{1e3 * plain:.2f}"]
    for row in rows.values():
        share = row.live / row.core
        mark = "**" if share < (0.97 if row.core > 1.01 else 0.99) else ""
        cells += [f"{row.core:.3f}", f"{row.live:.3f}", f"{mark}{share:.3f}{mark}", f"{1e6 * row.added:.0f}"]
        if cell.pattern == "step":
            cells[-1] += f" ({row.settled[0]:.0f}/{row.settled[1]:.0f})"
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    parser.add_argument("--ms", type=int, nargs="*", default=MILLISECONDS)
    parser.add_argument("--patterns", nargs="*", default=list(PATTERNS))
    parser.add_argument("--schemes", nargs="*", default=SCHEMES)
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    cells = [Cell(pattern, ranks, ms) for ranks in asked.ranks for ms in asked.ms for pattern in asked.patterns]
    schemes = tuple(asked.schemes)
    for cell in cells:
        print(line(cell, schemes), flush=True)


if __name__ == "__main__":
    main()
