"""Ways in which the size of a batch shows in the inputs of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any


class Recognition:
    """Ways in which the size of a batch shows in the inputs of one model: those that fitted every new batch so far.

    At the first batch several may fit by chance, such as the number of time steps; the next of another size decides.

    Attributes
    ----------
    settled
        Whether only the lengths of inputs show it.

    Examples
    --------
    A recurrent network whose inputs have time as the first axis, at first as many steps as there are samples:

    >>> recognition = Recognition()
    >>> recognition.learn(8, [8], [8])
    >>> recognition.fits(6, [8], [6])
    True
    >>> recognition.learn(6, [8], [6])
    >>> recognition.fits(8, [8], [5])
    False
    """

    def __init__(self) -> None:
        self._ways: list[_Way] | None = None
        self.settled = False

    @property
    def clear(self) -> bool:
        """True if no more than one way is left."""
        return self._ways is not None and len(self._ways) < 2

    def fits(self, samples: int, rows: Sequence[int], second: Sequence[int]) -> bool:
        """Return whether the model's inputs can be a batch of this many samples."""
        return any(way(samples, rows, second) for way in self._known(samples, rows))

    def learn(self, samples: int, rows: Sequence[int], second: Sequence[int]) -> None:
        """Keep the ways in which these inputs, which are a new batch, show its size."""
        self._ways = [way for way in self._known(samples, rows) if way(samples, rows, second)]
        self.settled = self._ways == [_in_rows]

    def _known(self, samples: int, rows: Sequence[int]) -> Sequence[_Way]:
        return _ways_of(samples, rows) if self._ways is None else self._ways


_Way = Callable[[int, Sequence[int], Sequence[int]], bool]
"""Test whether these rows, or lengths of second axes, can be a batch of so many samples."""


def _in_rows(samples: int, rows: Sequence[int], second: Sequence[int]) -> bool:
    return samples in rows


def _ways_of(samples: int, rows: Sequence[int]) -> Sequence[_Way]:
    """Return all ways in which a model's first batch, of this many samples, may show its size."""
    if not rows:
        return [lambda samples, rows, second: True]  # nothing to see: assume the order of handing out
    ways: list[_Way] = [_in_rows, lambda samples, rows, second: samples in second]
    if rows[0] != samples and rows[0] % samples == 0:
        each = rows[0] // samples  # several rows per sample, such as tokens or views
        ways.append(lambda samples, rows, second: bool(rows) and rows[0] == each * samples)
    return ways


def lengths(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """Return the lengths of a model's inputs (lists and tensors), and of the tensors' second axes.

    >>> import torch
    >>> lengths((torch.zeros(8, 3),), {"mask": torch.zeros(8)}), lengths(([torch.zeros(3, 5), torch.zeros(3, 6)],), {})
    (([8, 8], [3]), ([2, 3, 3], [5, 6]))
    """
    shapes = list(_shapes([*args, *kwargs.values()]))
    return [shape[0] for shape in shapes], [shape[1] for shape in shapes if len(shape) > 1]


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
