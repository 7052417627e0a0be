"""Batch time curves: how long a batch of some size takes. Axis: W workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array, Sizes


@dataclass(frozen=True, eq=False)
class LinearCurves:
    """Shortest time of a batch, seconds per sample, and fixed time of a batch for each worker, ``[W]``."""

    floor: Array
    slope: Array
    intercept: Array

    def batch_seconds(self, sizes: Sizes | Array) -> Array:
        """Return ``max(floor, intercept + slope * size)``, ``[W]``, in seconds: the only place that computes it.

        Solver, forecast and plan compare times bit for bit, so they must all round in the same way.
        """
        seconds: Array = np.maximum(self.floor, self.intercept + self.slope * sizes)
        return seconds


@dataclass(frozen=True, eq=False)
class Curves(LinearCurves):
    """Batch time curves of a fleet: ``t(x) = max(floor, intercept + slope * x)`` for ``x <= limit``.

    Parameters
    ----------
    floor, intercept
        Shortest possible time of a batch, and its fixed cost, ``[W]``, in seconds.
    slope
        Seconds per sample, ``[W]``.
    limit
        The largest batch that fits into memory, ``[W]``, in samples; infinite where there is none.

    Examples
    --------
    >>> Curves.from_speed(np.array([100.0, 50.0])).seconds(np.array([10, 10]))
    array([0.1, 0.2])
    """

    limit: Array

    @classmethod
    def from_speed(cls, speed: Array) -> Curves:
        """Return the curves of workers whose time is samples / speed; speed ``[W]`` in samples/s."""
        zero = np.zeros(len(speed))
        return cls(floor=zero, slope=1.0 / np.asarray(speed), intercept=zero, limit=np.full(len(speed), np.inf))

    def seconds(self, sizes: Sizes | Array) -> Array:
        """Return the time of batches of these sizes, ``[W]``, in seconds; infinite beyond the limit."""
        return np.where(sizes <= self.limit, self.batch_seconds(sizes), np.inf)

    def busy_seconds(self, sizes: Sizes | Array) -> Array:
        """Return how long each worker computes, ``[W]``, in seconds: 0 without samples; limits are ignored.

        >>> Curves.from_speed(np.array([100.0, 50.0])).busy_seconds(np.array([10, 0]))
        array([0.1, 0. ])
        """
        return np.where(sizes > 0, self.batch_seconds(sizes), 0.0)


def scale_curves(curves: Curves, factor_W: Array) -> Curves:
    """Return the curves of workers that take so many times as long, ``[W]``; limits stay."""
    return Curves(curves.floor * factor_W, curves.slope * factor_W, curves.intercept * factor_W, curves.limit)
