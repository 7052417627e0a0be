"""Model that makes speeds of resource usage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paceline.datasets.trace import Trace


def speed_from_usage(
    trace: Trace,
    covariate: str,
    *,
    capacity: float = 100.0,
    needed: float = 50.0,
    minimum: float = 5.0,
) -> Trace:
    """Return the trace with the speeds that a training worker would have under this usage.

    The worker needs ``needed`` of the machine. The others leave it ``capacity - usage``, but at least ``minimum``,
    because schedulers starve no process. Its speed is 100 samples/s times the share of its need that it gets.

    Parameters
    ----------
    trace
        A trace without speeds.
    covariate
        The covariate that measures what others use, such as ``cpu_usr``.
    capacity, needed, minimum
        Capacity of the machine, in the covariate's unit; ``0 < minimum <= needed <= capacity``.

    Raises
    ------
    ValueError
        If the trace has measured speeds or lacks the covariate, or a number is out of its range.

    Examples
    --------
    >>> none = [[float("nan")]] * 3
    >>> usage = Trace(none, none, covariates=[[[20.0]], [[80.0]], [[100.0]]], covariate_names=["cpu"])
    >>> derived = speed_from_usage(usage, "cpu", needed=50, minimum=5)
    >>> derived.speed.ravel()
    array([100.,  40.,  10.])
    >>> derived.meta["derived"]
    'speed = 100 samples/s x min(1, max(100 - cpu, 5) / 50)'
    """
    if np.isfinite(trace.speed).any():
        raise ValueError(f"trace {trace.name!r} already has measured speeds: use it without speed_from_usage()")
    if covariate not in trace.covariate_names or trace.covariates is None:
        raise ValueError(f"trace {trace.name!r} has no covariate {covariate!r}; it has {list(trace.covariate_names)}")
    if not 0 < minimum <= needed <= capacity < np.inf:
        raise ValueError(
            f"minimum, needed and capacity must be finite, above 0 and in ascending order, got {minimum}, {needed} and "
            f"{capacity}"
        )
    usage_TW = trace.covariates[:, :, list(trace.covariate_names).index(covariate)]
    speed_TW = 100.0 * np.minimum(1.0, np.maximum(capacity - usage_TW, minimum) / needed)
    model = f"speed = 100 samples/s x min(1, max({capacity:g} - {covariate}, {minimum:g}) / {needed:g})"
    return replace(
        trace,
        samples=np.where(np.isnan(speed_TW), np.nan, 64.0),
        seconds=64.0 / speed_TW,
        meta={**trace.meta, "derived": model},
    )
