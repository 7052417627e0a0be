"""Assign global batches that are slices of the epoch's order, divided when they are taken. Axis: W ranks."""

from __future__ import annotations

import zlib

import numpy as np

from paceline._arrays import Sizes
from paceline.torch.assigner import EpochAssigner
from paceline.torch.global_batch import GlobalBatch, RankBatch
from paceline.torch.order import Order, Samples


class SliceAssigner(EpochAssigner):
    """Cuts the epoch's order into global batches, and each of these into one part after the other.

    A state is a place in the order, whatever the number of ranks.

    Parameters
    ----------
    order, rule, rank
        As for :class:`EpochAssigner`.

    Examples
    --------
    >>> assigner = SliceAssigner(Order(10, shuffle=False), GlobalBatch(6, world_size=2), rank=1)
    >>> assigner.start(epoch=0)
    >>> assigner.next(np.array([4, 2]))[1]
    array([4, 5])
    >>> assigner.advance()
    >>> assigner.next(np.array([4, 2]))[1], assigner.remaining
    (array([8, 9]), 4)
    """

    def __init__(self, order: Order, rule: GlobalBatch, rank: int) -> None:
        super().__init__(order, rule, rank)
        self._room = rule.samples + rule.world_size
        self._shares_W = rule.equal()
        self._cut_for: Sizes | None = None

    def next(self, shares_W: Sizes, accumulate: int = 1) -> tuple[RankBatch, Samples]:
        """Return facts about the next batch, and this rank's samples."""
        if shares_W is not self._cut_for or self.remaining < self._room:
            self._cut(shares_W)
        first = self.place + self._first
        return self._rank_batch, self.numbers[first : first + self._count]

    def advance(self) -> None:
        """Count the next batch as taken."""
        self.place += self._total
        self.remaining -= self._total
        self.batches += 1
        self.digest = zlib.crc32(self._bytes, self.digest)

    def after(self, place: int) -> int | None:
        """Return the end of the global batch that begins at this place; None if none begins there."""
        left = len(self.numbers) - place
        return place + self.rule.count(left) if left >= self._min_left else None

    def expected(self, requested: int) -> tuple[Samples, int]:
        """Return this rank's part of one more global batch, and where that ends."""
        place = max(requested, self.place)
        end = self.after(place)
        return (np.arange(0), place) if end is None else (self.part(place), end)

    def settled(self) -> Samples:
        """Return the samples of the next global batch: other ranks take the rest of it."""
        return self.numbers[self.place : self.after(self.place)]

    def part(self, place: int) -> Samples:
        """Return this rank's samples of the global batch that begins at this place, if shares stay as they are."""
        sizes = self.rule.sizes(len(self.numbers) - place, self._shares_W).tolist()
        first = place + sum(sizes[: self.rank])
        return self.numbers[first : first + sizes[self.rank]]

    def _cut(self, shares_W: Sizes) -> None:
        """Compute what these shares mean for the next batch, and for all full ones as long as they stay."""
        self._shares_W = shares_W
        self._cut_for = sizes_W = self.rule.sizes(self.remaining, shares_W)  # the shares themselves, if it is full
        sizes = sizes_W.tolist()
        self._first, self._count, self._total = sum(sizes[: self.rank]), sizes[self.rank], sum(sizes)
        self._rank_batch, self._bytes = RankBatch(sizes_W), sizes_W.astype("<i8").tobytes()
