"""Assign samples from a buffer for each rank, so that they can be loaded before sizes are known. Axis: W ranks."""

from __future__ import annotations

import zlib

import numpy as np

from paceline._arrays import Sizes
from paceline.torch.assigner import EpochAssigner
from paceline.torch.global_batch import GlobalBatch, RankBatch
from paceline.torch.order import Order, Samples


class BufferAssigner(EpochAssigner):
    """Draws samples into a buffer for each rank, and cuts batches from its front.

    What lies in its own buffer a rank can load; how much of it goes into the next batch is settled only when that is
    taken. The order is drawn in rounds, a batch for each rank in turn. As long as sizes stay, the n-th batches of all
    ranks together are the n-th slice of the order.

    Parameters
    ----------
    order, rule, rank
        As for :class:`EpochAssigner`.
    ahead
        Batches that a buffer holds beyond the next one; the same on every rank.

    Examples
    --------
    >>> assigner = BufferAssigner(Order(10, shuffle=False), GlobalBatch(4, world_size=2), rank=1, ahead=1)
    >>> assigner.start(epoch=0)
    >>> assigner.next(np.array([1, 3]))[1], assigner.buffers
    (array([1, 2, 3]), [array([0, 4]), array([1, 2, 3, 5, 6, 7])])
    """

    buffered = True
    _consumed = _reach = 0
    """Samples that this rank has taken, and the end up to which its buffer stayed since it was last asked for some."""

    def __init__(self, order: Order, rule: GlobalBatch, rank: int, ahead: int = 32) -> None:
        self.ahead = ahead
        super().__init__(order, rule, rank)

    def next(self, shares_W: Sizes, accumulate: int = 1) -> tuple[RankBatch, Samples]:
        """Return facts about the next batch, and this rank's samples."""
        sizes_W = self.rule.sizes(self.remaining, shares_W)
        if sizes_W is not self._rank_batch.sizes:
            self._rank_batch = RankBatch(sizes_W)
        self.reserve(sizes_W)
        # Another rank may have been given this buffer's end: what comes there later has not been asked for.
        self._reach = min(self._reach, self._consumed + len(self.buffers[self.rank]))
        return self._rank_batch, self.buffers[self.rank][: sizes_W[self.rank]]

    def expected(self, requested: int) -> tuple[Samples, int]:
        """Return the next samples of the buffer, up to the end of a batch; their count begins with the loop."""
        buffer, size = self.buffers[self.rank], self._rank_batch.local(self.rank)
        # What came back from another rank can be taken without having been asked for again.
        first = max(0, min(requested, self._reach) - self._consumed)
        self._reach = self._consumed + len(buffer)
        samples = buffer[first : (first // size + 1) * size]
        return samples, self._consumed + first + len(samples)

    def asks_for_next(self, requested: int) -> bool:
        """Return True: the whole buffer is requested sooner or later, from its front."""
        return True

    def settled(self) -> Samples:
        """Return this rank's part of the next batch: the rest of its buffer stays."""
        return self.buffers[self.rank][: self._rank_batch.local(self.rank)]

    def advance(self) -> None:
        """Count the next batch as taken."""
        self.batches += 1
        self._consumed += self._rank_batch.local(self.rank)
        self.take(self._rank_batch.sizes)

    def reserve(self, sizes_W: Sizes) -> None:
        """Fill every rank's buffer for a batch of its size, and for what it may load ahead."""
        held_W, drawable = self._held(), len(self.numbers) - self.place
        short_W = (1 + self.ahead) * sizes_W - held_W
        if drawable and short_W.max() > 0:
            needed = int(np.max(-(-short_W // np.maximum(sizes_W, 1))))
            # A buffer is copied when it grows, so it grows by several rounds at once.
            self._draw(sizes_W, max(needed, min(8, self.ahead)))
        if self.place == len(self.numbers):
            self._even_out(sizes_W)

    def take(self, sizes_W: Sizes) -> list[Samples]:
        """Return the next batch of every rank, which has been reserved, and remove it from the buffers."""
        parts = [buffer[:size] for buffer, size in zip(self.buffers, sizes_W.tolist(), strict=True)]
        self.buffers = [buffer[len(part) :] for buffer, part in zip(self.buffers, parts, strict=True)]
        self.remaining -= int(sizes_W.sum())
        self.digest = zlib.crc32(sizes_W.astype("<i8").tobytes(), self.digest)
        return parts

    def _stand(self, numbers: Samples, place: int) -> None:
        super()._stand(numbers, place)
        self._consumed = self._reach = 0

    def _held(self) -> Sizes:
        return np.array([len(buffer) for buffer in self.buffers])

    def _draw(self, sizes_W: Sizes, rounds: int) -> None:
        """Draw this many rounds, a batch for each rank in turn; the order's last round may be incomplete."""
        total = int(sizes_W.sum())
        samples = self.numbers[self.place : self.place + rounds * total]
        self.place += len(samples)
        full, rest = np.split(samples, [len(samples) // total * total])
        borders_W1 = _borders(sizes_W)
        full_RX, rest_W1 = full.reshape(-1, total), borders_W1 * len(rest) // total
        for rank, buffer in enumerate(self.buffers):
            mine = full_RX[:, borders_W1[rank] : borders_W1[rank + 1]].ravel()
            self.buffers[rank] = np.concatenate([buffer, mine, rest[rest_W1[rank] : rest_W1[rank + 1]]])

    def _even_out(self, sizes_W: Sizes) -> None:
        """Near the end of the epoch, when nothing is left to draw: let all buffers last equally long.

        While sizes stay they do, and nothing moves. Who has more gives from the end of its buffer, which is not loaded
        yet but in the last few batches.
        """
        held_W, borders_W1 = self._held(), _borders(sizes_W)
        fair_W1 = borders_W1 * held_W.sum() // borders_W1[-1]
        spare_W = held_W - (fair_W1[1:] - fair_W1[:-1])
        for taker in np.flatnonzero(spare_W < 0):
            while spare_W[taker] < 0:
                giver = int(spare_W.argmax())
                count = int(min(spare_W[giver], -spare_W[taker]))
                moved = self.buffers[giver][-count:]
                self.buffers[giver] = self.buffers[giver][:-count]
                self.buffers[taker] = np.concatenate([self.buffers[taker], moved])
                spare_W[giver] -= count
                spare_W[taker] += count


def _borders(sizes_W: Sizes) -> Sizes:
    """Return where each rank's part of a global batch begins, and where the last one ends, ``[W + 1]``."""
    borders_W1 = np.zeros(len(sizes_W) + 1, dtype=np.int64)
    sizes_W.cumsum(out=borders_W1[1:])
    return borders_W1
