"""Gather the rows of all ranks, with gradients: for losses that compare samples across ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def gather_rows(rows: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return the rows of all ranks, in the order of ranks; the number of rows may differ between ranks.

    ``torch.distributed.all_gather`` needs the same number of rows on all ranks, which balanced batches do not have.
    Gradients flow back to the ranks that the rows came from, summed over all ranks. A contrastive loss uses it: the
    mean over the rank's own rows, each compared with the rows of all ranks.

    Parameters
    ----------
    rows
        This rank's rows, ``[n, ...]``; the other dimensions are the same on every rank.
    group
        The process group; by default the whole job's.

    Returns
    -------
    torch.Tensor
        ``[N, ...]``, where N is the sum of all n. The rows of this rank follow those of the lower ranks.

    Examples
    --------
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> gather_rows(torch.arange(3.0))
    tensor([0., 1., 2.])
    >>> dist.destroy_process_group()
    """
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
