"""The order of an epoch's samples: shuffled from a seed, as they are numbered, or as a sampler yields them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import NDArray

Samples = NDArray[np.int64]


Sampler = torch.utils.data.Sampler[int] | Sequence[int]


@dataclass(frozen=True)
class Order:
    """The order of every epoch, the same on every rank.

    Parameters
    ----------
    samples
        Samples of the dataset, N.
    shuffle, seed
        Whether every epoch has an order of its own, and from which seed; else samples come as they are numbered.
    sampler
        The order in place of ``shuffle`` and ``seed``.

    Examples
    --------
    >>> Order(3, shuffle=False).of(epoch=0), len(Order(3, sampler=[2, 2]))
    (array([0, 1, 2]), 2)
    """

    samples: int
    shuffle: bool = True
    seed: int = 0
    sampler: Sampler | None = None

    def __len__(self) -> int:
        """Return the samples of an epoch."""
        sampler: Any = self.sampler  # not every sampler has a length; Python's error says so
        return self.samples if sampler is None else len(sampler)

    def of(self, epoch: int, ranks: int = 1) -> Samples:
        """Return the numbers of the epoch's samples, for so many ranks.

        Raises
        ------
        ValueError
            If a sampler yields a number that the dataset does not have, or fewer than there are ranks.
        """
        if self.sampler is not None:
            return self._sampled(self.sampler, epoch, ranks)
        if not self.shuffle:
            return np.arange(self.samples)
        # Sorting raw random bits: the stream of a bit generator is the same in every version of numpy.
        return np.argsort(np.random.PCG64([self.seed, epoch]).random_raw(self.samples), kind="stable")

    def _sampled(self, sampler: Any, epoch: int, ranks: int) -> Samples:
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
