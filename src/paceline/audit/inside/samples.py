"""Samples that travel between runs: written by one, yielded by another, on whichever rank.

Tensors, arrays, numbers and texts in lists, tuples and dictionaries are written as they are, other objects as pickles.
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

PICKLE_KEY = "pickle"


class UnserializableError(TypeError):
    """An object that cannot be written safely."""


def serialize(item: Any) -> Any:
    """Return an item as tensors, plain values, lists and dictionaries.

    >>> serialize((1, {"x": np.array([2.0])}))
    {'tuple': [1, {'dict': [['x', {'array': tensor([2.], dtype=torch.float64)}]]}]}
    """
    if isinstance(item, torch.Tensor):
        return item.detach().cpu().clone()  # not a view: torch writes the whole storage
    if isinstance(item, np.ndarray | np.generic) and item.dtype.kind in "fiub":
        return {"array": torch.from_numpy(np.ascontiguousarray(item))}
    if type(item) in (int, float, bool, str, type(None)):
        return item
    if type(item) is bytes:
        return {"bytes": list(item)}
    if type(item) in (list, tuple):
        return {type(item).__name__: [serialize(part) for part in item]}
    if type(item) is dict:
        return {"dict": [[serialize(name), serialize(part)] for name, part in item.items()]}
    raise UnserializableError(type(item).__name__)


def serialize_any(item: Any, index: Any) -> Any:
    """Return an item as it can be written to a file, whatever it is."""
    try:
        return serialize(item)
    except UnserializableError:
        try:
            content = torch.frombuffer(bytearray(pickle.dumps(item)), dtype=torch.uint8)
        except Exception:  # whatever the item's own class raises
            return {"number in the dataset": index}
    parts = getattr(item, "__dict__", {}).items()
    shown = {str(name): part for name, part in parts if isinstance(part, torch.Tensor | np.ndarray)}
    try:
        return {PICKLE_KEY: [content, serialize(shown)]}
    except UnserializableError:
        return {PICKLE_KEY: [content, None]}


def deserialize(serialized: Any, load_item: Callable[[Any], Any] | None = None) -> Any:
    """Return the item that :func:`serialize` made this of; one that only has a number is loaded."""
    if not isinstance(serialized, dict):
        return serialized.clone() if isinstance(serialized, torch.Tensor) else serialized
    ((kind, value),) = serialized.items()
    if kind == "array":
        return value.numpy().copy()[()]
    if kind == "bytes":
        return bytes(value)
    if kind == "number in the dataset":
        assert load_item is not None
        return load_item(value)
    if kind == PICKLE_KEY:  # of the user's own sample, in a folder that nobody else writes to
        return pickle.loads(value[0].numpy().tobytes())
    if kind == "dict":
        return {deserialize(name): deserialize(part, load_item) for name, part in value}
    parts = [deserialize(part, load_item) for part in value]
    return parts if kind == "list" else tuple(parts)


def iter_tensors(serialized: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a written item, by their path."""
    if isinstance(serialized, torch.Tensor):
        yield path, serialized
    elif isinstance(serialized, int | float):
        yield path, torch.tensor(serialized)
    elif isinstance(serialized, dict):
        ((kind, value),) = serialized.items()
        if kind == PICKLE_KEY:
            yield from iter_tensors(value[1], path)
            return
        parts = value if kind == "dict" else enumerate(value if isinstance(value, list) else [value])
        for name, part in parts:
            yield from iter_tensors(part, f"{path}.{name}" if path else str(name))


def part_sizes(serialized: Any) -> dict[str, int]:
    """Return the sizes of an item's parts: all values, and those that a loss may count.

    >>> part_sizes(serialize({"labels": torch.tensor([-100, 5, 7])}))
    {'labels': 3, 'labels that count': 2}
    """
    found = {}
    for where, tensor in iter_tensors(serialized):
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


def digest(serialized: Any) -> int:
    """Return a checksum of an item's content."""
    if isinstance(serialized, torch.Tensor):
        return zlib.crc32(
            serialized.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if serialized.numel() else b""
        )
    if isinstance(serialized, dict):
        ((kind, value),) = serialized.items()
        parts = value if isinstance(value, list) else [value]
        flat = [part for pair in parts for part in pair] if kind == "dict" else parts
        return zlib.crc32(json.dumps([kind, *map(digest, flat)]).encode())
    return zlib.crc32(repr(serialized).encode())


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
