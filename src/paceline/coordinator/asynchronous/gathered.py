"""Pushes on their way into one update: whose they are, and how much each counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from paceline.coordinator.asynchronous.epoch_sampler import Drawn


@dataclass(frozen=True, eq=False)
class Push:
    """A push that was taken: its worker, its samples, its staleness, its weight for that, and its computing time."""

    worker: str
    drawn: Drawn
    staleness: int
    factor: float
    seconds: float = math.nan


@dataclass(eq=False)
class Gathered:
    """The pushes since the last update. Their gradients are in the store.

    Parameters
    ----------
    mean
        Whether the update is the mean over all samples, or the sum over the pushes.
    by_samples
        Whether a push counts in a sum by its samples over those of a full batch; in a mean it always does.
    batch
        Samples of a full batch.
    is_linear
        Of the optimizer: whether the rate follows the samples of a sum, or else its gradient.

    Examples
    --------
    30 samples, and 10 that count half:

    >>> import numpy as np
    >>> gathered = Gathered(mean=True, by_samples=False, batch=30)
    >>> for samples, factor in ((30, 1.0), (10, 0.5)):
    ...     drawn = Drawn(np.zeros(samples, np.int64), np.zeros(samples, np.int64))
    ...     gathered.pushes.append(Push("a", drawn, 0, factor))
    >>> [gathered.weight(push) for push in gathered.pushes], gathered.factor
    ([30.0, 5.0], 0.875)
    """

    mean: bool
    by_samples: bool
    batch: int
    is_linear: bool = True
    pushes: list[Push] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the number of pushes."""
        return len(self.pushes)

    def weight(self, push: Push) -> float:
        """Return the weight of a push's gradient in the update's mean."""
        return self._share(push) * push.factor

    @property
    def factor(self) -> float:
        """Factor that multiplies the learning rate when the mean of the gathered gradients is applied."""
        shares = sum(map(self._share, self.pushes))
        damping = sum(map(self.weight, self.pushes)) / shares
        if self.mean:
            return damping
        return damping * (shares if self.is_linear else len(self.pushes))

    @property
    def scale(self) -> float:
        """Factor that multiplies the mean of the gathered gradients: the mean share of a full batch, or 1."""
        if self.mean or self.is_linear:
            return 1.0
        return sum(map(self._share, self.pushes)) / len(self.pushes)

    def _share(self, push: Push) -> float:
        if self.mean:
            return float(len(push.drawn))
        return len(push.drawn) / self.batch if self.by_samples else 1.0
