"""Deal global batches drawn at random, each divided by what its samples cost. Axes: W ranks, F features."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Sizes
from paceline.coordinator.torch.loading.costs.costs import Costs
from paceline.coordinator.torch.loading.dealer import AHEAD, Dealer, Sampler, Samples
from paceline.coordinator.torch.loading.options import whole
from paceline.coordinator.torch.loading.shares import Shares
from paceline.solver import Assignment


class CostDealer(Dealer):
    """Deals the epoch's own slices, one after the other: global batches hold the same samples as without costs.

    Who takes which samples of a slice is settled when it is taken, by the newest shares. So hands hold nothing, and a
    state is a place in the epoch, whatever the number of ranks.

    Parameters
    ----------
    costs
        What samples cost.
    shares
        How many samples a global batch has, where it has a fixed number of them.
    shuffle, seed, sampler
        As for :class:`Dealer`.

    Attributes
    ----------
    coefficients
        By which costs follow from features, ``[F]``; the same on every rank.
    lower
        Fewest samples of a rank.

    Examples
    --------
    >>> costs = Costs(np.array([[4.0], [1.0], [1.0], [2.0], [2.0]]), np.ones(5))
    >>> dealer = CostDealer(costs, Shares(5, world_size=2), shuffle=False)
    >>> dealer.start(epoch=0)
    >>> dealer.next_sizes(dealer.shares, np.array([1, 1]))
    array([2, 3])
    >>> dealer.hand(0), dealer.hand(1)
    (array([0, 1]), array([2, 3, 4]))
    """

    def __init__(
        self, costs: Costs, shares: Shares, *, shuffle: bool = True, seed: int = 0, sampler: Sampler | None = None
    ) -> None:
        self.costs = costs
        self.shares = shares
        self.coefficients = costs.prior
        self.lower = 1
        self._proportions_W: Sizes = shares.equal()
        self._known: dict[tuple[int, bytes, bytes], Assignment] = {}
        self._until = np.zeros(1)
        self._counted = (-1, 0)
        super().__init__(len(costs), shares.world_size, shuffle=shuffle, seed=seed, sampler=sampler)

    @property
    def place(self) -> int:
        """How many samples of the epoch's order have been dealt."""
        return self._drawn

    def start(self, epoch: int) -> None:
        """Shuffle the deck for this epoch.

        Raises
        ------
        ValueError
            If a global batch of it exceeds what all ranks may take.
        """
        super().start(epoch)
        self._know_order()
        self.costs.require_room(self._deck, self._ends(), self.world_size)

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume exactly, with any number of ranks."""
        super().load_state_dict(state)
        held = np.concatenate(self._hands)
        if len(held):  # saved without costs, and loaded ahead
            self._deck, self._redealt = np.concatenate([held, self._deck[self._drawn :]]), True
            self._drawn, self._hands = 0, [np.arange(0)] * self.world_size
        self._know_order()

    def next_sizes(self, shares: Shares, sizes_W: Sizes) -> Sizes:
        """Divide the next global batch so that ranks end work in these proportions at once; return their samples."""
        self._proportions_W = sizes_W
        return self._assignment(self._drawn).counts

    def hand(self, rank: int) -> Samples:
        """Return the samples of a rank in the next global batch."""
        return self.part(rank, self._drawn)

    def part(self, rank: int, place: int) -> Samples:
        """Return a rank's samples of the global batch that begins at this place, if shares stay as they are."""
        return self._slice(place)[self._assignment(place).of(rank)]

    def after(self, place: int) -> int | None:
        """Return where the global batch ends that begins at this place; None if none begins there."""
        return place + self._count(place) if place < len(self._deck) else None

    def play(self, sizes_W: Samples) -> None:
        """Let the next global batch be dealt."""
        owner_N = self._assignment(self._drawn).owner
        self._drawn += len(owner_N)
        self.digest = zlib.crc32(owner_N.astype("<i8").tobytes(), self.digest)
        self._known = {key: known for key, known in self._known.items() if key[0] >= self._drawn}

    def step_items(self, batches: int) -> float:
        """Return the loss terms of this global batch and those after it, as many as there are, together."""
        first, end = self._drawn, self._drawn
        for _ in range(batches):
            end = self.after(end) or end
        return self.costs.items_of(self._deck[first:end])

    def batches_of(self, epoch: int) -> int:
        """Return the number of global batches of a whole epoch."""
        if self._counted[0] != epoch or self.sampler is not None:
            free = replace(self.costs, cap=np.inf)
            whole = CostDealer(free, self.shares, shuffle=self.shuffle, seed=self.seed, sampler=self.sampler)
            whole.start(epoch)
            self._counted = (epoch, len(whole._ends()))  # trainers ask at every batch
        return self._counted[1]

    def _know_order(self) -> None:
        self._known = {}
        if self.costs.budget is not None:
            self._until = np.concatenate([[0.0], self.costs.tokens[self._deck].cumsum()])

    def _ends(self) -> Sizes:
        """Return where the global batches of this epoch end that have not been dealt."""
        ends, end = [], self.after(self._drawn)
        while end is not None:
            ends.append(end)
            end = self.after(end)
        return np.array(ends, dtype=np.int64)

    def _count(self, place: int) -> int:
        """Return how many samples the global batch has that begins here: it fills the budget, or has a fixed number.

        Fewer samples than ranks are not worth a batch: they join the one before, or under a budget take from it.
        """
        left = len(self._deck) - place
        if self.costs.budget is None:
            return int(self.shares.next(left, self.shares.equal()).sum())
        within = int(np.searchsorted(self._until, self._until[place] + self.costs.budget, side="right")) - 1 - place
        count = min(max(within, self.world_size), left)
        if 0 < left - count < self.world_size:
            return left - self.world_size if left >= 2 * self.world_size else left
        return count

    def _slice(self, place: int) -> Samples:
        return self._deck[place : place + self._count(place)]

    def _assignment(self, place: int) -> Assignment:
        key = (place, self._proportions_W.tobytes(), self.coefficients.tobytes())
        if key not in self._known:
            samples = self._slice(place)
            lower = min(self.lower, len(samples) // self.world_size)
            self._known[key] = self.costs.assigned(samples, self._proportions_W, self.coefficients, lower)
        return self._known[key]


def dealer_for(
    samples: int,
    costs: Costs | None,
    shares: Shares,
    *,
    shuffle: bool,
    seed: int,
    sampler: Sampler | None,
    ahead: bool,
) -> Dealer:
    """Return what deals so many samples."""
    if costs is None and sampler is None:
        return Dealer(samples, shares.world_size, shuffle=shuffle, seed=seed, ahead=AHEAD if ahead else 0)
    # A sampler may yield a sample twice, which hands that are loaded ahead could not tell apart.
    known = costs or Costs(np.ones((samples, 1)), np.ones(samples))
    return CostDealer(known, shares, shuffle=shuffle, seed=seed, sampler=sampler)


def mean_batch(given: int | None, costs: Costs | None, world_size: int, *, drop_last: bool) -> int:
    """Return the samples of a global batch: those given, or as many as a budget of tokens holds in the mean."""
    if costs is None or costs.budget is None:
        return whole("global_batch", given, world_size, "samples, one for each rank")
    if given is not None:
        raise ValueError("global_batch and global_tokens exclude each other: give one of them")
    if drop_last:
        raise ValueError("drop_last is about a fixed number of samples: with global_tokens leave it out")
    return max(round(costs.budget / float(costs.tokens.cumsum()[-1]) * len(costs)), world_size)
