"""Search of `pack` for padded micro-batches, each of which pays for every sample what its longest costs.

The sorted samples are cut contiguously: the longest of a micro-batch may as well hold the next longest. For a given
end, each cut goes to the rank with most work left until then, which takes as many samples as the cap and that work
allow, and no more than where padding says to begin another. Bisection finds the earliest end.
Axes: N samples, W ranks, B micro-batches.
"""

from __future__ import annotations

import heapq

import numpy as np

from paceline._arrays import Sizes
from paceline.solver.fleet import Samples, padded_cut
from paceline.solver.micro_batches import Bins, Problem, fill_empty

Cut = list[tuple[int, int]]
"""Rank and size of each micro-batch, the longest samples first."""


def search_padded(problem: Problem, count: int | None, low: float) -> Bins | None:
    """Return micro-batches that end early, ``count`` for each rank or as many as it needs; None if they do not fit.

    No packing ends before ``low`` seconds.
    """
    samples = Samples(problem.work[:, 0], problem.tokens[:, 0], float(problem.caps[0]), 0)
    # padding is reduced among 90%; the others make ranks end together
    fixed, groups = float(problem.fixed[0]), None if count is None else int(0.9 * count * problem.ranks)
    best, end = None, np.inf
    for starts in (padded_cut(samples, fixed, groups), np.zeros(1, dtype=np.int64)):
        cut, found = _earliest(problem, count, low, starts)
        if cut is not None and found < end:
            best, end = cut, found
    return None if best is None else _as_bins(problem, best, count)


def padded_count(problem: Problem) -> int:
    """Return how many micro-batches the fastest rank needs if padding and their fixed cost together are to be least."""
    samples = Samples(problem.work[:, 0], problem.tokens[:, 0], float(problem.caps[0]), 0)
    groups, speed_W = len(padded_cut(samples, float(problem.fixed[0]))), 1 / problem.fleet.pace
    return int(np.ceil(groups * speed_W[0] / speed_W.cumsum()[-1]))


def _earliest(problem: Problem, count: int | None, low: float, starts: Sizes) -> tuple[Cut | None, float]:
    """Return the cut with the earliest end, and that end; no micro-batch holds samples before and after a start."""
    next_N = np.append(starts, len(problem))[np.searchsorted(starts, np.arange(len(problem)), side="right")].tolist()
    if _until(problem, count, np.inf, next_N) is None:  # it is not time that is short
        return None, np.inf
    high = low * 1.001
    while (found := _until(problem, count, high, next_N)) is None:
        low, high = high, high * 1.5
    while high - low > 1e-3 * low:
        middle = (low + high) / 2
        cut = _until(problem, count, middle, next_N)
        if cut is None:
            low = middle
        else:
            high, found = middle, cut
    return found, high


def _until(problem: Problem, count: int | None, end: float, next_N: list[int]) -> Cut | None:
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
        size = int(min((-key - each) / cost[first] + 1e-9, cap / tokens[first], next_N[first] - first))
        if size < 1:
            return None
        cut.append((rank, size))
        slots[rank] -= 1
        if slots[rank]:
            heapq.heappush(heap, (key + size * cost[first] + each, rank))
        first += size
    return cut


def _as_bins(problem: Problem, cut: Cut, count: int | None) -> Bins:
    """Return these micro-batches; the largest of a rank are halved until it has ``count``."""
    groups: list[list[range]] = [[] for _ in range(problem.ranks)]
    first = 0
    for rank, size in cut:
        groups[rank].append(range(first, first + size))
        first += size
    for rank_groups in groups:
        while len(rank_groups) < (count or 1):
            largest = max(range(len(rank_groups)), key=lambda place: len(rank_groups[place]), default=None)
            half = 0 if largest is None else len(rank_groups[largest]) // 2
            rank_groups.append(
                range(0) if largest is None else rank_groups[largest][len(rank_groups[largest]) - half :]
            )
            if largest is not None:
                rank_groups[largest] = rank_groups[largest][: len(rank_groups[largest]) - half]
    of_N = np.empty(len(problem), dtype=np.int64)
    for place, group in enumerate(group for rank_groups in groups for group in rank_groups):
        of_N[group] = place
    bins = Bins(np.repeat(np.arange(problem.ranks), [len(rank_groups) for rank_groups in groups]), of_N)
    fill_empty(problem, bins, count)
    return bins
