"""The sampler draws samples so that every epoch covers each of them exactly once, even if workers fail."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Sizes


@dataclass(frozen=True, eq=False)
class SampleBatch:
    """Samples that one worker holds: their rows in the data set, and the epoch that each belongs to, ``[n]``."""

    rows: Sizes
    epochs: Sizes

    def __len__(self) -> int:
        return len(self.rows)

    def first(self, count: int) -> SampleBatch:
        """Return the first samples, ``count`` of them."""
        return SampleBatch(self.rows[:count], self.epochs[:count])

    def after(self, count: int) -> SampleBatch:
        """Return all samples but the first ``count``."""
        return SampleBatch(self.rows[count:], self.epochs[count:])


def _join_batches(batches: Sequence[SampleBatch]) -> SampleBatch:
    none = np.empty(0, np.int64)
    return SampleBatch(
        np.concatenate([none, *(one.rows for one in batches)]), np.concatenate([none, *(one.epochs for one in batches)])
    )


class EpochSampler:
    """Shuffles the samples for each epoch and assigns them, returned ones first.

    A new epoch is drawn as soon as the last one has been drawn, so that nobody waits at its end; what comes back
    late still counts for the epoch that it was assigned in.

    Parameters
    ----------
    samples
        How many there are, at least 1.
    seed
        Seed of the shuffling.
    epochs
        How many epochs to draw, ``None`` for no end.

    Raises
    ------
    ValueError
        If a number is out of range.

    Examples
    --------
    What a lost worker held is drawn again before anything else:

    >>> sampler = EpochSampler(samples=6, seed=1, epochs=1)
    >>> one, two = sampler.draw(4), sampler.draw(4)
    >>> sorted([*one.rows.tolist(), *two.rows.tolist()])
    [0, 1, 2, 3, 4, 5]
    >>> sampler.mark_applied(two)
    >>> sampler.give_back(one)
    >>> sorted(sampler.draw(9).rows) == sorted(one.rows)
    True
    """

    def __init__(self, samples: int, *, seed: int = 0, epochs: int | None = None) -> None:
        if samples < 1:
            raise ValueError(f"samples must be at least 1, got {samples}")
        if epochs is not None and epochs < 1:
            raise ValueError(f"epochs must be at least 1, or None for no end, got {epochs}")
        self.samples = samples
        self.seed = seed
        self.epochs = epochs
        self.applied = 0
        self._returned: deque[SampleBatch] = deque()
        self._applied_by_epoch: dict[int, int] = {}
        self._shuffle(0)

    def draw(self, count: int, min_batch: int = 1) -> SampleBatch:
        """Return up to ``count`` samples; fewer, or none, only where a finite number of epochs has been drawn.

        Where fewer than ``min_batch`` would be left at the end, they are assigned too: nobody could use them alone.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1 sample, got {count}")
        if 0 < self.left - count < min_batch:
            count = int(self.left)
        draws: list[SampleBatch] = []
        while count > 0 and not self.empty:
            if self._returned:
                assigned = self._returned.popleft()
                if len(assigned) > count:
                    self._returned.appendleft(assigned.after(count))
                    assigned = assigned.first(count)
            else:
                rows = self._order[self._place : self._place + count]
                assigned = SampleBatch(rows, np.full(len(rows), self._epoch))
                self._place += len(rows)
                if self._place == self.samples:
                    self._shuffle(self._epoch + 1)
            draws.append(assigned)
            count -= len(assigned)
        return draws[0] if len(draws) == 1 else _join_batches(draws)

    def give_back(self, assigned: SampleBatch) -> None:
        """Take back samples that were assigned and not applied."""
        if len(assigned):
            self._returned.append(assigned)

    def mark_applied(self, assigned: SampleBatch) -> None:
        """Record that samples were applied."""
        self.applied += len(assigned)
        for epoch, count in Counter(assigned.epochs.tolist()).items():
            self._applied_by_epoch[epoch] = self._applied_by_epoch.get(epoch, 0) + count

    @property
    def empty(self) -> bool:
        """True if there is nothing to draw now; samples may still come back."""
        return not self._returned and self.epochs is not None and self._epoch >= self.epochs

    @property
    def left(self) -> float:
        """Number of samples that can be drawn now; infinite if the number of epochs is not limited."""
        fresh = math.inf if self.epochs is None else max(self.epochs - self._epoch, 0) * self.samples - self._place
        return sum(map(len, self._returned)) + fresh

    @property
    def is_finished(self) -> bool:
        """True if every sample of every epoch has been applied."""
        return self.epochs is not None and self.applied == self.samples * self.epochs

    @property
    def epoch(self) -> int:
        """Number of epochs, from the first on, that have been applied completely."""
        epoch = 0
        while self._applied_by_epoch.get(epoch) == self.samples:
            epoch += 1
        return epoch

    def state_dict(self, held_batches: Sequence[SampleBatch] = ()) -> dict[str, NDArray[Any]]:
        """Return the state; samples in ``held_batches``, which workers hold, are drawn again when it is resumed."""
        back = [*self._returned, *held_batches]
        returned = _join_batches(back)
        return {
            "size": np.array([self.samples, self.seed, -1 if self.epochs is None else self.epochs]),
            "place": np.array([self._epoch, self._place, self.applied]),
            "returned_rows": returned.rows,
            "returned_epochs": returned.epochs,
            "applied_epochs": np.array(list(self._applied_by_epoch), dtype=np.int64),
            "applied_counts": np.array(list(self._applied_by_epoch.values()), dtype=np.int64),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned.

        Raises
        ------
        ValueError
            If :meth:`validate_state` raises it; nothing is changed then.
        """
        self.validate_state(state)
        epoch, place, self.applied = (int(value) for value in state["place"])
        self._shuffle(epoch)
        self._place = place
        self._returned = deque()
        self.give_back(SampleBatch(state["returned_rows"].copy(), state["returned_epochs"].copy()))
        counts = zip(state["applied_epochs"], state["applied_counts"], strict=True)
        self._applied_by_epoch = {int(epoch): int(count) for epoch, count in counts}

    def validate_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Raise a ValueError if the state has other samples, another seed or more epochs than this sampler."""
        samples, seed, _ = (int(value) for value in state["size"])
        if (samples, seed) != (self.samples, self.seed):
            raise ValueError(
                f"the state was saved by a sampler with {samples} samples and seed {seed}, but this one has "
                f"{self.samples} samples and seed {self.seed}: create it with the same values"
            )
        epoch, place, _ = (int(value) for value in state["place"])
        if self.epochs is not None and (epoch, place) > (self.epochs, 0):
            raise ValueError(
                f"the state is in epoch {epoch + 1 if place else epoch}, but epochs is {self.epochs}: set epochs to at "
                f"least {epoch + 1 if place else epoch}"
            )

    def _shuffle(self, epoch: int) -> None:
        self._epoch, self._place = epoch, 0
        self._order = np.random.default_rng((self.seed, epoch)).permutation(self.samples)
