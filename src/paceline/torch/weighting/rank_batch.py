"""Facts that a loader knows of a batch that it hands out, beside its rows. Axis: W ranks."""

from __future__ import annotations

from dataclasses import dataclass

from paceline._arrays import Sizes


@dataclass(frozen=True, eq=False)
class RankBatch:
    """One global batch, as one rank sees it.

    Parameters
    ----------
    sizes
        Samples of each rank, ``[W]``.
    weight
        Weight of this rank's mean gradient in the step's: its share of the samples; or of the loss terms of the whole
        step, times the micro-batches of a step, by which loops divide.
    part
        This rank's share of this global batch alone; those of all ranks sum to 1.
    whole
        The sum of the weights of all ranks: 1, but where loss terms count and a step has several micro-batches.
    features
        Features of the work of this rank's part; empty where samples have no costs.
    rows
        Samples handed out at once, where the rank's part comes in micro-batches; -1 where it comes as a whole.
    last
        Whether it is the step's last micro-batch on this rank.
    """

    sizes: Sizes
    weight: float
    part: float
    whole: float = 1.0
    features: tuple[float, ...] = ()
    rows: int = -1
    last: bool = True

    def own(self, rank: int) -> int:
        """Return the samples of this rank that are handed out together."""
        return self.rows if self.rows >= 0 else int(self.sizes[rank])

    @staticmethod
    def plain(sizes_W: Sizes, rank: int) -> RankBatch:
        """Return a batch whose samples all count and cost the same.

        >>> import numpy as np
        >>> RankBatch.plain(np.array([6, 2]), rank=1).weight
        0.25
        """
        sizes = sizes_W.tolist()  # plain numbers: a call of numpy costs more than the sum of a fleet
        share = sizes[rank] / sum(sizes)
        return RankBatch(sizes_W, share, share)
