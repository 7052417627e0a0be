"""Samples that travel between runs: pickled by one, yielded by another, on whichever rank.

One that cannot be pickled stays where it is, and a run that needs it asks the dataset for its number once more.
"""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

StoredSample = tuple[bytes | None, Any]
"""A sample's pickle, or None if it cannot be pickled; and its number in the dataset."""


def store_sample(item: Any, index: Any) -> StoredSample:
    try:
        # clones: of a view, the whole tensor would be written
        return pickle.dumps(convert_tensors(item, lambda part: part.detach().cpu().clone())), index
    except Exception:  # whatever the item's own class raises
        return None, index


def restore_sample(stored: StoredSample, load_item: Callable[[Any], Any]) -> Any:
    """Return the sample that was stored; one that only has a number is loaded."""
    content, index = stored
    return load_item(index) if content is None else pickle.loads(content)  # in a folder that nobody else writes to


def iter_tensors(item: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of an item, and its arrays as tensors, by their path."""
    if isinstance(item, torch.Tensor):
        yield path, item
    elif isinstance(item, np.ndarray) and item.dtype.kind in "fiub":
        yield path, torch.from_numpy(np.ascontiguousarray(item))
    elif isinstance(item, Mapping | list | tuple):
        for name, part in item.items() if isinstance(item, Mapping) else enumerate(item):
            yield from iter_tensors(part, f"{path}.{name}" if path else str(name))
    else:
        attributes = getattr(item, "__dict__", {}).items()
        known = {name: part for name, part in attributes if isinstance(part, torch.Tensor | np.ndarray)}
        if known:
            yield from iter_tensors(known, path)


def part_sizes(item: Any) -> dict[str, int]:
    """Return the sizes of an item's parts: all values, and those that a loss may count.

    >>> part_sizes({"labels": torch.tensor([-100, 5, 7])})
    {'labels': 3, 'labels that count': 2}
    """
    found = {}
    for where, tensor in iter_tensors(item):
        if tensor.dim() == 0:
            continue
        path = f"part {where}" if where.isdigit() else where or "a sample"
        found[path] = tensor.numel()
        if tensor.numel() and bool(((tensor == 0) | (tensor == 1)).all()):
            found[f"{path} that are 1"] = int((tensor == 1).sum())
        elif not tensor.is_floating_point():
            # -100 is the label that losses ignore
            found[f"{path} that count"] = int((tensor != -100).sum())
    return found


def digest(item: Any, index: Any = None) -> int:
    """Return a checksum of an item's content; where it cannot be read, of its number in the dataset."""
    if isinstance(item, torch.Tensor):
        values = item.detach().cpu().contiguous().view(-1)
        return zlib.crc32(values.view(torch.uint8).numpy().tobytes() if values.numel() else b"")
    if isinstance(item, np.ndarray) and item.dtype != object:
        return zlib.crc32(item.tobytes())
    if isinstance(item, Mapping | list | tuple):
        parts = [part for pair in item.items() for part in pair] if isinstance(item, Mapping) else item
        return zlib.crc32(json.dumps([type(item).__name__, *(digest(part, index) for part in parts)]).encode())
    try:
        return zlib.crc32(pickle.dumps(item))
    except Exception:  # whatever the item's own class raises
        return zlib.crc32(repr(index).encode())


def count_rows(batch: Any) -> int | None:
    """Return the samples of a batch: the first axis of its first tensor; None if there is no tensor in it."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else None
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((rows for part in parts if (rows := count_rows(part)) is not None), None)


def convert_tensors(batch: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a batch whose tensors are changed, wherever they lie."""
    if isinstance(batch, torch.Tensor):
        return convert(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(convert_tensors(part, convert) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(convert_tensors(part, convert) for part in batch)
    if isinstance(batch, Mapping):
        new = batch.copy() if hasattr(batch, "copy") else dict(batch)
        for name, part in batch.items():
            new[name] = convert_tensors(part, convert)
        return new
    return batch
