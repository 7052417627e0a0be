"""Search of `pack` for padded micro-batches, each of which pays for every sample what its longest costs.

The sorted samples are cut contiguously: the longest of a micro-batch may as well hold the next longest. For a given end
each cut goes to the rank with most work left until then, which takes as many samples as the cap and that work allow.
Bisection finds the earliest end. Axes: N samples, W ranks, B micro-batches.
"""

from __future__ import annotations

import heapq

import numpy as np

from paceline.solver.micro_batches import Bins, Problem, fill_empty

FINE = 1e-3
"""Bisection ends at this relative width."""


def search_padded(problem: Problem, count: int | None, low: float) -> Bins | None:
    """Return micro-batches that end early, ``count`` for each rank or as many as it needs; None if they do not fit.

    No packing ends before ``low`` seconds.
    """
    if _until(problem, count, np.inf) is None:  # it is not time that is short
        return None
    high = low * (1 + FINE)
    while (found := _until(problem, count, high)) is None:
        low, high = high, high * 1.5
    while high - low > FINE * low:
        middle = (low + high) / 2
        cut = _until(problem, count, middle)
        if cut is None:
            low = middle
        else:
            high, found = middle, cut
    return _as_bins(problem, found, count)


def _until(problem: Problem, count: int | None, end: float) -> list[tuple[int, int]] | None:
    """Return the rank and size of each micro-batch, the longest samples first; None if ranks do not end in time."""
    cost, tokens, cap = problem.work[:, 0].tolist(), problem.tokens[:, 0].tolist(), float(problem.caps[0])
    fixed, fleet = float(problem.fixed[0]), problem.fleet
    left_W = np.where(end >= fleet.floor, (end - fleet.fixed) / fleet.pace, 0.0) - fixed * (count or 0)
    heap = [(-left, rank) for rank, left in enumerate(left_W.tolist())]
    heapq.heapify(heap)
    each = 0.0 if count else fixed
    slots = [count or len(cost)] * problem.ranks
    cut, first = [], 0
    while first < len(cost):
        if not heap:
            return None
        key, rank = heapq.heappop(heap)
        size = int(min((-key - each) / cost[first] + 1e-9, cap / tokens[first], len(cost) - first))
        if size < 1:
            return None
        cut.append((rank, size))
        slots[rank] -= 1
        if slots[rank]:
            heapq.heappush(heap, (key + size * cost[first] + each, rank))
        first += size
    return cut


def _as_bins(problem: Problem, cut: list[tuple[int, int]], count: int | None) -> Bins:
    """Return these micro-batches; the largest of a rank are halved until it has ``count``."""
    groups: list[list[range]] = [[] for _ in range(problem.ranks)]
    first = 0
    for rank, size in cut:
        groups[rank].append(range(first, first + size))
        first += size
    for own in groups:
        while len(own) < (count or 1):
            largest = max(range(len(own)), key=lambda place: len(own[place]), default=None)
            half = 0 if largest is None else len(own[largest]) // 2
            own.append(range(0) if largest is None else own[largest][len(own[largest]) - half :])
            if largest is not None:
                own[largest] = own[largest][: len(own[largest]) - half]
    of_N = np.empty(len(problem), dtype=np.int64)
    for place, group in enumerate(group for own in groups for group in own):
        of_N[group] = place
    bins = Bins(np.repeat(np.arange(problem.ranks), [len(own) for own in groups]), of_N)
    fill_empty(problem, bins, count)
    return bins
