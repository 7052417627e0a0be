"""Sizing: how many samples a worker takes, so that its push is not stale when it comes. Axis: W workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline._arrays import Array, Mask, Sizes
from paceline.predictors import Curves
from paceline.solver import split

PRICE = 0.05
"""Share of the samples a second, of those with full batches, that smaller batches may cost: each pays for its wire."""

SPREADS = 1.0
"""Two speeds are told apart by this many standard deviations of their ratio."""

FRESHEST = 1e-6
"""Versions. The smoothed staleness of a worker that pushes alone fades towards 0; below this it counts as this."""

HALVINGS = 20
"""Steps of the search for the shortest times at that price."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """Inputs from which a rule chooses the batch sizes.

    Parameters
    ----------
    batch
        Samples of a full batch.
    sizes
        The sizes in use, ``[W]``.
    staleness
        Smoothed staleness, ``[W]``, in versions; NaN where a worker has not pushed yet.
    speed
        Forecast speeds, ``[W]``, in samples/s; all alike without a forecast.
    known
        Mask of the workers whose forecast rests on a report, ``[W]``.
    overhead
        Time of a step besides computing, ``[W]``, in seconds.
    spread
        Relative standard deviation of the forecast speeds, ``[W]``; infinite where it is not known.
    """

    batch: int
    sizes: Sizes
    staleness: Array
    speed: Array
    known: Mask
    overhead: Array
    spread: Array


class Sizing(Protocol):
    """Chooses the sizes of the steps to come, after every round: as many pushes as there are workers."""

    def sizes(self, outlook: Outlook) -> Sizes:
        """Return the samples of each worker's next step, ``[W]``, at least 1."""
        ...


@dataclass(frozen=True)
class Full:
    """Everybody takes a full batch."""

    def sizes(self, outlook: Outlook) -> Sizes:
        """Return full batches, ``[W]``."""
        return np.full(len(outlook.sizes), outlook.batch, dtype=np.int64)


@dataclass(frozen=True)
class ByForecast:
    """Slow workers take less, so that all compute equally long, as far as forecast and wire allow: ours.

    The fastest takes a full batch. Nobody else is to compute longer, but for what the forecast's spread leaves open: a
    worker shrinks by as much as it is slower for certain. A smaller batch pays the same wire for fewer samples. Where
    all of them together would cost more than 5 % of the samples a second, all times are stretched until they do not.

    Parameters
    ----------
    first
        Share of a full batch that a worker takes until its speed is known, above 0 and at most 1. A straggler that
        starts with a full batch is stale before anything is known of it, and early gradients are the largest.

    Examples
    --------
    >>> nothing, full, speed = np.zeros(3), np.array([32, 32, 32]), np.array([80.0, 40.0, 10.0])
    >>> told = {"staleness": nothing, "speed": speed, "known": speed > 0, "spread": nothing}
    >>> ByForecast().sizes(Outlook(32, full, overhead=nothing, **told))
    array([32, 16,  4])

    A wire as long as the fastest computes:

    >>> ByForecast().sizes(Outlook(32, full, overhead=np.full(3, 0.4), **told))
    array([32, 28,  7])
    """

    first: float = 0.125

    def __post_init__(self) -> None:
        if not 0 < self.first <= 1:
            raise ValueError(f"first must lie in (0, 1], got {self.first}")

    def sizes(self, outlook: Outlook) -> Sizes:
        """Return full batches for most, and less for stragglers, ``[W]``."""
        sizes_W = np.full(len(outlook.sizes), self.first * outlook.batch)
        if (known := outlook.known).any():
            speed_W, spread_W = outlook.speed[known], outlook.spread[known]
            slower_W = _certainly_slower(speed_W, np.where(np.isfinite(spread_W), spread_W, 0.0))
            sizes_W[known] = outlook.batch / _affordable(slower_W, outlook.batch / speed_W, outlook.overhead[known])
        # Rounded up, as a part of a sample is not worth its wire; but not for the sake of a last digit.
        return np.clip(np.ceil(sizes_W * (1 - 1e-9)), 1, outlook.batch).astype(np.int64)


@dataclass(frozen=True)
class ByVersions:
    """Stragglers take less by the staleness that they have shown: the same aim, without a forecast.

    >>> staleness, speed = np.array([0.5, 2.0]), np.ones(2)
    >>> outlook = Outlook(32, np.array([32, 32]), staleness, speed, speed > 0, np.zeros(2), np.zeros(2))
    >>> ByVersions().sizes(outlook)
    array([32, 16])
    """

    def sizes(self, outlook: Outlook) -> Sizes:
        """Return the sizes in use, scaled by the staleness allowed over that shown, ``[W]``."""
        allowed = len(outlook.sizes) - 1
        if not allowed:  # nobody else pushes: nothing is stale
            return Full().sizes(outlook)
        ratio_W = np.where(outlook.staleness > 0, allowed / np.maximum(outlook.staleness, FRESHEST), 1.0)
        # Half the way in the logarithm: a smoothed staleness answers late, and the full way would swing.
        sizes_W = np.asarray(outlook.sizes * np.sqrt(ratio_W), dtype=np.float64)
        # The largest is a full batch: staleness shows ratios only, and all sizes together would drift.
        sizes_W = sizes_W * (outlook.batch / sizes_W.max())
        whole_W: Sizes = np.clip(np.floor(sizes_W * (1 + 1e-9)), 1, outlook.batch).astype(np.int64)
        return whole_W


@dataclass(frozen=True)
class BalancedBatches:
    """Batches that end together and add up to W full ones: LB-BSP (Chen et al., SoCC 2020), under a barrier.

    >>> speed = np.array([20.0, 10.0])
    >>> outlook = Outlook(30, np.array([30, 30]), np.zeros(2), speed, speed > 0, np.zeros(2), np.zeros(2))
    >>> BalancedBatches().sizes(outlook)
    array([40, 20])
    """

    def sizes(self, outlook: Outlook) -> Sizes:
        """Return the split of the global batch, ``[W]``."""
        workers = len(outlook.sizes)
        return split(Curves.from_speed(outlook.speed), outlook.batch * workers, lower=1, comm=outlook.overhead).sizes


def _certainly_slower(speed_W: Array, spread_W: Array) -> Array:
    """Return how many times slower than the fastest each worker is at least, ``[W]``: 1 or more."""
    fastest = int(speed_W.argmax())
    unsure_W = np.hypot(spread_W, spread_W[fastest])
    slower_W: Array = np.maximum(speed_W[fastest] / speed_W * np.exp(-SPREADS * unsure_W), 1.0)
    return slower_W


def _affordable(slower_W: Array, full_W: Array, wire_W: Array) -> Array:
    """Return by how much each full batch may be divided, ``[W]``, at most by ``slower_W``, at the price allowed.

    Times are those of computing a full batch and on the wire, in seconds.
    """
    least = (1 - PRICE) * (1 / (wire_W + full_W)).sum()

    def divided(stretch: float) -> Array:
        return np.maximum(slower_W / stretch, 1.0)

    def is_affordable(stretch: float) -> bool:
        parts_W = 1 / divided(stretch)
        return bool((parts_W / (wire_W + full_W * parts_W)).sum() >= least)

    if is_affordable(1.0):
        return slower_W
    low, high = 0.0, float(np.log(slower_W.max()))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_affordable(float(np.exp(middle))) else (middle, high)
    return divided(float(np.exp(high)))
