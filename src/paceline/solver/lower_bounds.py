"""Lower bounds of the end of any assignment, without a search. Axes: N samples, W ranks."""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array, Sizes
from paceline.solver.assign_arguments import Fleet, Samples

CELLS = 512
"""Lengths that the bound on padding tells apart: all of the longest half of them, and quantiles of the others.
A length is rounded down to its cell's, so the bound stays one."""

STEPS = 14
"""Halvings of the price of a group: the bound holds for every price, and changes no more after so many."""


def packed_bound(samples: Samples, fleet: Fleet) -> float:
    """Return a time, in seconds, before which no assignment ends.

    The largest of three bounds: all work at once (a fluid), the ``k`` longest samples on the ``k`` fastest ranks (as
    where samples may be interrupted: Horvath, Lam and Sethi 1977), and a sample for each of the slowest ranks.

    >>> fleet = Fleet(np.array([1.0, 2.0]), np.zeros(2), np.zeros(2))
    >>> packed_bound(Samples(np.array([6.0, 2.0, 1.0]), np.ones(3), np.inf, lower=1), fleet)
    6.0
    """
    total = float(samples.costs.cumsum()[-1])
    return max(level(fleet, total), _longest(samples, fleet), _own_samples(samples, fleet))


def level(fleet: Fleet, work: float) -> float:
    """Return when the fleet ends, in seconds, if work can be divided at will: all ranks at the same time."""
    order = np.argsort(fleet.fixed, kind="stable")
    start_W, speed_W = fleet.fixed[order], 1 / fleet.pace[order]
    rate_W, late_W = speed_W.cumsum(), (speed_W * start_W).cumsum()
    begun = int(np.searchsorted(start_W * rate_W - late_W, work, side="right")) - 1
    return float((work + late_W[begun]) / rate_W[begun])


def _longest(samples: Samples, fleet: Fleet) -> float:
    count = min(len(fleet), len(samples))
    fastest_W = (1 / np.sort(fleet.pace))[:count].cumsum()
    return float(fleet.fixed.min() + (samples.costs[:count].cumsum() / fastest_W).max())


def _own_samples(samples: Samples, fleet: Fleet) -> float:
    """Return a bound where no rank may be empty: one of the ``k`` slowest has at least the ``k``-th shortest sample."""
    if not samples.lower:
        return 0.0
    shortest_W = samples.costs[::-1][: len(fleet)]
    slowest_W = np.sort(fleet.pace)[::-1]
    alone = float((fleet.fixed + shortest_W[0] * fleet.pace).max())
    return max(float((shortest_W * slowest_W).max() + fleet.fixed.min()), alone, float(fleet.floor.max()))


def least_padded_work(samples: Samples, groups: int) -> float:
    """Return a work below which no division into so many groups comes, each padded to its longest sample.

    The sum over groups of count times longest is least for a contiguous cut of the sorted samples. With a price on
    each group the best cut follows from a recursion, and ``best - price * groups`` is a bound at every price.
    """
    edges, longest_C = _cells(samples)
    return _least_work(edges, longest_C, np.full(len(longest_C), np.inf), groups)


def least_padded_cost(samples: Samples, price: float, groups: int | None = None) -> float:
    """Return a cost below which no division into padded groups under the cap comes, where each group costs ``price``.

    With ``groups``, there are so many, which are not in the cost. Tokens must fall as costs do.
    """
    edges, longest_C = _cells(samples)
    most_C = _most(samples, edges)
    if groups is None:
        return _cheapest(edges, longest_C, most_C, price)[0]
    return _least_work(edges, longest_C, most_C, groups)


def padded_cut(samples: Samples, price: float, groups: int | None = None) -> Sizes:
    """Return where the padded groups begin that cost least, each with its price; at a higher one, if they are too many.

    They may exceed the cap by a few samples, where there are so many that they are counted in cells.
    """
    edges, longest_C = _cells(samples)
    most_C = _most(samples, edges)
    _, cut = _cheapest(edges, longest_C, most_C, price)
    low, high = price, float(longest_C[0] * len(samples))
    for _ in range(0 if groups is None or len(cut) <= groups else STEPS // 2):
        middle = (low + high) / 2
        _, found = _cheapest(edges, longest_C, most_C, middle)
        if len(found) > groups:  # type: ignore[operator]
            low = middle
        else:
            high, cut = middle, found
    return edges[cut].astype(np.int64)


def _most(samples: Samples, edges: Array) -> Array:
    # Moving cuts to the edges of cells makes a group larger by less than a cell.
    return np.floor(samples.cap / samples.tokens[edges[1:].astype(np.int64) - 1]) + np.diff(edges)


def _least_work(edges: Array, longest_C: Array, most_C: Array, groups: int) -> float:
    low, high, best = 0.0, float((longest_C * np.diff(edges)).cumsum()[-1]), 0.0
    for _ in range(STEPS):
        price = (low + high) / 2
        work, cut = _cheapest(edges, longest_C, most_C, price)
        best = max(best, work - price * groups)
        low, high = (price, high) if len(cut) > groups else (low, price)
    return best


def _cells(samples: Samples) -> tuple[Array, Array]:
    """Return where cells of samples begin, and what a group that begins there is padded to, rounded down."""
    count = len(samples)
    edges = np.arange(count + 1)
    if count > CELLS:
        rest = np.linspace(CELLS // 2, count, CELLS // 2 + 1).astype(np.int64)
        edges = np.unique(np.concatenate([np.arange(CELLS // 2), rest]))
    return edges.astype(np.float64), samples.costs[edges[1:] - 1]


def _cheapest(edges: Array, longest_C: Array, most_C: Array, price: float) -> tuple[float, list[int]]:
    """Return the least sum of padded work and prices, and the first cell of each group of at most so many samples."""
    cells = len(longest_C)
    ends = np.searchsorted(edges, edges[:-1] + most_C, side="right").tolist()
    cost, after = np.zeros(cells + 1), [0] * cells
    for first in range(cells - 1, -1, -1):
        end = max(ends[first], first + 2)
        choices = (edges[first + 1 : end] - edges[first]) * longest_C[first] + cost[first + 1 : end]
        best = int(choices.argmin())
        cost[first] = choices[best] + price
        after[first] = first + 1 + best
    cut, first = [], 0
    while first < cells:
        cut.append(first)
        first = after[first]
    return float(cost[0]), cut
