"""Choice among the fastest splits: the earliest deadline, and the even use of all workers. Axis: W workers.

The deadline is an exact selection, no tolerance. The end times of each worker's multiples never decrease, so they form
W sorted rows. With R multiples above the lower bounds, the deadline is the R-th smallest number of all rows together.
Selection from sorted rows finds it: count the multiples that end by a pivot, keep the side that holds the R-th, and
rank the few that are left. Newton steps choose the pivots, because curves are nearly straight: three to six turns are
usual.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline.solver.load import Load

FLOAT, BITS = struct.Struct("<d"), struct.Struct("<q")

RANKABLE = 256
"""Once at most this many end times, plus one per worker, are left, they are ranked directly."""

NEWTON_TURNS = 3
"""After this many turns the search bisects: in every turn if pivots enclose the deadline, otherwise in every second.

Newton steps stall where curves are flat or bounds cut them off.
"""


def share(load: Load, multiples: int) -> Array:
    """Return the multiples of each worker, ``[W]``: they sum to ``multiples`` and end as early as possible.

    The fleet can often end more than ``multiples`` by the earliest deadline, because times tie or curves are flat. If
    that is enough, one batch multiple is taken back from each of those that would end last. If not, every worker gets
    the same share of what it could do of the batch by the deadline.
    """
    if np.add.reduce(load.lower) == multiples:
        return load.lower
    deadline, most = earliest(load, multiples)
    excess = int(np.add.reduce(most)) - multiples
    if not excess:
        return most
    last_W = most > load.lower
    if excess >= np.count_nonzero(last_W):
        most, last_W = _evenly_used(load, most, deadline, multiples)
        excess = int(np.add.reduce(most)) - multiples
    return _less_one(load, most, last_W, excess) if excess else most


def _evenly_used(load: Load, most: Array, deadline: float, multiples: int) -> tuple[Array, NDArray[np.bool_]]:
    """Return the multiples at the lowest use that is enough, and which workers reach it with their last one.

    A worker's use is its multiples divided by what its curve alone, without the upper bound, would allow by the
    deadline.
    """
    able = replace(load, upper=np.full(len(most), float(multiples))).multiples_within(deadline)
    zero = np.zeros(len(most))
    # The same selection solves both problems: "use" takes the place of time, and each worker's curve is a line.
    use = Load(zero, 1.0 / np.maximum(able, 1), zero, zero, load.lower, most)
    level, even = earliest(use, multiples)
    return even, (even > load.lower) & (use.seconds(even) == level)


def _less_one(load: Load, most: Array, last_W: NDArray[np.bool_], excess: int) -> Array:
    """Take one batch multiple from the ``excess`` workers that end last among these; ties go to the slower curve."""
    rows = np.flatnonzero(last_W)
    seconds = load.only(rows).seconds(most[rows])
    bound = np.partition(seconds, len(rows) - excess)[len(rows) - excess]
    later, tied = rows[seconds > bound], rows[seconds == bound]
    # The worker's place comes last among the keys, so that workers of equal curves are ordered the same way each time.
    keys = (load.slope, load.intercept, load.floor, load.comm)
    order = np.lexsort((tied, *(key[tied] for key in keys)))
    less = most.copy()
    less[later] -= 1
    less[tied[order[len(order) - (excess - len(later)) :]]] -= 1
    return less


# -- the earliest deadline ------------------------------------------------------------------------------------------


def earliest(load: Load, multiples: int) -> tuple[float, Array]:
    """Return the smallest float64 by which the fleet ends ``multiples``, and the most each worker ends by it, ``[W]``.

    ``multiples`` must be above the sum of the lower bounds and at most the sum of the upper bounds. The multiples that
    a lower bound forces on a worker do not count, however late they end: only the remaining work leaves a choice.
    """
    done, late = load.lower, load.upper
    # Bisecting the bit patterns halves the number of float64 that are left, so the search ends at one exact number.
    # A bisection of the seconds themselves would need a tolerance.
    early, end = -1, _to_bits(float(np.maximum.reduce(load.seconds(late))))
    pivot = _first_pivot(load, multiples)
    within, missing, turn = done, 0.0, 0
    while end - early > 1 and _left(load, done, late) > len(done) + RANKABLE:
        if turn:
            pivot += _newton_step(load, within, missing)
        enclosed = early >= 0 and late is not load.upper
        halve = turn >= NEWTON_TURNS and (enclosed or turn % 2 == 0)
        pivot = _from_bits((early + end) // 2) if halve else _inside(load, early, end, pivot)
        within = load.multiples_within(pivot)
        missing = float(multiples - np.add.reduce(within))
        if missing > 0:
            early, done = _to_bits(pivot), within
        else:
            end, late = _to_bits(pivot), within
            # At most `-missing` of each worker's last times are later than the deadline, and one more may equal it.
            done = np.maximum(done, late - (1 - missing))
        turn += 1
    return (_from_bits(end), late) if end - early == 1 else _ranked(load, done, late, multiples)


def _first_pivot(load: Load, multiples: int) -> float:
    """Estimate the deadline: take all curves for lines without bounds, and half a multiple per worker for rounding."""
    started = np.dot(load.intercept + load.comm, load.rate)
    return float((multiples + len(load.rate) / 2 + started) / np.add.reduce(load.rate))


def _newton_step(load: Load, within: Array, missing: float) -> float:
    """Return how far to move the deadline: a little beyond the count it should reach, to enclose it."""
    # Only workers between their bounds gain multiples when the deadline moves.
    moving = (within > load.lower) & (within < load.upper)
    beyond = float(np.count_nonzero(moving)) ** 0.5 + 1
    return float((missing + (beyond if missing > 0 else -beyond)) / np.dot(load.rate, moving))


def _inside(load: Load, early: int, end: int, pivot: float) -> float:
    """Return the pivot if it lies between these ranks; otherwise the median start of a flat part, or the middle rank.

    Newton steps fail where curves are flat, because many multiples end at one time there.
    """
    if pivot > 0 and early < _to_bits(pivot) < end:
        return pivot
    starts = load.first[load.begins_flat]
    low, high = _from_bits(max(early, 0)), _from_bits(end)
    starts = starts[(starts > low) & (starts < high)]
    if len(starts):
        return float(np.partition(starts, len(starts) // 2)[len(starts) // 2])
    return _from_bits((early + end) // 2)


def _left(load: Load, done: Array, late: Array) -> float:
    """Estimate how many end times lie above ``done`` up to ``late``; a curve's flat first part counts as one."""
    left = float(np.add.reduce(late - done))
    if left <= len(done) + RANKABLE or load.flat is None:
        return left
    hidden = (np.minimum(load.flat, late) - done - 1) * (done == load.lower)
    return left - float(np.add.reduce(np.maximum(hidden, 0)))


def _ranked(load: Load, done: Array, late: Array, multiples: int) -> tuple[float, Array]:
    """Return the deadline and the multiples ended by it, by ranking all times above ``done`` up to ``late``."""
    some = (late > done).nonzero()[0]
    first = _first_steps(load, done, some)
    count = (late[some] - first + 1).astype(np.intp)
    rows = some.repeat(count)
    # The first of each worker's times stands for all multiples that end with it, so the weights leave no gap.
    before = np.add.accumulate(count) - count
    place = np.arange(len(rows)) - before.repeat(count)
    seconds = load.only(rows).seconds(first.repeat(count) + place)
    weight = np.ones(len(rows))
    weight[before] = first - done[some]
    deadline = _weighted_rank(seconds, weight, int(multiples - np.add.reduce(done)))
    within = seconds <= deadline
    return deadline, done + np.bincount(rows[within], weight[within], len(done))


def _first_steps(load: Load, done: Array, rows: NDArray[np.intp]) -> Array:
    """Return the first batch multiple above ``done`` of these workers; where a curve begins flat, the last as early."""
    first = done[rows] + 1
    if load.flat is not None:
        flat = np.flatnonzero(load.begins_flat[rows] & (done[rows] == load.lower[rows]))
        part = load.only(rows[flat])
        first[flat] = part.multiples_within(part.first)
    return first


def _weighted_rank(values: Array, weight: Array, rank: int) -> float:
    """Return the smallest value up to which the weights sum to the rank."""
    if np.maximum.reduce(weight) == 1:  # no flat parts: a partial sort is enough
        ranked = values.copy()
        ranked.partition(rank - 1)
        return float(ranked[rank - 1])
    order = np.argsort(values)
    return float(values[order[np.searchsorted(np.cumsum(weight[order]), rank)]])


def _to_bits(seconds: float) -> int:
    """Return the rank of a non-negative float64 among all float64.

    The bit pattern of a non-negative float64, read as an integer, grows with the number. ``abs`` turns -0.0 into 0.0,
    whose pattern would be negative otherwise.
    """
    bits: int = BITS.unpack(FLOAT.pack(abs(seconds)))[0]
    return bits


def _from_bits(bits: int) -> float:
    seconds: float = FLOAT.unpack(BITS.pack(bits))[0]
    return seconds
