"""Speeds that benchmarks/imposed.py imposes on the ranks of a live job. Axes: T iterations, W ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from paceline._arrays import Array
from paceline.datasets import recorded as recordings

SLOW = 0.35
"""Share of its speed that a rank keeps in a burst."""

BEGINS = 1 / 60
"""Chance that a burst begins in an iteration."""

NOISE = 0.02
"""Spread of every rank's speed from one iteration to the next."""


def step(iterations: int, ranks: int, chance: np.random.Generator) -> Array:
    """Return one rank at a third of its speed for the second quarter, and another at 60% for the third."""
    speed_TW = np.ones((iterations, ranks))
    quarter = iterations // 4
    speed_TW[quarter : 2 * quarter, 0] = SLOW
    speed_TW[2 * quarter : 3 * quarter, 1] = 0.6
    return speed_TW


def bursts(mean: int) -> Callable[[int, int, np.random.Generator], Array]:
    """Return ranks that turn slow at random, independently, for so many iterations in the mean."""

    def speeds(iterations: int, ranks: int, chance: np.random.Generator) -> Array:
        slow_W, speed_TW = np.zeros(ranks, dtype=bool), np.ones((iterations, ranks))
        for speed_W in speed_TW:
            drawn_W = chance.random(ranks)
            slow_W = np.where(slow_W, drawn_W > 1 / mean, drawn_W < BEGINS)
            speed_W[slow_W] = SLOW
        return speed_TW

    return speeds


def noise(iterations: int, ranks: int, chance: np.random.Generator) -> Array:
    """Return equal ranks with 5% of noise: there is nothing to gain."""
    return np.exp(0.05 * chance.standard_normal((iterations, ranks)))


def mixed(iterations: int, ranks: int, chance: np.random.Generator) -> Array:
    """Return ranks of unequal, constant speeds."""
    return np.tile(np.linspace(0.6, 1.4, ranks), (iterations, 1))


def recorded(job: str) -> Callable[[int, int, np.random.Generator], Array]:
    """Return the speeds of a recorded job, each worker's by its own mean, repeated where it is too short or small."""

    def speeds(iterations: int, ranks: int, chance: np.random.Generator) -> Array:
        speed_TW = recordings.load(job).speed
        speed_TW = speed_TW[np.isfinite(speed_TW).all(axis=1)]
        speed_TW = speed_TW / speed_TW.mean(axis=0)
        # A rank beyond the recorded ones lives through the same job, half of it later.
        columns = [
            np.roll(speed_TW[:, rank % speed_TW.shape[1]], rank // speed_TW.shape[1] * 97) for rank in range(ranks)
        ]
        return np.resize(np.stack(columns), (ranks, len(speed_TW))).T[np.arange(iterations) % len(speed_TW)]

    return speeds


PATTERNS: dict[str, Callable[[int, int, np.random.Generator], Array]] = {
    "step": step,
    "bursts of 5": bursts(5),
    "bursts of 30": bursts(30),
    "bursts of 200": bursts(200),
    "noise": noise,
    "mixed": mixed,
    "digits-cnn-bursty": recorded("digits-cnn-bursty"),
    "photo-denoiser-moving": recorded("photo-denoiser-moving"),
}


def imposed(pattern: str, iterations: int, ranks: int, samples: int, seconds: float, seed: int = 0) -> Array:
    """Return speeds at which ``samples`` take a rank of average speed so many seconds, ``[T, W]``, in samples/s."""
    chance = np.random.default_rng(seed)
    speed_TW = PATTERNS[pattern](iterations, ranks, chance)
    if pattern in ("step", "mixed") or pattern.startswith("bursts"):
        speed_TW = speed_TW * np.exp(NOISE * chance.standard_normal(speed_TW.shape))
    return speed_TW * samples / seconds
