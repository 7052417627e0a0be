"""Several processes fit one network: each takes a share of every batch, and their gradients add up to the whole's."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist


def rank() -> int:
    """Return this process's number in the default group; 0 without one."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def share(batch: tuple[torch.Tensor, ...], distributed: bool) -> tuple[torch.Tensor, ...]:
    """Return the rows of a batch that this process fits: all of them, if it is alone."""
    return tuple(part[rank() :: dist.get_world_size()] for part in batch) if distributed else batch


def agreed(value: float) -> float:
    """Return the first process's value: on machines of two kinds, sums may differ in their last bit."""
    # NCCL sends only what lies on a device.
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    held = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(held, src=0)
    return float(held)


def add_up(weights: Mapping[str, torch.Tensor], loss: float) -> float:
    """Add up the gradients of all processes in place, and return the sum of their losses."""
    flat = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights.values()]
    # One exchange for all: networks this small wait for the start of a message, not for its length.
    device = flat[0].device
    sums = torch.cat([torch.tensor([loss], device=device), *(gradient.reshape(-1) for gradient in flat)])
    dist.all_reduce(sums)
    parts = sums[1:].split([gradient.numel() for gradient in flat])
    for weight, part in zip(weights.values(), parts, strict=True):
        weight.grad = part.reshape(weight.shape).clone()
    return float(sums[0])
