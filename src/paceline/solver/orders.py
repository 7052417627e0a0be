"""Order of ranks from the long end of padded batches: all orders at once, where ranks are of few kinds.

How many samples ranks cover at most by a deadline depends on who has been served, not on their order: so a table over
the numbers of served ranks of each kind takes the place of all orders. Axes: K kinds of ranks, S states of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline.solver.assign_arguments import Fleet, Samples

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
        low, high = (low, middle) if table.ends(middle) else (middle, high)
    return low, high


class Table:
    """The most samples that any of the ranks served so far can cover, from the longest on.

    Examples
    --------
    Samples of 4, 4 and 2, of which the fast rank ends two by 4 s, whether it is served first or last:

    >>> fleet = Fleet(np.array([0.5, 1.0]), np.zeros(2), np.zeros(2))
    >>> table = Table(Samples(np.array([4.0, 4.0, 2.0]), np.ones(3), np.inf, lower=1), fleet)
    >>> table.ends(4.0), table.ends(3.9), table.order(4.0)
    (True, False, [1, 0])
    """

    def __init__(self, samples: Samples, fleet: Fleet) -> None:
        kinds_KP, kind_W, counts_K = np.unique(_kinds(fleet), axis=0, return_inverse=True, return_counts=True)
        self.pace_K, self.fixed_K = kinds_KP.T
        self.kind_W = kind_W.ravel()
        self.layers = _layers(tuple(counts_K.tolist()))
        self.count, self.lower = len(samples), samples.lower
        most = np.maximum.accumulate(samples.tokens[::-1])[::-1]
        with np.errstate(divide="ignore"):
            self.under_cap = np.append(np.floor(samples.cap / most), np.inf)
        self.longest = np.append(samples.costs, 1.0)

    def ends(self, until: float) -> bool:
        """Return whether there is an order in which all samples end by this time."""
        return bool(self._covered(until)[-1] >= self.count)

    def order(self, until: float) -> list[int]:
        """Return an order of ranks in which all samples end by this time."""
        covered = self._covered(until)
        state, kinds = len(covered) - 1, []
        for states, before_SK in reversed(self.layers):
            before_K = before_SK[np.searchsorted(states, state)]
            kind = int(self._after(covered, before_K[None], until)[0].argmax())
            kinds.append(kind)
            state = int(before_K[kind])
        return _of_kinds(kinds[::-1], self.kind_W)

    def _covered(self, until: float) -> Sizes:
        covered = np.full(1 + self.layers[-1][0][-1], -1, dtype=np.int64)
        covered[0] = 0
        for states, before_SK in self.layers:
            covered[states] = self._after(covered, before_SK, until).max(axis=1)
        return covered

    def _after(self, covered: Sizes, before_SK: NDArray[np.int64], until: float) -> NDArray[np.int64]:
        """Return what is covered after one more rank of each kind; -1 where it cannot take its fewest."""
        first_SK = np.where(before_SK >= 0, covered[before_SK], -1)
        room_SK = np.minimum((until - self.fixed_K) / (self.pace_K * self.longest[first_SK]), self.under_cap[first_SK])
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
    """Return the states of so many ranks of each kind, by the number of ranks served; the first layer left out."""
    shape = [count + 1 for count in counts]
    served_SK = np.array(list(product(*map(range, shape))), dtype=np.int64)
    strides_K = np.array([prod(shape[kind + 1 :]) for kind in range(len(shape))], dtype=np.int64)
    total_S = served_SK.sum(axis=1)
    layers = []
    for total in range(1, sum(counts) + 1):
        states = np.flatnonzero(total_S == total)
        layers.append((states, np.where(served_SK[states] > 0, states[:, None] - strides_K, -1)))
    return layers
