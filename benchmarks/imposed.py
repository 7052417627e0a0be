"""Attached against plain training, in live worlds that no model of ours made (live_worlds.py): two ranks each.

python benchmarks/imposed.py                          # 48 worlds, about ten minutes; writes imposed.md
python benchmarks/imposed.py --first 12 --count 4     # these only: prints a line of JSON for each
python benchmarks/imposed.py --page rows.jsonl        # writes imposed.md from such lines
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from live_worlds import Job, World, random_world
from machine import machine
from numpy.typing import NDArray
from ranks import run_ranks

Array = NDArray[np.float64]

WORLDS = 48
BLOCK = 50
"""Iterations of a training before the other has its turn; the first block is left out of the share of the gain."""

SLOWER, GAINED = 1.02, 0.95
"""Largest time over that of equal batches, and least share of the oracle's gain in steady worlds."""

LABELS = {
    "place": "samples' time in",
    "work": "spent in",
    "slow": "slow on one rank:",
    "change": "costs:",
    "pause": "pause:",
    "fixed": "fixed share",
    "processes": "loading processes:",
}
"""Kinds of worlds in the table, by the property that they share."""

WORTH = 0.03
"""Least gain of the oracle, as a share of the time of equal batches, whose share is counted."""


def compete(rank: int, put: Callable[[dict[str, Any]], None], worlds: Sequence[World]) -> None:
    """Train in all worlds, plain and attached in turns; the first rank tells what came."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    for world in worlds:
        jobs = [Job(world, rank, attached=False), Job(world, rank, attached=True)]
        for job in jobs:
            job.step()  # not measured: loading processes start, and what is imported late is imported
        for turn in range(world.iterations // BLOCK):
            for job in jobs if turn % 2 else jobs[::-1]:
                job.train(BLOCK)
        work_factor_W = gather_work_factors(jobs)
        for job in jobs:
            job.close()
        if rank == 0:
            put(row(world, *jobs, work_factor_W))


def gather_work_factors(jobs: Sequence[Job]) -> Array:
    """Return how many times as long as timed beforehand the work of both trainings took each rank, ``[W]``."""
    due, took = (sum(getattr(job.worker, name) for job in jobs) for name in ("due_seconds", "work_seconds"))
    factors: list[float] = [1.0] * dist.get_world_size()
    dist.all_gather_object(factors, took / due if due else 1.0)
    return np.array(factors)


def row(world: World, plain: Job, attached: Job, work_factor_W: Array) -> dict[str, Any]:
    """Return what came of a world."""
    sizes_TW = np.array(attached.sizes_TW)
    equal_T, oracle_T = world.equal(work_factor_W), world.oracle(work_factor_W)
    taken_T = world.seconds(sizes_TW, work_factor_W)
    possible, gained = (1 - float(each_T[BLOCK:].sum() / equal_T[BLOCK:].sum()) for each_T in (oracle_T, taken_T))
    later_TW = sizes_TW[BLOCK:]
    return {
        **asdict(world),
        "possible": round(possible, 4),
        "gained": round(gained, 4),
        "imposed": round(float(taken_T.sum() / equal_T.sum()), 4),
        "clock": round(sum(attached.wall_seconds) / sum(plain.wall_seconds), 4),
        "plain_adds": round(1e3 * float(sum(plain.wall_seconds) - equal_T.sum()) / len(equal_T), 2),
        "attached_adds": round(1e3 * float(sum(attached.wall_seconds) - taken_T.sum()) / len(equal_T), 2),
        "changes": int((later_TW[1:] != later_TW[:-1]).any(axis=1).sum()),
        "work_factors": work_factor_W.round(3).tolist(),
        "last": sizes_TW[-1].tolist(),
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """Return a row of the table for each kind of world."""
    kinds: dict[str, Callable[[dict[str, Any]], bool]] = {"all worlds": lambda one: True}
    for name, label in LABELS.items():
        for value in dict.fromkeys(sorted((one[name] for one in rows), key=str)):
            kinds[f"{label} {value}".strip()] = lambda one, name=name, value=value: one[name] == value
    kinds["costs steady, asleep"] = lambda one: one["change"] == "steady" and one["work"] == "sleep"
    lines = []
    for label, belongs in kinds.items():
        some = [one for one in rows if belongs(one)]
        worth = [one for one in some if steady(one) and one["possible"] >= WORTH]
        share = sum(one["gained"] for one in worth) / sum(one["possible"] for one in worth) if worth else np.nan
        imposed, clock = ([one[name] for one in some] for name in ("imposed", "clock"))
        slower = sum(each > SLOWER for each in imposed)
        cells = [label, f"{len(some)}", f"{np.mean(imposed):.3f}", f"{max(imposed):.3f}", f"{slower}"]
        cells += [f"{np.mean(clock):.3f}", f"{max(clock):.3f}"]
        cells += [f"{share:.2f} of {len(worth)}" if worth else "", f"{np.mean([one['changes'] for one in some]):.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def steady(one: dict[str, Any]) -> bool:
    """Return whether one split was the best all the time."""
    return one["change"] in ("steady", "noise", "outliers")


def page(rows: list[dict[str, Any]]) -> str:
    """Return the page."""
    slower = [one for one in rows if one["imposed"] > SLOWER]
    steady_worth = [one for one in rows if steady(one) and one["possible"] >= WORTH]
    missed = [one for one in steady_worth if one["gained"] < GAINED * one["possible"]]
    names = ("place", "fixed_place", "work", "slow", "slower", "fixed", "change", "pause", "processes")
    listed = "\n".join(
        f"| {one['seed']} | {', '.join(f'{name} {one[name]}' for name in names)} | {one['imposed']:.3f} | "
        f"{one['clock']:.3f} | {one['gained']:.3f} of {one['possible']:.3f} | {one['changes']} | {one['last']} |"
        for one in {one["seed"]: one for one in [*slower, *missed]}.values()
    )
    plain, attached = (np.mean([one[f"{name}_adds"] for one in rows]) for name in ("plain", "attached"))
    return f"""# Attached against plain training in live worlds

Command: `python benchmarks/imposed.py --count {len(rows)}`, whose lines `--page` takes

Machine: {machine("torch")}

{len(rows)} worlds drawn at random (`live_worlds.py`), two ranks of `DistributedDataParallel` each, iterations of 8
to 48 ms.
What a sample and an iteration cost is imposed; the time lies in `__getitem__` (in the rank, or in one or two loading
processes), in the loop's body, in the forward or backward pass, in the optimizer, or after the step; and is spent
asleep, in matrix products, or in compression. Costs are steady, noisy (10%), four times as high once in 50, drift to
twice, or triple in bursts of 30 iterations in the mean; loops pause for logs, evaluations and checkpoints. Plain
training with equal batches and training with `attach` take turns of {BLOCK} iterations in one run.

- *imposed*: time of the sizes that ran over the time of equal batches, by the imposed costs, over all
  {rows[0]["iterations"]} iterations; *slower*: worlds above {SLOWER:g}. Work is timed before a world begins, and what
  the same work then took counts: a shared core is not as fast all the time. Loading processes count as their rank.
- *clock*: the same by the clock, with everything that training and balancing cost beside it: {plain:.1f} ms
  an iteration of plain training, {attached:.1f} ms attached, on this machine.
- *share of the gain*: what was gained of the oracle's gain after the first {BLOCK} iterations, in steady worlds where
  that is at least {WORTH:.0%}. The oracle knows all costs, and takes the best split.
- *changes*: of sizes, in the {rows[0]["iterations"] - BLOCK} iterations after the first {BLOCK}.

{len(slower)} of {len(rows)} worlds are slower than equal batches by more than {SLOWER - 1:.0%}. {len(missed)} of
{len(steady_worth)} steady worlds reach less than {GAINED:.0%} of the oracle's gain.

| worlds | number | imposed | worst | slower | clock | worst | share of the gain | changes |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{summary(rows)}

## Worlds that fall short

| seed | world | imposed | clock | gained | changes | last sizes |
| --- | --- | --- | --- | --- | --- | --- |
{listed}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int)
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args()
    if asked.page:
        rows = [json.loads(line) for line in asked.page.read_text(encoding="utf-8").splitlines()]
    else:
        worlds = [random_world(seed) for seed in range(asked.first, asked.first + (asked.count or WORLDS))]
        rows = []
        for one in run_ranks(2, compete, worlds, answers=len(worlds)):
            rows.append(one)
            print(json.dumps(one), flush=True)
    if asked.page or not asked.count:
        Path(__file__).with_name("imposed.md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
