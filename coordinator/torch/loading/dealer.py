"""Deal an epoch's samples to the ranks: each sample once, whatever the batch sizes do. Axis: W ranks."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.coordinator.torch.loading.shares import Shares

Samples = NDArray[np.int64]

AHEAD = 32
"""Batches that a hand holds beyond the next one, while the deck lasts, where samples are loaded ahead.

It shapes what is dealt, so it is the same everywhere, however far each rank really loads ahead: 16 processes with
torch's default of two batches each are busy with it.
"""

ROUNDS = 8
"""Rounds drawn at once where hands hold more. A hand is copied when it grows, so it grows in one batch of eight."""


class Sampler(Protocol):
    """What orders the samples of an epoch, such as torch's samplers do."""

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of samples; some may come often, or never."""
        ...

    def __len__(self) -> int:
        """Return how many it yields."""
        ...


class Dealer:
    """Deals samples like cards: every rank holds a hand, plays from its front, and draws from one common deck.

    Every rank runs the same dealer with the same sizes, and so knows all hands without asking anybody. What lies in
    its own hand it can load ahead; how much of it goes into the next batch is settled only when that is taken.
    The deck is dealt out in rounds, a batch to each rank in turn. The n-th batches of all ranks together are the n-th
    slice of the epoch's order: always if nothing is held beyond the next batch, else as long as sizes stay.

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
        How many batches a hand holds beyond the next one, so that they can be loaded ahead; the same everywhere.
    sampler
        What orders an epoch in place of ``shuffle`` and ``seed``; None for these. The same order everywhere.

    Attributes
    ----------
    digest
        A checksum of the sizes of all batches of this epoch: dealers that dealt alike have the same one.

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

    def __init__(
        self,
        samples: int,
        world_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        ahead: int = 0,
        sampler: Sampler | None = None,
    ) -> None:
        self.samples = samples
        self.sampler = sampler
        self.world_size = world_size
        self.shuffle = shuffle
        self.seed = seed
        self.ahead = ahead
        self.epoch = 0
        self.digest = 0
        self._redealt = False
        self.end()

    def start(self, epoch: int) -> None:
        """Shuffle the deck for this epoch; all hands are empty."""
        self.end()
        self.epoch = epoch
        self.digest = 0
        self._deck = self._order(epoch) if self.sampler is None else self._sampled(self.sampler, epoch)
        self._redealt = self.sampler is not None  # such an order may not come again: a state holds it

    def end(self) -> None:
        """Leave out the rest of the epoch: neither deck nor hands hold anything."""
        self._deck = np.arange(0)
        self._drawn = 0
        self._hands = [np.arange(0)] * self.world_size

    @property
    def remaining(self) -> int:
        """Samples of this epoch that have not been dealt to a batch."""
        return len(self._deck) - self._drawn + sum(len(hand) for hand in self._hands)

    def hand(self, rank: int) -> Samples:
        """Return what a rank holds: its next batches, as far as they are known."""
        return self._hands[rank]

    def next_sizes(self, shares: Shares, sizes_W: Samples) -> Samples:
        """Reserve the next batch of every rank, given the sizes of a full one; return its sizes, ``[W]``."""
        next_W = shares.next(self.remaining, sizes_W)
        self.reserve(next_W)
        return next_W

    def reserve(self, sizes_W: Samples) -> None:
        """Let every rank hold enough for a batch of its size, and as much more as it may load ahead."""
        held_W, in_deck = self._held(), len(self._deck) - self._drawn
        if sizes_W.sum() > held_W.sum() + in_deck:
            raise ValueError(f"a batch of more samples than the {self.remaining} that remain of this epoch")
        short_W = (1 + self.ahead) * sizes_W - held_W
        if in_deck and short_W.max() > 0:
            needed = int(np.max(-(-short_W // np.maximum(sizes_W, 1))))
            self._draw(sizes_W, max(needed, min(ROUNDS, self.ahead)))
        if self._drawn == len(self._deck):
            self._even_out(sizes_W)

    def deal(self, sizes_W: Samples) -> list[Samples]:
        """Return the next batch of every rank.

        Parameters
        ----------
        sizes_W
            Samples of each rank, ``[W]``; no more than remain, all together.
        """
        self.reserve(sizes_W)
        batches = [hand[:size] for hand, size in zip(self._hands, sizes_W, strict=True)]
        self.play(sizes_W)
        return batches

    def play(self, sizes_W: Samples) -> None:
        """Let every rank's next batch leave its hand, in which it has been reserved."""
        self._hands = [hand[size:] for hand, size in zip(self._hands, sizes_W.tolist(), strict=True)]
        self.digest = zlib.crc32(sizes_W.astype("<i8").tobytes(), self.digest)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return where the epoch stands; the order itself follows from the seed."""
        return {
            "samples": np.array(self.samples),
            "seed": np.array(self.seed),
            "shuffle": np.array(self.shuffle),
            "epoch": np.array(self.epoch),
            "remaining": np.array(self.remaining),
            "digest": np.array(self.digest),
            "drawn": np.array(self._drawn),
            "held": np.concatenate(self._hands),
            "hands": self._held(),
            "deck": self._deck if self._redealt else np.arange(0),
        }

    def require_same(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Refuse a state of other samples, or of another order of them.

        Raises
        ------
        ValueError
            If the epoch cannot go on from it.
        """
        for name in ("samples", "seed", "shuffle"):
            if int(state[name]) != int(getattr(self, name)):
                raise ValueError(
                    f"the state was saved with {name}={state[name].item()}, but this loader has "
                    f"{getattr(self, name)}: the epoch cannot go on with other {name}"
                )

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume exactly; with another number of ranks, what the old ones held goes back on top of the deck.

        Raises
        ------
        ValueError
            If the state is that of other samples, or of another order of them. Nothing has changed then.
        """
        self.require_same(state)
        self.start(int(state["epoch"]))
        self.digest = int(state["digest"])
        if not int(state["remaining"]):  # before the first epoch, or after one: nothing is under way
            self.end()
            return
        if len(state["deck"]):
            self._deck, self._redealt = np.array(state["deck"]), True
        self._drawn = int(state["drawn"])
        held, hands_W = np.array(state["held"]), np.array(state["hands"])
        if len(hands_W) == self.world_size:
            self._hands = np.split(held, np.cumsum(hands_W)[:-1])
        else:
            self._deck, self._redealt = np.concatenate([held, self._deck[self._drawn :]]), True
            self._drawn = 0

    def _order(self, epoch: int) -> Samples:
        if not self.shuffle:
            return np.arange(self.samples)
        # Sorting raw random bits: the stream of a bit generator is the same in every version of numpy.
        keys = np.random.PCG64([self.seed, epoch]).random_raw(self.samples)
        return np.argsort(keys, kind="stable")

    def _sampled(self, sampler: Any, epoch: int) -> Samples:
        """Return the samples that a sampler yields; ranks whose samplers differ differ in their digest."""
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        order = np.array(list(sampler), dtype=np.int64).reshape(-1)
        wrong = (order < 0) | (order >= self.samples)
        if wrong.any():
            raise ValueError(
                f"the sampler yields {order[wrong][0]}, but the dataset has samples 0 to {self.samples - 1}"
            )
        if len(order) < self.world_size:
            raise ValueError(
                f"the sampler yields {len(order)} samples, too few for {self.world_size} ranks, as none may go without"
            )
        self.digest = zlib.crc32(order.astype("<i8").tobytes())
        return order

    def _held(self) -> Samples:
        return np.array([len(hand) for hand in self._hands])

    def _draw(self, sizes_W: Samples, rounds: int) -> None:
        """Deal out so many rounds, a batch to each rank in turn; the deck's last round may be a part of one."""
        total = int(sizes_W.sum())
        drawn = self._deck[self._drawn : self._drawn + rounds * total]
        self._drawn += len(drawn)
        whole, rest = np.split(drawn, [len(drawn) // total * total])
        borders_W1 = _borders(sizes_W)
        whole_RX, rest_W1 = whole.reshape(-1, total), borders_W1 * len(rest) // total
        for rank, hand in enumerate(self._hands):
            mine = whole_RX[:, borders_W1[rank] : borders_W1[rank + 1]].ravel()
            self._hands[rank] = np.concatenate([hand, mine, rest[rest_W1[rank] : rest_W1[rank + 1]]])

    def _even_out(self, sizes_W: Samples) -> None:
        """Near the end of the epoch, when the deck is empty: let all hands last equally long.

        While sizes stay they do, and nothing moves. Who has more gives from the end of its hand, which is not loaded
        yet but in the last few batches.
        """
        held_W, borders_W1 = self._held(), _borders(sizes_W)
        fair_W1 = borders_W1 * held_W.sum() // borders_W1[-1]
        spare_W = held_W - (fair_W1[1:] - fair_W1[:-1])
        for taker in np.flatnonzero(spare_W < 0):
            while spare_W[taker] < 0:
                giver = int(spare_W.argmax())
                count = int(min(spare_W[giver], -spare_W[taker]))
                given = self._hands[giver][-count:]
                self._hands[giver] = self._hands[giver][:-count]
                self._hands[taker] = np.concatenate([self._hands[taker], given])
                spare_W[giver] -= count
                spare_W[taker] += count


def _borders(sizes_W: Samples) -> Samples:
    """Return where each rank's part of a global batch begins, and where the last one ends, ``[W + 1]``."""
    borders_W1 = np.zeros(len(sizes_W) + 1, dtype=np.int64)
    sizes_W.cumsum(out=borders_W1[1:])
    return borders_W1
