"""What every loader of ours shows of the batches that it hands out, and when it asks. Axis: W ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist
from numpy.typing import NDArray

from paceline._arrays import Sizes
from paceline.coordinator.torch.loading.options import place
from paceline.coordinator.torch.loading.shares import Shares
from paceline.coordinator.torch.state import to_torch
from paceline.coordinator.torch.weighing.dealt import Dealt


class HandsOut(ABC):
    """Hands out this rank's part of global batches: its sizes, and the moments at which a balance is called.

    Parameters
    ----------
    shares
        How global batches are cut.
    rank
        This process.

    Attributes
    ----------
    batch_sizes
        Samples of each rank in the batch handed out last, ``[W]`` int64.
    dealt
        What else is known of that batch.
    step_ends
        Whether the batch handed out last is the last of its step on this rank, with ``accumulate="balance"``.
    looping
        Whether a loop over it is under way.
    before_batch
        Called before every batch, or every ``accumulate``-th, is cut: the moment to set ``sizes``.
    after_batch
        Called with ``batch_sizes`` and the batch just before that is handed out.
    on_start
        Called when batches no longer follow those handed out before: a loop begins, or the data stands elsewhere.
    counts_all
        Whether its length is in batches of all ranks.
    before_state
        Called before a state is made: batches that were handed out and not computed yet are not in it.
    """

    counts_all = True

    def __init__(self, shares: Shares, rank: int) -> None:
        self.rank, self.world_size, self.global_batch = rank, shares.world_size, shares.global_batch
        self._shares = shares
        self.sizes = shares.equal()
        self.batch_sizes = self.sizes
        self.dealt = Dealt.plain(self.sizes, rank)
        self.step_ends, self.looping = True, False
        self.before_batch: Callable[[], None] | None = None
        self.after_batch: Callable[[Sizes, Any], None] | None = None
        self.on_start: Callable[[], None] | None = None
        self.before_state: Callable[[], None] | None = None

    @property
    def sizes(self) -> Sizes:
        """Samples of each rank in the next full batch, ``[W]``; to change some, set all.

        Where samples have costs, the shares in which their work is divided, in average samples.
        """
        return self._sizes

    @sizes.setter
    def sizes(self, sizes_W: Sizes) -> None:
        self._sizes = self._shares.checked(sizes_W)

    @property
    def weight(self) -> float:
        """Weight of this rank in the mean gradient of the batch handed out last: its share of samples, or of items."""
        return self.dealt.weight

    @abstractmethod
    def place(self) -> dict[str, NDArray[Any]]:
        """Return where the data stands, as arrays."""

    def state_dict(self) -> dict[str, Any]:
        """Return where the data stands, as tensors and lists, for an exact resume: with as many ranks or more or fewer.

        Raises
        ------
        RuntimeError
            If a step has micro-batches left on this rank: they would come neither in this job nor in the next.
        """
        if not self.step_ends:
            raise RuntimeError("state_dict() in the middle of a step: call it where loader.step_ends is true")
        if self.before_state:
            self.before_state()
        return to_torch(self.place())

    def _take_saved_sizes(self, sizes_W: Sizes) -> None:
        """Use the sizes of a state, unless they are those of other ranks or another global batch."""
        if len(sizes_W) == self.world_size and sizes_W.sum() == self.global_batch:
            self.sizes = sizes_W

    def _under_way(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of a loop, and note when it is over: at its end, or where the script leaves it."""
        self.looping = True
        try:
            yield from batches
        finally:
            self.looping = False

    def _hand_out(self, dealt: Dealt, batch: Any) -> Any:
        """Return a batch after a balance has seen it."""
        self.dealt, self.step_ends = dealt, dealt.last
        if self.after_batch:
            self.after_batch(dealt.sizes, batch)
        return batch


def placed(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return which rank this is, of how many: those of ``torch.distributed`` where they are not given."""
    return place(dist.get_rank() if rank is None else rank, dist.get_world_size() if world_size is None else world_size)
