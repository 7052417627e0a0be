"""The earliest deadline by which a fleet ends a given work: an exact selection, no tolerance. Axis: W workers.

Each worker's quanta, in order, end at times that never fall: W sorted rows. The deadline wanted is the R-th
smallest number of all rows together, R being the quanta above the lower bounds. It is found by selection from
sorted rows: count the quanta that end by a pivot, keep the side that holds the R-th, and rank the few that are
left. Newton steps choose the pivots, because curves are nearly straight: three to six turns are usual.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.solver.load import Array, Load

RANKABLE = 256
"""With no more times left than these and one a worker, they are ranked at once."""

NEWTON_TURNS = 3
"""After so many turns, once pivots came out too early and too late, halving what lies between is surer."""


def earliest(load: Load, quanta: int) -> tuple[float, Array]:
    """Return the smallest float64 by which the fleet ends ``quanta``, and the most each worker ends by it, ``[W]``.

    ``quanta`` must exceed the sum of the lower bounds and not exceed that of the upper ones. What a worker's lower
    bound makes it do, however late, does not count: the deadline is that of the work there is a choice about.
    """
    done, late = load.lower, load.upper
    early, end = -1, _to_bits(float(load.seconds(late).max()))
    pivot = _first_pivot(load, quanta)
    turn = 0
    while end - early > 1 and _left(load, done, late) > len(done) + RANKABLE:
        enclosed = early >= 0 and late is not load.upper
        halve = turn >= NEWTON_TURNS and (enclosed or turn % 2 == 0)
        pivot = _from_bits((early + end) // 2) if halve else _inside(load, early, end, pivot)
        within = load.quanta_within(pivot)
        missing = quanta - within.sum()
        if missing > 0:
            early, done = _to_bits(pivot), within
        else:
            end, late = _to_bits(pivot), within
        pivot += _newton_step(load, within, missing, turn)
        turn += 1
    return (_from_bits(end), late) if end - early == 1 else _ranked(load, done, late, quanta)


def _first_pivot(load: Load, quanta: int) -> float:
    """Return the deadline if all curves were lines without bounds and rounding down cost half a quantum each."""
    started = ((load.intercept + load.comm) * load.rate).sum()
    return float((quanta + len(load.rate) / 2 + started) / load.rate.sum())


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
    left = float((late - done).sum())
    if not load.begins_flat.any():
        return left
    rows = np.flatnonzero(load.begins_flat & (done == load.lower))
    rate = load.rate[rows]
    flat = np.where(rate > 0, (load.floor[rows] - load.intercept[rows]) * rate, np.inf)
    return left - float(np.maximum(np.minimum(flat, late[rows]) - done[rows] - 1, 0).sum())


def _ranked(load: Load, done: Array, late: Array, quanta: int) -> tuple[float, Array]:
    """Return the deadline and the quanta ended by it, by ranking all times above ``done`` up to ``late``."""
    some = np.flatnonzero(late > done)
    first = _first_steps(load, done, some)
    count = (late[some] - first + 1).astype(np.intp)
    place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    rows = np.repeat(some, count)
    seconds = load.seconds(np.repeat(first, count) + place, rows)
    weight = np.where(place == 0, np.repeat(first - done[some], count), 1.0)
    deadline = _weighted_rank(seconds, weight, int(quanta - done.sum()))
    within = seconds <= deadline
    return deadline, done + np.bincount(rows[within], weight[within], len(done))


def _first_steps(load: Load, done: Array, rows: NDArray[np.intp]) -> Array:
    """Return the first quantum above ``done`` of these workers, or, where a curve begins flat, the last as early."""
    first = done[rows] + 1
    if load.begins_flat.any():
        flat = np.flatnonzero(load.begins_flat[rows] & (done[rows] == load.lower[rows]))
        part = load.only(rows[flat])
        first[flat] = part.quanta_within(part.first)
    return first


def _weighted_rank(values: Array, weight: Array, rank: int) -> float:
    """Return the smallest value up to which the weights sum to the rank."""
    if weight.max() == 1:
        return float(np.partition(values, rank - 1)[rank - 1])
    order = np.argsort(values)
    return float(values[order[np.searchsorted(np.cumsum(weight[order]), rank)]])


def _to_bits(seconds: float) -> int:
    """Return the rank of a float64 that is not negative among all float64: halving ranks halves what is left."""
    return int(np.float64(abs(seconds)).view(np.int64))


def _from_bits(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))
