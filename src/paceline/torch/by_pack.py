"""Assign global batches drawn at random in micro-batches, packed under a cap of tokens. Axes: W ranks, F features."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from paceline._arrays import Sizes
from paceline.solver import Packing
from paceline.torch.by_cost import CostAssigner
from paceline.torch.costs import Costs, SampleCosts
from paceline.torch.global_batch import GlobalBatch
from paceline.torch.order import Order

Pack = bool | Literal["equal"]
"""Whether samples are packed, and into equal numbers of micro-batches on all ranks."""


@dataclass(frozen=True, eq=False)
class Packed:
    """A packed global batch in which every rank has a sample.

    Parameters
    ----------
    owner
        Rank of each sample, ``[N]``.
    counts
        Samples of each rank, ``[W]``.
    parts
        Samples of each micro-batch of each rank.
    """

    owner: Sizes
    counts: Sizes
    parts: list[list[Sizes]]

    def of(self, rank: int) -> Sizes:
        """Return the samples of a rank, one micro-batch after the other."""
        return np.concatenate(self.parts[rank])


class PackAssigner(CostAssigner):
    """Cuts the epoch's order into the global batches that come without costs, and packs each into micro-batches.

    Attributes
    ----------
    equal
        Whether all ranks have the same number of micro-batches.

    Examples
    --------
    >>> costs = Costs(lengths=[40, 10, 10, 20, 20], cap=50)
    >>> rule, table = GlobalBatch(5, world_size=2), costs.of_dataset(range(5))
    >>> assigner = PackAssigner(Order(5, shuffle=False), rule, 1, costs, table, equal=False)
    >>> assigner.start(epoch=0)
    >>> assigner.next(np.array([3, 2]))[1], assigner.borders()
    (array([1, 2, 3]), [(0, 3)])
    """

    def __init__(
        self, order: Order, rule: GlobalBatch, rank: int, costs: Costs, table: SampleCosts, *, equal: bool
    ) -> None:
        self.equal = equal
        super().__init__(order, rule, rank, costs, table)

    def borders(self) -> list[tuple[int, int]]:
        """Return where each micro-batch of the next batch begins and ends among this rank's samples."""
        packed = self._assignment(self.place)
        assert isinstance(packed, Packed)
        ends = np.cumsum([0, *map(len, packed.parts[self.rank])]).tolist()
        return list(pairwise(ends))

    def settings(self) -> dict[str, object]:
        """Return what must be the same on every rank, beside the order and the rule."""
        return {"pack": "equal" if self.equal else True, **super().settings()}

    def _divided(self, samples: SampleCosts) -> Packed:
        assert self.coefficients is not None
        return _with_samples_for_all(self.costs.packed(samples, self._shares_W, self.coefficients, equal=self.equal))

    def _require_room(self, cap: float) -> None:
        """Do nothing: a rank takes as many micro-batches as it needs, and longer samples were refused."""


def _with_samples_for_all(packing: Packing) -> Packed:
    """Return a packing in which a rank without samples has got one of the last of a rank that has several.

    A rank without a backward pass would leave the others waiting for its gradients.
    """
    ranks = len(packing.counts)
    parts = [packing.of(rank) for rank in range(ranks)]
    owner_N, counts_W = packing.rank.copy(), np.bincount(packing.rank, minlength=ranks)
    for rank in np.flatnonzero(counts_W == 0).tolist():
        giver = int(counts_W.argmax())
        place = max(nth for nth, part in enumerate(parts[giver]) if len(part))  # the cheapest come last
        sample, parts[giver][place] = parts[giver][place][-1:], parts[giver][place][:-1]
        if not len(parts[giver][place]) and len(parts[rank]) == 0:  # counts are free: none is empty
            del parts[giver][place]
        parts[rank] = [sample, *parts[rank][1:]]
        owner_N[sample], counts_W = rank, counts_W + (np.arange(ranks) == rank) - (np.arange(ranks) == giver)
    return Packed(owner_N, counts_W, parts)
