"""The sampler draws samples so that every epoch covers each of them exactly once, even if workers fail."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Sizes


@dataclass(frozen=True, eq=False)
class SampleBatch:
    """Samples that one worker holds: their rows in the data set, and the epoch that each belongs to, ``[n]``."""

    indices: Sizes
    epochs: Sizes

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, rows: slice) -> SampleBatch:
        return SampleBatch(self.indices[rows], self.epochs[rows])


EMPTY_BATCH = SampleBatch(np.empty(0, np.int64), np.empty(0, np.int64))


def _join_batches(batches: Sequence[SampleBatch]) -> SampleBatch:
    return SampleBatch(
        np.concatenate([one.indices for one in batches]), np.concatenate([one.epochs for one in batches])
    )


class EpochSampler:
    """Shuffles the samples for each epoch and assigns them, returned ones first.

    A new epoch begins as soon as the last one has been drawn, so that nobody waits at its end; what comes back late
    still counts for the epoch that it was assigned in.

    Parameters
    ----------
    samples
        How many there are, at least 1.
    seed
        Seed of the shuffling.
    epochs
        How many epochs to draw, at least 1; ``None`` for no end.

    Examples
    --------
    What a lost worker held is drawn again before anything else:

    >>> sampler = EpochSampler(samples=6, seed=1, epochs=1)
    >>> one, two = sampler.draw(4), sampler.draw(4)
    >>> sorted([*one.indices.tolist(), *two.indices.tolist()])
    [0, 1, 2, 3, 4, 5]
    >>> sampler.mark_applied(two)
    >>> sampler.return_samples(one)
    >>> sorted(sampler.draw(9).indices) == sorted(one.indices)
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
        self._returned = EMPTY_BATCH
        self._applied_by_epoch: Counter[int] = Counter()
        self._shuffle(0)

    def draw(self, num_samples: int, min_batch: int = 1) -> SampleBatch:
        """Return ``num_samples`` samples; fewer, or none, only where all epochs have been drawn.

        Where fewer than ``min_batch`` would be left at the end, they are assigned too: nobody could use them alone.
        """
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1 sample, got {num_samples}")
        if 0 < self.num_remaining - num_samples < min_batch:
            num_samples = int(self.num_remaining)
        draws = [self._returned[:num_samples]]
        self._returned = self._returned[num_samples:]
        num_samples -= len(draws[0])
        while num_samples > 0 and not self.is_exhausted:
            rows = self._order[self._place : self._place + num_samples]
            draws.append(SampleBatch(rows, np.full(len(rows), self._epoch)))
            num_samples -= len(rows)
            self._place += len(rows)
            if self._place == self.samples:
                self._shuffle(self._epoch + 1)
        return _join_batches(draws)

    def return_samples(self, assigned: SampleBatch) -> None:
        """Take back samples that were assigned and not applied."""
        self._returned = _join_batches([self._returned, assigned])

    def mark_applied(self, assigned: SampleBatch) -> None:
        """Record that samples were applied."""
        self.applied += len(assigned)
        self._applied_by_epoch.update(assigned.epochs.tolist())

    @property
    def is_exhausted(self) -> bool:
        """True if there is nothing to draw now; samples may still come back."""
        return not len(self._returned) and self.epochs is not None and self._epoch >= self.epochs

    @property
    def num_remaining(self) -> float:
        """Number of samples that can be drawn now; infinite if the number of epochs is not limited."""
        fresh = math.inf if self.epochs is None else max(self.epochs - self._epoch, 0) * self.samples - self._place
        return len(self._returned) + fresh

    @property
    def is_finished(self) -> bool:
        """True if every sample of every epoch has been applied."""
        return self.epochs is not None and self.applied == self.samples * self.epochs

    @property
    def epoch(self) -> int:
        """Number of epochs, from the first on, that have been applied completely."""
        epoch = 0
        while self._applied_by_epoch[epoch] == self.samples:
            epoch += 1
        return epoch

    def state_dict(self, held_batches: Sequence[SampleBatch] = ()) -> dict[str, NDArray[Any]]:
        """Return the state; samples in ``held_batches``, which workers hold, are drawn again when it is resumed."""
        returned = _join_batches([self._returned, *held_batches])
        return {
            "size": np.array([self.samples, self.seed, -1 if self.epochs is None else self.epochs]),
            "place": np.array([self._epoch, self._place, self.applied]),
            "returned_rows": returned.indices,
            "returned_epochs": returned.epochs,
            "applied_epochs": np.array(list(self._applied_by_epoch), dtype=np.int64),
            "applied_counts": np.array(list(self._applied_by_epoch.values()), dtype=np.int64),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned, unless :meth:`validate_state` raises."""
        self.validate_state(state)
        epoch, place, self.applied = (int(value) for value in state["place"])
        self._shuffle(epoch)
        self._place = place
        self._returned = SampleBatch(state["returned_rows"].copy(), state["returned_epochs"].copy())
        self._applied_by_epoch = Counter(
            dict(zip(state["applied_epochs"].tolist(), state["applied_counts"].tolist(), strict=True))
        )

    def validate_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Raise a ValueError if the state has other samples, another seed or more epochs than this sampler."""
        samples, seed, _ = (int(value) for value in state["size"])
        if (samples, seed) != (self.samples, self.seed):
            raise ValueError(
                f"the state was saved by a sampler with {samples} samples and seed {seed}, but this one has "
                f"{self.samples} samples and seed {self.seed}: create it with the same values"
            )
        epoch, place, _ = (int(value) for value in state["place"])
        reached = epoch + (place > 0)
        if self.epochs is not None and reached > self.epochs:
            raise ValueError(
                f"the state is in epoch {reached}, but epochs is {self.epochs}: set epochs to at least {reached}"
            )

    def _shuffle(self, epoch: int) -> None:
        self._epoch, self._place = epoch, 0
        self._order = np.random.default_rng((self.seed, epoch)).permutation(self.samples)
