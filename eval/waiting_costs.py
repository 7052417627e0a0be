"""Costs of waiting in a job with equal batches, by cause. Axes: T iterations, W workers."""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array

HALF_WINDOW = 5
"""A speed that lasts for more than so many iterations is that of a slow machine; shorter is noise."""


def costs_of_waiting(
    seconds_TW: Array, cost_TW: Array | None = None, *, foreseen: float | None = None
) -> tuple[float, float, float]:
    """Return what uneven samples, slow machines and noise cost, as shares of the time with equal batches.

    One after the other is taken away: first all samples cost the same, then all machines keep in step, then nothing
    varies within an iteration. The three together are what a split by the speeds to come would save.

    Parameters
    ----------
    seconds_TW
        Each worker's time of an equal batch.
    cost_TW
        Cost of a worker's samples in that iteration, in any unit, if it is known.
    foreseen
        Seconds of all iterations split by the speeds to come, where costs are not known; by default as if time were
        proportional to samples.

    Examples
    --------
    >>> [round(share, 2) for share in costs_of_waiting(np.tile([1.0, 2.0], (30, 1)))]
    [0.0, 0.33, 0.0]
    """
    from scipy.ndimage import median_filter

    known = cost_TW is not None and bool((np.isfinite(cost_TW) & (cost_TW > 0)).all())
    relative_TW = np.ones(seconds_TW.shape)
    if cost_TW is not None and known:
        relative_TW = cost_TW / cost_TW.mean(axis=1, keepdims=True)
    pace_TW = seconds_TW / relative_TW
    lasting_TW = median_filter(pace_TW, size=(2 * HALF_WINDOW + 1, 1), mode="nearest")
    whole = seconds_TW.max(axis=1).sum()
    alike = pace_TW.max(axis=1).sum()
    in_step = ((pace_TW / lasting_TW).max(axis=1) * _split(lasting_TW)).sum()
    best = _split(pace_TW).sum() if foreseen is None or known else foreseen
    hindsight = max(1.0 - best / whole, 0.0)
    samples = min(max(whole - alike, 0.0) / whole, hindsight)
    machines = min(max(min(whole, alike) - in_step, 0.0) / whole, hindsight - samples)
    return float(samples), float(machines), float(hindsight - samples - machines)


def _split(seconds_TW: Array) -> Array:
    """Return the seconds of an iteration whose batch is split by the speeds: the harmonic mean of the workers'."""
    seconds_T: Array = seconds_TW.shape[1] / (1.0 / seconds_TW).sum(axis=1)
    return seconds_T
