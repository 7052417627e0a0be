"""What the workers measured in the iteration just finished. Axes: W workers, D drivers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array

SLOWEST, FASTEST = 1e-9, 1e12
"""Speeds outside this range, in samples/s, cannot be real and are clipped."""

FEW = 64
"""Speeds of so many workers are computed in plain floats, which takes a fraction of the first calls of numpy."""

SHORTEST = 1e-6
"""Seconds. No worker computes a batch in less, whatever its clock says, so a shorter time counts as no report."""


@dataclass(frozen=True, eq=False)
class Report:
    """One finished iteration, over the fleet. NaN where a worker did not report.

    Parameters
    ----------
    samples
        Samples each worker processed, ``[W]``.
    seconds
        Each worker's own compute time, waiting left out, ``[W]``, in seconds.
    comm_seconds
        Time each worker spent communicating, ``[W]``, in seconds.
    drivers
        The driving factors sampled at the boundary before this iteration, ``[W, D]``.
    out_of_memory
        Which workers ran out of memory, ``[W]`` of bool.

    Examples
    --------
    A time of zero, or of less than a microsecond, does not count as a report:

    >>> Report(samples=[64, 64], seconds=[0.5, 0.0]).speed
    array([128.,  nan])
    """

    samples: ArrayLike
    seconds: ArrayLike
    comm_seconds: ArrayLike | None = None
    drivers: ArrayLike | None = None
    out_of_memory: ArrayLike | None = None

    @cached_property
    def speed(self) -> Array:
        """Samples per second, ``[W]``; NaN where there is no usable report. Computed once: an iteration asks often."""
        samples = np.asarray(self.samples, dtype=np.float64)
        seconds = np.asarray(self.seconds, dtype=np.float64)
        if samples.ndim != 1 or samples.shape != seconds.shape:
            raise ValueError(
                f"samples and seconds must both have one entry per worker, "
                f"got the shapes {samples.shape} and {seconds.shape}"
            )
        if len(samples) <= FEW:
            speeds = []
            for x, t in zip(samples.tolist(), seconds.tolist(), strict=True):
                v = x / t if t >= SHORTEST else 0.0
                speeds.append(min(max(v, SLOWEST), FASTEST) if v > 0 else math.nan)
            return np.array(speeds)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            speed = samples / seconds
        usable = (seconds >= SHORTEST) & (
            speed > 0
        )  # the speed is not above 0 if samples are not, or if seconds are infinite
        return np.where(usable, np.minimum(np.maximum(speed, SLOWEST), FASTEST), np.nan)
