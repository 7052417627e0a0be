"""Sources of batches: loaded when asked for, or ahead of time by other processes."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.pin_memory import pin_memory as pinned

from paceline.torch.assigner import EpochAssigner
from paceline.torch.chunks import Chunks, Collate
from paceline.torch.options import Loading
from paceline.torch.prefetch import Prefetcher


class BatchSource(Protocol):
    """Source of the batches of one rank."""

    @property
    def ahead(self) -> tuple[float, float]:
        """Seconds that the last batch was waited for, and that loading processes took for it, by their number."""
        ...

    def restart(self) -> None:
        """Begin a new generation: other samples come from now on, and what was loaded ahead is of no use."""
        ...

    def take(self, samples: Any) -> Any:
        """Return a batch of these samples, the next of the rank."""
        ...


def source(dataset: Any, assigner: EpochAssigner, collate: Collate | None, loading: Loading) -> BatchSource:
    """Return the source of a rank's batches for these options of loading."""
    pin = loading.pin_memory and torch.cuda.is_available()
    if loading.pin_memory and not pin:
        warnings.warn("pin_memory: no CUDA device is available, so batches are not pinned", stacklevel=3)
    batches: BatchSource = OnDemand(dataset, collate)
    if loading.num_workers:
        batches = Prefetcher(dataset, assigner, collate, replace(loading, pin_memory=pin))
    return Pinned(batches) if pin else batches


class OnDemand:
    """Loads a batch in this process, when it is asked for; without a dataset, samples come as they are."""

    ahead = (0.0, 0.0)

    def __init__(self, dataset: Any, collate: Collate | None) -> None:
        collate = collate or default_collate
        self.take = collate if dataset is None else Chunks(dataset, collate).load

    def restart(self) -> None:
        """Do nothing: no samples were loaded ahead."""


class Pinned:
    """Pins the batches of another source, but for those that lie in pinned memory already."""

    def __init__(self, batches: BatchSource) -> None:
        self.batches, self.restart = batches, batches.restart

    @property
    def ahead(self) -> tuple[float, float]:
        """Those of the other source."""
        return self.batches.ahead

    def take(self, samples: Any) -> Any:
        """Return a batch in pinned memory."""
        return pinned(self.batches.take(samples))
