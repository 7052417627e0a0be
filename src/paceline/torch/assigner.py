"""Say which rank takes which samples of an epoch, each sample once, also after resuming on another number of ranks.

Axes: W ranks, F features.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline.torch.global_batch import GlobalBatch, RankBatch

SampleIndices = NDArray[np.int64]

Sampler = torch.utils.data.Sampler[int] | Sequence[int]


@dataclass(frozen=True)
class SampleOrder:
    """The order of every epoch, the same on every rank: shuffled, as they are numbered, or the sampler's."""

    samples: int
    shuffle: bool = True
    seed: int = 0
    sampler: Sampler | None = None

    def __len__(self) -> int:
        """Return the samples of an epoch."""
        sampler: Any = self.sampler  # not every sampler has a length; Python's error says so
        return self.samples if sampler is None else len(sampler)

    def epoch_indices(self, epoch: int, ranks: int = 1) -> SampleIndices:
        """Return the numbers of the epoch's samples, for so many ranks."""
        if self.sampler is not None:
            return self._sampler_indices(self.sampler, epoch, ranks)
        if not self.shuffle:
            return np.arange(self.samples)
        # Sorting raw random bits: the stream of a bit generator is the same in every version of numpy.
        return np.argsort(np.random.PCG64([self.seed, epoch]).random_raw(self.samples), kind="stable")

    def _sampler_indices(self, sampler: Any, epoch: int, ranks: int) -> SampleIndices:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        order = np.array(list(sampler), dtype=np.int64).reshape(-1)
        wrong = (order < 0) | (order >= self.samples)
        if wrong.any():
            raise ValueError(
                f"the sampler yields {order[wrong][0]}, but the dataset has samples 0 to {self.samples - 1}"
            )
        if len(order) < ranks:
            raise ValueError(
                f"the sampler yields {len(order)} samples, too few for {ranks} ranks: each rank needs at least one"
            )
        return order


State = Mapping[str, NDArray[Any]]

MicroBatch = tuple[RankBatch, Any]
"""What a loop gets at once: facts about it, and its samples."""


class EpochAssigner:
    """Says which rank takes which samples of an epoch: every rank computes the same, and none exchanges anything.

    The epoch's order is cut into global batches, and each of these into one part after the other. A state is a place in
    the order, whatever the number of ranks.

    Attributes
    ----------
    epoch, batches, digest
        The epoch under way, the batches taken of it, and a checksum of who took what, the same on every rank.
    indices, buffers
        The epoch's samples in their order, of which the first ``offset`` are in a batch or a buffer; and samples drawn
        for each rank in advance, if any.
    remaining, is_over
        Samples of the epoch that are in no batch yet, and whether it has no further batch.
    coefficients, min_samples
        Where samples have costs: the factors by which these follow from features, ``[F]``, and the fewest samples of a
        rank.
    micro_batch, length_varies
        Samples of a micro-batch, where there are some; and whether epochs differ in their numbers of batches.
    """

    coefficients: Array | None = None
    micro_batch: int | None = None
    min_samples = 1
    buffered = length_varies = False

    def __init__(self, order: SampleOrder, rule: GlobalBatch, rank: int) -> None:
        self.order, self.rule, self.rank = order, rule, rank
        self.epoch = self.batches = self.digest = 0
        self._min_left = rule.min_left
        self._unique = False
        self._full_below = rule.samples + rule.world_size
        self._shares_W = rule.equal_sizes()
        self._rank_batch, self._digest_bytes = RankBatch(self._shares_W), self._shares_W.astype("<i8").tobytes()
        self._cut_for: Sizes | None = None
        self.end()

    def peek(self, shares_W: Sizes) -> tuple[RankBatch, SampleIndices]:
        """Return facts about the next batch at these shares, and this rank's samples, without counting it as taken."""
        if shares_W is not self._cut_for or self.remaining < self._full_below:
            self._shares_W = shares_W
            self._cut_for = sizes_W = self._set_sizes(shares_W)
            self._first, self._count = int(sizes_W[: self.rank].sum()), int(sizes_W[self.rank])
        first = self.offset + self._first
        return self._rank_batch, self.indices[first : first + self._count]

    def micro_batches(self, rank_batch: RankBatch, samples: SampleIndices) -> list[MicroBatch]:
        """Return the micro-batches of this rank's part of the next batch."""
        parts = self._divide_part(samples)
        # each counts its own rows of the whole global batch: a step is the mean over all samples
        return [
            (replace(rank_batch, features=self.features(part), rows=len(part), ends_step=number == len(parts)), part)
            for number, part in enumerate(parts, 1)
        ]

    def advance(self) -> None:
        """Count the next batch as taken."""
        self.offset += self._rank_batch.total
        self.remaining -= self._rank_batch.total
        self.is_over = self.remaining < self._min_left
        self.batches += 1
        self.digest = zlib.crc32(self._digest_bytes, self.digest)

    def samples_to_load(self, requested_end: int) -> tuple[SampleIndices, int]:
        """Return the samples to load next, those of this rank if shares stay as they are, and how far they reach.

        ``requested_end`` is how far they were asked for: 0 at first, then what was returned beside the last ones.
        """
        offset = max(requested_end, self.offset)
        end = self.batch_end(offset)
        return (np.arange(0), offset) if end is None else (self.rank_samples(offset), end)

    def may_request_next(self, requested_end: int) -> bool:
        """Return whether the next request is for samples of the next batch, none of which was requested before."""
        return requested_end <= self.offset

    def settled_samples(self) -> SampleIndices:
        """Return requested samples that the next batch settles: this rank takes them then, or not at all."""
        return self.indices[self.offset : self.batch_end(self.offset)]

    def batch_end(self, offset: int) -> int | None:
        """Return the end of the global batch that begins at this offset; None if none begins there."""
        left = len(self.indices) - offset
        return offset + self.rule.next_batch_samples(left) if left >= self._min_left else None

    def rank_samples(self, offset: int) -> SampleIndices:
        """Return this rank's samples of the global batch that begins at this offset, if shares stay as they are."""
        sizes = self.rule.sizes(len(self.indices) - offset, self._shares_W).tolist()
        first = offset + sum(sizes[: self.rank])
        return self.indices[first : first + sizes[self.rank]]

    def features(self, samples: SampleIndices) -> tuple[float, ...]:
        """Return the features of the work of samples of this rank; nothing where samples have no costs."""
        return ()

    def settings(self) -> dict[str, object]:
        """Return what must be the same on every rank, beside the order and the rule, by readable names."""
        return {}

    def start(self, epoch: int) -> None:
        """Begin this epoch."""
        self.end()
        indices = self.order.epoch_indices(epoch, self.rule.world_size)
        self.epoch, self.batches = epoch, 0
        self._unique = self.order.sampler is not None  # such an order may not come again: a state holds it
        self.digest = zlib.crc32(indices.astype("<i8").tobytes()) if self._unique else 0
        self._set_offset(indices, 0)

    def end(self) -> None:
        """Leave out the rest of the epoch."""
        self.buffers = [np.arange(0)] * self.rule.world_size
        self._set_offset(np.arange(0), 0)

    def num_batches_in(self, epoch: int) -> int:
        """Return the batches of a whole epoch: of the one under way, or else of this one."""
        return self.rule.num_batches(len(self.order))

    def require_loadable(self, state: State, *, with_rest: bool) -> None:
        """Refuse a state of other samples or another order, or a rest that is too small for so many ranks."""
        require_same(state, {name: getattr(self.order, name) for name in ("samples", "seed", "shuffle")})
        left, ranks = int(state["remaining"]), self.rule.world_size
        if with_rest and self._min_left <= left < ranks:
            raise ValueError(
                f"{left} samples are left of epoch {int(state['epoch'])}, too few for {ranks} ranks, as each "
                f"needs at least one: resume with at most {left} ranks, or skip them with load_state_dict(state, "
                "skip_rest=True)"
            )

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the place in the epoch; the order itself follows from the seed, unless it is unique."""
        known = {name: getattr(self.order, name) for name in ("samples", "seed", "shuffle")}
        known |= {name: getattr(self, name) for name in ("epoch", "batches", "digest", "remaining")}
        known |= {  # named as in states of earlier versions
            "drawn": self.offset,
            "held": np.concatenate(self.buffers),
            "buffers": [len(buffer) for buffer in self.buffers],
            "sampler": self.indices if self._unique else np.arange(0),
        }
        return {name: np.array(value) for name, value in known.items()}

    def load_state_dict(self, state: State) -> None:
        """Move to a saved place; for another number of ranks, samples that the old ones held come first."""
        self.start(int(state["epoch"]))
        self.digest, self.batches = int(state["digest"]), int(state["batches"])
        if not int(state["remaining"]):  # before the first epoch, or after one
            self.end()
            return
        self._unique = self._unique or len(state["sampler"]) > 0
        indices = np.array(state["sampler"]) if len(state["sampler"]) else self.indices
        offset, held, lengths = int(state["drawn"]), np.array(state["held"]), np.array(state["buffers"])
        if self.buffered and len(lengths) == self.rule.world_size:
            self.buffers = np.split(held, np.cumsum(lengths)[:-1])
        elif len(held):
            indices, offset, self._unique = np.concatenate([held, indices[offset:]]), 0, True
        self._set_offset(indices, offset)

    def _set_offset(self, indices: SampleIndices, offset: int) -> None:
        self.indices, self.offset = indices, offset
        self.remaining = len(indices) - offset + sum(len(buffer) for buffer in self.buffers)
        self.is_over = self.remaining < self._min_left

    def sync_from(self, state: State) -> None:
        """Move to the place of another rank, in the middle of a loop."""
        self.load_state_dict(state)

    def _set_sizes(self, shares_W: Sizes) -> Sizes:
        """Return the sizes of the next batch: the shares themselves, if it is full."""
        sizes_W = self.rule.sizes(self.remaining, shares_W)
        if sizes_W is not self._rank_batch.sizes:
            self._rank_batch, self._digest_bytes = RankBatch(sizes_W), sizes_W.astype("<i8").tobytes()
        return sizes_W

    def _divide_part(self, samples: SampleIndices) -> list[SampleIndices]:
        """Return the samples of each micro-batch; the last may have fewer."""
        size = self.micro_batch or len(samples)
        return [samples[first : first + size] for first in range(0, len(samples), size)]


def require_same(state: State, expected: Mapping[str, object]) -> None:
    """Refuse a state that was saved with other settings than these."""
    for name, value in expected.items():
        if name in state and state[name].item() != value:
            raise ValueError(
                f"the state was saved with {name}={state[name].item()}, but this loader has {value}: the epoch cannot "
                f"go on with other {name}"
            )


class BufferAssigner(EpochAssigner):
    """Draws samples into a buffer for each rank, and cuts batches from its front.

    A rank can load what lies in its buffer, ``batches_ahead`` batches beyond the next one; how much of it goes into the
    next batch is settled only when that is taken. The order is drawn in rounds, a batch for each rank in turn.
    """

    buffered = True
    _consumed = _reach = 0
    """Samples that this rank has taken, and the end up to which its buffer stayed since it was last asked for some."""

    def __init__(self, order: SampleOrder, rule: GlobalBatch, rank: int, batches_ahead: int = 32) -> None:
        self.batches_ahead = batches_ahead
        super().__init__(order, rule, rank)

    def peek(self, shares_W: Sizes) -> tuple[RankBatch, SampleIndices]:
        """Return facts about the next batch at these shares, and this rank's samples, without counting it as taken."""
        sizes_W = self._set_sizes(shares_W)
        held_W, drawable = self._buffer_lengths(), len(self.indices) - self.offset
        short_W = (1 + self.batches_ahead) * sizes_W - held_W
        if drawable and short_W.max() > 0:
            needed = int(np.max(-(-short_W // np.maximum(sizes_W, 1))))
            # A buffer is copied when it grows, so it grows by several rounds at once.
            self._fill_buffers(sizes_W, max(needed, min(8, self.batches_ahead)))
        if self.offset == len(self.indices):
            self._level_buffers(sizes_W)
        # Another rank may have been given this buffer's end: what comes there later has not been asked for.
        self._reach = min(self._reach, self._consumed + len(self.buffers[self.rank]))
        return self._rank_batch, self.buffers[self.rank][: sizes_W[self.rank]]

    def samples_to_load(self, requested_end: int) -> tuple[SampleIndices, int]:
        """Return the next samples of the buffer, up to the end of a batch; their count begins with the loop."""
        buffer, size = self.buffers[self.rank], self._rank_batch.local_samples(self.rank)
        # What came back from another rank can be taken without having been asked for again.
        first = max(0, min(requested_end, self._reach) - self._consumed)
        self._reach = self._consumed + len(buffer)
        samples = buffer[first : (first // size + 1) * size]
        return samples, self._consumed + first + len(samples)

    def may_request_next(self, requested_end: int) -> bool:
        """Return True: the whole buffer is requested sooner or later, from its front."""
        return True

    def settled_samples(self) -> SampleIndices:
        """Return this rank's part of the next batch: the rest of its buffer stays."""
        return self.buffers[self.rank][: self._rank_batch.local_samples(self.rank)]

    def advance(self) -> None:
        """Count the next batch as taken."""
        super().advance()
        self.offset -= self._rank_batch.total  # it moved when these samples were drawn
        self._consumed += self._rank_batch.local_samples(self.rank)
        sizes = self._rank_batch.sizes.tolist()
        self.buffers = [buffer[size:] for buffer, size in zip(self.buffers, sizes, strict=True)]

    def _set_offset(self, indices: SampleIndices, offset: int) -> None:
        super()._set_offset(indices, offset)
        self._consumed = self._reach = 0

    def _buffer_lengths(self) -> Sizes:
        return np.array([len(buffer) for buffer in self.buffers])

    def _fill_buffers(self, sizes_W: Sizes, num_rounds: int) -> None:
        """Draw this many rounds, a batch for each rank in turn; the order's last round may be incomplete."""
        total = int(sizes_W.sum())
        samples = self.indices[self.offset : self.offset + num_rounds * total]
        self.offset += len(samples)
        full, rest = np.split(samples, [len(samples) // total * total])
        offsets_W1 = _rank_offsets(sizes_W)
        full_RX, rest_W1 = full.reshape(-1, total), offsets_W1 * len(rest) // total
        for rank, buffer in enumerate(self.buffers):
            mine = full_RX[:, offsets_W1[rank] : offsets_W1[rank + 1]].ravel()
            self.buffers[rank] = np.concatenate([buffer, mine, rest[rest_W1[rank] : rest_W1[rank + 1]]])

    def _level_buffers(self, sizes_W: Sizes) -> None:
        """Near the end of the epoch, when nothing is left to draw: let all buffers last equally long.

        While sizes stay they do, and nothing moves. Who has more gives from the end of its buffer, which is not loaded
        yet but in the last few batches.
        """
        held_W, offsets_W1 = self._buffer_lengths(), _rank_offsets(sizes_W)
        fair_W1 = offsets_W1 * held_W.sum() // offsets_W1[-1]
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


def _rank_offsets(sizes_W: Sizes) -> Sizes:
    """Return where each rank's part of a global batch begins, and where the last one ends, ``[W + 1]``."""
    offsets_W1 = np.zeros(len(sizes_W) + 1, dtype=np.int64)
    sizes_W.cumsum(out=offsets_W1[1:])
    return offsets_W1
