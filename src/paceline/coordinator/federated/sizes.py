"""The sizes of a federated round: each client's batch, its bounds and how slow to take it. Axis: W clients."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from paceline._arrays import Array, Mask, Sizes
from paceline._curves import Curves, scale_curves
from paceline.coordinator.federated.rounds import Reason
from paceline.solver import split

MAX_SPREAD = 1.0
"""What a speed that has jumped leaves behind counts for no more."""

QUANTILES_Z: Array = np.linspace(0.0, 4.0, 21)
"""Normal scores to choose from; of a thousand clients the slowest is expected 3.2 deviations from the mean."""

NORMAL_SCORES: Array = np.linspace(-8.0, 8.0, 801)
LOG_NORMAL_CDF: Array = np.log([NormalDist().cdf(score) for score in NORMAL_SCORES])
"""The log of the normal distribution, as a table: scipy takes longer to import than a hundred plans to make."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundInputs:
    """Forecasts and limits of a round's clients, ``[W]``, from which their batches are chosen."""

    curves: Curves
    """Seconds of all local steps together over the samples of one."""
    comm_seconds: Array
    """Seconds to communicate."""
    log_spread: Array
    """Log deviation of each one's speed from its forecast."""
    data_limit: Array
    """The most samples a batch may have by the client's data; NaN where they are not known."""
    memory_limit: Array
    """The most samples a batch may have by the client's memory; infinite where it is not known."""
    is_retry_due: Mask
    """Mask of the clients to try again, because they were left out for so long."""
    fixed_size: Array
    """Batch of each client that is not balanced; NaN for others."""
    fixed_reason: Sizes
    """Why it is not balanced, as `Reason`."""


def choose_sizes(
    inputs: RoundInputs, *, batch: int, min_batch: int, max_batch: int, risk: float, deadline: float | None
) -> tuple[Sizes, Sizes, Array, Array]:
    """Return size, reason, upper bound and caution of each client, ``[W]``, within limits as of `FederatedBalancer`.

    The sizes of those that are asked and balanced sum to ``batch`` for each of them, or to what their bounds allow if
    that is less, and are the ones with which the last ends earliest.
    """
    bounds = np.stack(
        [
            np.full(len(inputs.comm_seconds), float(max_batch)),
            np.where(np.isnan(inputs.data_limit), np.inf, np.floor(inputs.data_limit)),
            np.floor(np.minimum(inputs.memory_limit, inputs.curves.limit)),
        ]
    )
    limit_reason_W = np.array([Reason.LARGEST, Reason.DATA, Reason.MEMORY])[np.argmin(bounds, axis=0)]
    upper_W = np.maximum(bounds.min(axis=0), 0.0)
    minimum_W = np.minimum(min_batch, upper_W)
    upper_W = np.fmin(upper_W, inputs.fixed_size)
    lower_W = np.fmin(np.fmax(minimum_W, inputs.fixed_size), upper_W)
    reason_W = np.where(upper_W < 1, Reason.NO_ROOM, Reason.BALANCED)
    if deadline is not None:
        margin_W = np.exp(np.minimum(inputs.log_spread, MAX_SPREAD))
        left_W = (deadline - inputs.comm_seconds) / margin_W
        most_W = np.floor((left_W - inputs.curves.intercept) / inputs.curves.slope)
        in_time_W = np.where(inputs.curves.floor <= left_W, most_W, -1.0)
        misses_W = (in_time_W < minimum_W) & (upper_W >= 1)
        reason_W = np.where(misses_W, np.where(inputs.is_retry_due, Reason.TRIED_AGAIN, Reason.LEFT_OUT), reason_W)
        shorter_W = ~misses_W & (in_time_W < upper_W)
        upper_W = np.where(misses_W, minimum_W, np.where(shorter_W, in_time_W, upper_W))
        lower_W = np.minimum(lower_W, upper_W)
        limit_reason_W = np.where(shorter_W, Reason.DEADLINE, limit_reason_W)
    planned_W = (reason_W != Reason.NO_ROOM) & (reason_W != Reason.LEFT_OUT)
    size_W = np.zeros(len(upper_W), dtype=np.int64)
    safety_factor_W = np.ones(len(upper_W))
    safety_factor_W[planned_W] = choose_safety_factor(
        1.0 / inputs.curves.slope[planned_W], inputs.log_spread[planned_W], risk
    )
    size_W[planned_W] = _split_planned(inputs, planned_W, lower_W, upper_W, safety_factor_W, batch)
    reason_W = np.where((reason_W == Reason.BALANCED) & np.isfinite(inputs.fixed_size), inputs.fixed_reason, reason_W)
    balanced_W = reason_W == Reason.BALANCED
    reason_W = np.where(balanced_W & (size_W >= upper_W), limit_reason_W, reason_W)
    smallest_W = balanced_W & (size_W == lower_W) & (size_W < upper_W)
    if smallest_W.any():  # those that end later than the median of those asked, by more than the time of a sample
        end_W = inputs.curves.busy_seconds(size_W) + inputs.comm_seconds
        last_W = smallest_W & (end_W > np.median(end_W[planned_W]) + inputs.curves.slope)
        reason_W = np.where(last_W, Reason.MIN_BATCH, reason_W)
    return size_W, reason_W, upper_W, safety_factor_W


def choose_safety_factor(speed_W: Array, spread_W: Array, risk: float) -> Array:
    """Return how many times as slow as forecast to take each client, ``[W]``; 1 for those least uncertain.

    The slowest of many decides when a round ends, and it is often one whose speed is hardly known. Each client is taken
    at the same quantile of its speed, ``exp(-z * spread)``. Chosen is the ``z`` with the least expected log time of the
    round: that of the last of independent log-normal times less the log of the speeds that are counted on. ``risk`` is
    the share of it to apply.

    Two clients of ten are never seen before; then all of them, which leaves nobody to take over:

    >>> choose_safety_factor(np.full(10, 100.0), np.where(np.arange(10) < 2, 0.5, 0.05), 1.0)[[0, 9]].round(1)
    array([2.1, 1. ])
    >>> choose_safety_factor(np.full(10, 100.0), np.full(10, 0.5), 1.0)[[0, 9]]
    array([1., 1.])
    """
    if not len(spread_W) or risk == 0:
        return np.ones(len(spread_W))
    spread_W = np.clip(spread_W, 0.05, MAX_SPREAD)  # nobody's next speed is known to 5%
    excess_W = spread_W - spread_W.min()
    if not excess_W.any():
        return np.ones(len(spread_W))
    # eight groups by spread: a thousand clients then cost no more than ten
    group_W = np.minimum(8 * excess_W / excess_W.max(), 7).astype(np.intp)
    count_G, counted_G = np.bincount(group_W), np.bincount(group_W, speed_W)
    spread_G = np.bincount(group_W, spread_W) / np.maximum(count_G, 1) + (count_G == 0)
    time_U = np.linspace(-4.0, 4.0, 161) * spread_W.max()
    score_ZUG = time_U[:, None] / spread_G + QUANTILES_Z[:, None, None]
    ended_ZU = np.exp(np.interp(score_ZUG, NORMAL_SCORES, LOG_NORMAL_CDF) @ count_G)  # the chance that all have
    end_Z = time_U[-1] - ended_ZU.sum(axis=1) * (time_U[1] - time_U[0])
    cost_Z = end_Z - np.log(np.exp(-QUANTILES_Z[:, None] * spread_G) @ counted_G)
    return np.asarray(np.exp(risk * QUANTILES_Z[int(np.argmin(cost_Z))] * excess_W))


def _split_planned(
    inputs: RoundInputs, planned_W: Mask, lower_W: Array, upper_W: Array, safety_factor_W: Array, batch: int
) -> Sizes:
    count = int(planned_W.sum())
    if not count:
        return np.zeros(0, dtype=np.int64)
    slower, unlimited_W = scale_curves(inputs.curves, safety_factor_W), np.full(count, np.inf)
    curves = Curves(slower.floor[planned_W], slower.slope[planned_W], slower.intercept[planned_W], unlimited_W)
    low, high = lower_W[planned_W], upper_W[planned_W]
    free = np.isnan(inputs.fixed_size[planned_W])
    total = int(np.clip(batch * free.sum() + high[~free].sum(), low.sum(), high.sum()))
    return split(curves, total, lower=low, upper=high, comm=inputs.comm_seconds[planned_W]).sizes
