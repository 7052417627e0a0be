"""Checks of a model and of the process for what would be silently wrong. Axis: W ranks."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from paceline._arrays import Array
from paceline.torch.weighting.hooks import ddp_of, was_attached

COLLECTIVE_IN_BACKWARD = (
    "a collective inside the backward pass carries gradients from rank to rank (gathered features, synchronised batch "
    "normalisation and the like): weighting them afterwards would not give the gradients of equal batches. Use "
    'attach(..., loss="scaled") and balance.scale(loss), which is exact for them'
)


SUMMED_TOO_EARLY = (
    "with micro_batch= ranks have different numbers of micro-batches, and gradients were about to be summed "
    "before this rank's last: put forward and backward into `with balance.accumulating():`, and step where "
    "loader.step_ends is true"
)
"""Error that is raised in place of a hang."""

OTHER_THREAD = (
    "the balanced loader is read by another thread than the one that called attach(): fetch batches in the thread that "
    "trains, and use num_workers= to load them ahead"
)
"""Error for batches fetched in another thread: by chance it would get one plan or the next."""


def refuse_mixing_layers(model: torch.nn.Module) -> None:
    """Refuse layers that mix the samples of all ranks where gradients carry the weights.

    Raises
    ------
    ValueError
        If the model has synchronised batch normalisation.
    """
    mixing = [name for name, module in model.named_modules() if isinstance(module, torch.nn.SyncBatchNorm)]
    if mixing:
        raise ValueError(
            f"synchronised batch normalisation ({mixing[0]}) carries gradients from rank to rank, so they cannot be "
            'weighted afterwards: use attach(..., loss="scaled") and balance.scale(loss).backward(), which is exact'
        )


def apart(workers: Sequence[str], places: Array) -> str:
    """Return the error message for ranks at different epochs and batches, ``[W, 2 or more]``."""
    epoch, batches = places[0, :2]
    if (places[:, :2] == places[0, :2]).all():
        return (
            f"the ranks had different samples by batch {batches:.0f} of epoch {epoch:.0f}. The cause is a sampler= "
            "that orders them differently on each rank (seed its generator alike, and leave out a DistributedSampler, "
            "which yields one rank's part), a stream that is divided among the ranks (leave out split_dataset_by_node) "
            "or augments at random (give StreamLoader a key=), or a loop that differs"
        )
    said = [
        f"{worker} is at batch {place[1]:.0f} of epoch {place[0]:.0f}"
        for worker, place in zip(workers, places, strict=True)
    ]
    return (
        f"the ranks are not at the same place of the data: {', '.join(said)}. "
        "Every rank must loop over the loader in the same way. Taking a batch on one rank only removes it from the "
        "epoch: to look at a sample, use loader.dataset[0]"
    )


def of_the_process(models: Sequence[torch.nn.Module], *, averages: bool, counts_all: bool) -> Iterator[str]:
    """Yield warnings about other objects in this process that do not suit unequal batches.

    Parameters
    ----------
    models
        The attached models.
    averages
        Whether gradients are averaged plainly, as those of any model are.
    counts_all
        Whether the loader's length is in batches of all ranks.
    """
    balanced = {id(ddp_of(model)) for model in models}
    apart = [ddp for ddp in living(DistributedDataParallel) if id(ddp) not in balanced]
    others = [ddp for ddp in apart if _trains(ddp) and not was_attached(ddp)]
    if others and not averages:
        yield (
            f"A further model in DistributedDataParallel ({type(others[0].module).__name__}) trains in this process "
            "and is not balanced: if it trains on batches of the balanced loader, its gradients are averaged with "
            "wrong weights. Attach it to the same loader too: attach(model, loader)."
        )
    scheduler = getattr(sys.modules.get("accelerate.scheduler"), "AcceleratedScheduler", None)
    if counts_all and scheduler is not None and any(not one.split_batches for one in living(scheduler)):
        yield (
            "Accelerate steps a prepared scheduler once per process, because it expects a loader that counts the "
            "batches of one rank, but this one counts batches of all ranks. Use prepare() and BalancedLoader of "
            "paceline.integrations.accelerate, or Accelerator(split_batches=True)."
        )


def living(kind: type) -> list[Any]:
    """Return all objects of this class that this process holds."""
    # DistributedDataParallel keeps no list of its instances. `isinstance` would trigger lazy proxies to load.
    return [thing for thing in gc.get_objects() if type(thing) is kind]


def _trains(ddp: DistributedDataParallel) -> bool:
    return ddp.training and any(parameter.grad is not None for parameter in ddp.parameters())
