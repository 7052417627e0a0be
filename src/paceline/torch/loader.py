"""A data loader whose batch size may differ from rank to rank and change at every iteration. Axis: W ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never

from paceline.torch.assigner import BufferAssigner, EpochAssigner, SampleOrder, Sampler
from paceline.torch.cost_assigner import CostAssigner, PackAssigner, PackOption
from paceline.torch.costs import Costs, SampleCosts
from paceline.torch.global_batch import GlobalBatch
from paceline.torch.loader_options import (
    raise_unknown_option,
    rank_and_world_size,
    require_int,
    require_samples,
)
from paceline.torch.loading import make_batch_source
from paceline.torch.packed_collate import Flatten
from paceline.torch.rank_loader import RankLoader


class BalancedLoader(RankLoader):
    """Loads this rank's part of every global batch, in place of a ``DataLoader`` with a ``DistributedSampler``.

    Each epoch covers every sample exactly once, over all ranks, whatever the batch sizes did meanwhile. The epoch's
    last batch takes what is left; fewer samples than ranks join the one before. A loop ends any loop before it. Every
    rank has to loop alike. Attributes are those of a :class:`paceline.torch.rank_loader.RankLoader`.

    Parameters
    ----------
    dataset
        Any map-style dataset, the same on every rank.
    global_batch
        Samples of all ranks together in one batch; at least one for each rank. Left out where ``costs`` has
        ``global_tokens``.
    rank, world_size
        This process and how many there are; from ``torch.distributed`` where they are not given.
    shuffle, seed
        Whether, and from which seed, every epoch has a new order. The same on every rank.
    sampler
        What orders an epoch in place of ``shuffle`` and ``seed``: it yields numbers of samples, the same on every rank,
        and is asked again for every epoch, after its ``set_epoch`` if it has one. What it yields comes exactly once.
    drop_last
        Whether to leave out the samples at the end of an epoch that do not fill a global batch.
    accumulate
        Global batches of one optimizer step, in a loop that divides its losses by their number. Sizes change only
        between steps.
    micro_batch
        Samples of a micro-batch, if a global batch is to be a step and each rank to get its part in micro-batches,
        faster ranks more of them; a rank's last one in a step may have fewer. See ``docs/howto/work.md``.
    pack
        Whether a global batch is to be a step and each rank to get its part packed into micro-batches of at most
        ``cap`` tokens, as ``costs`` says: as few as it needs, or with ``"lockstep"`` as many on every rank, the n-th of
        all as long, for layers that gather their parameters (FSDP, HSDP). See ``docs/howto/packing.md``.
    costs
        What samples cost, if they cost differently: a :class:`Costs`.
    num_workers
        Processes that load ahead, at most 32 batches together, kept alive between epochs. 0 on every rank loads in the
        rank itself, when a batch is asked for. Else ranks may have different numbers.
    collate_fn
        Makes a batch of a list of samples. Without it, samples are stacked as torch does, by the loading processes, or
        with ``pack`` concatenated by :class:`Flatten`. With it, loading processes hand over single samples, and this
        process makes the batch when its size is known.
    prefetch_factor, pin_memory, worker_init_fn, timeout, multiprocessing_context
        As in torch's ``DataLoader``.

    Raises
    ------
    TypeError
        If the dataset is not map-style, a number is not an integer, or there is no such option.
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
        accumulate: int = 1,
        micro_batch: int | None = None,
        pack: PackOption = False,
        costs: Costs | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
        multiprocessing_context: Any = None,
        **unknown: Never,
    ) -> None:
        raise_unknown_option(unknown, BalancedLoader)
        rank, world_size = rank_and_world_size(rank, world_size)
        require_samples(dataset, world_size, 1)
        table = None if costs is None else costs.of_dataset(dataset)
        samples = _mean_batch_samples(global_batch, costs, table, world_size, drop_last)
        rule = GlobalBatch(samples, world_size, bool(drop_last))
        require_samples(dataset, world_size, rule.min_left)
        self.dataset = dataset
        self.accumulate = require_int("accumulate", accumulate, 1, "micro-batch")
        self.micro_batch = None if micro_batch is None else require_int("micro_batch", micro_batch, 1, "sample")
        if self.micro_batch and self.accumulate > 1:
            raise ValueError("micro_batch= makes each global batch a step, accumulate= several: pass one of them")
        if pack:
            _require_packable(pack, costs, collate_fn, micro_batch, accumulate)
        self.packs, self.counts_differ = bool(pack), pack is True or bool(self.micro_batch)
        order = SampleOrder(len(dataset), bool(shuffle), require_int("seed", seed, 0), sampler)
        self._loads_ahead = num_workers > 0
        self._assigner: EpochAssigner
        if costs is None or table is None:
            # a sampler may yield a sample twice, which buffers that are loaded ahead could not tell apart
            buffered = self._loads_ahead and sampler is None
            self._assigner = (BufferAssigner if buffered else EpochAssigner)(order, rule, rank)
        elif pack:
            self._assigner = PackAssigner(order, rule, rank, costs, table, lockstep=pack == "lockstep")
            collate_fn = collate_fn or Flatten()
        else:
            self._assigner = CostAssigner(order, rule, rank, costs, table)
        self._assigner.micro_batch = self.micro_batch
        if self.micro_batch or pack:
            self.micro_batches = self._assigner.micro_batches
        source = make_batch_source(
            dataset,
            self._assigner,
            collate_fn,
            num_workers=num_workers,
            pin_memory=pin_memory,
            prefetch_factor=prefetch_factor,
            worker_init_fn=worker_init_fn,
            timeout=timeout,
            multiprocessing_context=multiprocessing_context,
        )
        super().__init__(self._assigner, source, rule, rank)

    @property
    def length_varies(self) -> bool:
        """True if epochs have different numbers of batches, as with ``global_tokens``."""
        return self._assigner.length_varies

    def settings(self) -> dict[str, object]:
        """Return all that must be the same on every rank, by the names of the arguments."""
        order = self._assigner.order
        return {
            "samples in the dataset": order.samples,
            "global_batch": self.global_batch,
            "world_size": self.world_size,
            "shuffle": order.shuffle,
            "seed": order.seed,
            "drop_last": self._rule.drop_last,
            "accumulate": self.accumulate,
            "micro_batch": self.micro_batch,
            "num_workers above 0": self._loads_ahead,
            **self._assigner.settings(),
        }

    def __len__(self) -> int:
        """Return the batches of a whole epoch, also where the rest of one was resumed.

        With ``global_tokens`` that differs from epoch to epoch: those of the epoch under way, or that comes next.
        """
        return self._assigner.num_batches_in(self._progress.next_epoch)


def _mean_batch_samples(
    global_batch: int | None, costs: Costs | None, sample_costs: SampleCosts | None, world_size: int, drop_last: bool
) -> int:
    """Return the samples of a global batch: those given, or as many as a budget of tokens holds in the mean."""
    if costs is None or sample_costs is None or costs.global_tokens is None:
        return require_int(
            "global_batch", global_batch, world_size, f"sample{'s' * (world_size > 1)}, one for each rank"
        )
    if global_batch is not None:
        raise ValueError("global_batch and global_tokens exclude each other: pass one of them")
    if drop_last:
        raise ValueError("drop_last does not work with global_tokens, as batches then vary in samples: leave it out")
    tokens_N = sample_costs.tokens
    return max(round(costs.global_tokens / float(tokens_N.cumsum()[-1]) * len(tokens_N)), world_size)


def _require_packable(pack: Any, costs: Costs | None, collate: Any, micro_batch: int | None, accumulate: int) -> None:
    """Refuse to pack what has no tokens or no cap, or is divided in another way as well."""
    if pack is not True and pack != "lockstep":
        raise ValueError(f'pack must be True, "lockstep" or False, got {pack!r}')
    if costs is None or costs.cap is None:
        raise ValueError(
            "pack= needs the tokens of samples and of a micro-batch: pass costs=Costs(lengths=..., cap=8192)"
        )
    if micro_batch or accumulate > 1:
        raise ValueError("pack= makes the micro-batches of a step itself: leave out micro_batch= and accumulate=")
    if costs.padded and collate is None:
        raise ValueError(
            "padded=True needs a collate_fn= that pads: pass one, or leave out padded= to concatenate samples"
        )
