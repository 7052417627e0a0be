"""Evidence that ranks hold the same data under the same numbers, for datasets that are cheap to inspect.

A dataset of the user's own class is not inspected: loading a sample may take long, draw random numbers, or open files
that loading processes must open themselves.
"""

from __future__ import annotations

import sys
import zlib
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from paceline.torch.exchange import Exchange

MOST = 64
"""Numbers of a sample, or of a subset, that are compared: enough to tell two parts of a dataset apart, and quick."""

DIFFERENT = (
    "The ranks have different data: {what} is not the same on each. Samples are assigned to ranks by their numbers, so "
    "most of what only one rank has would never come. Give every rank the whole dataset, not its own part of it "
    "(Subset, shard, split_dataset_by_node)."
)


def different(exchange: Exchange, dataset: Any) -> str:
    """Return a warning if the ranks hold different data; nothing if they do not, or it cannot be seen."""
    what, seen = likeness(dataset)
    told_W = exchange.gather([what, seen])
    return DIFFERENT.format(what=what) if any(told != told_W[0] for told in told_W) else ""


def likeness(dataset: Any) -> tuple[str, int]:
    """Return the name of the part that was looked at, and its checksum.

    >>> whole = TensorDataset(torch.arange(8.0))
    >>> [likeness(Subset(whole, range(first, 8, 2))) for first in (0, 1)]
    [('the subset', 3304528020), ('the subset', 690315313)]
    >>> likeness(["of one's own"])
    ('', 0)
    """
    if isinstance(dataset, Subset):
        return "the subset", _checksum(np.asarray(dataset.indices[:MOST])) ^ likeness(dataset.dataset)[1]
    if isinstance(dataset, ConcatDataset):
        parts: list[Any] = dataset.datasets
        return likeness(next(part for part in parts if len(part)))
    if isinstance(dataset, TensorDataset):
        return likeness(dataset.tensors[0])
    if isinstance(dataset, torch.Tensor | np.ndarray):
        return "sample 0", _checksum(dataset[0])
    kind = getattr(sys.modules.get("datasets"), "Dataset", ())  # Hugging Face's, if anybody has imported them
    if isinstance(dataset, kind):
        return "sample 0", zlib.crc32(repr(dataset.with_format("arrow")[0].to_pydict()).encode())
    return "", 0


def _checksum(row: Any) -> int:
    """Return a checksum of a few numbers, to three digits: processors may round the last ones differently."""
    if isinstance(row, torch.Tensor):
        row = row.detach().to_dense().reshape(-1)[:MOST].tolist()  # not by numpy, which has no bfloat16
    numbers = np.ravel(row)[:MOST]
    if numbers.dtype.kind not in "biufc":  # objects may print their address
        return 0
    return zlib.crc32(" ".join(f"{number:.3g}" for number in numbers.tolist()).encode())
