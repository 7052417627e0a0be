"""Where dividing by cost and speed loses against a clairvoyant, without any clock: simulated own times.

python benchmarks/work_noise.py           # about a minute; writes work_noise.md
python benchmarks/work_noise.py --quick   # prints only

Axes: W ranks, F features of a sample.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from paceline.coordinator import LoadBalancer, Policy
from paceline.coordinator.torch.loading.costs.costs import Costs
from paceline.coordinator.work import WorkModel
from paceline.predictors import Auto, Report

QUICK = "--quick" in sys.argv
RANKS, GLOBAL_BATCH, LONGEST = 2, 64, 384
STEPS, WARM_UP, SEEDS = 100, 20, 3 if QUICK else 10
TRUE = np.array([0.6, 0.35, 0.05])
"""What length, its square and being a sample share of the cost of a mean sample: as profiled in work_live.py."""

FIXED = 0.03
"""Time of a step besides its samples, as a share of a mean batch's."""

SPEEDS = {"none": (1.0, 0), "quota": (0.5, 0), "bursty": (0.25, 20)}


@dataclass(frozen=True)
class Told:
    """What a scheme is told beforehand, in place of learning it."""

    cost: bool = False
    speed: bool = False
    speeds_alike: bool = False


SCHEMES = {
    "equal shares, learned cost": Told(speeds_alike=True),
    "forecast speeds, true cost": Told(cost=True),
    "forecast speeds, learned cost": Told(),
}


def lengths(chance: np.random.Generator) -> np.ndarray:
    """Return lengths as those of functions of Python's library are: log-normal, cut."""
    return np.clip(np.ceil(chance.lognormal(4.0, 1.0, 4000)), 2, LONGEST)


def speeds_of(kind: str, chance: np.random.Generator, steps: int) -> np.ndarray:
    """Return the speeds of all ranks in each step."""
    slow, mean = SPEEDS[kind]
    on, second = bool(chance.random() < 0.5), np.empty(steps)
    for step in range(steps):
        second[step] = slow if on or not mean else 1.0
        on ^= bool(mean) and chance.random() < 1 / mean
    return np.stack([np.ones(steps), second], axis=1)


def lost(told: Told, kind: str, noise: float, seed: int, policy: Policy | None = None) -> tuple[float, float, float]:
    """Return how much longer the steps took than a clairvoyant's, how far costs were off, and shares from the best."""
    chance = np.random.default_rng(seed)
    length_N = lengths(chance)
    columns = np.stack([length_N, length_N**2, np.ones_like(length_N)], axis=1)
    costs = Costs(columns / columns.mean(axis=0), length_N, padded=True)
    true = Costs((costs.features @ TRUE)[:, None], length_N, padded=True)
    work, balancer = (
        WorkModel(3),
        LoadBalancer(Auto(), workers=["0", "1"], global_batch=GLOBAL_BATCH, policy=policy or Policy()),
    )
    speed_TW = speeds_of(kind, chance, WARM_UP + STEPS)
    took = best = off = 0.0
    for step, speed_W in enumerate(speed_TW):
        drawn = chance.integers(0, len(length_N), GLOBAL_BATCH)
        shares_W = np.array([GLOBAL_BATCH // 2] * 2) if told.speeds_alike else balancer.plan.sizes
        coefficients = TRUE if told.cost else work.coefficients
        found = costs.assigned(drawn, shares_W, coefficients, 1)
        features_WF = np.stack([costs.of_batch(drawn[found.of(rank)]) for rank in range(RANKS)])
        own_W = (features_WF @ TRUE + FIXED * GLOBAL_BATCH / 2) / speed_W
        ideal = true.assigned(drawn, speed_W / speed_W.max() * 1000, np.ones(1), 1)
        ideal_W = (ideal.work + FIXED * GLOBAL_BATCH / 2) / speed_W
        if step >= WARM_UP:
            took, best = took + own_W.max(), best + ideal_W.max()
            off += abs(shares_W[0] / GLOBAL_BATCH - speed_W[0] / speed_W.sum())
        seen_W = own_W * chance.lognormal(0, noise, RANKS)
        counted_W = features_WF @ coefficients
        fixed_W = np.minimum(0.0 if told.cost else work.fixed, 0.95 * seen_W)
        balancer.step(Report(samples=shares_W, seconds=fixed_W + (seen_W - fixed_W) * shares_W / counted_W))
        work.observe(features_WF, seen_W)
    cost, known = costs.features @ work.coefficients, costs.features @ TRUE
    return took / best - 1, float(np.abs(cost / cost.mean() - known).sum() / known.sum()), off / STEPS
