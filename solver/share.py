"""Which of several equally fast splits to take: the one that uses all workers evenly. Axis: W workers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline.solver.deadline import earliest
from paceline.solver.load import Load


def share(load: Load, quanta: int) -> Array:
    """Return the quanta of each worker, ``[W]``: they sum to ``quanta`` and end as early as possible.

    The fleet can often end more than ``quanta`` by the earliest deadline, because times tie or curves are flat. If
    that is enough, one quantum is taken back from each of those that would end last. If not, every worker gets the
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
    """Return the quanta at the lowest use that is enough, and which workers reach that use with their last quantum.

    A worker's use is its quanta divided by what its curve alone, without the upper bound, would allow by the deadline.
    """
    able = replace(load, upper=np.full(len(most), float(quanta))).quanta_within(deadline)
    zero = np.zeros(len(most))
    # The same selection solves both problems: "use" takes the place of time, and each worker's curve is a line.
    use = Load(zero, 1.0 / np.maximum(able, 1), zero, zero, load.lower, most)
    level, even = earliest(use, quanta)
    return even, (even > load.lower) & (use.seconds(even) == level)


def _less_one(load: Load, most: Array, last_W: NDArray[np.bool_], excess: int) -> Array:
    """Take one quantum from the ``excess`` workers that end last among these; ties go to the slower curve."""
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
