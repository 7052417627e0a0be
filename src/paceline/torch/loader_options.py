"""Options of a loader, and clear errors for options that it does not have."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from numbers import Integral
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

DRAWS_BATCHES_HINT = "the loader draws every global batch itself, by shuffle= and seed="

UNSUPPORTED_ATTRIBUTES = {
    "sampler": "loader.set_epoch(epoch) chooses an epoch, and a resumed loader continues with the rest of the epoch by "
    "itself",
    "batch_size": "this rank's changes from batch to batch, and loader.global_batch is that of all ranks",
    "batch_sampler": DRAWS_BATCHES_HINT,
    "sizes": "where samples have costs, shares= divides their work, and batch_sizes are the samples of a drawn batch",
    "bs": "fastai's own distributed training assigns batches again: docs/howto/trainers.md has a callback in place of "
    "it",
}
"""Attributes of torch's loader that this one has not, and what there is instead."""


def raise_unknown_option(unknown: Iterable[str], callee: Callable[..., Any]) -> None:
    """Raise an error that names the first option that is not known, and says what to use instead.

    >>> raise_unknown_option(["shufle"], lambda dataset, *, shuffle=True: None)
    Traceback (most recent call last):
    TypeError: BalancedLoader has no option shufle: did you mean shuffle?
    """
    instead = {
        "batch_size": "pass global_batch, the samples of all ranks together",
        "batch_sampler": f"{DRAWS_BATCHES_HINT}; for another order pass sampler=",
        "generator": DRAWS_BATCHES_HINT,
        "persistent_workers": "loading processes always persist from epoch to epoch, so leave it out",
        "in_order": "batches come in order, so leave it out",
        "pin_memory_device": "memory is pinned for the current CUDA device, so pass pin_memory= alone",
        "num_replicas": "pass world_size, the number of ranks",
        **dict.fromkeys(("lengths", "cost", "cap", "global_tokens", "padded"), "it is a part of costs=Costs(...)"),
    }
    for name in unknown:
        known = list(inspect.signature(callee).parameters)
        close = get_close_matches(name, known)
        otherwise = f"did you mean {close[0]}?" if close else f"it takes {', '.join(known[1:])}"
        raise TypeError(f"BalancedLoader has no option {name}: {instead.get(name, otherwise)}")


def require_int(name: str, value: Any, minimum: int, unit: str = "") -> int:
    """Return a whole number that is large enough, or refuse the argument of this name.

    >>> require_int("accumulate", 0, 1, "micro-batch")
    Traceback (most recent call last):
    ValueError: accumulate must be at least 1 micro-batch, got 0
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum} {unit}".rstrip() + f", got {value}")
    return int(value)


def rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return the rank and the number of ranks: those of ``torch.distributed`` unless given; without a group, one."""
    here, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if ranks == 1 and rank is None and world_size is None and (started := int(os.environ.get("WORLD_SIZE", 1))) > 1:
        raise RuntimeError(
            f"{started} processes were started, but this one is in no group with the others: call "
            "torch.distributed.init_process_group() before you make the loader"
        )
    rank = require_int("rank", here if rank is None else rank, 0)
    world_size = require_int("world_size", ranks if world_size is None else world_size, 1, "rank")
    if rank >= world_size:
        raise ValueError(f"rank must lie in [0, {world_size}), as there are {world_size} ranks, got {rank}")
    return rank, world_size


def require_samples(dataset: Any, world_size: int, minimum: int) -> None:
    """Refuse a dataset that does not give any sample by its number, or has too few for a single batch."""
    if isinstance(dataset, DataLoader):
        raise TypeError("dataset must be a dataset, got a DataLoader: pass its .dataset")
    if isinstance(dataset, IterableDataset) or not all(hasattr(dataset, name) for name in ("__len__", "__getitem__")):
        raise TypeError(
            f"dataset must be map-style, with __len__ and __getitem__, got {type(dataset).__name__}: samples "
            "are assigned to ranks by index, and a stream has no indices: use StreamLoader"
        )
    if len(dataset) < world_size:
        raise ValueError(
            f"{len(dataset)} samples are too few for {world_size} ranks, as each needs at least one: use fewer ranks"
        )
    if len(dataset) < minimum:
        raise ValueError(
            f"drop_last would leave out all {len(dataset)} samples, which do not fill a global batch of {minimum}: "
            "pass a smaller global_batch, or drop_last=False"
        )
