"""Sizing: how many samples a worker takes, so that its push is not stale when it comes. Axis: W workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline._arrays import Array, Mask, Sizes
from paceline.predictors import Curves
from paceline.solver import split

ROUNDS, CLOSE = 100, 1e-3
"""``ByForecast`` looks for its fixed point in this many rounds at most, until times change by less than this share."""


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
    """

    batch: int
    sizes: Sizes
    staleness: Array
    speed: Array
    known: Mask
    overhead: Array


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
    """Stragglers take less, so that nobody's forecast staleness exceeds what W workers of one pace have: ours.

    A worker whose step takes t_i sees E[tau_i] = sum over j != i of t_i / t_j pushes of others (each of them pushes
    once in t_j). Its step may take so long that this stays within ``slack`` (W - 1). Nobody takes more than a full
    batch, so the fastest sets the pace.

    Parameters
    ----------
    slack
        Staleness allowed, over that of equally fast workers; at least 1, where all steps come to take equally long.
    least
        The fewest samples.
    first
        Share of a full batch that a worker takes until its speed is known, above 0 and at most 1. A straggler that
        starts with a full batch is stale before anything is known of it, and early gradients are the largest.

    Examples
    --------
    >>> nothing, full, speed = np.zeros(3), np.array([32, 32, 32]), np.array([80.0, 40.0, 10.0])
    >>> outlook = Outlook(32, full, staleness=nothing, speed=speed, known=speed > 0, overhead=nothing)
    >>> ByForecast(slack=1.0).sizes(outlook)
    array([32, 16,  4])
    >>> ByForecast(slack=1.5).sizes(outlook)
    array([32, 32,  8])
    """

    slack: float = 1.0
    least: int = 1
    first: float = 0.125

    def __post_init__(self) -> None:
        _require(self.slack, self.least)
        if not 0 < self.first <= 1:
            raise ValueError(f"first must lie in (0, 1], got {self.first}")

    def sizes(self, outlook: Outlook) -> Sizes:
        """Return full batches for most, and less for stragglers, ``[W]``."""
        full_W = outlook.overhead + outlook.batch / outlook.speed
        seconds_W, others = full_W, len(full_W) - 1
        for _ in range(ROUNDS):
            rate_W = (1 / seconds_W).sum() - 1 / seconds_W  # pushes of all others in a second
            with np.errstate(divide="ignore"):
                now_W = np.minimum(full_W, self.slack * others / np.maximum(rate_W, 0.0)) if others else full_W
            close = np.all(np.abs(now_W - seconds_W) <= CLOSE * seconds_W)
            seconds_W = now_W
            if close:
                break
        sizes_W = np.where(outlook.known, (seconds_W - outlook.overhead) * outlook.speed, self.first * outlook.batch)
        return _whole(sizes_W, self.least, outlook.batch)


@dataclass(frozen=True)
class ByVersions:
    """Stragglers take less by the staleness that they have shown: the same aim, without a forecast.

    >>> staleness, speed = np.array([0.5, 2.0]), np.ones(2)
    >>> outlook = Outlook(32, np.array([32, 32]), staleness, speed, known=speed > 0, overhead=np.zeros(2))
    >>> ByVersions().sizes(outlook)
    array([32, 16])
    """

    slack: float = 1.0
    least: int = 1

    def __post_init__(self) -> None:
        _require(self.slack, self.least)

    def sizes(self, outlook: Outlook) -> Sizes:
        """Return the sizes in use, scaled by the staleness allowed over that shown, ``[W]``."""
        allowed = self.slack * (len(outlook.sizes) - 1)
        if not allowed:  # nobody else pushes: nothing is stale
            return Full().sizes(outlook)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio_W = np.where(outlook.staleness > 0, allowed / outlook.staleness, 1.0)
        # Half the way in the logarithm: a smoothed staleness answers late, and the full way would swing.
        sizes_W = np.asarray(outlook.sizes * np.sqrt(ratio_W), dtype=np.float64)
        # The largest is a full batch: staleness shows ratios only, and all sizes together would drift.
        return _whole(sizes_W * (outlook.batch / sizes_W.max()), self.least, outlook.batch)


@dataclass(frozen=True)
class BalancedBatches:
    """Batches that end together and add up to W full ones: LB-BSP (Chen et al., SoCC 2020), under a barrier.

    >>> speed = np.array([20.0, 10.0])
    >>> outlook = Outlook(30, np.array([30, 30]), np.zeros(2), speed, known=speed > 0, overhead=np.zeros(2))
    >>> BalancedBatches().sizes(outlook)
    array([40, 20])
    """

    def sizes(self, outlook: Outlook) -> Sizes:
        """Return the split of the global batch, ``[W]``."""
        workers = len(outlook.sizes)
        return split(Curves.from_speed(outlook.speed), outlook.batch * workers, lower=1, comm=outlook.overhead).sizes


def _whole(sizes_W: Array, least: int, batch: int) -> Sizes:
    # Rounded down, but not for the sake of a last digit: 31.9999999 samples are 32.
    return np.clip(np.floor(sizes_W * (1 + 1e-9)), min(least, batch), batch).astype(np.int64)


def _require(slack: float, least: int) -> None:
    if not slack >= 1:
        raise ValueError(f"slack must be at least 1, got {slack}")
    if least < 1:
        raise ValueError(f"least must be at least 1 sample, got {least}")
