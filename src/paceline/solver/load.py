"""The work that a fleet may be given, in multiples, and how much of it is done by a deadline. Axis: W workers.

Times are computed in one place, `Load.seconds`, and every decision compares exactly those numbers: the shortest
makespan is the shortest in float64, not up to a tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline._curves import Line, batch_seconds

ROUNDING = 16 * float(np.finfo(np.float64).eps)
"""Largest relative error of a curve's inverse."""


class BatchTimeCurves(Line, Protocol):
    """Batch time curves ``t(x) = max(floor, intercept + slope * x)`` for ``x <= limit``; four arrays ``[W]``.

    `paceline.predictors.Curves` is one; any object with these four attributes works.
    """

    @property
    def limit(self) -> Array:
        """The largest batch that fits into memory, in samples; infinite where there is none."""
        ...


OVERLAPS = (1, 2, 4, 8, np.inf)
"""Only powers of two: IEEE 754 rounds squares and square roots correctly, so times never fall as batches grow."""


def overlapped(compute: Array, comm: Array, overlap: float) -> Array:
    """Return the time of computing and communicating at once: ``(compute**g + comm**g) ** (1 / g)``, in seconds.

    At 1 one follows the other; at infinity the longer hides the shorter.

    >>> [float(overlapped(np.array([3.0]), np.array([4.0]), g)[0]) for g in (1, 2, np.inf)]
    [7.0, 5.0, 4.0]
    """
    if overlap == np.inf:
        return np.maximum(compute, comm)
    squarings = OVERLAPS.index(overlap)
    for _ in range(squarings):
        compute, comm = compute * compute, comm * comm
    total = compute + comm
    for _ in range(squarings):
        total = np.sqrt(total)
    return total


@dataclass(frozen=True, eq=False)
class Load:
    """Curves of a fleet in which each worker gets ``lower`` to ``upper`` multiples of the batch, ``[W]``.

    Counts of multiples are whole numbers stored as float64, which is exact below 2**53.
    """

    floor: Array
    slope: Array
    intercept: Array
    comm: Array
    lower: Array
    upper: Array
    batch_multiple: int = 1
    overlap: float = 1.0

    def seconds(self, multiples: Array) -> Array:
        """Return the seconds that workers take for these multiples, at least one each, with communication, ``[W]``."""
        compute = batch_seconds(self, multiples * self.batch_multiple)
        return compute + self.comm if self.overlap == 1 else overlapped(compute, self.comm, self.overlap)

    def only(self, rows: NDArray[np.intp]) -> Load:
        """Return the load of only these workers."""
        bounds = self.lower[rows], self.upper[rows]
        curves = self.floor[rows], self.slope[rows], self.intercept[rows], self.comm[rows]
        return Load(*curves, *bounds, self.batch_multiple, self.overlap)

    @cached_property
    def rate(self) -> Array:
        """Multiples per second on the line, ``[W]``; 0 where the line is level, as more time changes nothing there."""
        rate = 1.0 / (self.slope * self.batch_multiple)
        return np.where(rate < np.inf, rate, 0.0)

    @cached_property
    def first(self) -> Array:
        """The time of the first batch multiple above the lower bound, ``[W]``, in seconds."""
        return self.seconds(self.lower + 1)

    @cached_property
    def begins_flat(self) -> NDArray[np.bool_]:
        """Mask of the workers that end several multiples together with the first above the lower bound, ``[W]``."""
        line = self.intercept + self.slope * ((self.lower + 2) * self.batch_multiple)
        flat: NDArray[np.bool_] = (line <= self.floor) | (self.rate == 0)
        return flat

    @cached_property
    def flat(self) -> Array | None:
        """Estimated multiples that end with the first, ``[W]``, 0 where the curve rises at once; None if all rise."""
        if not np.logical_or.reduce(self.begins_flat):
            return None
        until = np.where(self.rate > 0, (self.floor - self.intercept) * self.rate, np.inf)
        return np.where(self.begins_flat, until, 0.0)

    @cached_property
    def _inverse(self) -> tuple[Array, Array, Array, Array]:
        """Rates and offsets of two lines that enclose the curve's inverse in spite of rounding."""
        start = self.intercept + self.comm
        offset = start * self.rate
        doubt = (np.abs(start) + self.comm) * (ROUNDING * self.rate)
        after = np.where(self.rate > 0, offset - doubt - 1, -np.inf)
        return self.rate * (1 - ROUNDING), offset + doubt, self.rate * (1 + ROUNDING), after

    def multiples_within(self, deadline: Array | float) -> Array:
        """Return the most multiples each worker ends by the deadline, between its bounds, ``[W]``.

        The line is inverted with a margin for rounding; where several counts remain, the computed times decide.
        """
        started = self.first <= deadline
        if self.overlap != 1:  # the inverse loses its digits to cancellation where communication takes most of the time
            return self._bisected(started, deadline)
        slow_rate, slow_offset, fast_rate, fast_offset = self._inverse
        # In place, because new arrays cost more than the arithmetic in a large fleet.
        done, late = deadline * slow_rate, deadline * fast_rate
        np.floor(np.subtract(done, slow_offset, out=done), out=done)
        np.minimum(np.maximum(done, self.lower, out=done), self.upper, out=done)
        np.minimum(np.subtract(late, fast_offset, out=late), self.upper + 1, out=late)
        np.floor(late, out=late)
        np.copyto(done, self.lower, where=~started)
        np.subtract(late, done, out=late)
        rows = ((late > 1) & started).nonzero()[0]
        if len(rows):
            until = deadline[rows] if isinstance(deadline, np.ndarray) else deadline
            done[rows] = self.only(rows)._settled(done[rows], done[rows] + late[rows], until)
        return done

    def _bisected(self, started: NDArray[np.bool_], deadline: Array | float) -> Array:
        rows = np.flatnonzero(started)
        until = deadline[rows] if isinstance(deadline, np.ndarray) else deadline
        done = self.lower.copy()
        done[rows] = self.only(rows)._settled(self.lower[rows], self.upper[rows] + 1, until)
        return done

    def _settled(self, done: Array, late: Array, deadline: Array | float) -> Array:
        """Bisect between a count that is done in time and one that is late."""
        done = np.where(self.seconds(self.upper) <= deadline, self.upper, done)
        while (late - done > 1).any():
            middle = np.floor((done + late) / 2)
            in_time = self.seconds(middle) <= deadline
            done, late = np.where(in_time, middle, done), np.where(in_time, late, middle)
        return done
