"""Live balancing beside its own core, at speeds that are imposed: each rank sleeps samples / speed in its forward pass.

python benchmarks/imposed.py                     # about 70 minutes; writes imposed.md
python benchmarks/imposed.py --ranks 2 --ms 20   # these cells only; prints only
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from imposed_rank import Seen, Told, run
from imposed_speeds import PATTERNS, imposed
from machine import machine

from paceline._arrays import Array
from paceline._curves import Curves
from paceline.coordinator import LoadBalancer, Policy
from paceline.coordinator.balanced.policy import default_batch_multiple
from paceline.predictors import Report, named
from paceline.solver import split

RANKS, SCHEMES = (2, 4, 8), ("ewma", "auto")
ITERATIONS = {8: 300, 20: 200, 50: 150, 100: 100}
"""Milliseconds of an iteration, and how many of them each scheme trains for."""

SHARE = 64
"""Samples of a rank in an equal batch."""

BLOCK = 25
"""Iterations of a scheme before the next has its turn."""

GAINS, LEVEL = 0.97, 0.99
"""Least share of the core's speed-up to be reached live where it gains, and of equal batches where it does not."""

NOTHING = 1.01
"""Speed-up of the core from which it gains."""


@dataclass(frozen=True)
class Cell:
    """One pattern of speeds, number of ranks and length of an iteration."""

    pattern: str
    ranks: int
    milliseconds: int

    def speeds(self) -> Array:
        """Return the imposed speeds, ``[T, W]``."""
        return imposed(self.pattern, ITERATIONS[self.milliseconds], self.ranks, SHARE, self.milliseconds / 1e3)

    def row(self, seen: dict[str, Seen], schemes: tuple[str, ...]) -> str:
        """Return the row of the table that says what each scheme did."""
        speed_TW = self.speeds()
        equal_T = busy(np.full(speed_TW.shape, SHARE), speed_TW)
        oracle = equal_T.sum() / busy(oracle_sizes(speed_TW), speed_TW).sum()
        plain = np.array(seen["equal"].wall_seconds) - blocks(equal_T)
        cells = [self.pattern, f"{self.ranks}", f"{self.milliseconds}", f"{oracle:.2f}", f"{beside(plain):.2f}"]
        for scheme in schemes:
            sizes_TW, core_TW = np.array(seen[scheme].sizes_TW), core_sizes(scheme, speed_TW)
            taken_T = busy(sizes_TW, speed_TW)
            live, core = (equal_T.sum() / seconds_T.sum() for seconds_T in (taken_T, busy(core_TW, speed_TW)))
            reached = live / core if core > NOTHING else live
            mark = "" if reached >= (GAINS if core > NOTHING else LEVEL) else "**"
            added = np.array(seen[scheme].wall_seconds) - blocks(taken_T) - plain
            cells += [f"{core:.3f}", f"{mark}{live:.3f}{mark}", f"{1e3 * beside(added):.0f}"]
            if self.pattern == "step":
                cells[-2] += f" ({back_after(sizes_TW)}, core {back_after(core_TW)})"
        return f"| {' | '.join(cells)} |"


def live(cells: list[Cell], schemes: tuple[str, ...]) -> Iterator[dict[str, Seen]]:
    """Yield what each scheme did in each of these cells, of one number of ranks, in one live job."""
    context, ranks = multiprocessing.get_context("spawn"), cells[0].ranks
    with tempfile.TemporaryDirectory() as folder:
        answers = context.SimpleQueue()
        jobs = []
        for rank in range(ranks):
            told = Told(rank, ranks, f"{folder}/store", [cell.speeds() for cell in cells], SHARE, schemes, BLOCK)
            jobs.append(context.Process(target=run, args=(told, answers.put)))
            jobs[-1].start()
        for _ in cells:
            yield answers.get()
        for job in jobs:
            job.join()


def busy(sizes_TW: Array, speed_TW: Array) -> Array:
    """Return the seconds of every iteration at the imposed speeds, ``[T]``."""
    seconds_T: Array = (sizes_TW / speed_TW).max(axis=1)
    return seconds_T


def blocks(seconds_T: Array) -> Array:
    """Return the seconds of every block."""
    summed: Array = seconds_T.reshape(-1, BLOCK).sum(axis=1)
    return summed


def beside(seconds: Array) -> float:
    """Return the median milliseconds of an iteration, from the seconds of blocks."""
    return 1e3 * float(np.median(seconds)) / BLOCK


def oracle_sizes(speed_TW: Array) -> Array:
    """Return the best sizes for speeds that are known, ``[T, W]``."""
    return np.stack([split(Curves.from_speed(speed_W), SHARE * len(speed_W)).sizes for speed_W in speed_TW])


def core_sizes(scheme: str, speed_TW: Array) -> Array:
    """Return what the same balancer decides if it is told every iteration's exact times at once, ``[T, W]``."""
    ranks = speed_TW.shape[1]
    policy = Policy(batch_multiple=default_batch_multiple(SHARE * ranks, ranks))
    balancer = LoadBalancer(named(scheme), workers=range(ranks), global_batch=SHARE * ranks, policy=policy)
    sizes_TW = []
    for speed_W in speed_TW:
        sizes_TW.append(balancer.plan.sizes)
        balancer.step(Report(samples=balancer.plan.sizes, seconds=balancer.plan.sizes / speed_W))
    return np.array(sizes_TW)


def back_after(sizes_TW: Array) -> str:
    """Return how many iterations after the last disturbance sizes were equal again, within a tenth."""
    near_T = (np.abs(sizes_TW[len(sizes_TW) * 3 // 4 :] / SHARE - 1) < 0.1).all(axis=1)
    return f"{near_T.argmax()}" if near_T.any() else "never"


def page(rows: list[str], schemes: tuple[str, ...]) -> str:
    """Return the page."""
    named_columns = " | ".join(f"`{scheme}` core | live | adds, us" for scheme in schemes)
    heading = f"| speeds | ranks | ms | oracle | plain, ms | {named_columns} |"
    table = "\n".join([heading, "|" + " --- |" * (heading.count("|") - 1), *rows])
    missed = sum("**" in row for row in rows)
    return f"""# Live balancing beside its own core, at imposed speeds

Command: `python benchmarks/imposed.py`

Machine: {machine("torch")}

Each rank of a `DistributedDataParallel` job sleeps samples / speed in its forward pass, so what every scheme's sizes
cost follows from the imposed speeds exactly, and the machine's noise hardly counts. Schemes train in turns of {BLOCK}
iterations in one job.

- *core*: speed-up over equal batches of the same `LoadBalancer` with the same policy, told the exact times of every
  iteration at once; *live*: that of the sizes that came through `attach`. Both by the imposed speeds.
- *oracle*: the speed-up of the exact solver if it knows the speeds to come.
- *plain*: what an iteration of plain `DistributedDataParallel` takes beside the sleep; *adds*: how much more it is with
  `attach`, median over turns of the difference to the turn of plain training beside it.
- `step`: in brackets, iterations after the last disturbance until sizes were equal again, live and in the core.
- Bold: less than {GAINS:.0%} of the core's speed-up, or {LEVEL:.0%} of equal batches where the core gains nothing:
  {missed} of {len(rows)} rows.

{table}

## What stands in the way

- Ranks share the cores of the machine above. Where there are more ranks than cores, plain training takes about as long
  beside the sleep as an iteration of 8 ms sleeps. A rank's times then hold what it waited for a core, and sizes follow
  them; the imposed speeds, by which all is counted here, know nothing of it. Most bold rows are of that kind.
- Rows in which the core itself stays below equal batches are its decisions, not the engine's.
- *adds* is more than the .2 ms that are wanted. Half of it is the exchange, half the plan, made by Python whose code
  and data the training has displaced from the caches ([step.md](step.md)). With more ranks than cores they wait for
  each other's. The models here have few parameters: in a job whose gradients travel longer than a plan takes, it is
  made meanwhile.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*")
    parser.add_argument("--ms", type=int, nargs="*")
    parser.add_argument("--patterns", nargs="*")
    parser.add_argument("--schemes", nargs="*")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    schemes, rows = tuple(asked.schemes or SCHEMES), []
    for ranks in asked.ranks or RANKS:
        cells = [Cell(pattern, ranks, ms) for pattern in asked.patterns or PATTERNS for ms in asked.ms or ITERATIONS]
        for cell, seen in zip(cells, live(cells, ("equal", *schemes)), strict=True):
            rows.append(cell.row(seen, schemes))
            print(rows[-1], flush=True)
    if not any(vars(asked).values()):
        Path(__file__).with_suffix(".md").write_text(page(rows, schemes), encoding="utf-8")


if __name__ == "__main__":
    main()
