"""Work of a loading process: it loads the chunks of samples that are asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import Dataset, get_worker_info

from paceline.torch.order import Samples

Collate = Callable[[list[Any]], Any]
Request = tuple[int, Samples]
"""Request to a loading process: the generation that asks, and its samples."""


class Chunks(Dataset[Any]):
    """A dataset whose samples are chunks of another's samples."""

    def __init__(self, dataset: Any, collate: Collate) -> None:
        self.dataset = dataset
        self.collate = collate

    def __getitem__(self, request: Request) -> tuple[int, Samples, Any, float]:
        """Load what is asked for, and say how long it took.

        An error travels like a chunk, so that only the generation that asked meets it.
        """
        generation, samples = request
        began = time.perf_counter()
        try:
            chunk = self.load(samples) if len(samples) else None
        except Exception:
            chunk = ExceptionWrapper(where="in a loading process")
        return generation, samples, chunk, time.perf_counter() - began

    def load(self, samples: Samples) -> Any:
        """Load these samples and make a chunk of them."""
        if hasattr(self.dataset, "__getitems__"):
            return self.collate(self.dataset.__getitems__(samples.tolist()))
        return self.collate([self.dataset[sample] for sample in samples.tolist()])


class Begin:
    """First act of a loading process: torch's ``get_worker_info`` is made to show the dataset that the user gave."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self.worker_init_fn = worker_init_fn

    def __call__(self, number: int) -> None:
        """Begin the loading process of this number."""
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # torch protects its attributes
        if self.worker_init_fn is not None:
            self.worker_init_fn(number)
