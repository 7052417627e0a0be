"""Deal an epoch's samples to the ranks: each sample once, whatever the batch sizes do. Axis: W ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.int64]


class Dealer:
    """Deals samples like cards: every rank holds a hand, plays from its front, and draws from one common deck.

    Every rank runs the same dealer with the same sizes, and so knows all hands without asking anybody. What lies in
    its own hand it can load ahead; how much of it goes into the next batch is settled only when that is taken.

    Parameters
    ----------
    samples
        How many samples an epoch has, N.
    world_size
        Ranks, W.
    shuffle
        Whether every epoch has an order of its own; else samples come as they are numbered.
    seed
        Seed of the orders; the same everywhere.
    ahead
        How many batches a hand holds beyond the next one, so that they can be loaded ahead.

    Examples
    --------
    >>> dealer = Dealer(10, world_size=2, shuffle=False)
    >>> dealer.start(epoch=0)
    >>> dealer.deal(np.array([2, 4]))
    [array([0, 1]), array([2, 3, 4, 5])]
    >>> dealer.deal(np.array([3, 1]))
    [array([6, 7, 8]), array([9])]
    >>> dealer.remaining
    0
    """

    def __init__(self, samples: int, world_size: int, *, shuffle: bool = True, seed: int = 0, ahead: int = 0) -> None:
        self.samples = samples
        self.world_size = world_size
        self.shuffle = shuffle
        self.seed = seed
        self.ahead = ahead
        self.epoch = 0
        self._deck = np.arange(0)
        self._redealt = False
        self._drawn = 0
        self._hands = [np.arange(0)] * world_size

    def start(self, epoch: int) -> None:
        """Shuffle the deck for this epoch; all hands are empty."""
        self.epoch = epoch
        self._deck = self._order(epoch)
        self._redealt = False
        self._drawn = 0
        self._hands = [np.arange(0)] * self.world_size

    @property
    def remaining(self) -> int:
        """Samples of this epoch that have not been dealt to a batch."""
        return len(self._deck) - self._drawn + sum(len(hand) for hand in self._hands)

    def hand(self, rank: int) -> Samples:
        """Return what a rank holds: its next batches, as far as they are known."""
        return self._hands[rank]

    def reserve(self, sizes_W: Samples) -> None:
        """Let every rank hold enough for a batch of its size, and as many more such batches as are loaded ahead."""
        for rank, size in enumerate(sizes_W):
            self._draw(rank, int(size) * (1 + self.ahead) - len(self._hands[rank]))
        while (short_W := sizes_W - np.array([len(hand) for hand in self._hands])).max() > 0:
            self._hand_over(int(short_W.argmin()), int(short_W.argmax()), short_W)

    def deal(self, sizes_W: Samples) -> list[Samples]:
        """Take the next batch of every rank.

        Parameters
        ----------
        sizes_W
            Samples of each rank, ``[W]``; no more than remain, all together.
        """
        self.reserve(sizes_W)
        batches = [hand[:size] for hand, size in zip(self._hands, sizes_W, strict=True)]
        self._hands = [hand[size:] for hand, size in zip(self._hands, sizes_W, strict=True)]
        return batches

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return where the epoch stands; the order itself follows from the seed."""
        return {
            "samples": np.array(self.samples),
            "seed": np.array(self.seed),
            "epoch": np.array(self.epoch),
            "drawn": np.array(self._drawn),
            "held": np.concatenate(self._hands),
            "hands": np.array([len(hand) for hand in self._hands]),
            "deck": self._deck if self._redealt else np.arange(0),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume exactly; with another number of ranks, what the old ones held goes back on top of the deck.

        Raises
        ------
        ValueError
            If the state is that of other samples, or of another seed.
        """
        for name in ("samples", "seed"):
            if int(state[name]) != getattr(self, name):
                raise ValueError(
                    f"the state was saved with {name}={int(state[name])}, but this loader has {getattr(self, name)}: "
                    f"the epoch cannot go on with other {name}"
                )
        self.start(int(state["epoch"]))
        if len(state["deck"]):
            self._deck, self._redealt = np.array(state["deck"]), True
        self._drawn = int(state["drawn"])
        held, hands = np.array(state["held"]), np.array(state["hands"])
        if len(hands) == self.world_size:
            self._hands = np.split(held, np.cumsum(hands)[:-1])
        else:
            self._deck, self._redealt = np.concatenate([held, self._deck[self._drawn :]]), True
            self._drawn = 0

    def _order(self, epoch: int) -> Samples:
        if not self.shuffle:
            return np.arange(self.samples)
        # Sorting raw random bits: the stream of a bit generator is the same in every version of numpy.
        keys = np.random.PCG64([self.seed, epoch]).random_raw(self.samples)
        return np.argsort(keys, kind="stable")

    def _draw(self, rank: int, count: int) -> None:
        drawn = self._deck[self._drawn : self._drawn + max(count, 0)]
        if len(drawn):
            self._drawn += len(drawn)
            self._hands[rank] = np.concatenate([self._hands[rank], drawn])

    def _hand_over(self, giver: int, taker: int, short_W: Samples) -> None:
        """Near the end of the epoch the deck is empty: the rank with most to spare gives from the end of its hand."""
        count = min(-short_W[giver], short_W[taker])
        if count <= 0:
            raise ValueError(f"a batch of more samples than the {self.remaining} that remain of this epoch")
        given = self._hands[giver][-count:]
        self._hands[giver] = self._hands[giver][:-count]
        self._hands[taker] = np.concatenate([self._hands[taker], given])
