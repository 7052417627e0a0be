"""Gather the rows of all ranks, with gradients: for losses that compare samples across ranks.

Where ranks have different numbers of rows, torch's ``all_gather`` aborts, hangs or returns wrong numbers:
:func:`check_gathered_shapes` raises an error first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Set
from typing import Any

import torch
import torch.distributed as dist

from paceline.torch.counting import MAX_YIELDED_BATCHES
from paceline.torch.rank_loader import RankLoader


def gather_rows(rows: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return the rows of all ranks, in the order of ranks; the number of rows may differ between ranks.

    Gradients flow back to the ranks that the rows came from, summed over all ranks. A contrastive loss uses it: the
    mean over the rank's own rows, each compared with the rows of all ranks.

    Parameters
    ----------
    rows
        This rank's rows, ``[n, ...]``; the other dimensions are the same on every rank.
    group
        The process group; by default the whole job's. A process in no group gathers its own rows.

    Returns
    -------
    torch.Tensor
        ``[N, ...]``, where N is the sum of all n. The rows of this rank follow those of the lower ranks.

    Examples
    --------
    >>> gather_rows(torch.arange(3.0))
    tensor([0., 1., 2.])
    """
    if not dist.is_initialized():
        return rows
    gathered: torch.Tensor = _GatherRows.apply(rows, group)  # type: ignore[no-untyped-call]
    return gathered


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        size = torch.tensor([len(rows)], device=rows.device)
        counts = [torch.zeros_like(size) for _ in range(dist.get_world_size(group))]
        dist.all_gather(counts, size, group=group)
        lengths = [int(count) for count in counts]
        # all_gather needs equal shapes: pad to the longest, and cut the padding off afterwards.
        padded = rows.new_zeros(max(lengths), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(parts, padded, group=group)
        rank = dist.get_rank(group)
        ctx.group, ctx.begin, ctx.end = group, sum(lengths[:rank]), sum(lengths[: rank + 1])
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        # Every rank's loss depends on these rows, so their gradients are summed before each rank takes its own part.
        # The clone keeps all_reduce, which works in place, from changing a tensor that autograd owns.
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total[ctx.begin : ctx.end], None


def check_gathered_shapes(
    loader: RankLoader, has_pending_batches: Callable[[], bool], ranks: Set[int], group: Any, rows: torch.Tensor
) -> None:
    """Compare the lengths of tensors that ranks are about to gather, while batches are trained on that differ in size.

    If they differ, a RuntimeError is raised on every rank of the group. Each look is a small exchange, so what decides
    whether to look is the same on every rank. Between loops none looks, unless batches of a loop that fetched ahead are
    still to be trained on: a balance that nobody holds ends on each rank when the garbage collector finds it. A group
    without all ``ranks`` that train is not looked at.
    """
    if not loader.is_iterating and not (loader.has_ended and has_pending_batches()):
        return
    # The rows may be of a batch before the newest one, as far back as batches are remembered.
    if loader.since_uneven > MAX_YIELDED_BATCHES or _is_gathering_shards():
        return
    if not ranks <= set(dist.get_process_group_ranks(group)):
        return
    count = torch.tensor([rows.numel()], device=rows.device)
    lengths = [torch.zeros_like(count) for _ in range(group.size())]
    group.allgather([lengths], [count]).wait()
    numbers = [int(length) for length in lengths]
    if len(set(numbers)) > 1:
        sizes = loader.batch_sizes.tolist()
        raise RuntimeError(
            f"all_gather and gather need the same shape on every rank, but the ranks have {numbers} numbers, as "
            f"balanced batches differ in size (the newest: {sizes}): gather with paceline.torch.gather_rows(rows)"
        )


def _is_gathering_shards() -> bool:
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
