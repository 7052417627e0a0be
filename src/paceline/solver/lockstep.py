"""Packing for ranks that wait for each other after every micro-batch, as the all-gathers of a sharded model make them.

The n-th micro-batches of all ranks are a round, which takes as long as the longest of them. The largest samples are
packed into the first round: a long sample costs less where the other ranks have long ones too.

Axes: N samples, W ranks, K rounds, B micro-batches (``K * W``, round by round), A samples to give, C places for one.
"""

from __future__ import annotations

import heapq

import numpy as np

from paceline._arrays import Array, Sizes
from paceline.solver.fleet import sum_by_owner
from paceline.solver.micro_batches import Bins, PackingProblem, fill_empty


def search_lockstep(problem: PackingProblem, min_rounds: int, equal: Bins) -> Bins:
    """Return micro-batches, equally many on each rank, whose rounds take little time in all.

    ``min_rounds`` is a number of rounds below which no packing comes; ``equal`` is a packing to do better than.
    """
    best = _Rounds.from_bins(problem, equal)
    # More time in the first rounds leaves less for the last, which hold short samples and so fill their caps first.
    # Both pairs were chosen on the lengths and fleets of benchmarks/pack.py.
    for slack, ranks_with_largest in ((1.06, 0.25), (1.1, 0.5)):
        rounds, worse, before = min_rounds, 0, np.inf
        # few rounds may not fit, and more than needed cost a fixed time each
        while worse < 2 and rounds < min_rounds + 64:
            found = _fill_rounds(problem, rounds, slack, ranks_with_largest)
            if found is not None:
                gains = found.seconds < before * (1 - 3e-3)  # launches, which the costs may not know, take time too
                before, worse = (found.seconds, 0) if gains else (before, worse + 1)
                best = min(best, found, key=lambda one: one.seconds) if gains else best
            rounds += 1
    best.exchange()
    bins = best.bins()
    fill_empty(problem, bins, best.rounds)
    return bins


class _Rounds:
    """Samples in rounds of micro-batches; ``bin_of_sample`` numbers these as ``round * ranks + rank``, ``[N]``."""

    def __init__(self, problem: PackingProblem, rounds: int, bin_of_sample: Sizes) -> None:
        self.problem, self.rounds, self.bin_of_sample = problem, rounds, bin_of_sample
        count = rounds * problem.ranks
        self.cost, (self.need, self.cap) = problem.work.sum(axis=1), _cap_shares(problem)
        self.pace = np.tile(problem.fleet.pace, rounds)
        placed = bin_of_sample >= 0
        self.used_tokens = sum_by_owner(self.need[placed], bin_of_sample[placed], count)
        self.time = (sum_by_owner(self.cost[placed], bin_of_sample[placed], count) + problem.fixed.sum()) * self.pace

    @classmethod
    def from_bins(cls, problem: PackingProblem, bins: Bins) -> _Rounds:
        """Return these micro-batches, the longest of each rank in the first round."""
        work_B = sum_by_owner(problem.work.sum(axis=1), bins.bin_of_sample, len(bins.rank))
        order = np.lexsort((-work_B, bins.rank))
        rounds = len(order) // problem.ranks
        place_B = np.empty(len(order), dtype=np.int64)
        place_B[order] = np.tile(np.arange(rounds), problem.ranks) * problem.ranks + bins.rank[order]
        return cls(problem, rounds, place_B[bins.bin_of_sample])

    @property
    def seconds(self) -> float:
        return float(self.time.reshape(self.rounds, -1).max(axis=1).cumsum()[-1])

    def bins(self) -> Bins:
        return Bins(np.tile(np.arange(self.problem.ranks), self.rounds), self.bin_of_sample)

    def place(self, samples: list[int]) -> bool:
        """Put each of these where it delays its round least; return whether all fit."""
        ranks = self.problem.ranks
        end_B = np.repeat(self.time.reshape(self.rounds, ranks).max(axis=1), ranks)
        for sample in samples:
            after_B = self.time + self.cost[sample] * self.pace
            delay_B = np.maximum(after_B - end_B, 0.0) + 1e-6 * after_B  # of places without delay the earliest
            delay_B[self.used_tokens + self.need[sample] > self.cap] = np.inf
            place = int(delay_B.argmin())
            if delay_B[place] == np.inf:
                return False
            self.bin_of_sample[sample] = place
            self.used_tokens[place] += self.need[sample]
            self.time[place] = after_B[place]
            first = place - place % ranks
            end_B[first : first + ranks] = max(end_B[place], after_B[place])
        return True

    def exchange(self) -> None:
        """Move samples from the longest micro-batch of a round, or exchange them, as long as rounds end earlier."""
        ranks, stuck_K, ends = self.problem.ranks, np.zeros(self.rounds, dtype=bool), []
        if ranks == 1:
            return
        partners = np.unique(np.linspace(0, len(self.cost) - 1, min(len(self.cost), 512)).astype(np.int64))
        for _ in range(200):
            time_KW = self.time.reshape(self.rounds, ranks)
            end_K = time_KW.max(axis=1)
            ends.append(float(end_K.cumsum()[-1]))
            # stop when an exchange in each round, and a few more, gain less than 0.02%
            if len(ends) > self.rounds + 8 and ends[-1] > ends[-self.rounds - 8] * (1 - 2e-4):
                return
            slack_K = np.where(stuck_K, 0.0, end_K - time_KW.cumsum(axis=1)[:, -1] / ranks)
            longest = int(slack_K.argmax())
            if slack_K[longest] <= 0:
                return
            stuck_K[longest] = not self._exchange_one(longest, end_K, partners)
            if not stuck_K[longest]:
                stuck_K[:] = False

    def _exchange_one(self, round_: int, end_K: Array, partners: Sizes) -> bool:
        """Make the best exchange for the longest micro-batch of a round; return whether there is one."""
        ranks, first = self.problem.ranks, round_ * self.problem.ranks
        time_W = self.time[first : first + ranks]
        source = first + int(time_W.argmax())
        others = float(np.delete(time_W, source - first).max())
        own = np.flatnonzero(self.bin_of_sample == source)
        if not len(own):  # a slow rank, held by the fixed cost alone
            return False
        own = own[np.unique(np.linspace(0, len(own) - 1, min(len(own), 16)).astype(np.int64))]
        place_C = np.concatenate([self.bin_of_sample[partners], np.arange(len(self.time))])
        none_B = np.zeros(len(self.time))  # a place to move a sample to gives none in return
        cost_AC = self.cost[own][:, None] - np.concatenate([self.cost[partners], none_B])
        need_AC = self.need[own][:, None] - np.concatenate([self.need[partners], none_B])
        fits_AC = (cost_AC > 0) & (place_C != source)
        fits_AC &= (self.used_tokens[place_C] + need_AC <= self.cap) & (self.used_tokens[source] - need_AC <= self.cap)
        source_AC = self.time[source] - cost_AC * self.pace[source]
        place_AC = self.time[place_C] + cost_AC * self.pace[place_C]
        local_C = place_C // ranks == round_
        end_AC = np.maximum(np.maximum(source_AC, others), np.where(local_C, place_AC, 0.0))
        delay_AC = end_AC - end_K[round_]
        delay_AC += np.where(local_C, 0.0, np.maximum(place_AC - end_K[place_C // ranks], 0.0))
        delay_AC[~fits_AC] = np.inf
        a, c = divmod(int(delay_AC.argmin()), len(place_C))
        if not delay_AC[a, c] < -1e-6 * end_K[round_]:
            return False
        self.bin_of_sample[own[a]] = place_C[c]
        if c < len(partners):
            self.bin_of_sample[partners[c]] = source
        self.used_tokens[place_C[c]] += need_AC[a, c]
        self.used_tokens[source] -= need_AC[a, c]
        self.time[place_C[c]], self.time[source] = place_AC[a, c], source_AC[a, c]
        return True


def _cap_shares(problem: PackingProblem) -> tuple[Array, float]:
    """Return what each sample takes of a cap, ``[N]``, and the cap; of several, the largest share, and 1."""
    return (problem.tokens[:, 0], float(problem.caps[0])) if len(problem.caps) == 1 else (problem.cap_fraction, 1.0)


def _fill_rounds(problem: PackingProblem, rounds: int, slack: float, ranks_with_largest: float) -> _Rounds | None:
    """Fill one round after the other, the largest samples first; None if not all fit.

    A round takes ``slack`` times an equal part of the work that is left, or as long as it must for this share of the
    ranks to take one of the largest samples each.
    """
    speeds, fixed = 1 / problem.fleet.pace, float(problem.fixed.sum())
    need_N, cap = _cap_shares(problem)
    cost_N = problem.work.sum(axis=1)
    costs, needs, total = cost_N.tolist(), need_N.tolist(), float(speeds.cumsum()[-1])
    of, left, rest = np.full(len(costs), -1, dtype=np.int64), list(range(len(costs))), float(cost_N.cumsum()[-1])
    largest = max(1, round(ranks_with_largest * problem.ranks))
    for nth in range(rounds):
        if not left:
            break
        end = slack * (rest / (rounds - nth) + fixed * problem.ranks) / total
        some = left[:largest]
        end = max(end, float(((cost_N[some] + fixed) / speeds[: len(some)]).max()))  # ranks come fastest first
        time_left = [(fixed - end * speed, rank) for rank, speed in enumerate(speeds.tolist())]  # of most work left
        heapq.heapify(time_left)
        room, later = [cap] * problem.ranks, []
        full: list[tuple[float, int, float]] = []  # ranks without room for an earlier sample, most room first
        for sample in left:
            cost, need = costs[sample], needs[sample]
            while full and -full[0][0] >= need:
                _, rank, key = heapq.heappop(full)
                heapq.heappush(time_left, (key, rank))
            while time_left and room[time_left[0][1]] < need:
                key, rank = heapq.heappop(time_left)
                heapq.heappush(full, (-room[rank], rank, key))
            if not time_left or -time_left[0][0] < cost * (1 - 1e-9):
                later.append(sample)
                continue
            key, rank = time_left[0]
            heapq.heapreplace(time_left, (key + cost, rank))
            room[rank] -= need
            rest -= cost
            of[sample] = nth * problem.ranks + rank
        left = later
    found = _Rounds(problem, rounds, of)
    return found if found.place(left) else None
