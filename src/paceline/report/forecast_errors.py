"""Errors of forecasts: by how much speeds moved, and whether intervals hold. Axes: T iterations, W workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline._arrays import Array, median
from paceline.report.blocks import table

REGIMES = (("steady", 0.0, 0.05), ("moving", 0.05, 0.2), ("jumping", 0.2, np.inf))
"""Regimes by how much a worker's speed moved since the iteration before."""

PAST = 100
"""Iterations whose errors make the band of a run's forecast."""

FEWEST = 20
"""Errors without which there is no band."""


def moved(speed_TW: Array) -> Array:
    """Return by which share each speed differs from the worker's last one, ``[T, W]``; NaN for the first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        change_TW = np.abs(np.log(speed_TW[1:] / speed_TW[:-1]))
    change_TW = np.expm1(np.where(np.isfinite(change_TW), change_TW, np.nan))
    return np.concatenate([np.full((1, speed_TW.shape[1]), np.nan), change_TW])


def by_regime(moved_TW: Array, errors: Mapping[str, Array]) -> dict[str, Any]:
    """Return a table of relative errors, absolute and in the median, in each regime.

    Parameters
    ----------
    moved_TW
        By how much speeds moved.
    errors
        Relative errors ``[T, W]`` by the name of who forecast.
    """
    known_TW = np.isfinite(moved_TW) & np.logical_and.reduce([np.isfinite(one) for one in errors.values()])
    rows = []
    for name, low, high in REGIMES:
        here = known_TW & (moved_TW >= low) & (moved_TW < high)
        limits = f"{name}: " + (
            f"{100 * low:.0f} % or more" if np.isinf(high) else f"{100 * low:.0f} to {100 * high:.0f} %"
        )
        share = float(here.sum() / known_TW.sum()) if known_TW.any() else float("nan")
        rows.append((limits, share, *(median(np.abs(error[here])) for error in errors.values())))
    heads = [(f"off by, median: {name}", "percent") for name in errors]
    columns = (("change since the iteration before", "text"), ("share of all", "percent"), *heads)
    return table("Error by how much the speed moved", columns, rows)


def past_band(forecast_T: Array, actual_T: Array) -> tuple[Array, Array]:
    """Return where nine tenths of the last errors put the next value, ``[T]`` each; NaN while there are few.

    >>> low, high = past_band(np.full(40, 2.0), np.tile([1.9, 2.1], 20))
    >>> np.isnan(low[:20]).all(), low[-1].round(2), high[-1].round(2)
    (np.True_, np.float64(1.9), np.float64(2.1))
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        error_T = np.log(actual_T / forecast_T)
    error_T = np.where(np.isfinite(error_T), error_T, np.nan)
    padded = np.concatenate([np.full(PAST, np.nan), error_T[:-1]])
    past_TP = np.lib.stride_tricks.sliding_window_view(padded, PAST)
    enough_T = np.isfinite(past_TP).sum(axis=1) >= FEWEST
    ends = np.full((2, len(forecast_T)), np.nan)
    if enough_T.any():
        ends[:, enough_T] = np.nanquantile(past_TP[enough_T], (0.05, 0.95), axis=1)
    low, high = forecast_T * np.exp(ends)
    return low, high


def held(low_T: Array, actual_T: Array, high_T: Array) -> float:
    """Return how often a value lay in its band; NaN if there was none."""
    known_T = np.isfinite(low_T) & np.isfinite(actual_T) & np.isfinite(high_T)
    inside_T = (low_T <= actual_T) & (actual_T <= high_T)
    return float(inside_T[known_T].mean()) if known_T.any() else float("nan")
