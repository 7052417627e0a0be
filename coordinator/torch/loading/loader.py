"""A data loader whose batch size may differ from rank to rank and change at every iteration. Axis: W ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Never

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline.coordinator.torch.loading.costs.cost_dealer import CostDealer, dealer_for, mean_batch
from paceline.coordinator.torch.loading.costs.costs import costs_of
from paceline.coordinator.torch.loading.costs.numbers import Numbers
from paceline.coordinator.torch.loading.dealer import Sampler
from paceline.coordinator.torch.loading.handing import HandsOut, placed
from paceline.coordinator.torch.loading.loop import Loop
from paceline.coordinator.torch.loading.micro import (
    BALANCE,
    Pieces,
    checked_micro_batch,
    dealt_as_a_whole,
    micro_dealt,
    pieces,
)
from paceline.coordinator.torch.loading.options import UNKNOWN, Loading, refuse, require_samples, whole
from paceline.coordinator.torch.loading.progress import Progress
from paceline.coordinator.torch.loading.shares import Shares
from paceline.coordinator.torch.loading.source import source
from paceline.coordinator.torch.state import from_torch
from paceline.coordinator.torch.weighing.dealt import Dealt


class BalancedLoader(HandsOut):
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
        Samples of all ranks together in one batch; at least one for each rank. With ``global_tokens`` it is left out.
    rank, world_size
        This process and how many there are; from ``torch.distributed`` where they are not given.
    shuffle, seed
        Whether, and from which seed, every epoch has a new order. The same on every rank.
    sampler
        What orders an epoch in place of ``shuffle`` and ``seed``: it yields numbers of samples, the same on every rank,
        and is asked anew for every epoch, after its ``set_epoch`` if it has one. What it yields comes exactly once.
    drop_last
        Whether to leave out the samples at the end of an epoch that do not fill a global batch.
    accumulate
        Micro-batches of one optimiser step. Sizes change only between steps. With ``"balance"`` a global batch is a
        step, and each rank gets its part in micro-batches, faster ranks more of them: see ``docs/work.md``.
    micro_batch
        Samples of such a micro-batch; a rank's last one in a step may have fewer.
    cost
        What each sample costs: an array of N numbers, the name of a dataset's column, or a function of a sample. Global
        batches are drawn as without it, and then divided so that ranks end together; it is used as it is given. See
        ``docs/work.md``.
    lengths
        Length of each sample, given likewise: what a length costs is then learned while training, unless ``cost`` says.
    cap
        Most tokens of a rank in a batch, in units of ``lengths``, or else of ``cost``: its memory.
    global_tokens
        Tokens of a global batch, in place of ``global_batch``: each takes as many samples as fit.
    padded
        Whether a rank's samples are padded to its longest.
    items
        How many terms of the loss each sample has, given like ``cost``: of a column of labels, those that are not -100.
        A rank then weighs by its share of the step's terms, in place of its samples.
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
    sizes, batch_sizes, dealt, step_ends, before_batch, after_batch, on_start, before_state
        See :class:`HandsOut`; :func:`attach` sets ``sizes``, and is called at these moments.

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
    [[4, 5], [8, 9]]
    """

    def __init__(
        self,
        dataset: Any,
        global_batch: int | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        sampler: Sampler | None = None,
        drop_last: bool = False,
        accumulate: int | Literal["balance"] = 1,
        micro_batch: int | None = None,
        cost: Numbers | None = None,
        lengths: Numbers | None = None,
        cap: float | None = None,
        global_tokens: float | None = None,
        padded: bool = False,
        items: Numbers | None = None,
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
        rank, world_size = placed(rank, world_size)
        require_samples(dataset, world_size, 1)
        costs = costs_of(
            dataset, cost=cost, lengths=lengths, items=items, cap=cap, global_tokens=global_tokens, padded=bool(padded)
        )
        mean = mean_batch(global_batch, costs, world_size, drop_last=bool(drop_last))
        super().__init__(Shares(mean, world_size, bool(drop_last)), rank)
        require_samples(dataset, world_size, self._shares.least)
        self.dataset = dataset
        self.micro_batch = checked_micro_batch(micro_batch, accumulate)
        self.accumulate = 1 if accumulate == BALANCE else whole("accumulate", accumulate, 1, "micro-batch")
        self._next_dealt = [self.dealt]
        self._step_items = 0.0
        self._loops = 0
        self._dealer = dealer_for(
            len(dataset),
            costs,
            self._shares,
            shuffle=bool(shuffle),
            seed=whole("seed", seed, 0),
            sampler=sampler,
            ahead=num_workers > 0,
        )
        self._progress = Progress(self._dealer, self._shares.least)
        loading = Loading(num_workers, prefetch_factor, pin_memory, worker_init_fn, timeout, multiprocessing_context)
        self._collated = self.micro_batch is not None and collate_fn is not None
        collate = Pieces(collate_fn, self.micro_batch) if collate_fn and self.micro_batch else collate_fn
        self._source = source(dataset, self._dealer, self.rank, collate, loading)

    def __getattr__(self, name: str) -> Never:
        """Say what there is in place of an attribute that scripts ask torch's loader for."""
        raise AttributeError(f"BalancedLoader has no {name}" + (f": {UNKNOWN[name]}" if name in UNKNOWN else ""))

    @property
    def coefficients(self) -> Array | None:
        """By which costs follow from what they are made of, ``[F]``, to be set alike on every rank; None without costs.

        They sum to 1, so that an average sample costs 1.
        """
        return self._dealer.coefficients if isinstance(self._dealer, CostDealer) else None

    @coefficients.setter
    def coefficients(self, coefficients_F: Array) -> None:
        assert isinstance(self._dealer, CostDealer), "samples have costs"
        self._dealer.coefficients = np.array(coefficients_F)

    @property
    def least_samples(self) -> int:
        """Fewest samples of a rank where samples have costs: 2 for models with batch normalisation."""
        return self._dealer.lower if isinstance(self._dealer, CostDealer) else 1

    @least_samples.setter
    def least_samples(self, samples: int) -> None:
        if isinstance(self._dealer, CostDealer):
            self._dealer.lower = samples

    @property
    def varies(self) -> bool:
        """Whether epochs have different numbers of batches, as with ``global_tokens``."""
        return isinstance(self._dealer, CostDealer) and self._dealer.costs.budget is not None

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
            "micro_batch": self.micro_batch,
            "num_workers above 0": self._dealer.ahead > 0,
            **(self._dealer.costs.settings() if isinstance(self._dealer, CostDealer) else {}),
        }

    def set_epoch(self, epoch: int) -> None:
        """Let the next epoch be this one. Without it, epochs count up from 0 by themselves, a peek's included."""
        self._progress.next_epoch = whole("epoch", epoch, 0)

    def __len__(self) -> int:
        """Return the batches of a whole epoch, also where the rest of one was resumed.

        With ``global_tokens`` that differs from epoch to epoch: those of the epoch under way, or that comes next.
        """
        if isinstance(self._dealer, CostDealer) and self.varies:
            return self._dealer.batches_of(self.epoch if self._dealer.remaining else self._progress.next_epoch)
        sampler = self._dealer.sampler
        return self._shares.batches(self._dealer.samples if sampler is None else len(sampler))

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch; or the rest of one that was resumed."""
        return Loop(self._under_way(self._loop()))

    def place(self) -> dict[str, NDArray[Any]]:
        """Return where the data stands, as arrays."""
        state = {**self._progress.state_dict(), "sizes": self.sizes, "step_items": np.array(self._step_items)}
        return state if self.coefficients is None else {**state, "coefficients": self.coefficients}

    def load_state_dict(self, state: Mapping[str, Any], *, skip_rest: bool = False) -> None:
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
        place = from_torch(state)
        self._progress.resume(place, skip_rest=skip_rest)
        self._loops += 1
        self._take_sizes(place)
        self._restart()

    def adopt(self, place: Mapping[str, NDArray[Any]]) -> None:
        """Go on, in the middle of an epoch, from where another rank stands: the two had parted ways."""
        self._progress.adopt(place)
        self._take_sizes(place)
        self._restart()

    def _take_sizes(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._take_saved_sizes(state["sizes"])
        self._step_items = float(state.get("step_items", 0.0))
        saved, own = state.get("coefficients"), self.coefficients
        if saved is not None and own is not None and saved.shape == own.shape:
            self.coefficients = saved

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
            yield from self._parts(self._batch())
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
        sizes_W = self._dealer.next_sizes(self._shares, self.sizes)
        dealt = self._known_of(sizes_W)
        batch = self._source.take(self._dealer.hand(self.rank)[: sizes_W[self.rank]])
        self._dealer.play(sizes_W)  # only now: a batch that could not be loaded has not been handed out
        self._progress.batches += 1
        self.batch_sizes, self._next_dealt = sizes_W, dealt
        return batch

    def _parts(self, batch: Any) -> Iterator[Any]:
        """Yield a rank's part of a global batch: as a whole, or in micro-batches."""
        parts: Iterable[Any] = [batch]
        if self.micro_batch:
            rows = int(self.batch_sizes[self.rank])
            parts = pieces(batch, rows, self.micro_batch, collated=self._collated)
        for dealt, part in zip(self._next_dealt, parts, strict=True):
            yield self._hand_out(dealt, part)

    def _known_of(self, sizes_W: Sizes) -> list[Dealt]:
        """Return what is known of the next batch, or of each of its micro-batches, while the dealer still holds it."""
        if isinstance(self._dealer, CostDealer) and self._progress.batches % self.accumulate == 0:
            self._step_items = self._dealer.step_items(self.accumulate)
        dealt = dealt_as_a_whole(self._dealer, sizes_W, self.rank, self.accumulate, self._step_items)
        return micro_dealt(self._dealer, dealt, self.rank, self.micro_batch) if self.micro_batch else [dealt]
