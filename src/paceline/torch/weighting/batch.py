"""A batch that the loader handed out, and what a forward pass over it counts. Axis: W ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.torch.weighting.hooks import tensors_in
from paceline.torch.weighting.memory import Place, places_of
from paceline.torch.weighting.rank_batch import RankBatch


@dataclass(frozen=True, eq=False, slots=True)
class Turn:
    """Samples and weight of a forward pass in training.

    Parameters
    ----------
    samples
        This rank's samples in it; the number of rows if the loader did not hand them out.
    share
        Weight of this rank in the mean over all ranks, up to a factor that is the same on every rank.
    total
        Samples of all ranks in the loader's batch.
    known
        Whether the inputs are a batch of the loader. All passes over one batch have one turn.
    part
        Its share of this global batch alone: those of all ranks sum to 1 where all went as planned.
    whole
        The sum of the weights of all ranks; NaN where that is not known.
    features
        Features of the work of the rank's part; empty where samples have no costs.
    last
        Whether it is the step's last micro-batch on this rank, where a step has different numbers of them.
    """

    samples: int
    share: float
    total: int
    known: bool
    part: float
    whole: float = 1.0
    features: tuple[float, ...] = ()
    last: bool = True


class Batch:
    """A batch that was handed out, and where its tensors lie, as long as they exist.

    Parameters
    ----------
    rank_batch
        The loader's facts about the batch.
    rank
        This rank.
    number
        Its place in the order of handing out.
    batch
        The batch itself, which is not kept.

    Attributes
    ----------
    places, later
        Places of its tensors in memory, and of tensors that models got of it, or made of it.
    firsts
        Places that show whether the batch may be computed again: its tensors, and the first that each model got.
    computed, recognised
        Whether a model was given it, and whether it was recognised then.
    skipped
        Whether a later batch was computed first, as far as could be told: the loop may still hold this one.
    """

    __slots__ = (
        "computed",
        "firsts",
        "later",
        "number",
        "own",
        "places",
        "rank_batch",
        "recognised",
        "skipped",
        "turn",
    )

    def __init__(self, rank_batch: RankBatch, rank: int, number: int, batch: object) -> None:
        self.rank_batch, self.number = rank_batch, number
        sizes = rank_batch.sizes.tolist()  # plain numbers: a call of numpy costs more than the sum of a fleet
        cut = rank_batch.rows >= 0
        self.own: int = rank_batch.rows if cut else sizes[rank]
        whole = math.nan if cut else rank_batch.whole  # nobody knows the micro-batches of other ranks
        self.turn = Turn(
            self.own, rank_batch.weight, sum(sizes), True, rank_batch.part, whole, rank_batch.features, rank_batch.last
        )
        self.computed = self.recognised = self.skipped = False
        self.places = places_of(tensors_in(batch))
        self.later: list[Place] = []
        self.firsts = list(self.places)

    @property
    def waiting(self) -> bool:
        """True if it is expected to be computed."""
        return not (self.computed or self.skipped)

    @property
    def gone(self) -> bool:
        """True if nothing is left of the batch that a further pass could be given."""
        for place in self.firsts:  # noqa: SIM110 - each step of a generator costs as much as a call
            if place[3]() is not None:
                return False
        return True
