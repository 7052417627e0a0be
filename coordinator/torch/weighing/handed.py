"""Which of the loader's batches a forward pass was given, found from its inputs. Axis: W ranks.

A loop may fetch the next batch before it computes the last, skip one, or train on data from elsewhere. So the weight of
a gradient follows from the inputs of the model, never from the batch that the loader handed out last. Inputs that lie
in the memory of a batch are recognised by it, all others, such as copies on another device, by their sizes.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from paceline._arrays import Sizes
from paceline.coordinator.torch.weighing.dealt import Dealt
from paceline.coordinator.torch.weighing.hooks import tensors_in
from paceline.coordinator.torch.weighing.sight import Sight

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
        self._waiting: deque[_Batch] = deque(maxlen=FAR_AHEAD)
        self._current: _Batch | None = None
        self._added = self._newest = 0
        self.guessed = self.disordered = False
        """Whether the newest pass could have had another batch that is waiting, and whether its batch came after one
        that was handed out later."""

    @property
    def in_flight(self) -> int:
        """Number of batches handed out and not computed yet."""
        return len(self._waiting)

    @property
    def sizes(self) -> Sizes | None:
        """Samples of each rank in the batch that was computed last, ``[W]``."""
        return None if self._current is None else self._current.dealt.sizes

    def add(self, sizes_W: Sizes, dealt: Dealt | None = None, batch: object = None) -> None:
        """Note a batch that the loader hands out, with what it knows of it beside its sizes."""
        self._added += 1
        self._waiting.append(_Batch(dealt or Dealt.plain(sizes_W, self.rank), self._added, _own_memory(batch)))

    def clear(self) -> None:
        """Forget batches that were handed out and not computed, because their loop is over."""
        self._waiting.clear()

    def given(self, rows: Sequence[int], second: Sequence[int], sight: Sight, inputs: object = None) -> Turn:
        """Return the turn of a forward pass: the batch in whose memory the inputs lie.

        If there is none, it is the first waiting batch that fits, or the last computed one again.

        Parameters
        ----------
        rows, second
            Lengths of the model's inputs, the likeliest first, and of their second axes: see
            :func:`paceline.coordinator.torch.weighing.sight.lengths`.
        sight
            How the size of a batch shows in this model's inputs, as far as known.
        inputs
            The model's inputs.
        """
        known, self.guessed, self.disordered = self._recognised(inputs), False, False
        new = self._fitting(rows, second, sight) if known is None else known if known is not self._current else None
        if new is not None:
            self._take(new, all_before=known is None)
        current = self._current
        if current is not None and sight.fits(current.dealt.own(self.rank), rows, second):
            if new is not None:
                sight.learn(current.dealt.own(self.rank), rows, second)
            return self._turn(current.dealt, fresh=new is not None)
        count = rows[0] if rows else 1
        return self._foreign(count) if known is None else self._by_rows(count, fresh=new is not None)

    def _fitting(self, rows: Sequence[int], second: Sequence[int], sight: Sight) -> _Batch | None:
        """Return the first waiting batch of a size that the inputs show."""
        fitting = [one for one in self._waiting if sight.fits(one.dealt.own(self.rank), rows, second)]
        likely = [one.dealt for one in fitting if one.dealt.own(self.rank) == fitting[0].dealt.own(self.rank)]
        unseen = not rows and len(self._waiting) > 1
        self.guessed = unseen or any(dealt.weight != likely[0].weight for dealt in likely)
        return fitting[0] if fitting else None

    def _recognised(self, inputs: object) -> _Batch | None:
        """Return the batch in whose memory the inputs lie; None if it is not exactly one."""
        places = _places(tensors_in(inputs))
        batches = [*self._waiting] if self._current is None else [*self._waiting, self._current]
        found = [one for one in batches if not places.isdisjoint(one.places())]
        return found[0] if len(found) == 1 else None

    def _take(self, new: _Batch, *, all_before: bool) -> None:
        """Make a waiting batch the current one, and forget those before it: they were skipped, or are gone."""
        waiting = list(self._waiting)
        place = next(i for i, one in enumerate(waiting) if one is new)
        before = [] if all_before else [one for one in waiting[:place] if one.places()]
        self._waiting.clear()
        self._waiting.extend([*before, *waiting[place + 1 :]])
        self._current = new
        self.disordered = new.number < self._newest
        self._newest = max(self._newest, new.number)

    def _turn(self, dealt: Dealt, *, fresh: bool) -> Turn:
        total = sum(dealt.sizes.tolist())  # plain numbers: a call of numpy costs more than the sum of a fleet
        own, about = dealt.own(self.rank), (dealt.part, dealt.whole, dealt.features, dealt.last)
        return Turn(own, dealt.weight, total, True, fresh, *about)

    def _foreign(self, rows: int) -> Turn:
        """Return the turn of data from elsewhere, alone or mixed with the loader's next batch, which it then uses up.

        Its weight is relative to the batch computed last. So does a rank on which the data happens to have as many rows
        as that batch, and is mistaken for it: the ranks stay consistent.
        """
        fresh = bool(self._waiting)
        if fresh:
            self._current = self._waiting.popleft()
        return self._by_rows(rows, fresh=fresh)

    def _by_rows(self, rows: int, *, fresh: bool) -> Turn:
        """Return the turn of inputs that weigh by their rows; `fresh` if they are the current batch, or part of it."""
        samples, total = rows, self.global_batch
        features: tuple[float, ...] = ()
        if self._current is not None:
            total = int(self._current.dealt.sizes.sum())
            if fresh:
                samples, features = self._current.dealt.own(self.rank), self._current.dealt.features
        return Turn(samples, rows / total, total, known=False, fresh=fresh, part=rows / total, features=features)

    @property
    def weight(self) -> float:
        """Weight of this rank in the batch that was computed last."""
        assert self._current is not None, "a batch was computed"
        return self._current.dealt.weight


@dataclass(frozen=True, eq=False)
class _Batch:
    """A batch that was handed out, its number, and its tensors as long as they exist."""

    dealt: Dealt
    number: int
    tensors: Sequence[weakref.ref[torch.Tensor]]

    def places(self) -> set[int]:
        """Return where the tensors that still exist lie in memory."""
        return _places(tensor for known in self.tensors if (tensor := known()) is not None)


def _own_memory(batch: object) -> list[weakref.ref[torch.Tensor]]:
    """Return the tensors of a batch but views, such as slices of a whole dataset: its memory is that of all batches."""
    return [weakref.ref(tensor) for tensor in tensors_in(batch) if tensor._base is None]


def _places(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Return where tensors lie in memory; sparse ones have no single place, and empty ones none of their own."""
    places = set()
    for tensor in tensors:
        with suppress(RuntimeError):
            places.add(tensor.untyped_storage().data_ptr())
    return places - {0}
