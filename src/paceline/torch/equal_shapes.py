"""Refuses to gather rows of which ranks have different numbers: torch would abort, hang or return wrong numbers.

A loss over all ranks, a queue of keys or a metric often gathers the rows of a batch, and relies on equal batches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from paceline.torch.counting import MAX_BATCHES
from paceline.torch.rank_loader import RankLoader


class EqualShapes:
    """Compares what ranks are about to gather, while batches are trained on that differ in size.

    Each look is a small exchange of its own. None may be left out, as a gathering that looks the same may be of rows.

    Parameters
    ----------
    loader
        Its batches may differ. Whether they do, and whether a loop is under way, is the same on every rank, so all look
        or none does. Between loops none looks: a balance that nobody holds ends on each rank when the garbage collector
        finds it. One that still has batches to train on is held by its model.
    has_pending_batches
        Whether batches of a loop that has ended are still to be trained on, as in one that fetches ahead; the same on
        every rank.
    ranks
        The ranks that train on it; a group with others in it is not looked at, as those would not take part.
    """

    def __init__(self, loader: RankLoader, has_pending_batches: Callable[[], bool], ranks: Sequence[int]) -> None:
        self.loader, self.has_pending_batches = loader, has_pending_batches
        self.ranks = frozenset(ranks)

    def __call__(self, group: Any, rows: torch.Tensor) -> None:
        """Compare the lengths of tensors; if they differ, a RuntimeError is raised on every rank of the group."""
        if not self.loader.looping and not (self.loader.has_ended and self.has_pending_batches()):
            return
        # The rows may be of a batch before the newest one, as far back as batches are remembered.
        if self.loader.since_uneven > MAX_BATCHES or _shards():
            return
        if not self.ranks.issuperset(dist.get_process_group_ranks(group)):
            return
        count = torch.tensor([rows.numel()], device=rows.device)
        lengths = [torch.zeros_like(count) for _ in range(group.size())]
        group.allgather([lengths], [count]).wait()
        numbers = [int(length) for length in lengths]
        if len(set(numbers)) > 1:
            sizes = self.loader.batch_sizes.tolist()
            raise RuntimeError(
                f"all_gather needs the same shape on every rank, but was given {numbers} numbers, by rank, and gather "
                f"does too: balanced batches differ in size, the newest is {sizes}. Gather with "
                "paceline.torch.gather_rows(rows)"
            )


def _shards() -> bool:
    """Return whether a library is gathering shards of a model: the same on every rank, as all run the same code."""
    between = (
        "torch.distributed.distributed_c10d",
        "torch.distributed.c10d_logger",
        "torch.distributed.nn.",
        "paceline.",
    )
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        module = str(frame.f_globals.get("__name__"))
        if not module.startswith(between):
            # modules that gather shards of a model, hundreds a step
            return module.startswith(("torch.distributed.", "deepspeed.", "megatron."))
    return False


class PendingAllReduces:
    """Compares how often gradients were summed with how often a loop of so many batches sums them.

    Both are the same on every rank at the same place of a script. What a rank sees of its own passes is not: rows
    beside a batch may mislead one rank, and ranks that disagree here wait for each other forever.

    Parameters
    ----------
    batches
        Batches of a step, until the loop shows how many it takes from one sum to the next.

    Examples
    --------
    >>> sums = PendingAllReduces(batches=1)
    >>> sums.hand_out(); sums.hand_out(); sums.count_sum()  # a loop of two batches that fetches one ahead
    >>> sums.waits
    True
    >>> sums.count_sum()
    >>> sums.waits
    False
    """

    def __init__(self, batches: int) -> None:
        self._batches, self._max_batches_between = batches, 0
        self._sums_in_a_row = 1  # how often gradients are summed in a row, as where two models train on a batch
        self.start()

    def start(self) -> None:
        """Begin a loop; what was learned of its kind is kept."""
        self._batches_taken = self._sums = self._since_sum = self._sums_since = 0

    def hand_out(self) -> None:
        """Count a batch that the loop is given."""
        self._sums_in_a_row = max(self._sums_in_a_row, self._sums_since)
        self._sums_since = 0
        self._batches_taken += 1
        self._since_sum += 1

    def count_sum(self) -> None:
        """Count a sum of gradients over the ranks."""
        if self._sums:  # before the first come also the batches that are fetched ahead
            self._max_batches_between = max(self._max_batches_between, self._since_sum)
        self._since_sum = 0
        self._sums += 1
        self._sums_since += 1

    @property
    def waits(self) -> bool:
        """True if sums are to come, by the batches taken so far; False before the first sum: the loop may only read."""
        return 0 < self._sums * (self._max_batches_between or self._batches) < self._batches_taken * self._sums_in_a_row
