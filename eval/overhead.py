"""The cost of forecast errors at a barrier, where the slowest worker of a group counts, not the mean error.

Axes: T iterations, W workers, G groups, M members of a group.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline._arrays import Array

FEWEST_GROUPS = 8
"""Larger fleets are repeatedly divided into groups until there are this many."""


def barrier_overhead(forecast: ArrayLike, actual: ArrayLike, *, group: int = 16, seed: int = 0) -> float:
    """Return how much longer iterations sized by forecasts take than iterations sized by the true speeds.

    A batch is split in proportion to the forecasts p, the workers run at the speeds v, and all wait for the last one:
    that takes ``max(p / v) * sum(v) / sum(p)`` times what a split by v takes. Only the ratios of the forecasts matter.

    Parameters
    ----------
    forecast, actual
        Forecast and measured speeds, ``[T, W]``, in samples/s; a worker that did not report (NaN) is left out.
    group
        Workers that wait for each other, at least 2; all of them if there are fewer.
    seed
        Seed of the order in which workers are divided into groups.

    Returns
    -------
    float
        Mean ratio over iterations and groups, less 1. 0 is perfect, and is the value of a single worker. NaN without
        reports.

    Raises
    ------
    ValueError
        If the shapes differ, or the group is too small.

    Examples
    --------
    Two workers of 100 samples/s. The forecast of one is 50 % too high, so it gets 60 % of the batch and the other
    waits:

    >>> round(barrier_overhead([[150.0, 100.0]], [[100.0, 100.0]]), 3)
    0.2
    """
    forecast_TW, actual_TW = np.asarray(forecast, dtype=np.float64), np.asarray(actual, dtype=np.float64)
    if forecast_TW.shape != actual_TW.shape or forecast_TW.ndim != 2:
        raise ValueError(
            f"forecast and actual must both have the shape [iterations, workers], got {forecast_TW.shape} and "
            f"{actual_TW.shape}"
        )
    if group < 2:
        raise ValueError(f"group must be at least 2 workers, got {group}")
    members_GM = _grouped(forecast_TW.shape[1], group, np.random.default_rng(seed))
    found = [_overheads(forecast_TW[:, members], actual_TW[:, members]) for members in members_GM]
    overhead = np.concatenate(found)
    known = np.isfinite(overhead)
    return float(overhead[known].mean()) if known.any() else float("nan")


def _grouped(workers: int, group: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the members of each group; workers that do not fill a group are left out of that grouping."""
    size = min(group, workers)
    if size == workers:
        return np.arange(workers)[None, :]
    count = workers // size
    rounds = -(-FEWEST_GROUPS // count)
    return np.concatenate([rng.permutation(workers)[: count * size].reshape(count, size) for _ in range(rounds)])


def _overheads(forecast_TM: Array, actual_TM: Array) -> Array:
    """Return the overhead of each iteration in which a member reported, ``[T]``; a single member never waits."""
    seen_TM = np.isfinite(actual_TM) & np.isfinite(forecast_TM)
    enough_T = seen_TM.any(axis=1)
    forecast_TM, actual_TM, seen_TM = forecast_TM[enough_T], actual_TM[enough_T], seen_TM[enough_T]
    slowest_T = np.where(seen_TM, forecast_TM / actual_TM, 0.0).max(axis=1, initial=0.0)
    total_T, forecast_T = (np.where(seen_TM, speed_TM, 0.0).sum(axis=1) for speed_TM in (actual_TM, forecast_TM))
    return np.asarray(slowest_T * total_T / forecast_T - 1.0)
