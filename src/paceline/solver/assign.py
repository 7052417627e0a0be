"""Assignment of a global batch's samples to ranks, so that all end together: uniform machines, Q||Cmax.

Axes: N samples, W ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, lru_cache
from math import prod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline._arrays import Array, Sizes
from paceline._curves import Curves
from paceline.solver.fleet import (
    Fleet,
    Samples,
    bisect_end,
    divisible_makespan,
    earliest_end,
    min_padded_cost,
    packed_lower_bound,
    sum_by_owner,
    validated_fleet,
    validated_samples,
)
from paceline.solver.micro_batches import PackingProblem, search


class AssignmentStatus(Enum):
    """What limits the time of the iteration, and what to change."""

    BALANCED = "Balanced: the ranks end together up to 1%, or nearly as soon as the samples let them."
    HELD_BY_SAMPLE = (
        "Held by a long sample: the last rank has no other. Truncate or split samples, or draw a larger global batch."
    )
    HELD_BY_CAP = (
        "Held by the cap: a rank without room for one more of its shortest sample ends early. "
        "Raise the cap, or draw a smaller global batch."
    )
    HELD_BY_LOWER = (
        "Held by a slow rank that takes as long for its fewest samples. Reduce lower, or leave that rank out."
    )
    COARSE = (
        "Coarse: samples are too few, or too unequal, to fill all ranks evenly. A larger global batch divides better."
    )


@dataclass(frozen=True, eq=False)
class Assignment:
    """Assignment of samples to ranks, and its quality."""

    owner: Sizes
    """The rank of each sample, ``[N]`` int64, in the order in which the costs were given."""
    work: Array
    """Cost of each rank's samples, ``[W]``: their sum, or padded to the longest."""
    tokens: Array
    """What each rank takes of the cap, ``[W]``."""
    seconds: Array
    """Time each rank takes for them, ``[W]``, in seconds; 0 for a rank without samples."""
    _samples: Samples = field(repr=False)
    _fleet: Fleet = field(repr=False)
    _padded: bool = field(repr=False)

    @property
    def makespan(self) -> float:
        """The longest of these times, in seconds: the iteration's."""
        return float(self.seconds.max())

    @property
    def counts(self) -> Sizes:
        """Samples of each rank, ``[W]`` int64."""
        return np.bincount(self.owner, minlength=len(self.seconds))

    def samples_of(self, rank: int) -> Sizes:
        """Return the samples of a rank, by their places among the costs, rising."""
        return np.flatnonzero(self.owner == rank)

    @cached_property
    def lower_bound(self) -> float:
        """A time, in seconds, before which no assignment ends; computed when it is first asked for."""
        if not self._padded:
            return packed_lower_bound(self._samples, self._fleet)
        samples = replace(self._samples, cap=np.inf)
        padded_work = min_padded_cost(samples, 0.0, len(self._fleet))
        bound = max(packed_lower_bound(samples, self._fleet), divisible_makespan(self._fleet, padded_work))
        if not has_few_orders(self._fleet, 8192):  # the exact order of that many takes 20 ms
            return bound
        # With tokens in another order than costs, contiguous cuts are not the best: the bound is that without a cap.
        has_cap = (np.diff(samples.tokens) <= 0).all()
        table = RankOrderTable(self._samples if has_cap else samples, self._fleet)
        return bisect_end(lambda end: table.is_feasible(end) or None, bound, self.makespan, True)[0]

    @property
    def gap(self) -> float:
        """Relative excess over the lower bound, and so at most over the best assignment: 0.01 is one percent."""
        return self.makespan / self.lower_bound - 1

    @cached_property
    def status(self) -> AssignmentStatus:
        """Reason for the makespan."""
        # within 1% of the bound counts as balanced
        if self.makespan <= divisible_makespan(self._fleet, float(self.work.cumsum()[-1])) * 1.01:
            return AssignmentStatus.BALANCED
        last, count_W = int(self.seconds.argmax()), self.counts
        if count_W[last] <= self._samples.lower and self._fleet.pace[last] > self._fleet.pace.min():
            return AssignmentStatus.HELD_BY_LOWER
        if count_W[last] == 1:
            return AssignmentStatus.HELD_BY_SAMPLE
        full_W = self.tokens + self._samples.tokens.min() > self._samples.cap
        if full_W.any():
            return AssignmentStatus.HELD_BY_CAP
        return AssignmentStatus.BALANCED if self.gap <= 0.01 else AssignmentStatus.COARSE


def assign(
    costs: ArrayLike,
    speeds: ArrayLike | Curves,
    *,
    tokens: ArrayLike | None = None,
    cap: float | None = None,
    lower: int = 1,
    padded: bool = False,
    order_tolerance: float = 0.0,
) -> Assignment:
    """Assign the samples of one global batch to ranks of different speed, so that the last rank ends early.

    Packed: the largest sample goes to the rank with most time left, and so on; then samples are exchanged with the
    latest rank as long as that helps, as in :func:`pack`. Padded: the sorted samples are cut contiguously, by bisection
    on the time. The best assignment is NP-hard to find, so every answer comes with a lower bound. The same arguments
    give the same assignment, bit for bit, on every processor.

    Parameters
    ----------
    costs
        Work of each sample, ``[N]``, finite and above 0. Padded, they must be the costs of samples padded to their own
        length: those of a longer sample's length are its cost.
    speeds
        Work per second of each rank, ``[W]``; or batch time curves over work, such as a forecast's.
    tokens
        What each sample takes of the cap, ``[N]``; its cost by default. Padded, each takes what the longest does.
    cap
        Most tokens of a rank: its memory.
    lower
        Fewest samples of a rank.
    padded
        Whether a rank pays for every sample what its most expensive one costs.
    order_tolerance
        Padded, the ranks' own order, the first with the longest samples, is kept where it takes at most this share
        longer than the best that is found. What costs leave out then counts for a rank's speed, time after time; with
        another rank at the long end each time it would look like noise.

    Raises
    ------
    ValueError
        If a sample's cost or tokens are out of range (the sample is named), a sample exceeds the cap, there are too few
        samples, or no assignment under the cap is found; where they take nearly all of the cap, one may exist.

    Examples
    --------
    The second rank is half as fast:

    >>> found = assign([8.0, 5.0, 4.0, 3.0, 2.0, 2.0], speeds=[2.0, 1.0])
    >>> found.samples_of(0), found.samples_of(1), found.seconds
    (array([0, 2, 4, 5]), array([1, 3]), array([8., 8.]))
    >>> found.makespan, found.lower_bound
    (8.0, 8.0)
    >>> print(found.status.value)
    Balanced: the ranks end together up to 1%, or nearly as soon as the samples let them.

    Padded, the fast rank takes the three longest, at 8 each:

    >>> assign([8.0, 5.0, 4.0, 3.0, 2.0, 2.0], speeds=[2.0, 1.0], padded=True).work
    array([24.,  9.])

    References
    ----------
    Graham (1969): bounds on multiprocessing timing anomalies (longest first). Gonzalez, Ibarra, and Sahni (1977):
    bounds for LPT schedules on uniform processors.
    """
    fleet = validated_fleet(speeds)
    cost_N, token_N = validated_samples(costs, tokens, cap, lower, len(fleet))
    order = np.argsort(-cost_N, kind="stable")
    samples = Samples(cost_N[order], token_N[order], np.inf if cap is None else float(cap), lower)
    bound = packed_lower_bound(samples, fleet)
    if not 0 <= order_tolerance < np.inf:
        raise ValueError(f"order_tolerance must be finite and not negative, got {order_tolerance}")
    owners = padded_owners(samples, fleet, bound, order_tolerance) if padded else packed_owners(samples, fleet, bound)
    work_W, token_W = _loads(samples, owners, len(fleet), padded=padded)
    owner_N = np.empty_like(owners)
    owner_N[order] = owners
    return Assignment(owner_N, work_W, token_W, fleet.seconds(work_W), samples, fleet, padded)


def _loads(samples: Samples, owner_N: Sizes, ranks: int, *, padded: bool) -> tuple[Array, Array]:
    if not padded:
        return sum_by_owner(samples.costs, owner_N, ranks), sum_by_owner(samples.tokens, owner_N, ranks)
    longest_W, widest_W = np.zeros(ranks), np.zeros(ranks)
    np.maximum.at(longest_W, owner_N, samples.costs)
    np.maximum.at(widest_W, owner_N, samples.tokens)
    count_W = np.bincount(owner_N, minlength=ranks)
    return count_W * longest_W, count_W * widest_W


def packed_owners(samples: Samples, fleet: Fleet, bound: float) -> Sizes:
    """Return the rank of each sample, ``[N]``: a packing into one micro-batch on each rank."""
    rising, rank_W = fleet.fastest_first()
    problem = PackingProblem(
        samples.costs[:, None], samples.tokens[:, None], np.array([samples.cap]), np.zeros(1), rising
    )
    # stop within 0.2% of the bound: a speed's forecast errs by more
    bins = search(problem, 1, bound, bound * (1 + 0.002), samples.lower)
    if bins is None:
        used = float(samples.tokens.cumsum()[-1]) / (samples.cap * len(fleet))
        raise ValueError(
            f"found no assignment that keeps every rank within the cap of {samples.cap:g} tokens: the samples take "
            f"{used:.0%} of the total capacity. Draw a smaller global batch, or raise the cap"
        )
    return rank_W[bins.rank[bins.bin_of_sample]]


Layers = list[tuple[Sizes, NDArray[np.int64]]]
"""States with as many served ranks, ``[S]``, and those before each of them, ``[S, K]``; -1 where there is none."""

Cut = list[tuple[int, int]]
"""Ranks in the order of falling lengths, with their numbers of samples."""


def padded_owners(samples: Samples, fleet: Fleet, lower_bound: float, order_tolerance: float) -> Sizes:
    """Return the rank of each sample, ``[N]``; no assignment ends before ``lower_bound`` seconds."""
    cuts = ContiguousCuts(samples, fleet)
    # The fastest at the long end: a slow rank has not the time for a long sample. Where all are alike it is exact.
    fastest = np.argsort(fleet.pace, kind="stable").tolist()
    found = earliest_end(lambda end: cuts.cut_in_order(fastest, end), lower_bound, growth=1.3)
    if found is None:
        raise ValueError(
            f"found no padded assignment that keeps every rank within the cap of {samples.cap:g} tokens: draw a "
            "smaller global batch, or raise the cap"
        )
    deadline, cut = found
    if len(set(zip(cuts.pace, cuts.fixed_seconds, strict=True))) == 1:
        pass  # all orders are alike
    # exact for up to 512 partial orders of the ranks: always with 9 ranks
    elif has_few_orders(fleet, 512):
        table = RankOrderTable(samples, fleet)
        _, soonest, _ = bisect_end(lambda end: table.is_feasible(end) or None, lower_bound, deadline, True)
        order = table.order(soonest)
        _, deadline, cut = bisect_end(lambda end: cuts.cut_in_order(order, end), lower_bound, deadline, cut)
    else:
        # more than 8 choices took longer and gained nothing
        _, deadline, cut = bisect_end(lambda end: cuts.cut_in_order(fastest, end, 8), lower_bound, deadline, cut)
    own, latest = range(len(fleet)), deadline * (1 + order_tolerance)
    if order_tolerance and (in_order := cuts.cut_in_order(own, latest)) is not None:
        *_, cut = bisect_end(lambda end: cuts.cut_in_order(own, end), lower_bound, latest, in_order)
    return np.repeat([rank for rank, _ in cut], [count for _, count in cut]).astype(np.int64)


class ContiguousCuts:
    """Cuts the sorted samples of padded batches contiguously, so that every rank ends by a given time.

    A rank's work is its number of samples times its longest. For given counts such cuts are best: the longest sample's
    group may as well hold the next longest, as all others only become shorter. What is left to choose is the order of
    ranks: with an order, a makespan can be kept if and only if it can where every rank takes as many samples as it ends
    in time. Plain numbers in place of arrays: a cut asks for one after the other.
    """

    def __init__(self, samples: Samples, fleet: Fleet) -> None:
        self.highest_cost = samples.costs.tolist()
        # From here on down, whatever the order of tokens is: no group exceeds the cap.
        self.tokens = np.maximum.accumulate(samples.tokens[::-1])[::-1].tolist()
        self.cap, self.lower = samples.cap, samples.lower
        self.pace, self.fixed_seconds = fleet.pace.tolist(), fleet.fixed.tolist()

    def cut_in_order(self, order: Sequence[int], deadline: float, choices: int = 1) -> Cut | None:
        """Return the cut in this order of ranks; None if they do not end in time.

        Each next rank is, among the first ``choices`` of those left, the one with least time left over.
        """
        cut, first, rest = [], 0, list(order)
        while rest:
            count, place = self._next_rank(rest[:choices], first, len(rest) - 1, deadline)
            if count < self.lower:
                return None
            cut.append((rest.pop(place), count))
            first += count
        return cut if first == len(self.highest_cost) else None

    def _next_rank(self, ranks: Sequence[int], first_sample: int, ranks_left: int, deadline: float) -> tuple[int, int]:
        if len(ranks) == 1:
            return self._samples_by_deadline(ranks[0], first_sample, ranks_left, deadline), 0
        longest = self.highest_cost[min(first_sample, len(self.highest_cost) - 1)]
        choices = []
        for place, rank in enumerate(ranks):
            count = self._samples_by_deadline(rank, first_sample, ranks_left, deadline)
            room = (deadline - self.fixed_seconds[rank]) / (self.pace[rank] * longest)
            wasted = (room - count) / room if count >= max(self.lower, 1) else 1.0
            choices.append((wasted, place, count))
        _, place, count = min(choices)
        return count, place

    def _samples_by_deadline(self, rank: int, first_sample: int, ranks_left: int, deadline: float) -> int:
        """Return how many samples, from the first on, a rank ends in time; the others after it get their fewest."""
        longest = len(self.highest_cost) - first_sample - ranks_left * self.lower
        if longest <= 0 or deadline <= self.fixed_seconds[rank]:
            return 0
        left, tokens = deadline - self.fixed_seconds[rank], self.tokens[first_sample]
        room = min(left / (self.pace[rank] * self.highest_cost[first_sample]), float(longest))
        return int(min(room, self.cap // tokens)) if tokens else int(room)


def has_few_orders(fleet: Fleet, max_states: int) -> bool:
    """Return whether the table over served ranks has at most ``max_states`` entries."""
    counts = np.unique(_rank_types(fleet), axis=0, return_counts=True)[1]
    return prod(int(count) + 1 for count in counts) <= max_states


class RankOrderTable:
    """The most samples that any of the ranks served so far can cover, from the longest on."""

    def __init__(self, samples: Samples, fleet: Fleet) -> None:
        kinds_KP, kind_W, counts_K = np.unique(_rank_types(fleet), axis=0, return_inverse=True, return_counts=True)
        self.pace_K, self.fixed_K = kinds_KP.T
        self.kind_W = kind_W.ravel()
        self.layers = _layers_by_served(tuple(counts_K.tolist()))
        self.count, self.lower = len(samples), samples.lower
        longest = np.maximum.accumulate(samples.tokens[::-1])[::-1]
        with np.errstate(divide="ignore"):
            self.under_cap = np.append(np.floor(samples.cap / longest), np.inf)
        self.highest_cost = np.append(samples.costs, 1.0)

    def is_feasible(self, deadline: float) -> bool:
        """Return whether there is an order in which all samples end by this time."""
        return bool(self._max_covered(deadline)[-1] >= self.count)

    def order(self, deadline: float) -> list[int]:
        """Return an order of ranks in which all samples end by this time."""
        covered = self._max_covered(deadline)
        state, kinds = len(covered) - 1, []
        for states, before_SK in reversed(self.layers):
            before_K = before_SK[np.searchsorted(states, state)]
            kind = int(self._covered_after(covered, before_K[None], deadline)[0].argmax())
            kinds.append(kind)
            state = int(before_K[kind])
        waiting = {kind: iter(np.flatnonzero(self.kind_W == kind).tolist()) for kind in set(kinds)}
        return [next(waiting[kind]) for kind in reversed(kinds)]

    def _max_covered(self, deadline: float) -> Sizes:
        covered = np.full(1 + self.layers[-1][0][-1], -1, dtype=np.int64)
        covered[0] = 0
        for states, before_SK in self.layers:
            covered[states] = self._covered_after(covered, before_SK, deadline).max(axis=1)
        return covered

    def _covered_after(self, covered: Sizes, before_SK: NDArray[np.int64], deadline: float) -> NDArray[np.int64]:
        """Return what is covered after one more rank of each kind; -1 where it cannot take its fewest."""
        first_SK = np.where(before_SK >= 0, covered[before_SK], -1)
        room_SK = np.minimum(
            (deadline - self.fixed_K) / (self.pace_K * self.highest_cost[first_SK]), self.under_cap[first_SK]
        )
        room_SK = np.where(first_SK == self.count, np.inf, room_SK)  # all are covered: the others may share them
        able = (first_SK >= 0) & (room_SK >= self.lower)
        reached_SK = first_SK + np.floor(np.clip(room_SK, 0, self.count - first_SK)).astype(np.int64)
        return np.where(able, reached_SK, -1)


def _rank_types(fleet: Fleet) -> Array:
    return np.stack([fleet.pace, fleet.fixed], axis=1)


@lru_cache(maxsize=8)
def _layers_by_served(counts: tuple[int, ...]) -> Layers:
    """Return the states of ``counts`` ranks of each kind, by the number of ranks served; the first layer left out."""
    shape = [count + 1 for count in counts]
    served_SK = np.indices(shape).reshape(len(shape), -1).T
    strides_K = np.ravel_multi_index(np.eye(len(shape), dtype=np.int64), shape)
    total_S = served_SK.sum(axis=1)
    layers = []
    for total in range(1, sum(counts) + 1):
        states = np.flatnonzero(total_S == total)
        layers.append((states, np.where(served_SK[states] > 0, states[:, None] - strides_K, -1)))
    return layers
