"""Curves of devices, fitted to traces and to profiles, and kept as rows of numbers. Axes: F fields, N measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from paceline._arrays import Array
from paceline.predictors.batch_time.curve_fit import fit_curve, nearness

if TYPE_CHECKING:
    import pandas as pd

    from paceline.datasets import Trace


FIELDS = ("floor", "slope", "intercept", "most", "size")
"""What is kept of a device: floor, slope, intercept, the memory limit, and a batch it was measured at."""

PROPORTIONAL = np.array([0.0, 1.0, 0.0, np.inf, 1.0])
"""The curve of a device of which nothing is known; its drift is then plainly its speed in samples/s."""

LEAST_RANGE = 1.2
"""Sizes that differ by less than this factor do not tell slope and intercept apart."""


def curves_of_traces(
    traces: Iterable[Trace], device_of: Callable[[str], str], *, near: float | None = None
) -> dict[str, Array]:
    """Fit one curve to each device type whose batches moved, ``[F]`` each; those whose batches stayed have none.

    Only a job in which a device's batch moved tells its curve: a batch that stays within each job and differs between
    jobs tells their models apart. Traces whose batches moved are taken for jobs of one model.

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
            if _tells_apart(points[0]):
                telling.setdefault(device, []).append(points)
    pooled = {device: np.concatenate(parts, axis=1) for device, parts in telling.items()}
    return {device: _curve(points[0], points[1], near) for device, points in pooled.items()}


def _measured(trace: Trace, device_of: Callable[[str], str]) -> dict[str, Array]:
    """Return the sizes and seconds of each device in one trace, ``[2, N]``."""
    parts: dict[str, list[Array]] = {}
    for w, worker in enumerate(trace.workers):
        seen = np.isfinite(trace.speed[:, w])
        parts.setdefault(device_of(worker), []).append(np.stack([trace.samples[seen, w], trace.seconds[seen, w]]))
    return {device: np.concatenate(points, axis=1) for device, points in parts.items()}


def curves_of_profiles(profiles: pd.DataFrame, *, near: float | None = None) -> dict[str, Array]:
    """Fit one curve to each device of a tidy profile, ``[F]`` each; a batch without seconds did not fit into memory.

    Raises
    ------
    ValueError
        If there is more than one curve for a device, or too few sizes of one.
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
        if not _tells_apart(size_N[fits_N]):
            raise ValueError(f"profiles of {device!r} must hold two or more different batches, got {size_N[fits_N]}")
        curve = _curve(size_N[fits_N], seconds_N[fits_N], near)
        if size_N[fits_N].max() < size_N.max():
            curve[FIELDS.index("most")] = size_N[fits_N].max()
        curves[str(device)] = curve
    return curves


def median_curve(curves: Mapping[str, Array]) -> Array:
    """Return what to expect of a device that was not fitted, ``[F]``: in the units of those that were."""
    if not curves:
        return PROPORTIONAL
    median = np.median(np.stack(list(curves.values())), axis=0)
    median[FIELDS.index("most")] = np.inf  # the memory of others says nothing about its own
    return median


def _tells_apart(size_N: Array) -> bool:
    return len(size_N) > 0 and float(size_N.max()) >= LEAST_RANGE * float(size_N.min())


def _curve(size_N: Array, seconds_N: Array, near: float | None) -> Array:
    """Return the fitted curve as it is kept; of every size its median time counts, however often it was measured."""
    sizes, place_N = np.unique(size_N, return_inverse=True)
    seconds = [float(np.median(seconds_N[place_N == i])) for i in range(len(sizes))]
    weights = None if near is None else nearness(sizes, near)
    return np.array([*fit_curve(sizes, seconds, weights), np.inf, np.median(sizes)])
