"""Division of an epoch into global batches, and of a global batch into the parts of the ranks. Axis: W ranks."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Sizes
from paceline.predictors import Curves
from paceline.solver import split


@dataclass(frozen=True, eq=False)
class RankBatch:
    """One global batch, as one rank sees it."""

    sizes: Sizes
    """Samples of each rank, ``[W]``."""
    features: tuple[float, ...] = ()
    """Features of the work of this rank's part; empty where samples have no costs."""
    rows: int = -1
    """Samples yielded at once, where the rank's part comes in micro-batches; -1 where it comes as a whole."""
    ends_step: bool = True
    """Whether it is the step's last micro-batch on this rank."""

    def local_samples(self, rank: int) -> int:
        """Return the samples of this rank that the loop gets together."""
        return self.rows if self.rows >= 0 else int(self.sizes[rank])

    @functools.cached_property
    def total(self) -> int:
        """The samples of all ranks."""
        return sum(self.sizes.tolist())  # plain numbers: a call of numpy costs more than the sum of a fleet


@dataclass(frozen=True)
class GlobalBatch:
    """The rule by which batches are cut: all are global batches but the last, and no rank's part is empty.

    The last batch takes what is left. It leaves every rank two samples where full ones do and it has as many. Fewer
    samples than ranks are not worth a batch and join the one before. With ``drop_last`` what does not fill a global
    batch is left out.

    Examples
    --------
    >>> rule = GlobalBatch(6, world_size=2)
    >>> rule.num_batches(10), rule.sizes(10, np.array([4, 2])), rule.sizes(4, np.array([4, 2]))
    (2, array([4, 2]), array([2, 2]))
    """

    samples: int
    world_size: int
    drop_last: bool = False

    @property
    def min_left(self) -> int:
        """Samples that must be left for another batch."""
        return self.samples if self.drop_last else 1

    def num_batches(self, samples: int) -> int:
        """Return how many batches so many samples make."""
        full, rest = divmod(samples, self.samples)
        return full if self.drop_last else max(full + (rest >= self.world_size), 1)

    def next_batch_samples(self, remaining: int) -> int:
        """Return the samples of the next batch of all ranks together."""
        full = remaining == self.samples or remaining - self.samples >= self.world_size
        return self.samples if full or self.drop_last else remaining

    def sizes(self, remaining: int, sizes_W: Sizes) -> Sizes:
        """Return the samples of each rank in the next batch, given those of a full one."""
        count = self.next_batch_samples(remaining)
        if count == self.samples:
            return sizes_W
        # Batch normalization needs two samples, and sizes of at least two may be bounded because of it.
        min_left = 2 if sizes_W.min() >= 2 and count >= 2 * self.world_size else 1
        return _divide_in_proportion(sizes_W, count, min_left)

    def equal_sizes(self) -> Sizes:
        """Return equal sizes of a full batch, as far as it can be divided."""
        return _divide_in_proportion(np.ones(self.world_size), self.samples)

    def validate_sizes(self, sizes_W: Any) -> Sizes:
        """Return sizes of a full batch as a read-only array; refuse those with which samples would be lost."""
        checked_W = np.array(sizes_W, dtype=np.int64)
        if checked_W.shape != (self.world_size,) or checked_W.min() < 1 or checked_W.sum() != self.samples:
            raise ValueError(
                f"sizes must be {self.world_size} numbers of at least 1 sample each (an empty batch has no mean loss) "
                f"that sum to the global batch of {self.samples}, got {checked_W.tolist()}"
            )
        checked_W.flags.writeable = False
        return checked_W


def _divide_in_proportion(shares_W: NDArray[Any], total: int, minimum: int = 1) -> Sizes:
    """Split so many samples in these proportions, as evenly as whole samples allow, and at least so many each."""
    return split(Curves.from_speed(shares_W.astype(float)), total, lower=minimum).sizes
