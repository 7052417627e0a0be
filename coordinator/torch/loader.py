"""A data loader whose batch size may differ from rank to rank and change at every iteration. Axis: W ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from paceline.coordinator.torch.ahead import AheadOfTime, OnDemand
from paceline.coordinator.torch.dealer import Dealer
from paceline.predictors import Curves
from paceline.solver import split

Sizes = NDArray[np.int64]


class BalancedLoader:
    """Loads this rank's part of every global batch, in place of a ``DataLoader`` with a ``DistributedSampler``.

    Each epoch covers every sample exactly once, over all ranks, whatever the batch sizes did meanwhile. The epoch's
    last batch takes what is left; fewer samples than ranks are not worth a batch and join the one before.

    Parameters
    ----------
    dataset
        Any map-style dataset, the same on every rank.
    global_batch
        Samples of all ranks together in one batch.
    rank, world_size
        This process and how many there are; from ``torch.distributed`` where they are not given.
    shuffle, seed
        Whether, and from which seed, every epoch has a new order. The seed must be the same on every rank.
    drop_last
        Whether to leave out the samples at the end of an epoch that do not fill a global batch.
    accumulate
        Micro-batches of one optimiser step. Sizes change only between steps.
    num_workers
        Processes that load ahead, kept alive between epochs; 0 loads in this process, when a batch is asked for.
    prefetch_factor
        Batches that each such process loads ahead.
    collate_fn
        Makes a batch of a list of samples. Without it, samples are stacked as torch does, by the loading processes.
        With it, loading processes hand over single samples, and this process makes the batch when its size is known.
    **options
        Further options of ``torch.utils.data.DataLoader`` for the loading processes, such as ``worker_init_fn``.

    Attributes
    ----------
    sizes
        Samples of each rank in the next full batch, ``[W]`` int64; equal at first. :func:`attach` sets it.
    batch_sizes
        Samples of each rank in the batch handed out last, ``[W]`` int64.
    before_batch
        Called before every batch, or every ``accumulate``-th, is cut: the moment to set ``sizes``.

    Raises
    ------
    ValueError
        If there are fewer samples than ranks, the global batch is smaller than the number of ranks, or a number is
        out of range.

    Examples
    --------
    Rank 1 of 2, with ten samples in order and batches of six:

    >>> loader = BalancedLoader(range(10), global_batch=6, rank=1, world_size=2, shuffle=False)
    >>> loader.sizes = np.array([4, 2])
    >>> [batch.tolist() for batch in loader]
    [[4, 5], [9]]
    """

    def __init__(
        self,
        dataset: Any,
        global_batch: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        accumulate: int = 1,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **options: Any,
    ) -> None:
        self.rank = dist.get_rank() if rank is None else rank
        self.world_size = dist.get_world_size() if world_size is None else world_size
        if accumulate < 1:
            raise ValueError(f"accumulate must be at least 1 micro-batch, got {accumulate}")
        if len(dataset) < self.world_size:
            raise ValueError(
                f"{len(dataset)} samples are too few for {self.world_size} ranks, as none may go without: "
                "give fewer ranks"
            )
        self.dataset = dataset
        self.global_batch = global_batch
        self.drop_last = drop_last
        self.accumulate = accumulate
        self.sizes = self._shared(np.ones(self.world_size), global_batch)
        self.batch_sizes = self.sizes
        self.before_batch: Callable[[], None] | None = None
        self._batches = 0
        self._next_epoch = 0
        self._resumed = False
        ahead = num_workers * prefetch_factor
        self._dealer = Dealer(len(dataset), self.world_size, shuffle=shuffle, seed=seed, ahead=ahead)
        options |= {"num_workers": num_workers, "prefetch_factor": prefetch_factor}
        self._source = (
            AheadOfTime(dataset, self._dealer, self.rank, collate_fn, options)
            if num_workers
            else OnDemand(dataset, collate_fn)
        )

    @property
    def sizes(self) -> Sizes:
        """Samples of each rank in the next full batch, ``[W]``."""
        return self._sizes

    @sizes.setter
    def sizes(self, sizes_W: Sizes) -> None:
        sizes_W = np.asarray(sizes_W, dtype=np.int64)
        if sizes_W.shape != (self.world_size,) or sizes_W.min() < 1 or sizes_W.sum() != self.global_batch:
            raise ValueError(
                f"sizes must be {self.world_size} numbers of at least 1 sample each (an empty batch has no mean loss) "
                f"that sum to the global batch of {self.global_batch}, got {sizes_W.tolist()}"
            )
        self._sizes = sizes_W

    @property
    def weight(self) -> float:
        """Weight of this rank in the mean gradient of the batch handed out last: its share of the samples."""
        return float(self.batch_sizes[self.rank] / self.batch_sizes.sum())

    @property
    def epoch(self) -> int:
        """The epoch under way, or the one that ended last; the first is 0."""
        return self._dealer.epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next epoch be this one. Without it, epochs count up from 0 by themselves."""
        self._next_epoch = epoch

    def __len__(self) -> int:
        """Return the batches of a whole epoch."""
        whole, rest = divmod(self._dealer.samples, self.global_batch)
        return whole if self.drop_last else max(whole + (rest >= self.world_size), 1)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch; or the rest of one that was resumed."""
        if not self._resumed:
            self._dealer.start(self._next_epoch)
            self._batches = 0
        self._resumed = False
        self._next_epoch = self._dealer.epoch + 1
        while self._dealer.remaining >= (self.global_batch if self.drop_last else 1):
            yield self._batch()

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return where the data stands, for an exact resume: with as many ranks or more or fewer."""
        progress = {"sizes": self.sizes, "batches": np.array(self._batches), "next_epoch": np.array(self._next_epoch)}
        return {**self._dealer.state_dict(), **progress}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume: the next loop over this loader yields the rest of the epoch that was under way.

        Raises
        ------
        ValueError
            If the state is that of other samples, or of another seed.
        """
        self._dealer.load_state_dict(state)
        self._batches = int(state["batches"])
        self._next_epoch = int(state["next_epoch"])
        self._resumed = self._dealer.remaining > 0
        if len(state["sizes"]) == self.world_size and state["sizes"].sum() == self.global_batch:
            self.sizes = state["sizes"]

    def adopt(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on, in the middle of an epoch, from where another rank stands: the two had parted ways."""
        self._dealer.load_state_dict(state)
        self._source.forget()

    def _batch(self) -> Any:
        if self.before_batch and self._batches % self.accumulate == 0:
            self.before_batch()
        self._batches += 1
        remaining = self._dealer.remaining
        total = self.global_batch if remaining - self.global_batch >= self.world_size else remaining
        if self.drop_last:
            total = self.global_batch
        self.batch_sizes = self.sizes if total == self.global_batch else self._shared(self.sizes, total)
        self._dealer.reserve(self.batch_sizes)
        batch = self._source.take(self._dealer.hand(self.rank)[: self.batch_sizes[self.rank]])
        self._dealer.deal(self.batch_sizes)
        return batch

    def _shared(self, shares_W: NDArray[Any], total: int) -> Sizes:
        """Share a number of samples in these proportions, as evenly as whole samples allow, none left out."""
        return split(Curves.from_speed(shares_W.astype(float)), total, lower=1).sizes
