"""The deck: deals samples so that every epoch covers each of them exactly once, whatever becomes of the workers."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Sizes


@dataclass(frozen=True, eq=False)
class Hand:
    """Samples that one worker holds: their rows in the data set, and the epoch that each belongs to, ``[n]``."""

    rows: Sizes
    epochs: Sizes

    def __len__(self) -> int:
        """Return how many samples there are."""
        return len(self.rows)

    def first(self, count: int) -> Hand:
        """Return the first samples, ``count`` of them."""
        return Hand(self.rows[:count], self.epochs[:count])

    def rest(self, count: int) -> Hand:
        """Return all samples but the first ``count``."""
        return Hand(self.rows[count:], self.epochs[count:])


class Deck:
    """Shuffles the samples anew for each epoch and deals them, those that came back first.

    A new epoch is dealt as soon as the last one has been dealt out, so that nobody waits at its end; what comes back
    late still counts for the epoch that it was dealt in.

    Parameters
    ----------
    samples
        How many there are, at least 1.
    seed
        Of the shuffling.
    epochs
        How many epochs to deal, ``None`` for no end.

    Attributes
    ----------
    applied
        Samples that have been applied so far.

    Raises
    ------
    ValueError
        If a number is out of range.

    Examples
    --------
    What a lost worker held is dealt again before anything else:

    >>> deck = Deck(samples=6, seed=1, epochs=1)
    >>> one, two = deck.deal(4), deck.deal(4)
    >>> sorted([*one.rows.tolist(), *two.rows.tolist()])
    [0, 1, 2, 3, 4, 5]
    >>> deck.apply(two)
    >>> deck.give_back(one)
    >>> sorted(deck.deal(9).rows) == sorted(one.rows)
    True
    """

    def __init__(self, samples: int, *, seed: int = 0, epochs: int | None = None) -> None:
        if samples < 1:
            raise ValueError(f"samples must be at least 1, got {samples}")
        if epochs is not None and epochs < 1:
            raise ValueError(f"epochs must be at least 1, or None for no end, got {epochs}")
        self.samples = samples
        self.seed = seed
        self.epochs = epochs
        self.applied = 0
        self._returned: deque[Hand] = deque()
        self._applied_of: dict[int, int] = {}
        self._shuffle(0)

    def deal(self, count: int, least: int = 1) -> Hand:
        """Return up to ``count`` samples; fewer, or none, only where a finite number of epochs has been dealt out.

        Where fewer than ``least`` would be left at the end, they are dealt too: nobody could use them alone.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1 sample, got {count}")
        if 0 < self.left - count < least:
            count = int(self.left)
        hands: list[Hand] = []
        while count > 0 and not self.empty:
            hands.append(self._returned_up_to(count) if self._returned else self._fresh_up_to(count))
            count -= len(hands[-1])
        if len(hands) == 1:
            return hands[0]
        none = np.empty(0, np.int64)
        return Hand(
            np.concatenate([none, *(hand.rows for hand in hands)]),
            np.concatenate([none, *(hand.epochs for hand in hands)]),
        )

    def give_back(self, hand: Hand) -> None:
        """Take back samples that were dealt and not applied."""
        if len(hand):
            self._returned.append(hand)

    def apply(self, hand: Hand) -> None:
        """Take note that samples were applied."""
        self.applied += len(hand)
        for epoch, count in Counter(hand.epochs.tolist()).items():
            self._applied_of[epoch] = self._applied_of.get(epoch, 0) + count

    @property
    def empty(self) -> bool:
        """Whether there is nothing to deal now; samples may still come back."""
        return not self._returned and self.epochs is not None and self._epoch >= self.epochs

    @property
    def left(self) -> float:
        """How many samples there are to deal now; infinite without an end."""
        fresh = math.inf if self.epochs is None else max(self.epochs - self._epoch, 0) * self.samples - self._place
        return sum(map(len, self._returned)) + fresh

    @property
    def finished(self) -> bool:
        """Whether every sample of every epoch has been applied."""
        return self.epochs is not None and self.applied == self.samples * self.epochs

    @property
    def epoch(self) -> int:
        """How many epochs, from the first on, have been applied whole."""
        epoch = 0
        while self._applied_of.get(epoch, 0) == self.samples:
            epoch += 1
        return epoch

    def state_dict(self, held: Sequence[Hand] = ()) -> dict[str, NDArray[Any]]:
        """Return all that it remembers; ``held`` is what workers hold, which is lost to them when it is resumed."""
        back = [*self._returned, *held]
        none = np.empty(0, np.int64)
        return {
            "size": np.array([self.samples, self.seed, -1 if self.epochs is None else self.epochs]),
            "place": np.array([self._epoch, self._place, self.applied]),
            "returned_rows": np.concatenate([none, *(hand.rows for hand in back)]),
            "returned_epochs": np.concatenate([none, *(hand.epochs for hand in back)]),
            "applied_epochs": np.array(list(self._applied_of), dtype=np.int64),
            "applied_counts": np.array(list(self._applied_of.values()), dtype=np.int64),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned.

        Raises
        ------
        ValueError
            If :meth:`require_fit` says so; nothing is changed then.
        """
        self.require_fit(state)
        epoch, place, self.applied = (int(value) for value in state["place"])
        self._shuffle(epoch)
        self._place = place
        self._returned = deque()
        self.give_back(Hand(state["returned_rows"].copy(), state["returned_epochs"].copy()))
        counts = zip(state["applied_epochs"], state["applied_counts"], strict=True)
        self._applied_of = {int(epoch): int(count) for epoch, count in counts}

    def require_fit(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Raise if a state is none of this deck.

        Raises
        ------
        ValueError
            If it is that of a deck of other samples or another seed, or has dealt more than all epochs of this one.
        """
        samples, seed, _ = (int(value) for value in state["size"])
        if (samples, seed) != (self.samples, self.seed):
            raise ValueError(
                f"the state is that of a deck of {samples} samples with the seed {seed}; this one has "
                f"{self.samples} and the seed {self.seed}: build it with the same"
            )
        epoch, place, _ = (int(value) for value in state["place"])
        if self.epochs is not None and (epoch, place) > (self.epochs, 0):
            raise ValueError(
                f"the state has dealt samples of epoch {epoch + 1 if place else epoch}, and epochs is {self.epochs}: "
                "ask for as many as before, or more"
            )

    def _shuffle(self, epoch: int) -> None:
        self._epoch, self._place = epoch, 0
        self._order = np.random.default_rng((self.seed, epoch)).permutation(self.samples)

    def _returned_up_to(self, count: int) -> Hand:
        hand = self._returned.popleft()
        if len(hand) > count:
            self._returned.appendleft(hand.rest(count))
        return hand.first(count)

    def _fresh_up_to(self, count: int) -> Hand:
        rows = self._order[self._place : self._place + count]
        hand = Hand(rows, np.full(len(rows), self._epoch))
        self._place += len(rows)
        if self._place == self.samples:
            self._shuffle(self._epoch + 1)
        return hand
