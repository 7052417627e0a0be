"""Which of the loader's batches a forward pass was given, seen from the sizes of what it was given. Axis: W ranks.

A loop may fetch the next batch before it computes the last, skip one, or train on data that is not the loader's. So
the weight of a gradient follows from what the model was given, never from what the loader handed out last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline._arrays import Sizes
from paceline.coordinator.torch.dealt import Dealt

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
        Samples of all ranks in the loader's batch.
    known
        Whether the loader handed out what was given.
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
    >>> sight = Sight()
    >>> handed.given([8], [], sight).share.__round__(3), handed.given([3], [], sight).share
    (0.667, 0.25)

    Data from elsewhere weighs by its rows:

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
        """Batches that were handed out and not yet computed."""
        return len(self._waiting)

    @property
    def sizes(self) -> Sizes | None:
        """Samples of each rank in the batch that was computed last, ``[W]``."""
        return None if self._current is None else self._current.sizes

    def add(self, sizes_W: Sizes, dealt: Dealt | None = None) -> None:
        """Note a batch that the loader hands out, with what it knows of it beside its sizes."""
        self._waiting.append(dealt or Dealt.plain(sizes_W, self.rank))

    def clear(self) -> None:
        """Forget what was handed out and not computed: its loop is over."""
        self._waiting.clear()

    def given(self, rows: Sequence[int], second: Sequence[int], sight: Sight) -> Turn:
        """Return whose turn it is: of the first batch that fits, or of the one computed last, once more.

        Parameters
        ----------
        rows, second
            Lengths of what a model is given, the likeliest first, and of second axes: see :func:`lengths`.
        sight
            What was learnt of how this model's batches can be seen.
        """
        for place, dealt in enumerate(self._waiting):
            if sight.fits(dealt.own(self.rank), rows, second):
                for _ in range(place):  # those handed out before it were skipped
                    self._waiting.popleft()
                self._current = self._waiting.popleft()
                return self._turn(self._current, fresh=True)
        if self._current is not None and sight.fits(self._current.own(self.rank), rows, second):
            return self._turn(self._current, fresh=False)
        return self._foreign(rows[0] if rows else 1)

    def _turn(self, dealt: Dealt, *, fresh: bool) -> Turn:
        total = sum(dealt.sizes.tolist())  # plain numbers: a call of numpy costs more than the sum of a fleet
        own, about = dealt.own(self.rank), (dealt.part, dealt.whole, dealt.features, dealt.last)
        return Turn(own, dealt.weight, total, True, fresh, *about)

    def _foreign(self, rows: int) -> Turn:
        """Data that the loader did not hand out, alone or together with its next batch, which is then computed.

        Its unit is the batch computed last, as on a rank where it has as many rows as that and is taken for it.
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
    """How the size of a batch can be seen in what one model is given: found out once, and then held to.

    Examples
    --------
    A recurrent network, whose inputs have time first:

    >>> sight = Sight()
    >>> sight.fits(8, [50], [8]), sight.fits(25, [50], [8])
    (True, False)
    """

    def __init__(self) -> None:
        self._see: Callable[[int, Sequence[int], Sequence[int]], bool] | None = None

    def fits(self, samples: int, rows: Sequence[int], second: Sequence[int]) -> bool:
        """Whether a batch of this many samples may be what the model is given."""
        if self._see is not None:
            return self._see(samples, rows, second)
        if not rows:
            self._see = lambda samples, rows, second: True  # in the order in which they are handed out
        elif samples in rows:
            self._see = lambda samples, rows, second: samples in rows
        elif rows[0] % samples == 0:
            each = rows[0] // samples  # tokens of a sample, or views of it
            self._see = lambda samples, rows, second: bool(rows) and rows[0] == each * samples
        elif samples in second:
            self._see = lambda samples, rows, second: samples in second
        return self._see is not None


def lengths(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """Return the lengths of what a model is given: of its lists and its tensors, and of the tensors' second axes.

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
