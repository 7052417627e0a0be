"""Who gets how many quanta: the earliest deadline by which the fleet ends the work, and the even use of it.

Axis: W workers. The deadline is an exact selection, no tolerance. Each worker's quanta, in order, end at times that
never fall: W sorted rows. The deadline wanted is the R-th smallest number of all rows together, R being the quanta
above the lower bounds. It is found by selection from sorted rows: count the quanta that end by a pivot, keep the side
that holds the R-th, and rank the few that are left. Newton steps choose the pivots, because curves are nearly
straight: three to six turns are usual.
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
"""With no more times left than these and one a worker, they are ranked at once."""

NEWTON_TURNS = 3
"""After so many turns, once pivots came out too early and too late, halving what lies between is surer."""


def share(load: Load, quanta: int) -> Array:
    """Return the quanta of each worker, ``[W]``: they sum to ``quanta`` and end as early as can be.

    Often the fleet could end more than ``quanta`` by the earliest deadline, because times tie or curves are flat.
    If it suffices, one quantum is taken back from those that would end last. If not, every worker is used to the
    same share of what it could do of the batch by the deadline.
    """
    if np.add.reduce(load.lower) == quanta:
        return load.lower
    deadline, most = earliest(load, quanta)
    excess = int(np.add.reduce(most)) - quanta
    if not excess:
        return most
    last_W = most > load.lower
    if excess >= np.count_nonzero(last_W):
        most, last_W = _evenly_used(load, most, deadline, quanta)
        excess = int(np.add.reduce(most)) - quanta
    return _less_one(load, most, last_W, excess) if excess else most


def _evenly_used(load: Load, most: Array, deadline: float, quanta: int) -> tuple[Array, NDArray[np.bool_]]:
    """Return the quanta at the lowest use that suffices, and who reaches that use with the last quantum.

    Use is the share of what a worker's curve, whatever its upper bound, would do of the batch by the deadline.
    """
    able = replace(load, upper=np.full(len(most), float(quanta))).quanta_within(deadline)
    zero = np.zeros(len(most))
    use = Load(zero, 1.0 / np.maximum(able, 1), zero, zero, load.lower, most)
    level, even = earliest(use, quanta)
    return even, (even > load.lower) & (use.seconds(even) == level)


def _less_one(load: Load, most: Array, last_W: NDArray[np.bool_], excess: int) -> Array:
    """Take one quantum from the ``excess`` workers that end last among these; ties go to the slower curve."""
    rows = np.flatnonzero(last_W)
    seconds = load.only(rows).seconds(most[rows])
    bound = np.partition(seconds, len(rows) - excess)[len(rows) - excess]
    later, tied = rows[seconds > bound], rows[seconds == bound]
    keys = (load.slope, load.intercept, load.floor, load.comm)
    order = np.lexsort((tied, *(key[tied] for key in keys)))
    less = most.copy()
    less[later] -= 1
    less[tied[order[len(order) - (excess - len(later)) :]]] -= 1
    return less


# -- the earliest deadline ------------------------------------------------------------------------------------------


def earliest(load: Load, quanta: int) -> tuple[float, Array]:
    """Return the smallest float64 by which the fleet ends ``quanta``, and the most each worker ends by it, ``[W]``.

    ``quanta`` must exceed the sum of the lower bounds and not exceed that of the upper ones. What a worker's lower
    bound makes it do, however late, does not count: the deadline is that of the work there is a choice about.
    """
    done, late = load.lower, load.upper
    early, end = -1, _to_bits(float(np.maximum.reduce(load.seconds(late))))
    pivot = _first_pivot(load, quanta)
    within, missing, turn = done, 0.0, 0
    while end - early > 1 and _left(load, done, late) > len(done) + RANKABLE:
        if turn:
            pivot += _newton_step(load, within, missing, turn - 1)
        enclosed = early >= 0 and late is not load.upper
        halve = turn >= NEWTON_TURNS and (enclosed or turn % 2 == 0)
        pivot = _from_bits((early + end) // 2) if halve else _inside(load, early, end, pivot)
        within = load.quanta_within(pivot)
        missing = float(quanta - np.add.reduce(within))
        if missing > 0:
            early, done = _to_bits(pivot), within
        else:
            end, late = _to_bits(pivot), within
            # Of each worker's times only the last may be later than the deadline, and one more be the deadline.
            done = np.maximum(done, late - (1 - missing))
        turn += 1
    return (_from_bits(end), late) if end - early == 1 else _ranked(load, done, late, quanta)


def _first_pivot(load: Load, quanta: int) -> float:
    """Return about the deadline if all curves were lines without bounds and rounding down cost half a quantum each.

    A little later, as times by a deadline that is late are ranked at once.
    """
    started = np.dot(load.intercept + load.comm, load.rate)
    count = len(load.rate)
    return float((quanta + count / 2 + count**0.5 + 1 + started) / np.add.reduce(load.rate))


def _newton_step(load: Load, within: Array, missing: float, turn: int) -> float:
    """Return how far to move the deadline, aiming beyond the wanted count, farther each turn, to enclose it."""
    moving = (within > load.lower) & (within < load.upper)
    count = float(np.count_nonzero(moving))
    beyond = min(count, 16.0 ** min(turn, 9) * count**0.5) + 1
    return float((missing + (beyond if missing > 0 else -beyond)) / np.dot(load.rate, moving))


def _inside(load: Load, early: int, end: int, pivot: float) -> float:
    """Return the pivot if it lies between these ranks, or else the middle of the flat parts there, or of the ranks.

    Newton steps fail where curves are flat: there many quanta end at one time.
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
    """Return about how many times lie above ``done`` up to ``late``; the flat first part of a curve is one time."""
    left = float(np.add.reduce(late - done))
    if left <= len(done) + RANKABLE or load.flat is None:
        return left
    hidden = (np.minimum(load.flat, late) - done - 1) * (done == load.lower)
    return left - float(np.add.reduce(np.maximum(hidden, 0)))


def _ranked(load: Load, done: Array, late: Array, quanta: int) -> tuple[float, Array]:
    """Return the deadline and the quanta ended by it, by ranking all times above ``done`` up to ``late``."""
    some = (late > done).nonzero()[0]
    first = _first_steps(load, done, some)
    count = (late[some] - first + 1).astype(np.intp)
    rows = some.repeat(count)
    # The first of each worker's times stands for as many quanta as end with it; so they count on without gaps.
    before = np.add.accumulate(count) - count
    place = np.arange(len(rows)) - before.repeat(count)
    seconds = load.only(rows).seconds(first.repeat(count) + place)
    weight = np.ones(len(rows))
    weight[before] = first - done[some]
    deadline = _weighted_rank(seconds, weight, int(quanta - np.add.reduce(done)))
    within = seconds <= deadline
    return deadline, done + np.bincount(rows[within], weight[within], len(done))


def _first_steps(load: Load, done: Array, rows: NDArray[np.intp]) -> Array:
    """Return the first quantum above ``done`` of these workers, or, where a curve begins flat, the last as early."""
    first = done[rows] + 1
    if load.flat is not None:
        flat = np.flatnonzero(load.begins_flat[rows] & (done[rows] == load.lower[rows]))
        part = load.only(rows[flat])
        first[flat] = part.quanta_within(part.first)
    return first


def _weighted_rank(values: Array, weight: Array, rank: int) -> float:
    """Return the smallest value up to which the weights sum to the rank."""
    if np.maximum.reduce(weight) == 1:
        ranked = values.copy()
        ranked.partition(rank - 1)
        return float(ranked[rank - 1])
    order = np.argsort(values)
    return float(values[order[np.searchsorted(np.cumsum(weight[order]), rank)]])


def _to_bits(seconds: float) -> int:
    """Return the rank of a float64 that is not negative among all float64: halving ranks halves what is left."""
    bits: int = BITS.unpack(FLOAT.pack(abs(seconds)))[0]
    return bits


def _from_bits(bits: int) -> float:
    seconds: float = FLOAT.unpack(BITS.pack(bits))[0]
    return seconds
