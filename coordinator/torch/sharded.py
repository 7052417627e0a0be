"""Models sharded by ``fully_shard`` (FSDP2): leave the time of their collectives out of a rank's own time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from paceline.coordinator.torch.clock import WallClock

# Named so from torch 2.13 on, where the older names warn.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _Timed:
    def __init__(self, clock: WallClock) -> None:
        self.clock = clock

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return room for the result."""
        return torch.empty(size, dtype=dtype, device=device)


class TimedAllGather(_Timed):
    """Gathers the shards of parameters, as FSDP does by itself, while the clock stands."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Gather."""
        with self.clock.waiting():
            work: dist.Work | None = all_gather(output_tensor, input_tensor, group=group, async_op=async_op)
        return work


class TimedReduceScatter(_Timed):
    """Sums gradients and hands out the shards, as FSDP does by itself, while the clock stands."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Sum."""
        with self.clock.waiting():
            work: dist.Work | None = reduce_scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
        return work


def leave_out_collectives(model: torch.nn.Module, clock: WallClock) -> None:
    """Stop the clock while a sharded model on CPU gathers parameters or sums gradients; a bare model has neither."""
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:  # before torch 2.6
        return
    for module in model.modules():
        if isinstance(module, FSDPModule) and hasattr(module, "set_custom_all_gather"):  # from torch 2.8 on
            module.set_custom_all_gather(TimedAllGather(clock))  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(TimedReduceScatter(clock))  # type: ignore[arg-type]
