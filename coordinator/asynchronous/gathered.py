"""Pushes on their way into one update. Axis: P parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.coordinator.asynchronous.deck import Hand
from paceline.coordinator.asynchronous.optimiser import Vector


@dataclass(frozen=True, eq=False)
class Push:
    """A push that was taken: whose, of which samples, how stale, and how much it counts for that."""

    worker: str
    hand: Hand
    staleness: int
    factor: float


class Gathered:
    """The weighted sum or mean of the pushes since the last update, in the room of one gradient.

    Parameters
    ----------
    mean
        Whether the update is the mean over all samples, or the sum over the pushes.
    by_samples
        Whether a push counts in a sum by its samples over those of a full batch; in a mean it always does.
    batch
        Samples of a full batch.

    Examples
    --------
    The mean of 30 and 10 samples:

    >>> none = np.empty(0, np.int64)
    >>> gathered = Gathered(mean=True, by_samples=False, batch=30)
    >>> for samples, gradient in ((30, np.array([1.0])), (10, np.array([5.0]))):
    ...     hand = Hand(np.zeros(samples, np.int64), np.zeros(samples, np.int64))
    ...     gathered.add(Push("a", hand, 0, 1.0), gradient)
    ...     gathered.keep()
    >>> gathered.update()
    (array([2.]), 1.0)
    """

    def __init__(self, *, mean: bool, by_samples: bool, batch: int) -> None:
        self.mean = mean
        self.by_samples = by_samples
        self.batch = batch
        self.pushes: list[Push] = []
        self._new_P: Vector | None = None
        self._sum_P: Vector | None = None
        self._kept = 0.0

    def __len__(self) -> int:
        """Return the number of pushes."""
        return len(self.pushes)

    def add(self, push: Push, gradient: Vector) -> None:
        """Add a push. Its gradient is the caller's until :meth:`keep` or :meth:`update`, one of which must follow."""
        self.pushes.append(push)
        self._new_P = gradient

    def keep(self) -> None:
        """Add the new gradient to the sum, so that the caller may have it back."""
        if self._new_P is None:
            return
        weight = self._share(self.pushes[-1]) * self.pushes[-1].factor
        if self._sum_P is None:
            self._sum_P = np.zeros_like(self._new_P)
        self._sum_P += weight * self._new_P
        self._kept += weight
        self._new_P = None

    def update(self) -> tuple[Vector, float]:
        """Return the mean gradient, ``[P]``, and what the learning rate is multiplied by for it."""
        total = sum(self._share(push) * push.factor for push in self.pushes)
        norm = sum(map(self._share, self.pushes)) if self.mean else 1.0
        if self._new_P is not None and not self._kept:
            return self._new_P, total / norm  # the only one: there is nothing to add up
        self.keep()
        assert self._sum_P is not None
        self._sum_P /= self._kept
        return self._sum_P, total / norm

    def clear(self) -> None:
        """Begin anew."""
        self.pushes = []
        self._new_P, self._kept = None, 0.0
        if self._sum_P is not None:
            self._sum_P.fill(0.0)

    def _share(self, push: Push) -> float:
        if self.mean:
            return float(len(push.hand))
        return len(push.hand) / self.batch if self.by_samples else 1.0
