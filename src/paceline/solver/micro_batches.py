"""Search of `pack`: samples to ranks, the largest first; then into micro-batches; then exchanges with the latest rank.

Axes: N samples, W ranks, B micro-batches, P phases, D caps; in an exchange A samples of the latest rank, C places.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paceline._arrays import Array, Mask, Sizes
from paceline.solver.fleet import Fleet, sum_by_owner


@dataclass(frozen=True, eq=False)
class PackingProblem:
    """Samples by falling cost, and ranks by rising pace."""

    work: Array
    """Cost of each sample in each phase, ``[N, P]``; there is one phase unless ranks wait between phases."""
    tokens: Array
    """What each sample takes of each cap, ``[N, D]``."""
    caps: Array
    """Most tokens of a micro-batch, ``[D]``."""
    fixed: Array
    """Cost of a micro-batch besides its samples, in each phase, ``[P]``."""
    fleet: Fleet

    def __len__(self) -> int:
        return len(self.work)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.fleet)

    @cached_property
    def cap_fraction(self) -> Array:
        """The largest share of a cap that each sample takes, ``[N]``."""
        return np.asarray((self.tokens / self.caps).max(axis=1))

    def seconds(self, work_WP: Array) -> Array:
        """Return the time of each rank in each phase, ``[W, P]``, for its work with that of its micro-batches."""
        if work_WP.shape[1] == 1:
            return self.fleet.seconds(work_WP[:, 0])[:, None]
        return work_WP * self.fleet.pace[:, None]


@dataclass(eq=False)
class Bins:
    """Micro-batches: the rank of each, ``[B]``, and the one of each sample, ``[N]``."""

    rank: Sizes
    bin_of_sample: Sizes

    @property
    def sizes(self) -> Sizes:
        """Samples of each micro-batch, ``[B]``."""
        return np.bincount(self.bin_of_sample, minlength=len(self.rank))

    def work(self, problem: PackingProblem, count_empty: bool) -> Array:
        """Return the work of each rank in each phase, ``[W, P]``, with the fixed part of micro-batches.

        Empty ones have it too where all ranks must have equally many.
        """
        count_W = np.bincount(self.rank[count_empty | (self.sizes > 0)], minlength=problem.ranks)
        columns = [sum_by_owner(column, self.rank[self.bin_of_sample], problem.ranks) for column in problem.work.T]
        return np.stack(columns, axis=1) + count_W[:, None] * problem.fixed

    def tokens(self, problem: PackingProblem) -> Array:
        """Return the tokens of each micro-batch, ``[B, D]``."""
        return np.stack(
            [sum_by_owner(column, self.bin_of_sample, len(self.rank)) for column in problem.tokens.T], axis=1
        )


def search(
    problem: PackingProblem, per_rank: int | None, ideal_seconds: float, target_seconds: float, lower: int = 1
) -> Bins | None:
    """Return micro-batches that end early, ``per_rank`` for each rank or as many as it needs; None if they do not fit.

    ``ideal_seconds`` is when all ranks would end if samples could be divided; a time of ``target_seconds`` ends the
    search. Ranks have at least ``lower`` samples, where there are as many.
    """

    def makespan(bins: Bins) -> float:
        return float(problem.seconds(bins.work(problem, per_rank is not None)).max(axis=0).sum())

    def search_from(owners: list[list[int]] | None) -> Bins | None:
        """Return micro-batches that begin with these owners of the samples, and are improved by exchanges."""
        bins = None if owners is None else _ranks_first(problem, owners, per_rank)
        if bins is None:
            bins = _bins_first(problem, per_rank, ideal_seconds)
        if bins is None:
            return None
        if per_rank is None:  # one more for each rank, dropped if it stays empty
            bins.rank = np.concatenate([bins.rank, np.arange(problem.ranks)])
        fill_empty(problem, bins, per_rank, lower)
        _Exchanges(problem, bins, keeps_empty=per_rank is not None, lower=lower).run(target_seconds)
        return bins

    simple = len(problem.fixed) == len(problem.caps) == 1
    bins = search_from(_assign_by_work(problem, per_rank, ideal_seconds) if simple else None)
    if simple and bins is not None and (per_rank != 1 or makespan(bins) <= 1.02 * ideal_seconds):
        return bins
    # under a cap that lets fast ranks take hardly more than others, the order of ends is the better start
    found = [bins, search_from(_assign_by_phase(problem, per_rank))]
    return min((one for one in found if one is not None), key=makespan, default=None)


def _assign_by_work(problem: PackingProblem, per_rank: int | None, ideal_seconds: float) -> list[list[int]] | None:
    """Assign each sample, the largest first, to the rank with room and the most work left until ``ideal_seconds``.

    Where tokens in proportion to speed do not fit under the fastest rank's cap, to the one with most work left for its
    room: fast ranks then get the densest samples, which are the longest.
    """
    fixed = float(problem.fixed[0])
    left = ((ideal_seconds - problem.fleet.fixed) / problem.fleet.pace - fixed * (per_rank or 0)).tolist()
    cost_N = problem.work[:, 0]
    if per_rank is None and fixed:  # a sample takes as much of a micro-batch's fixed cost as of its cap
        cost_N = cost_N + fixed * problem.cap_fraction
    room = [float(problem.caps[0]) * (per_rank or np.inf)] * problem.ranks
    speed_W = 1 / problem.fleet.pace
    share = float(problem.tokens[:, 0].cumsum()[-1] * speed_W[0] / speed_W.cumsum()[-1])
    # caps are tight for a rank whose samples would fill them to 97%
    dense = room[0] < np.inf and share > 0.97 * room[0]
    heap = [(-work / (room[rank] if dense else 1.0), rank) for rank, work in enumerate(left)]
    heapq.heapify(heap)
    full: list[tuple[float, int, float]] = []  # ranks without room for an earlier sample, most room first
    mine: list[list[int]] = [[] for _ in range(problem.ranks)]
    for sample, (cost, need) in enumerate(zip(cost_N.tolist(), problem.tokens[:, 0].tolist(), strict=True)):
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


def _assign_by_phase(problem: PackingProblem, per_rank: int | None) -> list[list[int]] | None:
    """Assign each sample to the rank whose longest phase, relative to that phase's mean, stays shortest."""
    pace_W = problem.fleet.pace
    mine: list[list[int]] = [[] for _ in range(problem.ranks)]
    cost_NP = problem.work / problem.work.cumsum(axis=0)[-1]
    load_WP = np.zeros((problem.ranks, cost_NP.shape[1]))
    room_WD = np.tile(problem.caps * (per_rank or np.inf), (problem.ranks, 1))
    for sample in range(len(problem)):
        after_W = ((load_WP + cost_NP[sample]) * pace_W[:, None]).max(axis=1)
        after_W[(room_WD < problem.tokens[sample]).any(axis=1)] = np.inf
        rank = int(after_W.argmin())
        if after_W[rank] == np.inf:
            return None
        load_WP[rank] += cost_NP[sample]
        room_WD[rank] -= problem.tokens[sample]
        mine[rank].append(sample)
    return mine


def _ranks_first(problem: PackingProblem, rank_samples: list[list[int]], per_rank: int | None) -> Bins | None:
    """Divide the samples of each rank into micro-batches: as few as possible, or ``per_rank`` of like cost."""
    rank_B: list[int] = []
    of_N, over = np.full(len(problem), -1, dtype=np.int64), []
    for rank, places in enumerate(rank_samples):
        groups = (_split_evenly(problem, places, per_rank) if per_rank else None) or _best_fit(problem, places)
        for place, group in enumerate(groups[:per_rank]):
            of_N[group] = len(rank_B) + place
        over += [sample for group in groups[per_rank or len(groups) :] for sample in group]
        rank_B += [rank] * (per_rank or len(groups))
    bins = Bins(np.array(rank_B, dtype=np.int64), of_N)
    return bins if not over or _place_rest(problem, bins, sorted(over)) else None


def _place_rest(problem: PackingProblem, bins: Bins, unplaced: list[int]) -> bool:
    """Put samples that did not fit beside their rank's others where there is room, on the rank that ends earliest."""
    room_BD, placed = problem.caps - np.zeros((len(bins.rank), len(problem.caps))), bins.bin_of_sample >= 0
    for column, tokens_N in enumerate(problem.tokens.T):
        room_BD[:, column] -= sum_by_owner(tokens_N[placed], bins.bin_of_sample[placed], len(bins.rank))
    work_W = sum_by_owner(problem.work.sum(axis=1)[placed], bins.rank[bins.bin_of_sample[placed]], problem.ranks)
    for sample in unplaced:
        ends_B = (work_W * problem.fleet.pace)[bins.rank]
        ends_B[(room_BD < problem.tokens[sample]).any(axis=1)] = np.inf
        place = int(ends_B.argmin())
        if ends_B[place] == np.inf:
            return False
        bins.bin_of_sample[sample] = place
        room_BD[place] -= problem.tokens[sample]
        work_W[bins.rank[place]] += problem.work[sample].sum()
    return True


def _bins_first(problem: PackingProblem, per_rank: int | None, ideal_seconds: float) -> Bins | None:
    """Pack all samples as tightly as possible, then give the micro-batches to ranks, the largest first."""
    groups = _best_fit(problem, list(range(len(problem))))
    if len(groups) > (per_rank or len(groups)) * problem.ranks:
        return None
    total_N = problem.work.sum(axis=1)
    cost = [float(total_N[group].cumsum()[-1]) for group in groups]
    heap = [(-ideal_seconds / pace, rank) for rank, pace in enumerate(problem.fleet.pace.tolist())]
    heapq.heapify(heap)
    rank_B, used_W = np.empty(len(groups), dtype=np.int64), [0] * problem.ranks
    of_N = np.empty(len(problem), dtype=np.int64)
    for group in sorted(range(len(groups)), key=lambda group: -cost[group]):
        key, rank = heapq.heappop(heap)
        rank_B[group], used_W[rank] = rank, used_W[rank] + 1
        of_N[groups[group]] = group
        if per_rank is None or used_W[rank] < per_rank:
            heapq.heappush(heap, (key + cost[group], rank))
    spare = [rank for rank, used in enumerate(used_W) for _ in range(used, per_rank or used)]
    return Bins(np.concatenate([rank_B, np.array(spare, dtype=np.int64)]), of_N)


def _split_evenly(problem: PackingProblem, samples: list[int], num_micro_batches: int) -> list[list[int]] | None:
    """Divide samples into so many micro-batches of like cost, the largest first; None if they do not fit that way."""
    cap, *other_caps = problem.caps.tolist()
    if num_micro_batches == 1:
        used_D = problem.tokens[samples].cumsum(axis=0)[-1:].sum(axis=0)
        return [samples] if (used_D <= problem.caps).all() else None
    groups: list[list[int]] = [[] for _ in range(num_micro_batches)]
    cost, used = [0.0] * num_micro_batches, [0.0] * num_micro_batches
    others = [[0.0] * len(other_caps) for _ in range(num_micro_batches)]
    work, tokens = problem.work[samples].sum(axis=1).tolist(), problem.tokens[samples].tolist()
    for sample, more, (need, *other_needs) in zip(samples, work, tokens, strict=True):
        smallest, place = np.inf, -1
        for group in range(num_micro_batches):
            if cost[group] < smallest and used[group] + need <= cap:
                sums_D = map(float.__add__, others[group], other_needs)
                if not other_caps or all(map(float.__le__, sums_D, other_caps)):
                    smallest, place = cost[group], group
        if place < 0:
            return None
        groups[place].append(sample)
        cost[place] += more
        used[place] += need
        others[place] = list(map(float.__add__, others[place], other_needs))
    return groups


def _best_fit(problem: PackingProblem, samples: list[int]) -> list[list[int]]:
    """Return micro-batches of these samples, by best fit decreasing: nearly as few as possible."""
    caps = problem.caps.tolist()
    share = problem.cap_fraction[samples]
    order = [samples[place] for place in np.argsort(-share, kind="stable").tolist()]
    groups: list[list[int]] = []
    if len(caps) > 1:  # first fit: there is no best of several caps
        rooms: list[list[float]] = []
        for sample in order:
            needs = problem.tokens[sample].tolist()
            fits = (all(map(float.__le__, needs, room)) for room in rooms)
            place = next((place for place, fit in enumerate(fits) if fit), None)
            if place is None:
                place = len(groups)
                groups.append([])
                rooms.append(caps)
            groups[place].append(sample)
            rooms[place] = [has - need for has, need in zip(rooms[place], needs, strict=True)]
        return groups
    rising: list[tuple[float, int]] = []  # room of each micro-batch
    for sample, need in zip(order, problem.tokens[order, 0].tolist(), strict=True):
        place = bisect_left(rising, (need, -1))
        if place == len(rising):
            room, group = caps[0], len(groups)
            groups.append([])
        else:
            room, group = rising.pop(place)
        groups[group].append(sample)
        insort(rising, (room - need, group))
    return groups


def fill_empty(problem: PackingProblem, bins: Bins, per_rank: int | None, lower: int = 1) -> None:
    """Move the smallest samples of other ranks to ranks with too few, then to empty micro-batches if any are left."""
    if len(problem) >= problem.ranks * lower:
        has_W = np.bincount(bins.rank[bins.bin_of_sample], minlength=problem.ranks)
        for rank in np.flatnonzero(has_W < lower)[::-1].tolist():  # the slowest first
            while has_W[rank] < lower:
                sample = int(np.flatnonzero(has_W[bins.rank[bins.bin_of_sample]] > lower)[-1])
                has_W[[bins.rank[bins.bin_of_sample[sample]], rank]] += [-1, 1]
                bins.bin_of_sample[sample] = int(np.flatnonzero(bins.rank == rank)[0])
    if per_rank is not None and lower and len(problem) >= problem.ranks * per_rank:
        size_B = bins.sizes
        for empty in np.flatnonzero(size_B == 0).tolist():
            spare_N = size_B[bins.bin_of_sample] > 1
            local_N = spare_N & (bins.rank[bins.bin_of_sample] == bins.rank[empty])
            sample = int(np.flatnonzero(local_N if local_N.any() else spare_N)[-1])
            size_B[[bins.bin_of_sample[sample], empty]] += [-1, 1]
            bins.bin_of_sample[sample] = empty


class _Exchanges:
    """Exchanges of samples between the latest rank and early ones, which keep the caps; bins are updated in place.

    With ``keeps_empty``, micro-batches without samples stay. Ranks keep ``lower`` samples.
    """

    def __init__(self, problem: PackingProblem, bins: Bins, *, keeps_empty: bool, lower: int) -> None:
        self.problem, self.bins, self.keeps_empty, self.lower = problem, bins, keeps_empty, lower
        self.work_WP, self.tokens_BD, self.size_B = bins.work(problem, keeps_empty), bins.tokens(problem), bins.sizes
        self.by_rank = _group_by_owner(bins.rank[bins.bin_of_sample], problem.ranks)
        self.bins_of = _group_by_owner(bins.rank, problem.ranks)

    def run(self, target_seconds: float) -> None:
        """Exchange samples as long as that helps and the step takes longer than ``target_seconds`` seconds."""
        ends: list[float] = []
        patience = self.problem.ranks + 8
        for _ in range(200):
            seconds_WP = self.problem.seconds(self.work_WP)
            last_P = seconds_WP.max(axis=0)
            ends.append(float(last_P.sum()))
            # stop when an exchange with each rank, and a few more, gain less than 0.02%
            if ends[-1] <= target_seconds or (len(ends) > patience and ends[-1] > ends[-patience] * (1 - 2e-4)):
                break
            phases = np.argsort(seconds_WP.mean(axis=0) - last_P, kind="stable").tolist()
            found = next(filter(None, (self._best(seconds_WP, phase) for phase in phases)), None)
            if found is None:
                break
            self._apply(*found)

    def _apply(self, sample: int, other_sample: int, target_bin: int) -> None:
        """Put a sample into another micro-batch, and the other one, if there is one, where that sample was."""
        bins, problem, source = self.bins, self.problem, int(self.bins.bin_of_sample[sample])
        moved, count = problem.tokens[sample], 1
        bins.bin_of_sample[sample] = target_bin
        if other_sample >= 0:
            bins.bin_of_sample[other_sample] = source
            moved, count = moved - problem.tokens[other_sample], 0
        self.tokens_BD[source] -= moved
        self.tokens_BD[target_bin] += moved
        self.size_B[source] -= count
        self.size_B[target_bin] += count
        giver, taker = bins.rank[[source, target_bin]].tolist()
        both = np.sort(np.concatenate([self.by_rank[giver], self.by_rank[taker]]))
        for rank in (giver, taker):  # summed again, in the order of samples: no rounding adds up
            own = self.by_rank[rank] = both[bins.rank[bins.bin_of_sample[both]] == rank]
            used = len(self.bins_of[rank]) if self.keeps_empty else np.count_nonzero(self.size_B[self.bins_of[rank]])
            self.work_WP[rank] = problem.work[own].cumsum(axis=0)[-1:].sum(axis=0) + used * problem.fixed

    def _best(self, seconds_WP: Array, phase: int) -> tuple[int, int, int] | None:
        """Return which sample the latest rank gives, for which (-1: for none), and into which micro-batch."""
        problem, bins = self.problem, self.bins
        latest = int(seconds_WP[:, phase].argmax())
        order = np.argsort(seconds_WP[:, phase], kind="stable")[:8]
        early = [rank for rank in order.tolist() if seconds_WP[rank, phase] < seconds_WP[latest, phase]]
        candidates = _subsample(self.by_rank[latest])
        if not early or not len(candidates):
            return None
        theirs = _subsample(np.concatenate([self.by_rank[rank] for rank in early]))
        free = np.concatenate([self.bins_of[rank] for rank in early])
        # A place is a sample to swap with, or room in a micro-batch.
        place_C = np.concatenate([bins.bin_of_sample[theirs], free])
        rank_C, moves_C = bins.rank[place_C], np.arange(len(place_C)) >= len(theirs)
        tokens_CD, work_CP = np.zeros((len(place_C), len(problem.caps))), np.zeros((len(place_C), len(problem.fixed)))
        tokens_CD[: len(theirs)], work_CP[: len(theirs)] = problem.tokens[theirs], problem.work[theirs]
        room_BD = problem.caps - self.tokens_BD
        fits_AC = _fits(problem.tokens[candidates], room_BD[place_C] + tokens_CD)
        fits_AC &= _fits(tokens_CD, room_BD[bins.bin_of_sample[candidates]] + problem.tokens[candidates]).T
        alone_AC = (self.size_B[bins.bin_of_sample[candidates]] == 1)[:, None] & moves_C
        moved_ACP = problem.work[candidates][:, None] - work_CP
        received_ACP = moved_ACP
        if len(self.by_rank[latest]) <= self.lower:
            fits_AC &= ~moves_C
        if self.keeps_empty:
            fits_AC &= ~alone_AC | (self.lower == 0)
        elif problem.fixed.any():  # an emptied micro-batch goes, a new one comes
            moved_ACP = moved_ACP + alone_AC[:, :, None] * problem.fixed
            received_ACP = received_ACP + (self.size_B[place_C] == 0)[:, None] * problem.fixed
        fixed_W1, pace_W1, floor_W1 = (
            column[:, None] for column in (problem.fleet.fixed, problem.fleet.pace, problem.fleet.floor)
        )
        new_ACP = np.maximum(fixed_W1[latest] + pace_W1[latest] * (self.work_WP[latest] - moved_ACP), floor_W1[latest])
        their_ACP = fixed_W1[rank_C] + pace_W1[rank_C] * (self.work_WP[rank_C] + received_ACP)
        their_ACP = np.maximum(their_ACP, floor_W1[rank_C])
        later_AC = np.maximum(new_ACP, their_ACP).sum(axis=2)
        now_C = np.maximum(seconds_WP[latest], seconds_WP[rank_C]).sum(axis=1)
        if len(problem.fixed) > 1:
            fits_AC &= _keeps_makespan(seconds_WP, latest, rank_C, new_ACP, their_ACP)
        later_AC[~fits_AC | (later_AC >= now_C * (1 - 1e-9))] = np.inf
        sample, place = divmod(int(later_AC.argmin()), len(place_C))
        if later_AC[sample, place] == np.inf:
            return None
        return int(candidates[sample]), -1 if moves_C[place] else int(theirs[place]), int(place_C[place])


def _group_by_owner(owner_N: Sizes, owners: int) -> list[Sizes]:
    """Return the places of each owner, rising."""
    order = np.argsort(owner_N, kind="stable")
    return np.split(order, np.bincount(owner_N, minlength=owners).cumsum()[:-1])


def _fits(needs_AD: Array, room_CD: Array) -> Mask:
    """Return which needs fit into which rooms under all caps, ``[A, C]``."""
    return np.asarray(np.all(needs_AD[:, None] <= room_CD, axis=2))


def _keeps_makespan(seconds_WP: Array, latest: int, rank_C: Sizes, new_ACP: Array, their_ACP: Array) -> Mask:
    """Return which exchanges leave the sum of the phases' latest ends no later."""
    other_WP = np.empty_like(seconds_WP)
    for rank in np.unique(rank_C).tolist():
        rest = np.delete(seconds_WP, [latest, rank], axis=0)
        other_WP[rank] = rest.max(axis=0) if len(rest) else 0.0
    after_AC = np.maximum(np.maximum(new_ACP, their_ACP), other_WP[rank_C]).sum(axis=2)
    return np.asarray(after_AC <= seconds_WP.max(axis=0).sum())


def _subsample(samples: Sizes) -> Sizes:
    """Return at most 64 of these samples, evenly spread over their costs."""
    return samples if len(samples) <= 64 else samples[np.linspace(0, len(samples) - 1, 64).astype(np.int64)]
