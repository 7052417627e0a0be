"""What forecasts are worth once sizes are decided by them: time over that of an oracle, bare and through the balancer.

Run as ``python benchmarks/decisions.py --data FOLDER``; it writes decisions.md beside this file, within five minutes on
one core. Without a folder of public data, and with ``--sets``, the page is printed. Axes: T iterations, W workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from accuracy_sets import common_covariates
from decisions_sets import MOST_ITERATIONS, MOST_JOBS, MOST_WORKERS, Set, jobs, options, put, wanted
from machine import machine

from paceline.datasets import Trace
from paceline.eval import Balanced, EqualBatches, SizeScheme
from paceline.predictors import EWMA, Auto, LastValue, Predictor, Report
from paceline.solver import split

SAMPLES, FIRST = 320, 10
"""Samples for each worker, and the first iteration that is scored: the balancer warms up for five."""

LEVEL, BEHIND = 0.003, 0.02
"""Overheads that differ by no more are level; the share of an iteration's time that the balancer may lose."""

PREDICTORS: dict[str, Callable[[Set], Predictor]] = {
    "last value": lambda data: LastValue(),
    "EWMA": lambda data: EWMA(),
    "Auto": lambda data: Auto(common_covariates(data.traces)),
}
EQUAL, BARE, BALANCED = "equal", "bare", "balancer"
COLUMNS = [EQUAL, *(f"{name}, {how}" for name in PREDICTORS for how in (BARE, BALANCED))]


@dataclass(frozen=True)
class Found:
    """Overhead over the oracle of each column on one set, changes per 100 iterations, and the jobs they are of."""

    data: Set
    overhead: dict[str, float]
    changes: dict[str, float]
    of: str

    def cost(self, column: str, other: str) -> float:
        """Return the share of an iteration's time by which a column is behind another."""
        return (self.overhead[column] - self.overhead[other]) / (1.0 + self.overhead[other])


class BareSplit:
    """The exact split of every forecast, at least one sample each: a balancer without any policy."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor, self.covariate_names = predictor, predictor.covariate_names

    def reset(self, workers, global_batch):
        self.predictor.reset(workers)
        self.global_batch = global_batch

    def sizes(self, iteration, covariates):
        return split(self.predictor.predict(covariates=covariates).curves, self.global_batch, lower=1).sizes

    def observe(self, sizes, seconds, covariates):
        self.predictor.observe(Report(samples=sizes, seconds=seconds, covariates=covariates))


def schemes(data: Set) -> dict[str, SizeScheme]:
    found: dict[str, SizeScheme] = {EQUAL: EqualBatches()}
    for name, make in PREDICTORS.items():
        found |= {f"{name}, {BARE}": BareSplit(make(data)), f"{name}, {BALANCED}": Balanced(make(data))}
    return found


def measured(data: Set) -> Found:
    """Replay the jobs of a set under every scheme."""
    replayed = jobs(data)
    overhead, changes = {}, {}
    for column, scheme in schemes(data).items():
        rows = np.array([replay(scheme, job) for job in replayed])
        overhead[column], changes[column] = rows.mean(axis=0)
    shapes = sorted({f"{len(job.workers)} x {len(job)}" for job in replayed})
    return Found(data, overhead, changes, f"{len(replayed)} of {' and '.join(shapes)}")


def replay(scheme: SizeScheme, job: Trace) -> tuple[float, float]:
    """Return the overhead of a job's scored iterations, and its changes per 100 of them.

    All wait for the last worker that reported. The oracle divides what those got in proportion to their speeds.
    """
    scheme.reset(job.workers, SAMPLES * len(job.workers))
    covariates_TWD = job.covariates_named(scheme.covariate_names)
    taken, best, used = [], [], []
    for k, speed_W in enumerate(job.speed):
        covariates_WD = None if covariates_TWD is None else covariates_TWD[k]
        sizes = scheme.sizes(k, covariates_WD)
        seen_W = np.isfinite(speed_W)
        if k >= FIRST and seen_W.sum() > 1:
            taken.append((sizes[seen_W] / speed_W[seen_W]).max())
            best.append(sizes[seen_W].sum() / speed_W[seen_W].sum())
            used.append(sizes)
        scheme.observe(sizes, sizes / speed_W, covariates_WD)
    changed = (np.diff(used, axis=0) != 0).any(axis=1)
    return float(np.sum(taken) / np.sum(best) - 1.0), 100.0 * float(changed.mean())


def page(found: list[Found], seconds: float) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# What forecasts are worth once sizes are decided by them\n"
    yield f"Command: `python benchmarks/decisions.py --data FOLDER`; it took {seconds / 60:.0f} minutes of CPU time.\n"
    yield f"Machine: {machine()}; one thread.\n"
    yield "Time over that of an oracle that knows the speeds of the coming iteration, in percent, from the iteration"
    yield f"{FIRST} on. Bare: the exact split of every forecast. Balancer: `LoadBalancer` with its defaults. A set"
    yield f"gives at most {MOST_JOBS} jobs of at most {MOST_WORKERS} workers and {MOST_ITERATIONS} iterations, drawn"
    yield f"with a fixed seed; the mean over jobs is shown. {SAMPLES} samples for each worker; changes cost nothing and"
    yield "are counted. `Auto` is not fitted, and given the names of the set's covariates. All sets of"
    yield "[accuracy.md](accuracy.md), smaller, and series unlike those; rules were chosen on the development sets.\n"
    yield from verdict(found)
    yield f"\n| set | role | {' | '.join(COLUMNS)} | changes per 100, Auto |"
    yield "| --- | --- |" + " --- |" * (len(COLUMNS) + 1)
    for each in found:
        cells = [f"{100 * each.overhead[column]:.1f}" for column in COLUMNS]
        changes = f"{each.changes[f'Auto, {BALANCED}']:.0f}"
        yield f"| {each.data.name} | {each.data.role} | {' | '.join(cells)} | {changes} |"
    yield "\n## The sets\n"
    for each in found:
        yield f"- {each.data.name}: {each.data.about}; jobs: {each.of}."


def verdict(found: list[Found]) -> Iterator[str]:
    """Yield what the table says of the aims."""
    yield "Aims, each with what misses it:\n"
    pairs = [(name, other) for name in PREDICTORS for other in (f"{name}, {BARE}", EQUAL)]
    late = [
        f"{name} on {each.data.name} {100 * cost:.1f}% behind {other.rpartition(', ')[2]}"
        for each in found
        for name, other in pairs
        if (cost := each.cost(f"{name}, {BALANCED}", other)) > BEHIND
    ]
    yield f"- The balancer is never more than {100 * BEHIND:.0f}% of the iteration's time behind the bare split of the"
    yield f"  same forecasts, nor behind equal batches: {'; '.join(late) or 'nothing misses it'}."
    ours = f"Auto, {BALANCED}"
    lost = {each.data.name: each.overhead[ours] - min(each.overhead.values()) for each in found}
    missed = [f"{name} ({100 * by:.1f} points)" for name, by in lost.items() if by > LEVEL]
    yield f"- `Auto` through the balancer is ahead of or within {100 * LEVEL:.1f} points of every other column on nine"
    yield f"  sets in ten: on {len(found) - len(missed)} of {len(found)}; not on {', '.join(missed) or 'none'}."
    others = [f"{name}, {BALANCED}" for name in PREDICTORS] + [EQUAL]
    level = sum(each.overhead[ours] <= min(each.overhead[o] for o in others) + LEVEL for each in found)
    yield f"  Of equal batches and what goes through the balancer: on {level}."


def main() -> None:
    chosen = options(__doc__, processes=1)
    with ProcessPoolExecutor(chosen.processes) as pool:
        found = list(pool.map(measured, wanted(chosen)))
    put("\n".join(page(found, sum(os.times()[:4]))) + "\n", chosen, Path(__file__).with_suffix(".md"))


if __name__ == "__main__":
    main()
