"""Which of the loader's batches a forward pass was given, seen from the sizes of what it was given. Axis: W ranks.

A loop may fetch the next batch before it computes the last, skip one, or train on data that is not the loader's. So
the weight of a gradient follows from what the model was given, never from what the loader handed out last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Sizes = NDArray[np.int64]

FAR_AHEAD = 64
"""Batches that a loop may have fetched before it computes the first; a longer queue has been abandoned."""


@dataclass(frozen=True)
class Turn:
    """One forward pass in training.

    Parameters
    ----------
    samples
        This rank's samples in it; the rows given, where the loader did not hand them out.
    share
        Weight of this rank in the mean over all ranks, up to a factor that is the same on every rank.
    total
        Samples of all ranks in the loader's batch; the global batch where the loader did not hand it out.
    known
        Whether the loader handed it out.
    fresh
        Whether it is the first pass over that batch.
    """

    samples: int
    share: float
    total: int
    known: bool
    fresh: bool


class Handed:
    """The batches that the loader has handed out and that the models of this rank have yet to see.

    Parameters
    ----------
    rank
        This rank.
    global_batch
        Samples of all ranks in a full batch.

    Examples
    --------
    The loop fetches the second batch before it computes the first:

    >>> handed = Handed(rank=0, global_batch=12)
    >>> handed.add(np.array([8, 4]))
    >>> handed.add(np.array([3, 9]))
    >>> handed.given([8]).share.__round__(3), handed.given([3]).share
    (0.667, 0.25)

    Data from elsewhere weighs by its rows:

    >>> handed.given([5])
    Turn(samples=5, share=0.4166666666666667, total=12, known=False, fresh=True)
    """

    def __init__(self, rank: int, global_batch: int) -> None:
        self.rank = rank
        self.global_batch = global_batch
        self._waiting: deque[Sizes] = deque(maxlen=FAR_AHEAD)
        self._current: Sizes | None = None
        self._rows_per_sample: int | None = None

    @property
    def in_flight(self) -> int:
        """Batches that were handed out and not yet computed."""
        return len(self._waiting)

    @property
    def sizes(self) -> Sizes | None:
        """Samples of each rank in the batch that was computed last, ``[W]``."""
        return self._current

    def add(self, sizes_W: Sizes) -> None:
        """Note a batch that the loader hands out."""
        self._waiting.append(sizes_W)

    def clear(self) -> None:
        """Forget what was handed out and not computed: its loop is over."""
        self._waiting.clear()

    def given(self, rows: Sequence[int], further: Sequence[int] = ()) -> Turn:
        """Return whose turn it is.

        Parameters
        ----------
        rows
            Lengths of what the model is given, the likeliest first: see :func:`lengths`. Without any, batches are
            taken in the order in which they were handed out.
        further
            Lengths of further dimensions, in case the first is time.
        """
        for fits in (lambda n: n in rows, lambda n: self._is_multiple(n, rows), lambda n: n in further):
            if (turn := self._fitting(fits)) is not None:
                return turn
        if not rows and (turn := self._fitting(lambda n: True)) is not None:
            return turn
        samples = rows[0] if rows else 1
        return Turn(samples, samples / self.global_batch, self.global_batch, known=False, fresh=True)

    def _fitting(self, fits: Callable[[int], bool]) -> Turn | None:
        """Return the turn of the first batch that fits: of those not yet computed, or else of the last computed."""
        for place, sizes_W in enumerate(self._waiting):
            if fits(int(sizes_W[self.rank])):
                return self._take(place)
        if self._current is not None and fits(int(self._current[self.rank])):
            return self._turn(self._current, fresh=False)
        return None

    def _is_multiple(self, samples: int, rows: Sequence[int]) -> bool:
        """Whether there are several rows a sample, such as its tokens or two views of it: always as many."""
        if not rows or rows[0] % samples:
            return False
        if self._rows_per_sample is None:
            self._rows_per_sample = rows[0] // samples
        return rows[0] == samples * self._rows_per_sample

    def _take(self, place: int) -> Turn:
        """Take a batch; those handed out before it were skipped."""
        for _ in range(place):
            self._waiting.popleft()
        self._current = self._waiting.popleft()
        return self._turn(self._current, fresh=True)

    def _turn(self, sizes_W: Sizes, *, fresh: bool) -> Turn:
        samples, total = int(sizes_W[self.rank]), int(sizes_W.sum())
        return Turn(samples, samples / total, total, known=True, fresh=fresh)


def lengths(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """Return the lengths of what a model is given: of its lists and of its tensors, and of the tensors' further axes.

    >>> import torch
    >>> lengths((torch.zeros(8, 3),), {"mask": torch.zeros(8)}), lengths(([torch.zeros(3, 5), torch.zeros(3, 6)],), {})
    (([8, 8], [3]), ([2, 3, 3], [5, 6]))
    """
    rows: list[int] = []
    further: list[int] = []
    for shape in _shapes([*args, *kwargs.values()]):
        rows.append(shape[0])
        further.extend(shape[1:])
    return rows, further


def _shapes(values: Iterable[Any]) -> Iterator[tuple[int, ...]]:
    for value in values:
        shape = getattr(value, "shape", None)
        if shape is not None:
            if len(shape):
                yield tuple(map(int, shape))
        elif isinstance(value, Mapping):
            yield from _shapes(value.values())
        elif isinstance(value, (list, tuple)) and len(value):
            yield (len(value),)
            yield from _shapes(value)
