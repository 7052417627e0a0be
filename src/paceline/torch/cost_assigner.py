"""Assign samples drawn at random by what they cost, and pack them into micro-batches. Axes: W ranks, F features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from paceline._arrays import Array, Sizes
from paceline.solver import Assignment, Packing
from paceline.torch.assigner import EpochAssigner, SampleIndices, SampleOrder
from paceline.torch.costs import Costs, SampleCosts
from paceline.torch.global_batch import GlobalBatch, RankBatch


class CostAssigner(EpochAssigner):
    """Cuts the epoch's order into the global batches that come without costs, and divides each by cost."""

    coefficients: Array

    def __init__(self, order: SampleOrder, rule: GlobalBatch, rank: int, costs: Costs, table: SampleCosts) -> None:
        self.costs, self.table = costs, table
        self.coefficients, self.length_varies = costs.prior(), costs.global_tokens is not None
        self._assignment_cache: dict[tuple[int, bytes, bytes], Assignment | PackedBatch] = {}
        self._batches_counted = (-1, 0)
        super().__init__(order, rule, rank)

    def start(self, epoch: int) -> None:
        """Begin this epoch; refuse it if a global batch of it exceeds what all ranks may take."""
        super().start(epoch)
        if self.costs.cap is not None:
            self._require_within_cap(self.costs.cap)

    def peek(self, shares_W: Sizes) -> tuple[RankBatch, SampleIndices]:
        """Return facts about the next batch at these shares, and this rank's samples, without counting it as taken."""
        self._shares_W = shares_W
        samples = self.rank_samples(self.offset)
        assignment = self._assignment(self.offset)
        self._rank_batch = RankBatch(assignment.counts, self.features(samples))
        self._digest_bytes = assignment.owner.astype("<i8").tobytes()
        return self._rank_batch, samples

    def advance(self) -> None:
        """Count the next batch as taken."""
        super().advance()
        self._assignment_cache = {key: known for key, known in self._assignment_cache.items() if key[0] >= self.offset}

    def batch_end(self, offset: int) -> int | None:
        """Return the end of the global batch that begins at this place; None if none begins there.

        With a budget of tokens, fewer samples than ranks are not worth a batch: they take from the one before.
        """
        if not self.costs.global_tokens:
            return super().batch_end(offset)
        left, ranks = len(self.indices) - offset, self.rule.world_size
        if not left:
            return None
        budget = self._until_N1[offset] + self.costs.global_tokens
        within = int(np.searchsorted(self._until_N1, budget, side="right")) - 1 - offset
        count = min(max(within, ranks), left)
        if 0 < left - count < ranks:
            count = left - ranks if left >= 2 * ranks else left
        return offset + count

    def rank_samples(self, offset: int) -> SampleIndices:
        """Return this rank's samples of the global batch that begins at this place, if shares stay as they are."""
        return self._batch_samples(offset)[self._assignment(offset).samples_of(self.rank)]

    def features(self, samples: SampleIndices) -> tuple[float, ...]:
        """Return the features of the work of samples of this rank."""
        return self.costs.work(self.table[samples])

    def num_batches_in(self, epoch: int) -> int:
        """Return the batches of a whole epoch: of the one under way, or else of this one."""
        if not self.costs.global_tokens:
            return super().num_batches_in(epoch)
        epoch = self.epoch if self.remaining else epoch
        if self._batches_counted[0] != epoch or self.order.sampler is not None:  # trainers ask at every batch
            free = replace(self.costs, cap=None)
            uncapped = CostAssigner(self.order, self.rule, self.rank, free, self.table)
            uncapped.start(epoch)
            self._batches_counted = (epoch, len(uncapped._batch_ends()))
        return self._batches_counted[1]

    def settings(self) -> dict[str, object]:
        """Return what must be the same on every rank, beside the order and the rule."""
        return {"costs of the samples": self.table.digest, **self.costs.settings()}

    def _set_offset(self, indices: SampleIndices, offset: int) -> None:
        super()._set_offset(indices, offset)
        self._assignment_cache = {}
        self._until_N1 = np.concatenate([[0.0], self.table.tokens[indices].cumsum()])  # tokens before each sample

    def _batch_ends(self) -> Sizes:
        ends, end = [], self.batch_end(self.offset)
        while end is not None:
            ends.append(end)
            end = self.batch_end(end)
        return np.array(ends, dtype=np.int64)

    def _batch_samples(self, offset: int) -> SampleIndices:
        return self.indices[offset : self.batch_end(offset)]

    def _assignment(self, offset: int) -> Assignment | PackedBatch:
        key = (offset, self._shares_W.tobytes(), self.coefficients.tobytes())
        if key not in self._assignment_cache:
            self._assignment_cache[key] = self._divide_batch(self.table[self._batch_samples(offset)])
        return self._assignment_cache[key]

    def _divide_batch(self, samples: SampleCosts) -> Assignment | PackedBatch:
        return self.costs.assign_samples(samples, self._shares_W, self.coefficients, self.min_samples)

    def _require_within_cap(self, rank_cap: float) -> None:
        """Refuse an epoch in which a global batch exceeds what all ranks may take, before it begins."""
        ends, ranks = self._batch_ends(), self.rule.world_size
        tokens_B = np.diff(self._until_N1[np.concatenate([[0], ends])])
        if (tokens_B > rank_cap * ranks).any():
            worst = int(tokens_B.argmax())
            raise ValueError(
                f"global batch {worst} of this epoch holds {tokens_B[worst]:g} tokens, more than {ranks} ranks may "
                f"take under a cap of {rank_cap:g} each: pass a smaller global_batch, or global_tokens= in its place"
            )


PackOption = bool | Literal["lockstep"]
"""Whether samples are packed, and for ranks that wait for each other after every micro-batch."""


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """A packed global batch in which every rank has a sample."""

    owner: Sizes
    """Rank of each sample, ``[N]``."""
    counts: Sizes
    """Samples of each rank, ``[W]``."""
    micro_batches: list[list[Sizes]]
    """Samples of each micro-batch of each rank."""

    def samples_of(self, rank: int) -> Sizes:
        """Return the samples of a rank, one micro-batch after the other."""
        return np.concatenate(self.micro_batches[rank])


class PackAssigner(CostAssigner):
    """Cuts the epoch's order into the global batches that come without costs, and packs each into micro-batches.

    With ``lockstep`` all ranks have the same number of micro-batches, for they wait for each other after each.
    """

    def __init__(
        self, order: SampleOrder, rule: GlobalBatch, rank: int, costs: Costs, table: SampleCosts, *, lockstep: bool
    ) -> None:
        self.lockstep = lockstep
        super().__init__(order, rule, rank, costs, table)

    def settings(self) -> dict[str, object]:
        """Return what must be the same on every rank, beside the order and the rule."""
        return {"pack": "lockstep" if self.lockstep else True, **super().settings()}

    def _divide_part(self, samples: SampleIndices) -> list[SampleIndices]:
        packed = self._assignment(self.offset)
        assert isinstance(packed, PackedBatch)
        return np.split(samples, np.cumsum([len(part) for part in packed.micro_batches[self.rank]])[:-1])

    def _divide_batch(self, samples: SampleCosts) -> PackedBatch:
        packing = self.costs.pack_samples(samples, self._shares_W, self.coefficients, lockstep=self.lockstep)
        return _fill_empty_ranks(packing)

    def _require_within_cap(self, rank_cap: float) -> None:
        """Do nothing: a rank takes as many micro-batches as it needs, and longer samples were refused."""


def _fill_empty_ranks(packing: Packing) -> PackedBatch:
    """Return a packing in which a rank without samples has got one of the last of a rank that has several.

    A rank without a backward pass would leave the others waiting for its gradients.
    """
    ranks = len(packing.counts)
    parts = [packing.samples_of(rank) for rank in range(ranks)]
    owner_N, counts_W = packing.rank.copy(), np.bincount(packing.rank, minlength=ranks)
    for rank in np.flatnonzero(counts_W == 0).tolist():
        giver = int(counts_W.argmax())
        place = max(nth for nth, part in enumerate(parts[giver]) if len(part))  # the cheapest come last
        sample, parts[giver][place] = parts[giver][place][-1:], parts[giver][place][:-1]
        if not len(parts[giver][place]) and len(parts[rank]) == 0:  # counts are free: none is empty
            del parts[giver][place]
        parts[rank] = [sample, *parts[rank][1:]]
        owner_N[sample], counts_W = rank, counts_W + (np.arange(ranks) == rank) - (np.arange(ranks) == giver)
    return PackedBatch(owner_N, counts_W, parts)
