"""Batch sizes with which the clients of a round end together.

Axes: W clients of one round; G groups of clients that are about as uncertain; Z quantiles tried; U log times.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from paceline._arrays import Array, Mask, Sizes
from paceline.coordinator.federated.round_reasons import Reason
from paceline.predictors import Curves
from paceline.solver import split

LEAST_SPREAD, MOST_SPREAD = 0.05, 1.0
"""Nobody's next speed is known better than so; and what a speed that has jumped leaves behind counts for no more."""

GROUPS = 8
"""Clients are told apart by their spread as finely as this, so that a thousand cost no more than ten."""

QUANTILES_Z: Array = np.linspace(0.0, 4.0, 21)
"""Normal scores to choose from; of a thousand clients the slowest is expected 3.2 deviations from the mean."""

SCORES: Array = np.linspace(-8.0, 8.0, 801)
LOG_CHANCE: Array = np.log([NormalDist().cdf(score) for score in SCORES])
"""The log of the normal distribution, as a table: scipy takes longer to import than a hundred plans to make."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundBounds:
    """Forecasts and limits of a round's clients, from which their batches are chosen.

    Parameters
    ----------
    curves
        Seconds of all local steps together over the samples of one, ``[W]``.
    comm
        Seconds to communicate, ``[W]``.
    spread
        Log deviation of each one's speed from its forecast, ``[W]``.
    data, memory
        The most samples a batch may have by the client's data and memory, ``[W]``; NaN data are not known.
    due
        Mask of the clients to try again, as they were left out for so long, ``[W]``.
    fixed, cause
        The batch of those that are not balanced, ``[W]``, NaN for others; and why, as `Reason`.
    """

    curves: Curves
    comm: Array
    spread: Array
    data: Array
    memory: Array
    due: Mask
    fixed: Array
    cause: Sizes


@dataclass(frozen=True)
class Rules:
    """Limits of batches that hold for all clients; see `FederatedBalancer`."""

    batch: int
    least: int
    largest: int
    risk: float
    deadline: float | None


def sized(now: RoundBounds, rules: Rules) -> tuple[Sizes, Sizes, Array, Array]:
    """Return size, reason, upper bound and caution of each client, ``[W]``.

    The sizes of those that are asked and balanced sum to ``batch`` for each of them, or to what their bounds allow if
    that is less, and are the ones with which the last ends earliest: the exact solver, with communication as a time
    besides.
    """
    upper_W, held_by_W = _bounds(now, rules)
    least_W = np.minimum(rules.least, upper_W)
    upper_W = np.fmin(upper_W, now.fixed)
    lower_W = np.fmin(np.fmax(least_W, now.fixed), upper_W)
    reason_W = np.where(upper_W < 1, Reason.NO_ROOM, Reason.BALANCED)
    if rules.deadline is not None:
        margin_W = np.exp(np.minimum(now.spread, MOST_SPREAD))
        in_time_W = _in_time(now.curves, (rules.deadline - now.comm) / margin_W)
        late_W = (in_time_W < least_W) & (upper_W >= 1)
        reason_W = np.where(late_W, np.where(now.due, Reason.TRIED_AGAIN, Reason.LEFT_OUT), reason_W)
        shorter_W = ~late_W & (in_time_W < upper_W)
        upper_W = np.where(late_W, least_W, np.where(shorter_W, in_time_W, upper_W))
        lower_W = np.minimum(lower_W, upper_W)
        held_by_W = np.where(shorter_W, Reason.DEADLINE, held_by_W)
    asked_W = (reason_W != Reason.NO_ROOM) & (reason_W != Reason.LEFT_OUT)
    size_W = np.zeros(len(upper_W), dtype=np.int64)
    caution_W = np.ones(len(upper_W))
    caution_W[asked_W] = caution_of(1.0 / now.curves.slope[asked_W], now.spread[asked_W], rules.risk)
    size_W[asked_W] = _split(now, asked_W, lower_W, upper_W, caution_W, rules.batch)
    reason_W = np.where((reason_W == Reason.BALANCED) & np.isfinite(now.fixed), now.cause, reason_W)
    balanced_W = reason_W == Reason.BALANCED
    reason_W = np.where(balanced_W & (size_W >= upper_W), held_by_W, reason_W)
    last_W = balanced_W & (size_W == lower_W) & (size_W < upper_W) & _ends_late(now, size_W, asked_W)
    return size_W, np.where(last_W, Reason.LEAST, reason_W), upper_W, caution_W


def caution_of(speed_W: Array, spread_W: Array, risk: float) -> Array:
    """Return how many times as slow as forecast to take each client, ``[W]``; 1 for those least uncertain.

    The slowest of many decides when a round ends, and it is often one whose speed is hardly known. Each client is taken
    at the same quantile of its speed, ``exp(-z * spread)``: the greater ``z``, the less the uncertain ones get, and the
    more the others. Chosen is the ``z`` with the least expected log time of the round, which is that of the last of
    independent log-normal times less the log of the speeds that are counted on.

    Parameters
    ----------
    speed_W, spread_W
        Forecasts.
    risk
        Share of the caution to apply.

    Examples
    --------
    Two clients of ten are never seen before; then all of them, which leaves nobody to take over:

    >>> caution_of(np.full(10, 100.0), np.where(np.arange(10) < 2, 0.5, 0.05), 1.0)[[0, 9]].round(1)
    array([2.1, 1. ])
    >>> caution_of(np.full(10, 100.0), np.full(10, 0.5), 1.0)[[0, 9]]
    array([1., 1.])
    """
    if not len(spread_W) or risk == 0:
        return np.ones(len(spread_W))
    spread_W = np.clip(spread_W, LEAST_SPREAD, MOST_SPREAD)
    apart_W = spread_W - spread_W.min()
    if not apart_W.any():
        return np.ones(len(spread_W))
    group_W = np.minimum(GROUPS * apart_W / apart_W.max(), GROUPS - 1).astype(np.intp)
    count_G, counted_G = np.bincount(group_W), np.bincount(group_W, speed_W)
    spread_G = np.bincount(group_W, spread_W) / np.maximum(count_G, 1) + (count_G == 0)
    time_U = np.linspace(-4.0, 4.0, 161) * spread_W.max()
    score_ZUG = time_U[:, None] / spread_G + QUANTILES_Z[:, None, None]
    ended_ZU = np.exp(np.interp(score_ZUG, SCORES, LOG_CHANCE) @ count_G)  # the chance that all have
    end_Z = time_U[-1] - ended_ZU.sum(axis=1) * (time_U[1] - time_U[0])
    cost_Z = end_Z - np.log(np.exp(-QUANTILES_Z[:, None] * spread_G) @ counted_G)
    return np.asarray(np.exp(risk * QUANTILES_Z[int(np.argmin(cost_Z))] * apart_W))


def _bounds(now: RoundBounds, rules: Rules) -> tuple[Array, Sizes]:
    """Return the most samples of each client, and which bound that is, ``[W]``."""
    bounds = np.stack(
        [
            np.full(len(now.comm), float(rules.largest)),
            np.where(np.isnan(now.data), np.inf, np.floor(now.data)),
            np.floor(np.minimum(now.memory, now.curves.limit)),
        ]
    )
    held_by = np.array([Reason.LARGEST, Reason.DATA, Reason.MEMORY])[np.argmin(bounds, axis=0)]
    return np.maximum(bounds.min(axis=0), 0.0), held_by


def _in_time(curves: Curves, left_W: Array) -> Array:
    """Return the most samples that take no longer than the time left, ``[W]``."""
    size_W: Array = np.floor((left_W - curves.intercept) / curves.slope)
    return np.where(curves.floor <= left_W, size_W, -1.0)


def _split(now: RoundBounds, asked_W: Mask, lower_W: Array, upper_W: Array, caution_W: Array, batch: int) -> Sizes:
    count = int(asked_W.sum())
    if not count:
        return np.zeros(0, dtype=np.int64)
    floor, slope, intercept = (
        (getattr(now.curves, part) * caution_W)[asked_W] for part in ("floor", "slope", "intercept")
    )
    curves = Curves(floor, slope, intercept, np.full(count, np.inf))
    low, high = lower_W[asked_W], upper_W[asked_W]
    free = np.isnan(now.fixed[asked_W])
    total = int(np.clip(batch * free.sum() + high[~free].sum(), low.sum(), high.sum()))
    return split(curves, total, lower=low, upper=high, comm=now.comm[asked_W]).sizes


def _ends_late(now: RoundBounds, size_W: Sizes, asked_W: Mask) -> Mask:
    """Return which clients end later than the median of those asked, by more than the time of a sample."""
    end_W = now.curves.busy_seconds(size_W) + now.comm
    late_W: Mask = asked_W & (end_W > np.median(end_W[asked_W]) + now.curves.slope) if asked_W.any() else asked_W
    return late_W
