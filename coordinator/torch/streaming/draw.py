"""Draw global batches from a stream, alike on every rank. Axes: N samples of a global batch, F features."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from paceline._arrays import Array
from paceline.coordinator.torch.loading.costs.numbers import require_in_range

Number = Callable[[Any], float]


@dataclass(frozen=True)
class Asked:
    """What is asked of every sample: functions of a sample, or None.

    Parameters
    ----------
    cost
        Its cost, used as it is.
    lengths
        Its length, of which the cost is learned.
    items
        Its number of loss terms.
    """

    cost: Number | None = None
    lengths: Number | None = None
    items: Number | None = None

    def __post_init__(self) -> None:
        for name in ("cost", "lengths", "items"):
            asked = getattr(self, name)
            if asked is not None and not callable(asked):
                raise TypeError(
                    f"{name} must be a function of a sample, as samples of a stream have no numbers, got "
                    f"{type(asked).__name__}"
                )

    def columns(self, samples: list[Any], first: int) -> tuple[Array, Array]:
        """Return features, ``[N, F]``, and loss terms, ``[N]``, of samples that begin with this number of the stream.

        Raises
        ------
        ValueError
            If a number is out of range; the sample is named.
        """
        ones = np.ones(len(samples))
        items = ones if self.items is None else self._of(samples, self.items, "items", first, zero=True)
        if self.cost is not None:
            return self._of(samples, self.cost, "cost", first)[:, None], items
        if self.lengths is None:
            return ones[:, None], items
        length_N = self._of(samples, self.lengths, "lengths", first)
        return np.stack([length_N, length_N**2, ones], axis=1), items

    def _of(self, samples: list[Any], number: Number, name: str, first: int, zero: bool = False) -> Array:
        values = np.array([number(sample) for sample in samples], dtype=np.float64)
        require_in_range(values, name, zero=zero, first=first, of=" of the stream")
        return values


def mixed(stream: Iterable[Any], window: int, seed: int, epoch: int) -> Iterator[Any]:
    """Yield a stream's samples in a random order, each at most about a window away from its place; once each.

    >>> sorted(mixed(range(7), window=3, seed=0, epoch=0)), list(mixed(range(4), window=1, seed=0, epoch=0))
    ([0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3])
    """
    source, bits = iter(stream), np.random.PCG64([seed, epoch])
    held = list(islice(source, window))
    for sample in source:
        # Raw bits: their stream is the same in every version of numpy, and so on every rank.
        place = int(bits.random_raw()) % len(held)
        held[place], given = sample, held[place]
        yield given
    while held:
        place = int(bits.random_raw()) % len(held)
        held[place], held[-1] = held[-1], held[place]
        yield held.pop()


def digest_of(columns: Array, owner_N: np.ndarray[Any, np.dtype[np.int64]], before: int) -> int:
    """Return a checksum of what was drawn and who took it: ranks whose streams differ have different ones."""
    seen = zlib.crc32(np.ascontiguousarray(columns).tobytes(), before)
    return zlib.crc32(owner_N.astype("<i8").tobytes(), seen)
