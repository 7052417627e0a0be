"""Worlds that no model of the library made: a search for one in which balancing is slower than equal batches.

Run as ``python benchmarks/worlds.py``; it writes worlds.md beside this file. ``--worlds 60`` prints a smaller search.
A worker's time is ``fixed + samples * per_sample + pause``, and each of these moves in its own way.
Axes: T iterations, W workers.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from machine import machine
from numpy.typing import NDArray

from paceline import LoadBalancer
from paceline.predictors import Auto, Curves, Report
from paceline.solver import split

Array = NDArray[np.float64]

WORLDS, ITERATIONS, SETTLED = 360, 400, 50
SPEEDS = ("steady", "quiet", "bursts", "steps", "walks", "flicker")
FIXED = ("none", "all, slowed too", "all, constant", "one worker", "each its own", "moves by itself")
PAUSES = ("none", "outliers", "evaluations")
SLOWER, WORTH, ENOUGH = 0.02, 0.02, 0.95
"""A world counts as slower than equal batches beyond this, as worth balancing from this gain on, and this share of the
best fixed split's gain is asked for in steady worlds."""


@dataclass(frozen=True, eq=False)
class World:
    """Times that are imposed, whatever the balancer believes."""

    speeds: str
    fixed: str
    pauses: str
    horizon: int
    samples: int
    fixed_TW: Array
    per_sample_TW: Array
    pause_TW: Array

    def seconds(self, k: int, sizes: Array) -> Array:
        """Return each worker's time for these sizes in iteration ``k``, ``[W]``."""
        return self.fixed_TW[k] + self.per_sample_TW[k] * sizes + self.pause_TW[k]


@dataclass(frozen=True)
class Score:
    """Times of a world over those of equal batches; the best fixed split only counts once settled."""

    world: int
    speeds: str
    fixed: str
    pauses: str
    horizon: int
    taken: float
    late: float
    best: float
    clairvoyant: float
    changes: float

    @property
    def gain(self) -> float:
        """Return the share of the best fixed split's gain that was reached, once settled."""
        return (1 - self.late) / (1 - self.best)


def world(seed: int) -> World:
    """Draw a world: two to eight workers, any kind of speeds and fixed parts, any share of time that is fixed."""
    rng = np.random.default_rng((50, seed))
    kind, part = SPEEDS[seed % len(SPEEDS)], FIXED[seed // len(SPEEDS) % len(FIXED)]
    pauses = PAUSES[int(rng.integers(len(PAUSES)))]
    workers, horizon, share = int(rng.integers(2, 9)), int(rng.integers(1, 3)), float(rng.uniform(0, 0.95))
    slow_TW = slowness(kind, workers, rng)
    unequal = 0.0 if kind == "quiet" else float(rng.uniform(0, 0.5))
    usual_W = np.exp(rng.normal(0, unequal, workers))
    samples = int(rng.choice([16, 32, 64, 128]))
    fixed_TW, per_sample_TW = parts(part, share, slow_TW * usual_W, rng)
    noise = float(rng.uniform(0.003, 0.04))
    fixed_TW = fixed_TW * np.exp(rng.normal(0, noise, fixed_TW.shape))
    per_sample_TW = per_sample_TW / samples * np.exp(rng.normal(0, noise, fixed_TW.shape))
    pause_TW = stalls(pauses, slow_TW.shape, rng)
    return World(kind, part, pauses, horizon, samples, fixed_TW, per_sample_TW, pause_TW)


def slowness(kind: str, workers: int, rng: np.random.Generator) -> Array:
    """Return how many times as long as usual each worker takes."""
    slow_TW = np.ones((ITERATIONS, workers))
    if kind == "bursts":
        length, factor = int(rng.integers(5, 60)), float(rng.uniform(1.3, 4))
        for w in range(workers):
            k = int(rng.integers(0, 3 * length))
            while k < ITERATIONS:
                slow_TW[k : k + length, w] *= factor
                k += length + int(rng.integers(length, 5 * length))
    elif kind == "steps":
        for w in range(workers):
            for k in rng.integers(0, ITERATIONS, int(rng.integers(0, 4))):
                slow_TW[k:, w] *= np.exp(rng.normal(0, 0.5))
    elif kind == "walks":
        slow_TW *= np.exp(np.cumsum(rng.normal(0, float(rng.uniform(0.005, 0.06)), slow_TW.shape), axis=0))
    elif kind == "flicker":
        slow_TW *= np.exp(rng.normal(0, float(rng.uniform(0.1, 0.5)), slow_TW.shape))
    return slow_TW


def parts(part: str, share: float, slow_TW: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the fixed seconds, and those of an equal batch besides them."""
    workers = slow_TW.shape[1]
    if part == "none":
        return np.zeros_like(slow_TW), slow_TW
    if part == "all, slowed too":
        return share * slow_TW, (1 - share) * slow_TW
    if part == "all, constant":
        return np.full_like(slow_TW, share), (1 - share) * slow_TW
    if part == "one worker":
        fixed_TW = np.zeros_like(slow_TW)
        fixed_TW[:, int(rng.integers(workers))] = share / (1 - share)
        return fixed_TW, slow_TW
    share_W = rng.uniform(0, 0.95, workers)
    if part == "each its own":
        return share_W * slow_TW, (1 - share_W) * slow_TW
    moved_TW = np.exp(np.cumsum(rng.normal(0, 0.03, slow_TW.shape), axis=0))
    return share * moved_TW, (1 - share) * slow_TW


def stalls(pauses: str, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    """Return seconds that no batch caused: rare accidents, or an evaluation of one worker or all every so often."""
    pause_TW = np.zeros(shape)
    if pauses == "outliers":
        pause_TW = (rng.random(shape) < 0.02) * rng.uniform(1, 10, shape)
    elif pauses == "evaluations":
        every, who = int(rng.integers(15, 80)), slice(None) if rng.random() < 0.5 else slice(0, 1)
        pause_TW[every::every, who] = rng.uniform(2, 20)
    return pause_TW


def scored(seed: int) -> Score:
    """Run the default balancer through a world."""
    made = world(seed)
    workers = made.fixed_TW.shape[1]
    batch, equal_W = made.samples * workers, np.full(workers, made.samples)
    balancer = LoadBalancer(Auto(), workers=range(workers), global_batch=batch, horizon=made.horizon)
    plans = [balancer.plan.sizes] * made.horizon
    taken, equal, clairvoyant, sizes_TW = [], [], [], []
    for k in range(ITERATIONS):
        seconds_W = made.seconds(k, plans[k])
        taken.append(seconds_W.max())
        equal.append(made.seconds(k, equal_W).max())
        clairvoyant.append(
            split(line(made.fixed_TW[k] + made.pause_TW[k], made.per_sample_TW[k]), batch, lower=1).makespan
        )
        sizes_TW.append(plans[k])
        plans.append(balancer.step(Report(samples=plans[k], seconds=seconds_W)).sizes)
    late, before = np.sum(taken[SETTLED:]), np.sum(equal[SETTLED:])
    fixed_W, per_W = np.median(made.fixed_TW, axis=0), np.median(made.per_sample_TW, axis=0)
    best_W = split(line(fixed_W, per_W), batch, lower=1).sizes
    best = sum(made.seconds(k, best_W).max() for k in range(SETTLED, ITERATIONS))
    changes = (np.diff(sizes_TW, axis=0) != 0).any(axis=1).mean()
    return Score(
        seed,
        made.speeds,
        made.fixed,
        made.pauses,
        made.horizon,
        float(np.sum(taken) / np.sum(equal)),
        float(late / before),
        float(best / before),
        float(np.sum(clairvoyant) / np.sum(equal)),
        100 * float(changes),
    )


def line(fixed_W: Array, per_sample_W: Array) -> Curves:
    """Return the curves of workers with these parts."""
    return Curves(np.zeros(len(fixed_W)), per_sample_W, fixed_W, np.full(len(fixed_W), np.inf))


def page(scores: list[Score]) -> Iterator[str]:
    """Yield the lines of the page."""
    slower = [s for s in scores if s.taken > 1 + SLOWER]
    steady = [s for s in scores if s.speeds in ("steady", "quiet") and s.best < 1 - WORTH]
    yield "# Worlds that no model of the library made\n"
    yield "Command: `python benchmarks/worlds.py`\n"
    yield f"Machine: {machine()}; one thread. Times are imposed, so the machine does not matter.\n"
    yield f"{len(scores)} random worlds of two to eight workers and {ITERATIONS} iterations. A worker's time is a fixed"
    yield "part, up to 95% of a step, a part that follows its batch, and pauses; each moves in its own way, as `world`"
    yield "in the program says. Plans are for the next iteration or the one after it. The table shows times of"
    yield "`LoadBalancer(Auto(), ...)` with its defaults over those of equal batches: above one, it is slower. The"
    yield "clairvoyant knows each iteration beforehand, noise and pauses too, so nobody reaches it.\n"
    worst = max(s.taken for s in scores)
    yield f"- Slower than equal batches by more than {SLOWER:.0%}: **{len(slower)} of {len(scores)}** worlds"
    yield f"  {[s.world for s in slower] or ''}; the worst takes {worst:.4f} of equal batches' time."
    below = [f"{s.world} ({s.gain:.3f})" for s in steady if s.gain < ENOUGH]
    yield f"- Where speeds are steady and the best fixed split gains at least {WORTH:.0%} ({len(steady)} worlds), the"
    yield f"  balancer gains {np.mean([s.gain for s in steady]):.3f} of that after {SETTLED} iterations in the mean,"
    yield f"  {min(s.gain for s in steady):.3f} at least; below {ENOUGH}: {', '.join(below) or 'none'}.\n"
    yield "| | worlds | time over equal batches | worst world | clairvoyant | changes per 100 iterations |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for axis in ("speeds", "fixed", "pauses", "horizon"):
        for value in dict.fromkeys(getattr(s, axis) for s in scores):
            rows = [s for s in scores if getattr(s, axis) == value]
            means = [float(np.mean([getattr(s, name) for s in rows])) for name in ("taken", "clairvoyant", "changes")]
            worst = max(s.taken for s in rows)
            cells = [f"{means[0]:.3f}", f"{worst:.3f}", f"{means[1]:.3f}", f"{means[2]:.0f}"]
            yield f"| {axis}: {value} | {len(rows)} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=WORLDS, help="how many; the page is of the default")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    with ProcessPoolExecutor(chosen.processes) as pool:
        scores = list(pool.map(scored, range(chosen.first, chosen.first + chosen.worlds), chunksize=4))
    text = "\n".join(page(scores)) + "\n"
    if (chosen.worlds, chosen.first) == (WORLDS, 0):
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
