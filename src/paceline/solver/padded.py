"""Padded batches: a rank's work is its number of samples times its longest. Axes: N samples, W ranks.

For given counts the sorted samples cut contiguously are best: the longest sample's group may as well hold the next
longest, as all others only become shorter. So what is left to choose is the order of ranks, and the counts. With an
order, a makespan can be kept if and only if it can where every rank takes as many samples as it ends in time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline.solver.fleet import Fleet, Samples

Layers = list[tuple[Sizes, NDArray[np.int64]]]
"""States with as many served ranks, ``[S]``, and those before each of them, ``[S, K]``; -1 where there is none."""


def few_orders(fleet: Fleet, states: int) -> bool:
    """Return whether the table over served ranks has at most ``states`` entries."""
    counts = np.unique(_kinds(fleet), axis=0, return_counts=True)[1]
    return prod(int(count) + 1 for count in counts) <= states


def best_order(samples: Samples, fleet: Fleet, low: float, high: float, fine: float) -> list[int]:
    """Return the order of ranks, the longest samples first, with which they end soonest; up to ``fine``, relatively."""
    table = Table(samples, fleet)
    _, high = _bisected(table, low, high, fine)
    return table.order(high)


def order_bound(samples: Samples, fleet: Fleet, low: float, high: float, fine: float) -> float:
    """Return a time before which no padded assignment ends, just below the earliest that one ends."""
    if (np.diff(samples.tokens) > 0).any():  # then contiguous cuts are not the best: the bound is that without a cap
        samples = replace(samples, cap=np.inf)
    return _bisected(Table(samples, fleet), low, high, fine)[0]


def _bisected(table: Table, low: float, high: float, fine: float) -> tuple[float, float]:
    while high - low > fine * low:
        middle = (low + high) / 2
        low, high = (low, middle) if table.is_feasible(middle) else (middle, high)
    return low, high


class Table:
    """The most samples that any of the ranks served so far can cover, from the longest on.

    Examples
    --------
    Samples of 4, 4 and 2, of which the fast rank ends two by 4 s, whether it is served first or last:

    >>> fleet = Fleet(np.array([0.5, 1.0]), np.zeros(2), np.zeros(2))
    >>> table = Table(Samples(np.array([4.0, 4.0, 2.0]), np.ones(3), np.inf, lower=1), fleet)
    >>> table.is_feasible(4.0), table.is_feasible(3.9), table.order(4.0)
    (True, False, [1, 0])
    """

    def __init__(self, samples: Samples, fleet: Fleet) -> None:
        kinds_KP, kind_W, counts_K = np.unique(_kinds(fleet), axis=0, return_inverse=True, return_counts=True)
        self.pace_K, self.fixed_K = kinds_KP.T
        self.kind_W = kind_W.ravel()
        self.layers = _layers(tuple(counts_K.tolist()))
        self.count, self.lower = len(samples), samples.lower
        longest = np.maximum.accumulate(samples.tokens[::-1])[::-1]
        with np.errstate(divide="ignore"):
            self.under_cap = np.append(np.floor(samples.cap / longest), np.inf)
        self.longest = np.append(samples.costs, 1.0)

    def is_feasible(self, deadline: float) -> bool:
        """Return whether there is an order in which all samples end by this time."""
        return bool(self._covered(deadline)[-1] >= self.count)

    def order(self, deadline: float) -> list[int]:
        """Return an order of ranks in which all samples end by this time."""
        covered = self._covered(deadline)
        state, kinds = len(covered) - 1, []
        for states, before_SK in reversed(self.layers):
            before_K = before_SK[np.searchsorted(states, state)]
            kind = int(self._after(covered, before_K[None], deadline)[0].argmax())
            kinds.append(kind)
            state = int(before_K[kind])
        return _of_kinds(kinds[::-1], self.kind_W)

    def _covered(self, deadline: float) -> Sizes:
        covered = np.full(1 + self.layers[-1][0][-1], -1, dtype=np.int64)
        covered[0] = 0
        for states, before_SK in self.layers:
            covered[states] = self._after(covered, before_SK, deadline).max(axis=1)
        return covered

    def _after(self, covered: Sizes, before_SK: NDArray[np.int64], deadline: float) -> NDArray[np.int64]:
        """Return what is covered after one more rank of each kind; -1 where it cannot take its fewest."""
        first_SK = np.where(before_SK >= 0, covered[before_SK], -1)
        room_SK = np.minimum(
            (deadline - self.fixed_K) / (self.pace_K * self.longest[first_SK]), self.under_cap[first_SK]
        )
        room_SK = np.where(first_SK == self.count, np.inf, room_SK)  # all are covered: the others may share them
        able = (first_SK >= 0) & (room_SK >= self.lower)
        reached_SK = first_SK + np.floor(np.clip(room_SK, 0, self.count - first_SK)).astype(np.int64)
        return np.where(able, reached_SK, -1)


def _kinds(fleet: Fleet) -> Array:
    return np.stack([fleet.pace, fleet.fixed], axis=1)


def _of_kinds(kinds: Sequence[int], kind_W: Sizes) -> list[int]:
    """Return the ranks in the order of these kinds."""
    waiting = {kind: iter(np.flatnonzero(kind_W == kind).tolist()) for kind in set(kinds)}
    return [next(waiting[kind]) for kind in kinds]


@lru_cache(maxsize=8)
def _layers(counts: tuple[int, ...]) -> Layers:
    """Return the states of ``counts`` ranks of each kind, by the number of ranks served; the first layer left out."""
    shape = [count + 1 for count in counts]
    served_SK = np.array(list(product(*map(range, shape))), dtype=np.int64)
    strides_K = np.array([prod(shape[kind + 1 :]) for kind in range(len(shape))], dtype=np.int64)
    total_S = served_SK.sum(axis=1)
    layers = []
    for total in range(1, sum(counts) + 1):
        states = np.flatnonzero(total_S == total)
        layers.append((states, np.where(served_SK[states] > 0, states[:, None] - strides_K, -1)))
    return layers


FINE = 1e-3
"""Bisection ends at this relative width."""


Cut = list[tuple[int, int]]
"""Ranks in the order of falling lengths, with their numbers of samples."""


def padded(samples: Samples, fleet: Fleet, lower_bound: float, steady: float = 0.0) -> Sizes:
    """Return the rank of each sample, ``[N]``; no assignment ends before ``lower_bound`` seconds.

    The ranks' own order is taken where it ends at most by ``steady`` later, relatively, than the best that is found.

    Raises
    ------
    ValueError
        If no assignment under the cap is found.
    """
    cuts = Cuts(samples, fleet)
    # The fastest at the long end: a slow rank has not the time for a long sample. Where all are alike it is exact.
    fastest = np.argsort(fleet.pace, kind="stable").tolist()
    deadline, cut = _upper(cuts, fastest, lower_bound)
    if len(set(zip(cuts.pace, cuts.fixed, strict=True))) == 1:
        pass  # all orders are alike
    # exact for up to 512 partial orders of the ranks: always with 9 ranks
    elif few_orders(fleet, 512):
        order = best_order(samples, fleet, lower_bound, deadline, FINE)
        cut, deadline = _better(lambda end: cuts.in_order(order, end), lower_bound, deadline, cut)
    else:
        cut, deadline = _better(lambda end: cuts.sparing(fastest, end), lower_bound, deadline, cut)
    if steady and (in_order := cuts.in_order(range(len(fleet)), deadline * (1 + steady))) is not None:
        cut, _ = _better(
            lambda end: cuts.in_order(range(len(fleet)), end), lower_bound, deadline * (1 + steady), in_order
        )
    return np.repeat([rank for rank, _ in cut], [count for _, count in cut]).astype(np.int64)


class Cuts:
    """Cuts the sorted samples contiguously, so that every rank ends by a given time.

    Plain numbers in place of arrays: a cut asks for one after the other.

    Examples
    --------
    >>> fleet = Fleet(np.array([0.5, 1.0]), np.zeros(2), np.zeros(2))
    >>> cuts = Cuts(Samples(np.array([4.0, 4.0, 2.0]), np.ones(3), np.inf, lower=1), fleet)
    >>> cuts.in_order([0, 1], deadline=4.0), cuts.in_order([0, 1], deadline=3.0)
    ([(0, 2), (1, 1)], None)
    """

    def __init__(self, samples: Samples, fleet: Fleet) -> None:
        self.longest = samples.costs.tolist()
        # From here on down, whatever the order of tokens is: no group exceeds the cap.
        self.tokens = np.maximum.accumulate(samples.tokens[::-1])[::-1].tolist()
        self.cap, self.lower = samples.cap, samples.lower
        self.pace, self.fixed = fleet.pace.tolist(), fleet.fixed.tolist()

    def in_order(self, order: Sequence[int], deadline: float) -> Cut | None:
        """Return the cut in this order of ranks; None if they do not end in time."""
        cut, first, left = [], 0, len(order)
        for rank in order:
            left -= 1
            count = self._count(rank, first, left, deadline)
            if count < self.lower:
                return None
            cut.append((rank, count))
            first += count
        return cut if first == len(self.longest) else None

    def sparing(self, order: Sequence[int], deadline: float) -> Cut | None:
        """Return a cut that chooses each next rank, among a few in this order, by the least time left over."""
        cut, first, rest = [], 0, list(order)
        while rest:
            # Ranks among which the next is chosen so that little of its time is left over: more took longer and gained
            # nothing.
            count, place = self._sparing(rest[:8], first, len(rest) - 1, deadline)
            if count < self.lower:
                return None
            cut.append((rest.pop(place), count))
            first += count
        return cut if first == len(self.longest) else None

    def _sparing(self, ranks: Sequence[int], first: int, left: int, deadline: float) -> tuple[int, int]:
        longest = self.longest[min(first, len(self.longest) - 1)]
        choices = []
        for place, rank in enumerate(ranks):
            count = self._count(rank, first, left, deadline)
            room = (deadline - self.fixed[rank]) / (self.pace[rank] * longest)
            wasted = (room - count) / room if count >= max(self.lower, 1) else 1.0
            choices.append((wasted, place, count))
        _, place, count = min(choices)
        return count, place

    def _count(self, rank: int, first: int, left: int, deadline: float) -> int:
        """Return how many samples, from the first on, a rank ends in time; the others after it get their fewest."""
        longest = len(self.longest) - first - left * self.lower
        if longest <= 0 or deadline <= self.fixed[rank]:
            return 0
        room = min((deadline - self.fixed[rank]) / (self.pace[rank] * self.longest[first]), float(longest))
        return int(min(room, self.cap // self.tokens[first])) if self.tokens[first] else int(room)


def _upper(cuts: Cuts, order: Sequence[int], low: float) -> tuple[float, Cut]:
    """Return a time in which ranks in this order can end, and the cut."""
    deadline = low * (1 + FINE)
    last = low + sum(cuts.longest) * max(cuts.pace) * len(cuts.longest) + max(cuts.fixed)
    while (cut := cuts.in_order(order, deadline)) is None:
        if deadline > last:  # time is not what is short
            raise ValueError(
                f"no padded assignment was found in which no rank exceeds the cap of {cuts.cap:g} tokens: draw a "
                "smaller global batch, or raise the cap"
            )
        low, deadline = deadline, deadline * 1.3
    cut, deadline = _better(lambda end: cuts.in_order(order, end), low, deadline, cut)
    return deadline, cut


def _better(cut_by: Callable[[float], Cut | None], low: float, high: float, best: Cut) -> tuple[Cut, float]:
    """Return the cut of the earliest end that bisection finds, and that end."""
    while high - low > FINE * low:
        middle = (low + high) / 2
        cut = cut_by(middle)
        if cut is None:
            low = middle
        else:
            best, high = cut, middle
    return best, high
