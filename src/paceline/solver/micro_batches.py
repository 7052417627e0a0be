"""Search of `pack`: samples to ranks, the largest first; then into micro-batches; then exchanges with the latest rank.

Axes: N samples, W ranks, B micro-batches; in an exchange A samples of the latest rank, C places.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array, Sizes
from paceline.solver.fleet import Fleet, sums


@dataclass(frozen=True, eq=False)
class Problem:
    """Samples by falling cost, with the tokens of each, ``[N]``, and ranks by rising pace."""

    work: Array
    tokens: Array
    cap: float
    """Most tokens of a micro-batch; infinite without a cap."""
    fixed: float
    """Cost of a micro-batch besides its samples."""
    fleet: Fleet

    def __len__(self) -> int:
        return len(self.work)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.fleet)


@dataclass(eq=False)
class Bins:
    """Micro-batches: the rank of each, ``[B]``, and the one of each sample, ``[N]``."""

    rank: Sizes
    of: Sizes

    @property
    def sizes(self) -> Sizes:
        """Samples of each micro-batch, ``[B]``."""
        return np.bincount(self.of, minlength=len(self.rank))

    def work(self, problem: Problem, equal: bool) -> Array:
        """Return the work of each rank, ``[W]``, with the fixed part of micro-batches.

        Empty ones have it too where all ranks must have equally many.
        """
        count_W = np.bincount(self.rank[equal | (self.sizes > 0)], minlength=problem.ranks)
        return sums(problem.work, self.rank[self.of], problem.ranks) + count_W * problem.fixed


def search(problem: Problem, count: int | None, level: float, enough: float, lower: int = 1) -> Bins | None:
    """Return micro-batches that end early, ``count`` for each rank or as many as it needs; None if they do not fit.

    ``level`` is when all ranks would end if samples could be divided; a time of ``enough`` ends the search. Ranks have
    at least ``lower`` samples, where there are as many.
    """
    owners = _owners(problem, count, level)
    bins = None if owners is None else _ranks_first(problem, owners, count)
    if bins is None:
        bins = _bins_first(problem, count, level)
    if bins is None:
        return None
    if count is None:  # one more for each rank, dropped if it stays empty
        bins.rank = np.concatenate([bins.rank, np.arange(problem.ranks)])
    fill_empty(problem, bins, count, lower)
    _Exchanges(problem, bins, equal=count is not None, lower=lower).run(enough)
    return bins


def _owners(problem: Problem, count: int | None, level: float) -> list[list[int]] | None:
    """Assign each sample, the largest first, to the rank with the most work left until ``level`` and room for it.

    Where tokens in proportion to speed do not fit under the fastest rank's cap, to the one with most work left for its
    room: fast ranks then get the densest samples, which are the longest.
    """
    fixed = problem.fixed
    left = ((level - problem.fleet.fixed) / problem.fleet.pace - fixed * (count or 0)).tolist()
    cost_N = problem.work
    if count is None and fixed:  # a sample takes as much of a micro-batch's fixed cost as of its cap
        cost_N = cost_N + fixed * (problem.tokens / problem.cap)
    room = [problem.cap * (count or np.inf)] * problem.ranks
    speed_W = 1 / problem.fleet.pace
    share = float(problem.tokens.cumsum()[-1] * speed_W[0] / speed_W.cumsum()[-1])
    # caps are tight for a rank whose samples would fill them to 97%
    dense = room[0] < np.inf and share > 0.97 * room[0]
    heap = [(-work / (room[rank] if dense else 1.0), rank) for rank, work in enumerate(left)]
    heapq.heapify(heap)
    full: list[tuple[float, int, float]] = []  # ranks without room for an earlier sample, most room first
    mine: list[list[int]] = [[] for _ in range(problem.ranks)]
    for sample, (cost, need) in enumerate(zip(cost_N.tolist(), problem.tokens.tolist(), strict=True)):
        while full and -full[0][0] >= need:
            _, rank, key = heapq.heappop(full)
            heapq.heappush(heap, (key, rank))
        while heap and room[heap[0][1]] < need:
            key, rank = heapq.heappop(heap)
            heapq.heappush(full, (-room[rank], rank, key))
        if not heap:
            return None
        rank = heap[0][1]
        room[rank] -= need
        left[rank] -= cost
        heapq.heapreplace(heap, (-left[rank] / (max(room[rank], need) if dense else 1.0), rank))
        mine[rank].append(sample)
    return mine


def _ranks_first(problem: Problem, mine: list[list[int]], count: int | None) -> Bins | None:
    """Divide the samples of each rank into micro-batches: as few as possible, or ``count`` of like cost."""
    rank_B: list[int] = []
    of_N, over = np.full(len(problem), -1, dtype=np.int64), []
    for rank, places in enumerate(mine):
        groups = (_split_alike(problem, places, count) if count else None) or _best_fit(problem, places)
        for place, group in enumerate(groups[:count]):
            of_N[group] = len(rank_B) + place
        over += [sample for group in groups[count or len(groups) :] for sample in group]
        rank_B += [rank] * (count or len(groups))
    bins = Bins(np.array(rank_B, dtype=np.int64), of_N)
    return bins if not over or _place_rest(problem, bins, sorted(over)) else None


def _place_rest(problem: Problem, bins: Bins, over: list[int]) -> bool:
    """Put samples that did not fit beside their rank's others where there is room, on the rank that ends earliest."""
    placed = bins.of >= 0
    room_B = problem.cap - sums(problem.tokens[placed], bins.of[placed], len(bins.rank))
    work_W = sums(problem.work[placed], bins.rank[bins.of[placed]], problem.ranks)
    for sample in over:
        ends_B = (work_W * problem.fleet.pace)[bins.rank]
        ends_B[room_B < problem.tokens[sample]] = np.inf
        place = int(ends_B.argmin())
        if ends_B[place] == np.inf:
            return False
        bins.of[sample] = place
        room_B[place] -= problem.tokens[sample]
        work_W[bins.rank[place]] += problem.work[sample]
    return True


def _bins_first(problem: Problem, count: int | None, level: float) -> Bins | None:
    """Pack all samples as tightly as possible, then give the micro-batches to ranks, the largest first."""
    groups = _best_fit(problem, list(range(len(problem))))
    if len(groups) > (count or len(groups)) * problem.ranks:
        return None
    cost = [float(problem.work[group].cumsum()[-1]) for group in groups]
    heap = [(-level / pace, rank) for rank, pace in enumerate(problem.fleet.pace.tolist())]
    heapq.heapify(heap)
    rank_B, used_W = np.empty(len(groups), dtype=np.int64), [0] * problem.ranks
    of_N = np.empty(len(problem), dtype=np.int64)
    for group in sorted(range(len(groups)), key=lambda group: -cost[group]):
        key, rank = heapq.heappop(heap)
        rank_B[group], used_W[rank] = rank, used_W[rank] + 1
        of_N[groups[group]] = group
        if count is None or used_W[rank] < count:
            heapq.heappush(heap, (key + cost[group], rank))
    spare = [rank for rank, used in enumerate(used_W) for _ in range(used, count or used)]
    return Bins(np.concatenate([rank_B, np.array(spare, dtype=np.int64)]), of_N)


def _split_alike(problem: Problem, samples: list[int], count: int) -> list[list[int]] | None:
    """Divide samples into so many micro-batches of like cost, the largest first; None if they do not fit that way."""
    if count == 1:
        return [samples] if problem.tokens[samples].cumsum()[-1:].sum() <= problem.cap else None
    groups: list[list[int]] = [[] for _ in range(count)]
    cost, used = [0.0] * count, [0.0] * count
    work, tokens = problem.work[samples].tolist(), problem.tokens[samples].tolist()
    for sample, more, need in zip(samples, work, tokens, strict=True):
        fits = [group for group in range(count) if used[group] + need <= problem.cap]
        if not fits:
            return None
        place = min(fits, key=cost.__getitem__)
        groups[place].append(sample)
        cost[place] += more
        used[place] += need
    return groups


def _best_fit(problem: Problem, samples: list[int]) -> list[list[int]]:
    """Return micro-batches of these samples, by best fit decreasing: nearly as few as possible."""
    share = problem.tokens[samples] / problem.cap
    order = [samples[place] for place in np.argsort(-share, kind="stable").tolist()]
    groups: list[list[int]] = []
    rising: list[tuple[float, int]] = []  # room of each micro-batch
    for sample, need in zip(order, problem.tokens[order].tolist(), strict=True):
        place = bisect_left(rising, (need, -1))
        if place == len(rising):
            room, group = problem.cap, len(groups)
            groups.append([])
        else:
            room, group = rising.pop(place)
        groups[group].append(sample)
        insort(rising, (room - need, group))
    return groups


def fill_empty(problem: Problem, bins: Bins, count: int | None, lower: int = 1) -> None:
    """Move the smallest samples of other ranks to ranks with too few, then to empty micro-batches if any are left."""
    if len(problem) >= problem.ranks * lower:
        has_W = np.bincount(bins.rank[bins.of], minlength=problem.ranks)
        for rank in np.flatnonzero(has_W < lower)[::-1].tolist():  # the slowest first
            while has_W[rank] < lower:
                sample = int(np.flatnonzero(has_W[bins.rank[bins.of]] > lower)[-1])
                has_W[[bins.rank[bins.of[sample]], rank]] += [-1, 1]
                bins.of[sample] = int(np.flatnonzero(bins.rank == rank)[0])
    if count is not None and lower and len(problem) >= problem.ranks * count:
        size_B = bins.sizes
        for empty in np.flatnonzero(size_B == 0).tolist():
            spare_N = size_B[bins.of] > 1
            local_N = spare_N & (bins.rank[bins.of] == bins.rank[empty])
            sample = int(np.flatnonzero(local_N if local_N.any() else spare_N)[-1])
            size_B[[bins.of[sample], empty]] += [-1, 1]
            bins.of[sample] = empty


class _Exchanges:
    """Exchanges of samples between the latest rank and early ones, which keep the cap; bins are updated in place.

    With ``equal``, micro-batches without samples stay. Ranks keep ``lower`` samples.
    """

    def __init__(self, problem: Problem, bins: Bins, *, equal: bool, lower: int) -> None:
        self.problem, self.bins, self.equal, self.lower = problem, bins, equal, lower
        self.work_W, self.size_B = bins.work(problem, equal), bins.sizes
        self.tokens_B = sums(problem.tokens, bins.of, len(bins.rank))
        self.by_rank = _group_by_owner(bins.rank[bins.of], problem.ranks)
        self.bins_of = _group_by_owner(bins.rank, problem.ranks)

    def run(self, enough: float) -> None:
        """Exchange samples as long as that helps and the step takes longer than ``enough`` seconds."""
        ends: list[float] = []
        patience = self.problem.ranks + 8
        for _ in range(200):
            seconds_W = self.problem.fleet.seconds(self.work_W)
            ends.append(float(seconds_W.max()))
            # stop when an exchange with each rank, and a few more, gain less than 0.02%
            if ends[-1] <= enough or (len(ends) > patience and ends[-1] > ends[-patience] * (1 - 2e-4)):
                break
            found = self._best(seconds_W)
            if found is None:
                break
            self._apply(*found)

    def _apply(self, sample: int, other: int, place: int) -> None:
        """Put a sample into another micro-batch, and the other one, if there is one, where that sample was."""
        bins, problem, source = self.bins, self.problem, int(self.bins.of[sample])
        moved, count = problem.tokens[sample], 1
        bins.of[sample] = place
        if other >= 0:
            bins.of[other] = source
            moved, count = moved - problem.tokens[other], 0
        self.tokens_B[source] -= moved
        self.tokens_B[place] += moved
        self.size_B[source] -= count
        self.size_B[place] += count
        giver, taker = bins.rank[[source, place]].tolist()
        both = np.sort(np.concatenate([self.by_rank[giver], self.by_rank[taker]]))
        for rank in (giver, taker):  # summed again, in the order of samples: no rounding adds up
            own = self.by_rank[rank] = both[bins.rank[bins.of[both]] == rank]
            used = len(self.bins_of[rank]) if self.equal else np.count_nonzero(self.size_B[self.bins_of[rank]])
            self.work_W[rank] = problem.work[own].cumsum()[-1:].sum() + used * problem.fixed

    def _best(self, seconds_W: Array) -> tuple[int, int, int] | None:
        """Return which sample the latest rank gives, for which (-1: for none), and into which micro-batch."""
        problem, bins = self.problem, self.bins
        latest = int(seconds_W.argmax())
        order = np.argsort(seconds_W, kind="stable")[:8]
        early = [rank for rank in order.tolist() if seconds_W[rank] < seconds_W[latest]]
        candidates = _subsample(self.by_rank[latest])
        if not early or not len(candidates):
            return None
        theirs = _subsample(np.concatenate([self.by_rank[rank] for rank in early]))
        free = np.concatenate([self.bins_of[rank] for rank in early])
        # A place is a sample to swap with, or room in a micro-batch.
        place_C = np.concatenate([bins.of[theirs], free])
        rank_C, moves_C = bins.rank[place_C], np.arange(len(place_C)) >= len(theirs)
        none_C = np.zeros(len(free))
        tokens_C, work_C = (np.concatenate([of_N[theirs], none_C]) for of_N in (problem.tokens, problem.work))
        room_B, tokens_A1 = problem.cap - self.tokens_B, problem.tokens[candidates][:, None]
        fits_AC = tokens_A1 <= room_B[place_C] + tokens_C
        fits_AC &= tokens_C <= room_B[bins.of[candidates]][:, None] + tokens_A1
        alone_AC = (self.size_B[bins.of[candidates]] == 1)[:, None] & moves_C
        received_AC = moved_AC = problem.work[candidates][:, None] - work_C
        if len(self.by_rank[latest]) <= self.lower:
            fits_AC &= ~moves_C
        if self.equal:
            fits_AC &= ~alone_AC | (self.lower == 0)
        elif problem.fixed:  # an emptied micro-batch goes, a new one comes
            moved_AC = moved_AC + alone_AC * problem.fixed
            received_AC = received_AC + (self.size_B[place_C] == 0) * problem.fixed
        fixed_W, pace_W, floor_W = problem.fleet.fixed, problem.fleet.pace, problem.fleet.floor
        new_AC = np.maximum(fixed_W[latest] + pace_W[latest] * (self.work_W[latest] - moved_AC), floor_W[latest])
        their_AC = np.maximum(fixed_W[rank_C] + pace_W[rank_C] * (self.work_W[rank_C] + received_AC), floor_W[rank_C])
        later_AC = np.maximum(new_AC, their_AC)
        now_C = np.maximum(seconds_W[latest], seconds_W[rank_C])
        later_AC[~fits_AC | (later_AC >= now_C * (1 - 1e-9))] = np.inf
        sample, place = divmod(int(later_AC.argmin()), len(place_C))
        if later_AC[sample, place] == np.inf:
            return None
        return int(candidates[sample]), -1 if moves_C[place] else int(theirs[place]), int(place_C[place])


def _group_by_owner(owner_N: Sizes, owners: int) -> list[Sizes]:
    """Return the places of each owner, rising."""
    order = np.argsort(owner_N, kind="stable")
    return np.split(order, np.bincount(owner_N, minlength=owners).cumsum()[:-1])


def _subsample(samples: Sizes) -> Sizes:
    """Return at most 64 of these samples, evenly spread over their costs."""
    if len(samples) <= 64:
        return samples
    return samples[np.linspace(0, len(samples) - 1, 64).astype(np.int64)]
