"""Curves of devices, fitted to traces and profiles, stored as rows of numbers. Axes: F fields, N measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from paceline._arrays import Array
from paceline.predictors.batch_time.curve_fit import certainty, fit_curve, nearness

if TYPE_CHECKING:
    import pandas as pd

    from paceline.datasets import Trace


FIELDS = ("floor", "slope", "intercept", "most", "size")
"""The fields of a device's row: floor, slope, intercept, the memory limit, and a batch size it was measured at."""

PROPORTIONAL = np.array([0.0, 1.0, 0.0, np.inf, 1.0])
"""The curve of an unknown device: its relative speed then equals its speed in samples/s."""


def curves_of_traces(
    traces: Iterable[Trace], device_of: Callable[[str], str], *, near: float | None = None
) -> dict[str, Array]:
    """Fit one curve to each device type whose batch size varied, ``[F]`` each; the others get none.

    A curve can only come from a job in which the device's batch size varied. If the size is constant within each job
    and differs between jobs, the times differ because the jobs train different models. Traces with varying sizes are
    taken to be jobs of one model.

    Examples
    --------
    >>> from paceline.datasets import Trace
    >>> trace = Trace(samples=[[8, 8], [16, 8]], seconds=[[0.3, 1.0], [0.5, 1.0]], workers=["a", "b"])
    >>> curves_of_traces([trace], str)["a"].round(3)
    array([ 0.   ,  0.025,  0.1  ,    inf, 12.   ])
    """
    telling: dict[str, list[Array]] = {}
    for trace in traces:
        for device, points in _measured(trace, device_of).items():
            if _determines_line(points[0]):
                telling.setdefault(device, []).append(points)
    pooled = {device: np.concatenate(parts, axis=1) for device, parts in telling.items()}
    return {device: _curve(points[0], points[1], near) for device, points in pooled.items()}


def _measured(trace: Trace, device_of: Callable[[str], str]) -> dict[str, Array]:
    """Return the measured sizes and seconds of each device in one trace, ``[2, N]``."""
    parts: dict[str, list[Array]] = {}
    for w, worker in enumerate(trace.workers):
        seen = np.isfinite(trace.speed[:, w])
        parts.setdefault(device_of(worker), []).append(np.stack([trace.samples[seen, w], trace.seconds[seen, w]]))
    return {device: np.concatenate(points, axis=1) for device, points in parts.items()}


def curves_of_profiles(profiles: pd.DataFrame, *, near: float | None = None) -> dict[str, Array]:
    """Fit one curve to each device of a tidy profile, ``[F]`` each; a batch with NaN seconds did not fit into memory.

    Raises
    ------
    ValueError
        If the profile holds more than one curve for a device, or too few sizes.
    """
    curves = {}
    for device, rows in profiles.groupby("device"):
        if len(rows[["source", "model", "held"]].drop_duplicates()) > 1:
            raise ValueError(
                f"profiles must hold one curve for each device, but {device!r} has several: "
                "select one source, model and held first"
            )
        size_N, seconds_N = (rows[name].to_numpy(dtype=np.float64) for name in ("batch", "seconds"))
        fits_N = np.isfinite(seconds_N)
        if not _determines_line(size_N[fits_N]):
            raise ValueError(f"profiles of {device!r} must hold two or more different batches, got {size_N[fits_N]}")
        weight_N = certainty(rows["uncertainty"])[fits_N] if "uncertainty" in rows else None
        curve = _curve(size_N[fits_N], seconds_N[fits_N], near, weight_N)
        if size_N[fits_N].max() < size_N.max():
            curve[FIELDS.index("most")] = size_N[fits_N].max()
        curves[str(device)] = curve
    return curves


def median_curve(curves: Mapping[str, Array]) -> Array:
    """Return the curve to expect of a device that was not fitted, ``[F]``: the median of those that were."""
    if not curves:
        return PROPORTIONAL
    median = np.median(np.stack(list(curves.values())), axis=0)
    median[FIELDS.index("most")] = np.inf  # other devices' memory says nothing about this one's
    return median


def _determines_line(size_N: Array) -> bool:
    # sizes must differ by 20% to determine both slope and intercept
    return len(size_N) > 0 and float(size_N.max()) >= 1.2 * float(size_N.min())


def _curve(size_N: Array, seconds_N: Array, near: float | None, weight_N: Array | None = None) -> Array:
    """Return the fitted curve as a row; each size counts once, with its median time, no matter how often measured."""
    sizes, place_N = np.unique(size_N, return_inverse=True)
    seconds = [float(np.median(seconds_N[place_N == i])) for i in range(len(sizes))]
    weights = np.ones(len(sizes)) if near is None else nearness(sizes, near)
    if weight_N is not None:
        weights *= [weight_N[place_N == i].max() for i in range(len(sizes))]
    return np.array([*fit_curve(sizes, seconds, weights), np.inf, np.median(sizes)])
