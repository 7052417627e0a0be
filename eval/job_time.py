"""What the times of a recorded job are made of: pauses, and parts that do not follow the batch.

Axes: T iterations, W workers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array

CHANGED, BESIDE = 0.1, 3
"""A batch that changes by more than this share shows how time depends on it: from so many iterations on either side."""


def pauses(seconds_TW: Array) -> Array:
    """Return the seconds of each worker's time that are a pause, ``[T, W]``; 0 where there is none.

    >>> pauses(np.where(np.arange(20) == 7, 60.0, 0.1)[:, None]).sum().round(1)
    np.float64(59.9)
    """
    from scipy.ndimage import median_filter

    # what lasts for more than half of 11 iterations is a slow worker, not a pause
    median_TW = median_filter(seconds_TW, size=(min(11, len(seconds_TW)), 1), mode="nearest")
    # a pause, such as an evaluation or a checkpoint, takes more than 3 times the running median
    excess_TW: Array = np.where(seconds_TW > 3.0 * median_TW, seconds_TW - median_TW, 0.0)
    return excess_TW


@dataclass(frozen=True, eq=False)
class FixedShare:
    """Share of each worker's time that does not follow its batch, at the job's own batch, ``[W]``.

    Parameters
    ----------
    value, low, high
        The estimate, and the ends of its 90% interval: 0 and 1 where nothing is known.
    samples
        The batches to which the shares apply, ``[W]``.
    """

    value: Array
    low: Array
    high: Array
    samples: Array

    @property
    def known(self) -> bool:
        """Whether the log tells it for every worker: the sizes of all batches changed often enough."""
        return bool((self.high - self.low < 1.0).all())

    def at(self, samples_TW: Array, share_W: Array) -> Array:
        """Return the time of batches over that of the job's own, ``[T, W]``, if these shares are fixed."""
        time_TW: Array = share_W + (1.0 - share_W) * samples_TW / self.samples
        return time_TW


def fixed_share(samples_TW: Array, seconds_TW: Array) -> FixedShare:
    """Return how much of each worker's time is fixed, from what its time did when its batch changed.

    Each change compares the iterations just before with those just after, so that speeds that drift do not count.

    >>> samples_TW = np.where(np.arange(80) // 4 % 2, 32.0, 64.0)[:, None]
    >>> fixed_share(samples_TW, 0.04 + 0.001 * samples_TW).value.round(2)
    array([0.38])
    """
    from scipy.stats import t

    workers = seconds_TW.shape[1]
    value_W, reach_W = np.zeros(workers), np.full(workers, np.inf)
    batch_W = np.quantile(samples_TW, 0.9, axis=0, method="nearest")
    for w in range(workers):
        found = _at_changes(samples_TW[:, w] / batch_W[w], seconds_TW[:, w])
        if len(found) < 3:
            continue
        share, weight = found.T
        value_W[w] = np.average(share, weights=weight)
        error = np.sqrt(np.square(weight * (share - value_W[w])).sum()) / weight.sum()
        reach_W[w] = t.isf(0.05, len(found) - 1) * error + 0.01
    value_W = np.clip(value_W, 0.0, 1.0)
    return FixedShare(value_W, np.clip(value_W - reach_W, 0.0, 1.0), np.clip(value_W + reach_W, 0.0, 1.0), batch_W)


def _at_changes(size_T: Array, seconds_T: Array) -> Array:
    """Return the fixed share that each change of the batch shows, and its weight, ``[changes, 2]``."""
    changes = np.flatnonzero(np.abs(np.diff(size_T)) > CHANGED * np.minimum(size_T[1:], size_T[:-1])) + 1
    found, ends = [], [0, *changes, len(size_T)]
    for before, at, after in zip(ends, ends[1:-1], ends[2:], strict=False):
        past, now = slice(max(before, at - BESIDE), at), slice(at, min(after, at + BESIDE))
        size, size_now = float(np.median(size_T[past])), float(np.median(size_T[now]))
        seconds, seconds_now = float(np.median(seconds_T[past])), float(np.median(seconds_T[now]))
        # seconds / seconds_now = (share + (1 - share) size) / (share + (1 - share) size_now), solved for the share
        weight = (seconds * (1 - size_now) - seconds_now * (1 - size)) / (seconds + seconds_now)
        if weight * (size - size_now) > 0:
            share = (seconds_now * size - seconds * size_now) / (seconds + seconds_now) / weight
            found.append((float(np.clip(share, -0.5, 1.5)), abs(weight)))
    return np.array(found).reshape(-1, 2)
