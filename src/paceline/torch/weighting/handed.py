"""Identification of the loader's batch that a forward pass was given, by its inputs. Axis: W ranks.

A loop may fetch the next batch before it computes the last, skip one, compute one again, or train on data from
elsewhere. So the weight of a gradient follows from the inputs of the model, never from the batch that the loader handed
out last. Inputs made by a model of the same batch, or that lie in memory of a batch or of what a model was given of it
before, are recognised; all others, such as copies on another device, are told by their sizes. Where that leaves a
choice, it is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from paceline._arrays import Sizes
from paceline.torch.weighting.batch import Batch, Turn
from paceline.torch.weighting.hooks import tensors_in
from paceline.torch.weighting.memory import address_of, lies_in, places_of
from paceline.torch.weighting.rank_batch import RankBatch
from paceline.torch.weighting.recognition import Recognition, lengths

if TYPE_CHECKING:
    from paceline.torch.weighting.graph import Pass

FAR_AHEAD = 64
"""Most batches that are remembered, computed or not: the oldest are forgotten."""

Shown = tuple[int, torch.dtype, torch.Size]
"""Address, data type and shape of an input; the address is 0 if it has none."""


@dataclass(eq=False, slots=True)
class Seen:
    """Evidence of a batch in the inputs of a forward pass.

    Parameters
    ----------
    tensors
        Address, type and shape of each tensor.
    rows, second
        Lengths of the inputs, the likeliest first, and of their second axes.
    batch
        The batch that they were recognised as.
    through
        The passes that made some of them.
    """

    tensors: Sequence[Shown]
    rows: Sequence[int]
    second: Sequence[int]
    batch: Batch | None
    through: Sequence[Pass] = ()


class Handed:
    """The batches that the loader has handed out.

    Parameters
    ----------
    rank
        This rank.
    global_batch
        Samples of all ranks in a full batch.
    counts
        Whether terms of every batch are counted, so that batches of equal weight are not alike.
    behind
        Returns the passes that made tensors.

    Attributes
    ----------
    sizes
        Samples of each rank in the batch that was computed last, ``[W]``.
    fresh
        Whether the newest pass is the first over its batch.
    guessed, disordered
        Whether it could have been given another batch as well, and whether its batch was handed out before one that was
        computed earlier.
    whole
        Whether its inputs lie in the memory of one batch.
    beside
        Rows that look like samples, given to the model beside the batch; 0 if there are none.

    Examples
    --------
    The loop fetches the second batch before it computes the first:

    >>> import numpy as np
    >>> handed = Handed(rank=0, global_batch=12)
    >>> handed.add(np.array([8, 4]))
    >>> handed.add(np.array([3, 9]))
    >>> recognition = Recognition()
    >>> [handed.given(handed.look([torch.zeros(rows, 2)]), recognition).share.__round__(3) for rows in (8, 3)]
    [0.667, 0.25]

    Data from elsewhere is weighted by its rows:

    >>> handed.given(handed.look([torch.zeros(5, 2)]), recognition).share.__round__(3), handed.fresh
    (0.417, False)
    """

    def __init__(
        self,
        rank: int,
        global_batch: int,
        *,
        counts: bool = False,
        behind: Callable[[Sequence[torch.Tensor]], Sequence[Pass]] = lambda tensors: (),
    ) -> None:
        self.rank, self.global_batch, self.counts, self.behind = rank, global_batch, counts, behind
        self._batches: list[Batch] = []
        self._current: Batch | None = None
        self.sizes: Sizes | None = None
        self._lasting: set[tuple[int, int]] = set()
        self._added = self._newest = self.beside = 0
        self.fresh = self.guessed = self.disordered = self.whole = self._skipped = False

    @property
    def in_flight(self) -> int:
        """Number of batches handed out and not computed yet."""
        return sum(batch.waiting for batch in self._batches)

    @property
    def turn(self) -> Turn | None:
        """The turn of the batch that was computed last."""
        return None if self._current is None else self._current.turn

    def add(self, sizes_W: Sizes, rank_batch: RankBatch | None = None, batch: object = None) -> None:
        """Note a batch that the loader hands out, with the loader's facts about it."""
        self._added += 1
        for one in tuple(self._batches):
            if not one.waiting and one is not self._current and one.gone:
                self._batches.remove(one)
        self._batches.append(Batch(rank_batch or RankBatch.plain(sizes_W, self.rank), self.rank, self._added, batch))
        del self._batches[:-FAR_AHEAD]

    def clear(self) -> None:
        """Forget batches that were handed out and not computed, because their loop is over."""
        self._batches = [one for one in self._batches if one.computed]

    def look(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Seen:
        """Return what a model's inputs show."""
        found = tensors_in([*args, *kwargs.values()] if kwargs else args)
        tensors: list[Shown] = []
        made = []
        for tensor in found:
            tensors.append((address_of(tensor), tensor.dtype, tensor.shape))
            if tensor.grad_fn is not None:
                made.append(tensor)
        through = self.behind(made) if made else ()
        self.whole = False
        batch = self._recognised(tensors, through) if tensors else None
        if batch is not None and len(tensors) == 1 and tensors[0][2][:1] == (batch.own,):
            return Seen(tensors, [batch.own], (), batch, through)
        return Seen(tensors, *lengths(args, kwargs or {}), batch, through)

    def given(self, seen: Seen, recognition: Recognition) -> Turn:
        """Return the turn of a forward pass, and take its batch.

        Parameters
        ----------
        seen
            What its inputs show.
        recognition
            How the size of a batch shows in this model's inputs, as far as known.
        """
        self.guessed = self.disordered = self.fresh = False
        self.beside = 0
        batch = seen.batch or self._fitting(seen, recognition)
        if batch is None:
            return self._foreign(seen.rows[0] if seen.rows else 1)
        self.fresh = not batch.computed
        if self.fresh:
            self._take(batch, recognised=seen.batch is not None)
        if not (recognition.settled and seen.rows[:1] == [batch.own]):
            if not recognition.fits(batch.own, seen.rows, seen.second):
                return self._by_rows(seen.rows[0] if seen.rows else 1)
            if self.fresh and (recognition.clear or not self.guessed):  # another batch may show in another way
                recognition.learn(batch.own, seen.rows, seen.second)
        if len(seen.tensors) > 1:
            self.beside = _beside(batch, seen.tensors)
        return batch.turn

    def note(self, turn: Turn, tensors: Sequence[torch.Tensor], *, made: bool = False) -> None:
        """Remember tensors that a model was given of a batch, or ``made`` of it: a later pass may be given them."""
        for batch in reversed(self._batches):
            if batch.turn is turn:
                break
        else:
            return
        places = places_of(tensors)
        if self._lasting:
            places = [place for place in places if place[:2] not in self._lasting]
        if places and not made:
            first = places[0]
            for other in self._batches:
                if other is not batch and any(
                    place[:2] == first[:2] and place[3]() is not None for place in other.firsts
                ):
                    # What comes with several batches, such as a table, says nothing of any.
                    self._lasting.add(first[:2])
                    other.firsts = [place for place in other.firsts if place[:2] != first[:2]]
                    other.later = [place for place in other.later if place[:2] != first[:2]]
                    return
            batch.firsts.append(first)
        batch.later += places

    def _recognised(self, tensors: Sequence[Shown], through: Sequence[Pass]) -> Batch | None:
        """Return the batch whose memory holds the inputs, or that a model made them from; None unless it is one."""
        own = _in_memory_of(self._batches, tensors)
        self.whole = len(own) == 1
        if own:
            return own[0] if self.whole else None
        turns = [one.turn for one in through]
        made = [batch for batch in self._batches if batch.turn in turns]
        # At the second batch nothing tells yet which tensors come with every batch.
        needed = [tensor for tensor in tensors if tensor[0]] if self._newest < 2 else tensors[:1]
        for batch in self._batches:
            if needed and batch not in made and all(lies_in(batch.later, pointer) for pointer, _, _ in needed):
                made.append(batch)
        return made[0] if len(made) == 1 else None

    def _fitting(self, seen: Seen, recognition: Recognition) -> Batch | None:
        """Return the first waiting batch of a size that the inputs show; if there is none, the last computed one."""
        fitting = [one for one in self._batches if recognition.fits(one.own, seen.rows, seen.second)]
        again = self._current if self._current in fitting else None
        # In the order of fetching: a batch that is gone may have been skipped, or copied ahead with its whole step.
        waiting = [one for one in fitting if one.waiting]
        if not recognition.clear:  # the first axis counts samples more often than any other
            waiting.sort(key=lambda one: one.own not in seen.rows)
        best = waiting[0] if waiting else again
        if best is None:
            return None
        alike = [one for one in fitting if one.own == best.own] if recognition.clear else fitting
        possible = [one for one in alike if one.waiting or not one.gone]
        self.guessed = any(self._differ(one.turn, best.turn) for one in possible)
        if self._skipped and not recognition.clear and best.own not in seen.rows:
            self.guessed = True  # it may be a batch that was taken for skipped, whose second axis is as long by chance
        # A loop that passes batches as they are makes something of the last one sooner than of the next.
        if self.guessed and again in possible and again is not None and again.recognised:
            return again
        return best

    def _differ(self, one: Turn, other: Turn) -> bool:
        return one is not other if self.counts else (one.share, one.part) != (other.share, other.part)

    def _take(self, new: Batch, *, recognised: bool) -> None:
        """Make a batch the current one; those waiting before it were skipped, or are gone and forgotten."""
        new.computed, new.recognised = True, recognised
        for one in tuple(self._batches):
            if one.waiting and one.number < new.number and (one.gone or not recognised):
                self._skipped = one.skipped = True  # the loop may hold it, and compute it yet
                if one.gone:
                    self._batches.remove(one)
        self.disordered = new.number < self._newest
        self._newest = max(self._newest, new.number)
        self._current, self.sizes = new, new.rank_batch.sizes

    def _foreign(self, rows: int) -> Turn:
        """Return the turn of data from elsewhere, alone or mixed with the loader's next batch, which it then uses up.

        Its weight is relative to the batch computed last. So does a rank on which the data happens to have as many rows
        as that batch, and is mistaken for it: the ranks stay consistent.
        """
        waiting = [one for one in self._batches if one.waiting]
        if waiting:
            waiting[0].computed = self.fresh = True
            self._current, self.sizes = waiting[0], waiting[0].rank_batch.sizes
        return self._by_rows(rows)

    def _by_rows(self, rows: int) -> Turn:
        """Return the turn of inputs that count by their rows."""
        samples, total = rows, self.global_batch
        features: tuple[float, ...] = ()
        if self._current is not None:
            total = self._current.turn.total
            if self.fresh:
                samples, features = self._current.own, self._current.rank_batch.features
        return Turn(samples, rows / total, total, known=False, part=rows / total, features=features)


def _in_memory_of(batches: Sequence[Batch], tensors: Sequence[Shown]) -> list[Batch]:
    """Return the batches in whose memory one of these tensors lies; an address of 0 lies in none."""
    found = []
    for batch in batches:
        holds = False
        for begin, end, owner, _ in batch.places:
            for pointer, _, _ in tensors:
                holds = holds or (begin <= pointer < end and owner() is not None)
        if holds:
            found.append(batch)
    return found


def _beside(batch: Batch, tensors: Sequence[Shown]) -> int:
    """Return the rows of an input that do not belong to the batch, but look alike: of the same type and trailing shape.

    One row for all is not a sample, and a multiple of the batch's rows are views of its samples.
    """
    kinds = {(dtype, shape[1:]) for _, dtype, shape in tensors if len(shape) > 1 and shape[0] == batch.own}
    for pointer, dtype, shape in tensors:
        if (dtype, shape[1:]) in kinds and shape[0] > 1 and shape[0] % batch.own and not lies_in(batch.places, pointer):
            return shape[0]
    return 0
