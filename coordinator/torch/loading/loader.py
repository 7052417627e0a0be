"""A data loader whose batch size may differ from rank to rank and change at every iteration. Axis: W ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Never

import torch.distributed as dist
from numpy.typing import NDArray

from paceline._arrays import Sizes
from paceline.coordinator.torch.loading.dealer import AHEAD, Dealer
from paceline.coordinator.torch.loading.loop import Loop
from paceline.coordinator.torch.loading.options import Loading, place, refuse, require_samples, whole
from paceline.coordinator.torch.loading.progress import Progress
from paceline.coordinator.torch.loading.shares import Shares
from paceline.coordinator.torch.loading.source import source


class BalancedLoader:
    """Loads this rank's part of every global batch, in place of a ``DataLoader`` with a ``DistributedSampler``.

    Each epoch covers every sample exactly once, over all ranks, whatever the batch sizes did meanwhile. The epoch's
    last batch takes what is left; fewer samples than ranks are not worth a batch and join the one before.

    A loop begins with its first batch, and ends any loop before it: an older iterator that is asked again raises a
    ``RuntimeError``. Every rank has to loop alike.

    Parameters
    ----------
    dataset
        Any map-style dataset, the same on every rank.
    global_batch
        Samples of all ranks together in one batch; at least one for each rank.
    rank, world_size
        This process and how many there are; from ``torch.distributed`` where they are not given.
    shuffle, seed
        Whether, and from which seed, every epoch has a new order. The same on every rank.
    drop_last
        Whether to leave out the samples at the end of an epoch that do not fill a global batch.
    accumulate
        Micro-batches of one optimiser step. Sizes change only between steps.
    num_workers
        Processes that load ahead, kept alive between epochs. 0 on every rank loads in the rank itself, when a batch is
        asked for. Else ranks may have different numbers, and differ in all that follows: it does not shape the deal.
    prefetch_factor
        Batches that each such process loads ahead, 2 by default; all together at most 32 are loaded ahead.
    collate_fn
        Makes a batch of a list of samples. Without it, samples are stacked as torch does, by the loading processes.
        With it, loading processes hand over single samples, and this process makes the batch when its size is known.
    pin_memory
        Whether batches lie in memory from which a CUDA device copies without the processor.
    worker_init_fn
        Called in every loading process with its number, before it loads.
    timeout
        Seconds to wait for a loading process, after which the loop ends with an error; 0 waits as long as it takes.
    multiprocessing_context
        How loading processes start: ``"fork"``, ``"spawn"``, ``"forkserver"``, or such a context.

    Attributes
    ----------
    sizes
        Samples of each rank in the next full batch, ``[W]`` int64; equal at first. :func:`attach` sets it.
    batch_sizes
        Samples of each rank in the batch handed out last, ``[W]`` int64.
    before_batch
        Called before every batch, or every ``accumulate``-th, is cut: the moment to set ``sizes``.
    after_batch
        Called with ``batch_sizes`` and the batch just before that is handed out.
    on_start
        Called when batches no longer follow those handed out before: a loop begins, or the data stands elsewhere.

    Raises
    ------
    TypeError
        If the dataset is not map-style, a number is not whole, or there is no such option.
    ValueError
        If there are fewer samples than ranks, the global batch is smaller than the number of ranks, or a number is
        out of range.

    Examples
    --------
    Rank 1 of 2, with ten samples in order and batches of six:

    >>> import numpy as np
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
        prefetch_factor: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
        multiprocessing_context: Any = None,
        **unknown: Never,
    ) -> None:
        refuse(unknown, BalancedLoader)
        self.rank, self.world_size = place(
            dist.get_rank() if rank is None else rank, dist.get_world_size() if world_size is None else world_size
        )
        self.global_batch = whole("global_batch", global_batch, self.world_size, "samples, one for each rank")
        self._shares = Shares(self.global_batch, self.world_size, bool(drop_last))
        require_samples(dataset, self.world_size, self._shares.least)
        self.dataset = dataset
        self.accumulate = whole("accumulate", accumulate, 1, "micro-batch")
        self.sizes = self._shares.equal()
        self.batch_sizes = self.sizes
        self.before_batch: Callable[[], None] | None = None
        self.after_batch: Callable[[Sizes, Any], None] | None = None
        self.on_start: Callable[[], None] | None = None
        self._loops = 0
        self._dealer = Dealer(
            len(dataset),
            self.world_size,
            shuffle=bool(shuffle),
            seed=whole("seed", seed, 0),
            ahead=AHEAD if num_workers else 0,
        )
        self._progress = Progress(self._dealer, self._shares.least)
        loading = Loading(num_workers, prefetch_factor, pin_memory, worker_init_fn, timeout, multiprocessing_context)
        self._source = source(dataset, self._dealer, self.rank, collate_fn, loading)

    @property
    def sizes(self) -> Sizes:
        """Samples of each rank in the next full batch, ``[W]``; to change some, set all."""
        return self._sizes

    @sizes.setter
    def sizes(self, sizes_W: Sizes) -> None:
        self._sizes = self._shares.checked(sizes_W)

    @property
    def weight(self) -> float:
        """Weight of this rank in the mean gradient of the batch handed out last: its share of the samples."""
        return float(self.batch_sizes[self.rank] / self.batch_sizes.sum())

    @property
    def epoch(self) -> int:
        """The epoch under way, or the one that ended last; the first is 0."""
        return self._dealer.epoch

    @property
    def position(self) -> tuple[int, int, int]:
        """Epoch, batches handed out in it, and a checksum of their sizes: ranks that loop alike have the same."""
        return self.epoch, self._progress.batches, self._dealer.digest

    def settings(self) -> dict[str, object]:
        """Return all that must be the same on every rank, by the names of the arguments."""
        return {
            "samples in the dataset": self._dealer.samples,
            "global_batch": self.global_batch,
            "world_size": self.world_size,
            "shuffle": self._dealer.shuffle,
            "seed": self._dealer.seed,
            "drop_last": self._shares.drop_last,
            "accumulate": self.accumulate,
            "num_workers above 0": self._dealer.ahead > 0,
        }

    def set_epoch(self, epoch: int) -> None:
        """Let the next epoch be this one. Without it, epochs count up from 0 by themselves, a peek's included."""
        self._progress.next_epoch = whole("epoch", epoch, 0)

    def __len__(self) -> int:
        """Return the batches of a whole epoch, also where the rest of one was resumed."""
        return self._shares.batches(self._dealer.samples)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch; or the rest of one that was resumed."""
        return Loop(self._loop())

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return where the data stands, for an exact resume: with as many ranks or more or fewer."""
        return {**self._progress.state_dict(), "sizes": self.sizes}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]], *, skip_rest: bool = False) -> None:
        """Resume: the next loop over this loader yields the rest of the epoch that was under way.

        Parameters
        ----------
        state
            What ``state_dict`` returned, on any rank.
        skip_rest
            Whether to leave the rest out instead, and go on with the next epoch; a warning says how many samples.

        Raises
        ------
        ValueError
            If the state is that of other samples, or of another order of them, or the rest of the epoch is too small
            for so many ranks. Nothing has changed then.
        """
        self._progress.resume(state, skip_rest=skip_rest)
        self._loops += 1
        self._take_sizes(state)
        self._restart()

    def adopt(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on, in the middle of an epoch, from where another rank stands: the two had parted ways."""
        self._progress.adopt(state)
        self._take_sizes(state)
        self._restart()

    def _take_sizes(self, state: Mapping[str, NDArray[Any]]) -> None:
        if len(state["sizes"]) == self.world_size and state["sizes"].sum() == self.global_batch:
            self.sizes = state["sizes"]

    def _restart(self) -> None:
        """Forget what was loaded ahead: another hand is played from now on."""
        self._source.restart()
        if self.on_start:
            self.on_start()

    def _loop(self) -> Iterator[Any]:
        self._loops += 1
        this = self._loops
        self._progress.start()
        self._restart()
        while True:
            self._require_latest(this)
            if not self._progress.more:
                break
            yield self._batch()
        self._progress.finish()

    def _require_latest(self, loop: int) -> None:
        if loop != self._loops:
            raise RuntimeError(
                "this loop over the loader is over, as another one began, or load_state_dict was called, after it: "
                "begin a new one. Nested loops need a loader each"
            )

    def _batch(self) -> Any:
        if self.before_batch and self._progress.batches % self.accumulate == 0:
            self.before_batch()
        sizes_W = self._shares.next(self._dealer.remaining, self.sizes)
        self._dealer.reserve(sizes_W)
        batch = self._source.take(self._dealer.hand(self.rank)[: sizes_W[self.rank]])
        self._dealer.play(sizes_W)  # only now: a batch that could not be loaded has not been handed out
        self._progress.batches += 1
        self.batch_sizes = sizes_W
        if self.after_batch:
            self.after_batch(sizes_W, batch)
        return batch
