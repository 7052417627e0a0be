"""How steady and how good the load balancer's plans are, and which of its rules that needs.

Run as ``python benchmarks/balancer.py``; it writes balancer.md beside this file. ``--quick`` prints a part.
Axes: T iterations, W workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from machine import machine
from numpy.typing import NDArray

from paceline.coordinator import LoadBalancer, Policy
from paceline.datasets import Trace, recorded
from paceline.eval import Balanced, SizeScheme, replay
from paceline.predictors import EWMA, Auto, BatchTime, LastValue, LeaderSearch, Predictor, Report, checks

Array = NDArray[np.float64]
Sizes = NDArray[np.int64]

SAMPLES_PER_WORKER, ITERATIONS = 320, 500
QUICK = "--quick" in sys.argv
FOLLOWS_ALL = Policy(warmup=0, change_cost=0.0, risk=0.0)


RULES: dict[str, Policy | None] = {
    "every forecast followed": FOLLOWS_ALL,
    "default": None,
    "without hedging": Policy(risk=0.0),
    "every hedged forecast followed": Policy(change_cost=0.0),
}


# -- steady and good -------------------------------------------------------------------------------------------------


def with_stragglers(workers: int, seed: int, iterations: int = ITERATIONS) -> Trace:
    """Constant speeds with noise of 3 %, where each worker is slow for one iteration in thirty."""
    rng = np.random.default_rng(seed)
    slow_TW = rng.random((iterations, workers)) < 1 / 30
    speed_TW = rng.lognormal(4.6, 0.4, workers) * np.exp(rng.normal(0, 0.03, slow_TW.shape) - 0.9 * slow_TW)
    return Trace(np.full(speed_TW.shape, 64.0), 64.0 / speed_TW, meta={"job": f"stragglers-{workers}-{seed}"})


def with_noise(workers: int, noise: float, seed: int, iterations: int = ITERATIONS) -> Trace:
    """Equal workers with nothing but noise: there is nothing to gain, and something to lose."""
    speed_TW = 100 * np.random.default_rng(seed).lognormal(0, noise, (iterations, workers))
    return Trace(np.full(speed_TW.shape, 64.0), 64.0 / speed_TW, meta={"job": f"noise-{workers}-{noise}-{seed}"})


def with_bursts(length: int, seed: int, iterations: int = ITERATIONS) -> Trace:
    """Four equal workers with 3 % noise, each at 35 % of its speed for a fifth of the time, ``length`` at once."""
    rng = np.random.default_rng(seed)
    speed_TW = 100 * rng.lognormal(0, 0.03, (iterations, 4))
    for w in range(4):
        k = int(rng.exponential(4 * length))
        while k < iterations:
            speed_TW[k : k + length, w] *= 0.35
            k += length + int(rng.exponential(4 * length))
    return Trace(np.full(speed_TW.shape, 64.0), 64.0 / speed_TW, meta={"job": f"bursts-{length}-{seed}"})


def sources() -> Iterator[tuple[str, list[Trace]]]:
    """Yield a name, and traces to score."""
    seeds = range(1 if QUICK else 2)
    yield "synthetic: 4 workers, 3 % noise, random stragglers of one iteration", [with_stragglers(4, s) for s in seeds]
    if QUICK:
        return
    made = [checks.example_trace(ITERATIONS, seed) for seed in seeds]
    yield "synthetic: 3 workers, 3 % noise, speeds that switch and a covariate that shows it", made
    for length in (5, 30):
        yield f"synthetic: 4 workers, bursts of {length} iterations", [with_bursts(length, seed) for seed in seeds]
    for workers, noise in ((2, 0.05), (4, 0.15), (32, 0.15)):
        name = f"synthetic: {workers} equal workers with {100 * noise:.0f} % noise"
        yield name, [with_noise(workers, noise, seed) for seed in seeds]
    if recorded.names("held-out"):
        yield "recorded: the held-out jobs", recorded.load_split("held-out")


def compared(score: list[Trace]) -> Iterator[str]:
    predictors = (LastValue(), EWMA(0.5), Auto())
    schemes: dict[str, SizeScheme] = {
        f"{type(predictor).__name__}, {name}": Balanced(predictor, policy)
        for predictor in predictors
        for name, policy in RULES.items()
    }
    scores = [_scored(schemes, trace) for trace in score]
    yield "| plans by | changes per 100 iterations | regret | speed-up over equal |"
    yield "| --- | --- | --- | --- |"
    for name in schemes:
        changes, regret, speed_up = np.mean([each[name] for each in scores], axis=0)
        yield f"| {name} | {changes:.0f} | {100 * regret:.1f} % | {speed_up:.3f} |"


def _scored(schemes: Mapping[str, SizeScheme], trace: Trace) -> dict[str, Array]:
    """Return changes per 100 iterations, regret and speed-up by the scheme."""
    result = replay(schemes, trace, global_batch=SAMPLES_PER_WORKER * len(trace.workers))
    table = result.table.set_index("scheme")
    scores = {}
    for name in schemes:
        sizes_TW = np.array([iteration.sizes for iteration in result.iterations[name]])
        changes = 100 * (np.diff(sizes_TW, axis=0) != 0).any(axis=1).mean()
        scores[name] = np.array([changes, table.loc[name, "regret"], table.loc[name, "speed-up"]])
    return scores


# -- curves that no line follows ---------------------------------------------------------------------------------

SPEED = np.array([100.0, 200.0, 100.0, 50.0])
CURVES: dict[str, Callable[[Array], Array]] = {
    "proportional": lambda x: x / SPEED,
    "fixed costs": lambda x: np.array([0.5, 0.1, 1.0, 0.2]) + x / SPEED,
    "a floor of one worker": lambda x: np.maximum([1.5, 0.2, 0.2, 0.2], x / SPEED),
    "waves of 32 samples": lambda x: np.ceil(x / 32) * 32 / SPEED,
    "convex": lambda x: (x / 128) ** 1.6 * 128 / SPEED,
    "concave": lambda x: (x / 128) ** 0.5 * 128 / SPEED,
    "a cliff: 4 times as long above 150 samples, one worker": lambda x: x / SPEED * np.where(x > 150, [1, 4, 1, 1], 1),
    "cliffs: 3 times as long above a limit, all workers": lambda x: (
        x / SPEED * np.where(x > np.array([120, 180, 120, 100]), 3, 1)
    ),
}
CONTESTANTS: dict[str, tuple[Callable[[], Predictor], Policy | None]] = {
    "EWMA": (EWMA, None),
    "BatchTime": (BatchTime, None),
    "Auto": (Auto, None),
    "LeaderSearch, every forecast followed": (LeaderSearch, FOLLOWS_ALL),
}
GLOBAL_BATCH, LASTING = 512, 600


def curved() -> Iterator[str]:
    """Yield the rows of the table of curves: the regret of the mean iteration."""
    yield f"| curve | equal batches | {' | '.join(CONTESTANTS)} |"
    yield "| --- | --- |" + " --- |" * len(CONTESTANTS)
    for name, seconds in CURVES.items():
        best = best_makespan(seconds)
        equal = float(seconds(np.full(4, GLOBAL_BATCH / 4)).max()) / best - 1
        found = [makespan(seconds, make(), policy) / best - 1 for make, policy in CONTESTANTS.values()]
        yield f"| {name} | {equal:.0%} | {' | '.join(f'{each:.0%}' for each in found)} |"


def makespan(seconds: Callable[[Array], Array], predictor: Predictor, policy: Policy | None) -> float:
    """Return the mean time of an iteration, with 3 % noise, after the first 100."""
    balancer = LoadBalancer(predictor, workers=range(4), global_batch=GLOBAL_BATCH, policy=policy)
    rng, taken = np.random.default_rng(0), []
    for _ in range(LASTING):
        sizes = balancer.plan.sizes
        took = seconds(sizes.astype(np.float64)) * rng.lognormal(0, 0.03, 4)
        taken.append(took.max())
        balancer.step(Report(sizes, took))
    return float(np.mean(taken[100:]))


def best_makespan(seconds: Callable[[Array], Array]) -> float:
    """Return the time of the best split without noise: the shortest by which the workers can end the whole batch."""
    times_XW = np.maximum.accumulate([seconds(np.full(4, float(x))) for x in range(1, GLOBAL_BATCH + 1)])
    ordered = np.unique(times_XW)
    enough = [(times_XW <= time).sum() >= GLOBAL_BATCH for time in ordered]
    return float(ordered[int(np.argmax(enough))])


def report() -> Iterator[str]:
    yield "# How steady and how good the load balancer is\n"
    yield "Command: `python benchmarks/balancer.py`\n"
    yield f"Machine: {machine()}; one thread; other work ran on it.\n"
    yield "## Steady and good\n"
    yield f"Replay at {SAMPLES_PER_WORKER} samples per worker, the first 50 iterations not scored. A change is an"
    yield "iteration in which any size differs from the one before; in a replay it costs nothing, in a real job it may."
    yield "Regret: by how much the mean iteration exceeds the oracle's, who knows the noise of each iteration."
    yield "The two rules are left out one by one: hedging, which follows forecasts as far as that has lately paid, and"
    yield "the cost of a change, which keeps sizes until more than that has been forgone."
    for name, score in sources():
        yield f"\n### {name[0].upper()}{name[1:]}\n"
        yield f"Means over {len(score)} job{'s' * (len(score) > 1)}.\n"
        yield from compared(score)
    yield "\n## Times that no line follows\n"
    yield f"Four workers, {GLOBAL_BATCH} samples, 3 % noise, {LASTING} iterations, the first 100 not scored. Regret: by"
    yield "how much the mean iteration exceeds the best split without noise, which noise alone makes about 3 %.\n"
    yield from curved()


if __name__ == "__main__":
    text = []
    for row in report():
        print(row, flush=True)
        text.append(row)
    if not QUICK:
        Path(__file__).with_suffix(".md").write_text("\n".join(text) + "\n")
