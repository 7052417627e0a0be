"""How steady and how good the load balancer's plans are, and how long a step takes.

Run as ``python benchmarks/balancer.py``; it writes balancer.md beside this file. ``--quick`` prints a part.
Axes: T iterations, W workers.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from machine import machine
from numpy.typing import NDArray

from paceline.coordinator import LeaderSearch, LoadBalancer, Policy, SearchFallback
from paceline.datasets import Trace, recorded
from paceline.eval import Scheme, replay
from paceline.predictors import EWMA, NARX, LastValue, Mixture, Predictor, Report, checks

Array = NDArray[np.float64]
Sizes = NDArray[np.int64]

POLICIES = {
    "no policy": Policy(warmup=0, dead_band=0.0, cooldown=0, largest_change=np.inf),
    "default policy": Policy(),
    "dead-band alone": Policy(cooldown=0, largest_change=np.inf),
    "default, but gains are never urgent": Policy(urgent=1.0),
    "default, and half a step after a reversal": Policy(reversal_memory=3),
}
SAMPLES_PER_WORKER = 320
QUICK = "--quick" in sys.argv


class Planned:
    """A replay scheme that does what a load balancer plans: the report first, then the drivers of the boundary."""

    def __init__(self, predictor: Predictor, policy: Policy, *, guarded: bool = False) -> None:
        self.predictor = predictor
        self.policy = policy
        self.guarded = guarded

    @property
    def driver_names(self) -> tuple[str, ...]:
        """The drivers its predictor reads."""
        return self.predictor.driver_names

    def reset(self, workers: Sequence[str], global_batch: int) -> None:
        """Start a job."""
        bare = LoadBalancer(self.predictor, workers=workers, global_batch=global_batch, policy=self.policy)
        self.planner = SearchFallback(bare) if self.guarded else bare
        self.report: Report | None = None

    def sizes(self, iteration: int, drivers: Array | None) -> Sizes:
        """Return the planned sizes."""
        if self.report is not None:
            self.planner.step(self.report, drivers)
        return self.planner.plan.sizes

    def observe(self, sizes: Sizes, seconds: Array, drivers: Array | None) -> None:
        """Take in a finished iteration."""
        self.report = Report(sizes, seconds, drivers=drivers)


class Searched:
    """A replay scheme that does what the leader search plans."""

    driver_names: tuple[str, ...] = ()

    def reset(self, workers: Sequence[str], global_batch: int) -> None:
        """Start a job."""
        self.planner = LeaderSearch(workers=workers, global_batch=global_batch)

    def sizes(self, iteration: int, drivers: Array | None) -> Sizes:
        """Return the planned sizes."""
        return self.planner.plan.sizes

    def observe(self, sizes: Sizes, seconds: Array, drivers: Array | None) -> None:
        """Take in a finished iteration."""
        self.planner.step(Report(sizes, seconds))


# -- steady and good -------------------------------------------------------------------------------------------------


def with_stragglers(workers: int, seed: int, iterations: int = 1000) -> Trace:
    """Constant speeds with noise of 3 %, where each worker is slow for one iteration in thirty."""
    rng = np.random.default_rng(seed)
    slow_TW = rng.random((iterations, workers)) < 1 / 30
    speed_TW = rng.lognormal(4.6, 0.4, workers) * np.exp(rng.normal(0, 0.03, slow_TW.shape) - 0.9 * slow_TW)
    return Trace(np.full(speed_TW.shape, 64.0), 64.0 / speed_TW, meta={"job": f"stragglers-{workers}-{seed}"})


def sources() -> Iterator[tuple[str, list[Trace], list[Trace]]]:
    """Yield a name, traces to fit and traces to score."""
    if QUICK:
        yield "synthetic: 4 workers, random stragglers", [with_stragglers(4, 9, 300)], [with_stragglers(4, 0, 300)]
        return
    for workers in (4, 32):
        name = f"synthetic: {workers} workers, 3 % noise, random stragglers of one iteration"
        yield name, [with_stragglers(workers, seed=9)], [with_stragglers(workers, seed) for seed in range(3)]
    made = [checks.example_trace(1000, seed) for seed in range(4)]
    yield (
        "synthetic: 3 workers, 3 % noise, speeds that switch and a driver (driving factor) that shows it",
        made[3:],
        made[:3],
    )
    if recorded.names("held-out"):
        yield "recorded: the held-out jobs", recorded.load_split("fit"), recorded.load_split("held-out")


def compared(fit: list[Trace], score: list[Trace]) -> Iterator[str]:
    predictors = (LastValue(), EWMA(0.5), NARX().fit(fit))
    schemes: dict[str, Scheme] = {
        f"{type(predictor).__name__}, {name}": Planned(predictor, policy)
        for predictor in predictors
        for name, policy in POLICIES.items()
    }
    schemes["EWMA, default policy, search to fall back on"] = Planned(EWMA(0.5), Policy(), guarded=True)
    schemes["leader search"] = Searched()
    scores = [_scored(schemes, trace) for trace in score]
    yield "| plans by | changes per 100 iterations | regret | speed-up over equal |"
    yield "| --- | --- | --- | --- |"
    for name in schemes:
        changes, regret, speed_up = np.mean([each[name] for each in scores], axis=0)
        yield f"| {name} | {changes:.0f} | {100 * regret:.1f} % | {speed_up:.2f} |"


def _scored(schemes: Mapping[str, Scheme], trace: Trace) -> dict[str, Array]:
    """Return changes per 100 iterations, regret and speed-up by the scheme."""
    result = replay(schemes, trace, global_batch=SAMPLES_PER_WORKER * len(trace.workers))
    table = result.table.set_index("scheme")
    scores = {}
    for name in schemes:
        sizes_TW = np.array([iteration.sizes for iteration in result.iterations[name]])
        changes = 100 * (np.diff(sizes_TW, axis=0) != 0).any(axis=1).mean()
        scores[name] = np.array([changes, table.loc[name, "regret"], table.loc[name, "speed-up"]])
    return scores


# -- time ------------------------------------------------------------------------------------------------------------


def timed() -> Iterator[str]:
    yield "| workers | predictor | a step | a step that keeps the sizes | a step that changes them |"
    yield "| --- | --- | --- | --- | --- |"
    narx = NARX(drivers=()).fit([checks.example_trace()])
    for workers in (8, 32) if QUICK else (8, 32, 1000, 10_000):
        for predictor in (LastValue(), EWMA(0.5), narx, Mixture()):
            seconds, acted = step_times(predictor, workers, steps=1000 if workers < 100 else 100)
            columns = seconds, seconds[~acted], seconds[acted]
            yield f"| {workers:,} | {type(predictor).__name__} | {' | '.join(map(_median, columns))} |"


def step_times(predictor: Predictor, workers: int, steps: int) -> tuple[Array, NDArray[np.bool_]]:
    """Time the steps of a fleet with 3 % noise in which one in twenty iterations slows an eighth for a while."""
    rng = np.random.default_rng(workers)
    usual_W = rng.lognormal(4.6, 0.4, workers)
    speed_W = usual_W.copy()
    planner = LoadBalancer(predictor, workers=range(workers), global_batch=64 * workers)
    seconds, acted = [], []
    for k in range(steps):
        if k % 20 == 10:
            speed_W = usual_W * np.where(rng.random(workers) < 1 / 8, 0.5, 1.0)
        sizes = planner.plan.sizes
        report = Report(sizes, sizes / (speed_W * np.exp(rng.normal(0, 0.03, workers))))
        start = time.perf_counter()
        plan = planner.step(report)
        seconds.append(time.perf_counter() - start)
        acted.append(plan.acted)
    warm = planner.policy.warmup
    return np.array(seconds[warm:]), np.array(acted[warm:])


def _median(seconds: Array) -> str:
    if not len(seconds):
        return "-"
    middle = statistics.median(seconds)
    return f"{1e6 * middle:.0f} µs" if middle < 1e-3 else f"{1e3 * middle:.1f} ms"


def report() -> Iterator[str]:
    yield "# How steady and how good the load balancer is\n"
    yield "Command: `python benchmarks/balancer.py`\n"
    yield f"Machine: {machine('torch')}; one thread; other work ran on it.\n"
    yield "## Steady and good\n"
    yield f"Replay at {SAMPLES_PER_WORKER} samples per worker, the first 50 iterations not scored. A change is an"
    yield "iteration in which any size differs from the one before; in a replay it costs nothing, in a real job it may."
    yield "Regret: by how much the mean iteration exceeds the clairvoyant's, who knows the noise of each iteration."
    for name, fit, score in sources():
        yield f"\n### {name[0].upper()}{name[1:]}\n"
        yield f"Means over {len(score)} jobs; NARX was fitted on {len(fit)} other{'s' * (len(fit) > 1)}.\n"
        yield from compared(fit, score)
    yield "\n## Time of a step\n"
    yield "All of `LoadBalancer.step`: learn, forecast, split, decide, and give the reason. Medians; default policy;"
    yield "noise of 3 %, and every 20 iterations another eighth of the fleet runs at half speed.\n"
    yield from timed()


if __name__ == "__main__":
    text = []
    for row in report():
        print(row, flush=True)
        text.append(row)
    if not QUICK:
        Path(__file__).with_suffix(".md").write_text("\n".join(text) + "\n")
