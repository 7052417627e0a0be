"""Which of the loader's batches a forward pass was given, found from the sizes of its inputs. Axis: W ranks.

A loop may fetch the next batch before it computes the last, skip one, or train on data from elsewhere. So the weight of
a gradient follows from the inputs of the model, never from the batch that the loader handed out last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline._arrays import Sizes
from paceline.coordinator.torch.weighing.dealt import Dealt

FAR_AHEAD = 64
"""Most batches that a loop may fetch before it computes the first; the oldest of a longer queue are forgotten."""


@dataclass(frozen=True)
class Turn:
    """One forward pass in training.

    Parameters
    ----------
    samples
        This rank's samples in it; the number of rows if the loader did not hand them out.
    share
        Weight of this rank in the mean over all ranks, up to a factor that is the same on every rank.
    total
        Samples of all ranks in the loader's batch.
    known
        Whether the inputs are a batch of the loader.
    fresh
        Whether it is the first pass over a batch of the loader.
    part
        Its share of this global batch alone: those of all ranks sum to 1 where all went as planned.
    whole
        The sum of the weights of all ranks.
    features
        What the work of the rank's part is made of; empty where samples have no costs.
    last
        Whether it is the step's last micro-batch on this rank, where a step has different numbers of them.
    """

    samples: int
    share: float
    total: int
    known: bool
    fresh: bool
    part: float = field(repr=False)
    whole: float = field(default=1.0, repr=False)
    features: tuple[float, ...] = field(default=(), repr=False)
    last: bool = field(default=True, repr=False)


class Handed:
    """The batches that the loader has handed out and that the models of this rank have not seen yet.

    Parameters
    ----------
    rank
        This rank.
    global_batch
        Samples of all ranks in a full batch.

    Examples
    --------
    The loop fetches the second batch before it computes the first:

    >>> import numpy as np
    >>> handed = Handed(rank=0, global_batch=12)
    >>> handed.add(np.array([8, 4]))
    >>> handed.add(np.array([3, 9]))
    >>> sight = Sight()
    >>> handed.given([8], [], sight).share.__round__(3), handed.given([3], [], sight).share
    (0.667, 0.25)

    Data from elsewhere is weighted by its rows:

    >>> handed.given([5], [], sight)
    Turn(samples=5, share=0.4166666666666667, total=12, known=False, fresh=False)
    """

    def __init__(self, rank: int, global_batch: int) -> None:
        self.rank = rank
        self.global_batch = global_batch
        self._waiting: deque[Dealt] = deque(maxlen=FAR_AHEAD)
        self._current: Dealt | None = None

    @property
    def in_flight(self) -> int:
        """Number of batches handed out and not computed yet."""
        return len(self._waiting)

    @property
    def sizes(self) -> Sizes | None:
        """Samples of each rank in the batch that was computed last, ``[W]``."""
        return None if self._current is None else self._current.sizes

    def add(self, sizes_W: Sizes, dealt: Dealt | None = None) -> None:
        """Note a batch that the loader hands out, with what it knows of it beside its sizes."""
        self._waiting.append(dealt or Dealt.plain(sizes_W, self.rank))

    def clear(self) -> None:
        """Forget batches that were handed out and not computed, because their loop is over."""
        self._waiting.clear()

    def given(self, rows: Sequence[int], second: Sequence[int], sight: Sight) -> Turn:
        """Return the turn of a forward pass: the first waiting batch that fits, or the last computed one again.

        Parameters
        ----------
        rows, second
            Lengths of the model's inputs, the likeliest first, and of their second axes: see :func:`lengths`.
        sight
            How the size of a batch shows in this model's inputs, as far as known.
        """
        for place, dealt in enumerate(self._waiting):
            if sight.fits(dealt.own(self.rank), rows, second):
                for _ in range(place):  # those handed out before it were skipped
                    self._waiting.popleft()
                self._current = self._waiting.popleft()
                sight.learn(dealt.own(self.rank), rows, second)
                return self._turn(self._current, fresh=True)
        if self._current is not None and sight.fits(self._current.own(self.rank), rows, second):
            return self._turn(self._current, fresh=False)
        return self._foreign(rows[0] if rows else 1)

    def _turn(self, dealt: Dealt, *, fresh: bool) -> Turn:
        total = sum(dealt.sizes.tolist())  # plain numbers: a call of numpy costs more than the sum of a fleet
        own, about = dealt.own(self.rank), (dealt.part, dealt.whole, dealt.features, dealt.last)
        return Turn(own, dealt.weight, total, True, fresh, *about)

    def _foreign(self, rows: int) -> Turn:
        """Return the turn of data from elsewhere, alone or mixed with the loader's next batch, which it then uses up.

        Its weight is relative to the batch computed last. So does a rank on which the data happens to have as many rows
        as that batch, and is mistaken for it: the ranks stay consistent.
        """
        samples, fresh = rows, bool(self._waiting)
        features: tuple[float, ...] = ()
        if fresh:
            self._current = self._waiting.popleft()
            samples, features = self._current.own(self.rank), self._current.features
        total = self.global_batch if self._current is None else int(self._current.sizes.sum())
        return Turn(samples, rows / total, total, known=False, fresh=fresh, part=rows / total, features=features)

    @property
    def weight(self) -> float:
        """Weight of this rank in the batch that was computed last."""
        assert self._current is not None, "a batch was computed"
        return self._current.weight


class Sight:
    """How the size of a batch shows in the inputs of one model: the ways that fitted every new batch so far.

    At the first batch several may fit by chance, such as the number of time steps; the next of another size decides.

    Examples
    --------
    A recurrent network whose inputs have time as the first axis, at first as many steps as there are samples:

    >>> sight = Sight()
    >>> sight.learn(8, [8], [8])
    >>> sight.fits(6, [8], [6])
    True
    >>> sight.learn(6, [8], [6])
    >>> sight.fits(8, [8], [5])
    False
    """

    def __init__(self) -> None:
        self._ways: list[_Way] | None = None

    def fits(self, samples: int, rows: Sequence[int], second: Sequence[int]) -> bool:
        """Whether the model's inputs can be a batch of this many samples."""
        return any(way(samples, rows, second) for way in self._known(samples, rows))

    def learn(self, samples: int, rows: Sequence[int], second: Sequence[int]) -> None:
        """Keep the ways in which these inputs, which are a new batch, show its size."""
        self._ways = [way for way in self._known(samples, rows) if way(samples, rows, second)]

    def _known(self, samples: int, rows: Sequence[int]) -> Sequence[_Way]:
        return _ways_of(samples, rows) if self._ways is None else self._ways


_Way = Callable[[int, Sequence[int], Sequence[int]], bool]
"""Whether these rows, or lengths of second axes, can be a batch of so many samples."""


def _ways_of(samples: int, rows: Sequence[int]) -> Sequence[_Way]:
    """Return all ways in which a model's first batch, of this many samples, may show its size."""
    if not rows:
        return [lambda samples, rows, second: True]  # nothing to see: assume the order of handing out
    ways: list[_Way] = [lambda samples, rows, second: samples in rows, lambda samples, rows, second: samples in second]
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
