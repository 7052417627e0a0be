"""The earliest deadline by which a fleet can end a batch, and an even use of its workers until then. Axis: W workers.

Times are computed in one place, `Load.seconds`, and every decision compares exactly those numbers: the shortest
makespan is the shortest in float64, not up to a tolerance.

The deadline is an exact selection. The end times of each worker's multiples never decrease, so they form W sorted rows.
With R multiples above the lower bounds, the deadline is the R-th smallest number of all rows together: count the
multiples that end by a pivot, keep the side that holds the R-th, and rank the few that are left. Newton steps choose
the pivots, because curves are nearly straight: three to six turns are usual.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Mask
from paceline._curves import Line, batch_seconds


class BatchTimeCurves(Line, Protocol):
    """Batch time curves ``t(x) = max(floor, intercept + slope * x)`` for ``x <= limit``; four arrays ``[W]``.

    `paceline.predictors.Curves` is one; any object with these four attributes works.
    """

    @property
    def limit(self) -> Array:
        """The largest batch that fits into memory, in samples; infinite where there is none."""
        ...


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

    def seconds(self, multiples: Array) -> Array:
        """Return the seconds that workers take for these multiples, at least one each, with communication, ``[W]``."""
        return batch_seconds(self, multiples * self.batch_multiple) + self.comm

    def only(self, rows: NDArray[np.intp]) -> Load:
        """Return the load of only these workers."""
        bounds = self.lower[rows], self.upper[rows]
        curves = self.floor[rows], self.slope[rows], self.intercept[rows], self.comm[rows]
        return Load(*curves, *bounds, self.batch_multiple)

    @cached_property
    def rate(self) -> Array:
        """Multiples per second on the line, ``[W]``; 0 where the line is level, as more time changes nothing there."""
        rate = 1.0 / (self.slope * self.batch_multiple)
        return np.where(rate < np.inf, rate, 0.0)

    def multiples_within(self, deadline: float) -> Array:
        """Return the most multiples each worker ends by the deadline, between its bounds, ``[W]``.

        The line is inverted with a margin for rounding; where several counts remain, the computed times decide.
        """
        started = self.seconds(self.lower + 1) <= deadline
        rounding = 16 * float(np.finfo(np.float64).eps)  # the largest relative error of a curve's inverse
        start = self.intercept + self.comm
        offset, margin = start * self.rate, (np.abs(start) + self.comm) * (rounding * self.rate)
        done = np.floor(deadline * (self.rate * (1 - rounding)) - (offset + margin))
        bound = deadline * (self.rate * (1 + rounding)) - (offset - margin - 1)
        done = np.clip(done, self.lower, self.upper)
        bound = np.floor(np.minimum(np.where(self.rate > 0, bound, np.inf), self.upper + 1))
        done = np.where(started, done, self.lower)
        rows = ((bound - done > 1) & started).nonzero()[0]
        if len(rows):
            done[rows] = self.only(rows)._bisected(done[rows], bound[rows], deadline)
        return done

    def _bisected(self, done: Array, bound: Array, deadline: float) -> Array:
        """Bisect between a count that is done in time and one that is late."""
        done = np.where(self.seconds(self.upper) <= deadline, self.upper, done)
        while (bound - done > 1).any():
            middle = np.floor((done + bound) / 2)
            in_time = self.seconds(middle) <= deadline
            done, bound = np.where(in_time, middle, done), np.where(in_time, bound, middle)
        return done


def share(load: Load, multiples: int) -> Array:
    """Return the multiples of each worker, ``[W]``: they sum to ``multiples`` and end as early as possible.

    The fleet can often end more than ``multiples`` by the earliest deadline, because times tie or curves are flat. If
    that is enough, one batch multiple is taken back from each of those that would end last. If not, every worker gets
    the same share of what it could do of the batch by the deadline.
    """
    if load.lower.sum() == multiples:
        return load.lower
    deadline, multiples_W = earliest(load, multiples)
    excess = int(multiples_W.sum()) - multiples
    if not excess:
        return multiples_W
    last_W = multiples_W > load.lower
    if excess >= np.count_nonzero(last_W):
        multiples_W, last_W = _evenly_used(load, multiples_W, deadline, multiples)
        excess = int(multiples_W.sum()) - multiples
    return _less_one(load, multiples_W, last_W, excess) if excess else multiples_W


def _evenly_used(load: Load, multiples_W: Array, deadline: float, multiples: int) -> tuple[Array, Mask]:
    """Return the multiples at the lowest use that is enough, and which workers reach it with their last one.

    A worker's use is its multiples divided by what its curve alone, without the upper bound, would allow by the
    deadline.
    """
    able = replace(load, upper=np.full(len(multiples_W), float(multiples))).multiples_within(deadline)
    zero = np.zeros(len(multiples_W))
    # The same selection solves both problems: "use" takes the place of time, and each worker's curve is a line.
    use = Load(zero, 1.0 / np.maximum(able, 1), zero, zero, load.lower, multiples_W)
    level, even = earliest(use, multiples)
    return even, (even > load.lower) & (use.seconds(even) == level)


def _less_one(load: Load, multiples_W: Array, last_W: Mask, excess: int) -> Array:
    """Take one batch multiple from the ``excess`` workers that end last among these; ties go to the slower curve."""
    rows = np.flatnonzero(last_W)
    part = load.only(rows)
    # The worker's place comes last among the keys, so that workers of equal curves are ordered the same way each time.
    keys = (rows, part.slope, part.intercept, part.floor, part.comm, part.seconds(multiples_W[rows]))
    less = multiples_W.copy()
    less[rows[np.lexsort(keys)[len(rows) - excess :]]] -= 1
    return less


def earliest(load: Load, multiples: int) -> tuple[float, Array]:
    """Return the smallest float64 by which the fleet ends ``multiples``, and the most each worker ends by it, ``[W]``.

    ``multiples`` must be above the sum of the lower bounds and at most the sum of the upper bounds. The multiples that
    a lower bound forces on a worker do not count, however late they end: only the remaining work leaves a choice.
    """
    done, bound = load.lower, load.upper
    # Bisecting the bit patterns halves the number of float64 that are left, so the search ends at one exact number.
    # A bisection of the seconds themselves would need a tolerance.
    early, end = -1, _to_bits(float(load.seconds(bound).max()))
    # The first pivot takes all curves for lines without bounds, and half a multiple for each worker for rounding.
    started = np.dot(load.intercept + load.comm, load.rate)
    pivot = float((multiples + len(load.rate) / 2 + started) / load.rate.sum())
    turn = 0
    while end - early > 1 and (bound - done).sum() > len(done) + 256:  # fewer end times than that are ranked directly
        # Newton steps stall where curves are flat or bounds cut them off: then in every turn, or in every second.
        enclosed = early >= 0 and bound is not load.upper
        halve = turn >= 3 and (enclosed or turn % 2 == 0)
        if halve or not (pivot > 0 and early < _to_bits(pivot) < end):
            pivot = _from_bits((early + end) // 2)
        within = load.multiples_within(pivot)
        missing = float(multiples - within.sum())
        if missing > 0:
            early, done = _to_bits(pivot), within
        else:
            end, bound = _to_bits(pivot), within
            # At most `-missing` of each worker's last times are later than the deadline, and one more may equal it.
            done = np.maximum(done, bound - (1 - missing))
        # Only workers between their bounds gain multiples when the deadline moves. A little more, to enclose it.
        moving = (within > load.lower) & (within < load.upper)
        margin = float(np.count_nonzero(moving)) ** 0.5 + 1
        pivot += float((missing + (margin if missing > 0 else -margin)) / np.dot(load.rate, moving))
        turn += 1
    return (_from_bits(end), bound) if end - early == 1 else _ranked(load, done, bound, multiples)


def _ranked(load: Load, done: Array, bound: Array, multiples: int) -> tuple[float, Array]:
    """Return the deadline and the multiples ended by it, by ranking all times above ``done`` up to ``bound``."""
    count = (bound - done).astype(np.intp)
    rows = np.arange(len(done)).repeat(count)
    place = np.arange(len(rows)) - (count.cumsum() - count).repeat(count)
    seconds = load.only(rows).seconds(done[rows] + 1 + place)
    rank = int(multiples - done.sum()) - 1
    deadline = float(np.partition(seconds, rank)[rank])
    return deadline, done + np.bincount(rows[seconds <= deadline], minlength=len(done))


def _to_bits(seconds: float) -> int:
    """Return the rank of a non-negative float64 among all float64.

    The bit pattern of a non-negative float64, read as an integer, grows with the number. ``abs`` turns -0.0 into 0.0,
    whose pattern would be negative otherwise.
    """
    bits: int = struct.unpack("<q", struct.pack("<d", abs(seconds)))[0]
    return bits


def _from_bits(bits: int) -> float:
    seconds: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return seconds
