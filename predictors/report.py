"""Measurements of the workers in the iteration just finished. Axes: W workers, D covariates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array

SLOWEST, FASTEST = 1e-9, 1e12
"""Speeds outside this range, in samples/s, cannot be real and are clipped."""

LARGEST = 1e18
"""Samples. So many count as no report: below this, no division by a usable time overflows. A covariate this large is
unknown."""

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
    covariates
        The covariates sampled at the boundary before this iteration, ``[W, D]``.
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
    covariates: ArrayLike | None = None
    out_of_memory: ArrayLike | None = None

    @cached_property
    def speed(self) -> Array:
        """Samples per second, ``[W]``; NaN where there is no usable report. Computed once."""
        speed_W, vars(self)["complete"] = self._speeds()  # asked a dozen times in a step: an attribute takes no call
        return speed_W

    @cached_property
    def complete(self) -> bool:
        """True if every worker has a usable report."""
        return self._speeds()[1]

    def _speeds(self) -> tuple[Array, bool]:
        if isinstance(self.samples, Mapping) or isinstance(self.seconds, Mapping):
            raise TypeError("samples and seconds must be lists or arrays in the order of workers, got a mapping")
        samples = np.asarray(self.samples, dtype=np.float64)
        seconds = np.asarray(self.seconds, dtype=np.float64)
        if samples.ndim != 1 or samples.shape != seconds.shape:
            raise ValueError(
                f"samples and seconds must both have one entry per worker, "
                f"got the shapes {samples.shape} and {seconds.shape}"
            )
        minimum, maximum = np.minimum.reduce, np.maximum.reduce
        # Questions to all workers at once, and no floating point warnings to silence: the usual report.
        bounded = maximum(samples, initial=0.0) < LARGEST and maximum(seconds, initial=0.0) < np.inf  # NaN is not
        if bounded and minimum(seconds, initial=np.inf) >= SHORTEST:
            speed = samples / seconds
            if minimum(speed, initial=np.inf) >= SLOWEST and maximum(speed, initial=0.0) <= FASTEST:
                return speed, self.out_of_memory is None
        return _usable(samples, seconds), False


@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def _usable(samples_W: Array, seconds_W: Array) -> Array:
    """Return possible speeds, NaN where a worker has no usable report."""
    speed_W = samples_W / seconds_W
    # The speed is not above 0 if samples are not, or if seconds are infinite.
    usable_W = (seconds_W >= SHORTEST) & (speed_W > 0) & (samples_W < LARGEST)
    return np.where(usable_W, np.minimum(np.maximum(speed_W, SLOWEST), FASTEST), np.nan)
