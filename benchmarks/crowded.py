"""Sizes of a live job on a crowded machine: two ranks at imposed speeds of 3 to 1, beside dozens of busy processes.

python benchmarks/crowded.py                 # under a minute; prints only
python benchmarks/crowded.py --busy 0        # the same without the others
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time

import numpy as np
from imposed import busy
from imposed_rank import Seen, Told, run

from paceline._curves import Curves
from paceline.solver import split

SHARE, STEPS, TURN = 16, 48, 12
"""Samples of a rank in an equal batch, steps of every scheme, and steps before the next has its turn."""

SCHEMES = ("equal", "ewma", "auto")

LONGEST = 60.0
"""Seconds after which a busy process ends, whatever becomes of the job."""


def spin(until: float) -> None:
    """Compute nothing until then."""
    while time.time() < until:
        pass


def trained(milliseconds: int, busy_processes: int) -> tuple[np.ndarray, dict[str, Seen]]:
    """Return the imposed speeds, ``[T, W]``, and what every scheme did beside so many busy processes."""
    speed_TW = np.tile([3.0, 1.0], (STEPS, 1)) * SHARE / (milliseconds / 1e3)
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=spin, args=(time.time() + LONGEST,)) for _ in range(busy_processes)]
    with tempfile.TemporaryDirectory() as folder:
        answers = context.SimpleQueue()
        told = [Told(rank, 2, f"{folder}/store", [speed_TW], SHARE, SCHEMES, TURN) for rank in range(2)]
        ranks = [context.Process(target=run, args=(one, answers.put)) for one in told]
        for process in (*others, *ranks):
            process.start()
        seen = answers.get()
        for process in ranks:
            process.join()
        for process in others:
            process.terminate()
            process.join()
    return speed_TW, seen


def main() -> None:
    """Train, and print the last sizes of every scheme, and the speed-up of all its steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=50)
    parser.add_argument("--ms", type=int, default=200, help="milliseconds of an equal step")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    speed_TW, seen = trained(asked.ms, asked.busy)
    equal_T = busy(np.full(speed_TW.shape, SHARE), speed_TW)
    oracle_W = split(Curves.from_speed(speed_TW[-1]), 2 * SHARE).sizes
    print(f"{asked.busy} busy processes on {os.cpu_count()} cores; the oracle's sizes: {oracle_W.tolist()}")
    for scheme in SCHEMES[1:]:
        sizes_TW, wall = np.array(seen[scheme].sizes_TW), seen[scheme].wall_seconds
        print(
            f"{scheme}: sizes after {STEPS} steps {sizes_TW[-1].tolist()}, after a quarter "
            f"{sizes_TW[STEPS // 4].tolist()}; speed-up by the imposed speeds "
            f"{equal_T.sum() / busy(sizes_TW, speed_TW).sum():.2f}, by the clock "
            + ", ".join(f"{plain / ours:.2f}" for plain, ours in zip(seen["equal"].wall_seconds, wall, strict=True))
            + f" in turns of {TURN} steps"
        )


if __name__ == "__main__":
    main()
