"""Rows of batches that torch's ``default_collate`` made: cut out, and joined to other batches."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from copy import copy
from itertools import groupby
from typing import Any

import torch


def runs(places: Sequence[tuple[Any, int]]) -> list[tuple[Any, slice]]:
    """Return the chunks that these rows lie in, with the slice of each.

    >>> first, second = ["a", "b", "c"], ["d", "e"]
    >>> runs([(first, 1), (first, 2), (second, 0)])
    [(['a', 'b', 'c'], slice(1, 3, None)), (['d', 'e'], slice(0, 1, None))]
    """
    numbered = [(chunk, row, row - index) for index, (chunk, row) in enumerate(places)]
    groups = [list(group) for _, group in groupby(numbered, key=lambda place: (id(place[0]), place[2]))]
    return [(group[0][0], slice(group[0][1], group[-1][1] + 1)) for group in groups]


def cut(batch: Any, rows: slice) -> Any:
    """Return these rows of a batch.

    >>> cut({"image": torch.arange(4), "name": ["a", "b", "c", "d"]}, slice(1, 3))
    {'image': tensor([1, 2]), 'name': ['b', 'c']}
    """
    if isinstance(batch, torch.Tensor) or _is_text(batch):
        return batch[rows]
    if isinstance(batch, Mapping):
        return _mapping_like(batch, {key: cut(value, rows) for key, value in batch.items()})
    return _sequence_like(batch, [cut(value, rows) for value in batch])


def joined(batches: Sequence[Any]) -> Any:
    """Join batches.

    >>> joined([[torch.tensor([1]), ["a"]], [torch.tensor([2, 3]), ["b", "c"]]])
    [tensor([1, 2, 3]), ['a', 'b', 'c']]
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return torch.cat(list(batches))
    if _is_text(first):
        return type(first)([text for batch in batches for text in batch])
    if isinstance(first, Mapping):
        return _mapping_like(first, {key: joined([batch[key] for batch in batches]) for key in first})
    return _sequence_like(first, [joined(parts) for parts in zip(*batches, strict=True)])


def _is_text(batch: Any) -> bool:
    """Texts are not stacked: a batch of them is a list."""
    return isinstance(batch, Sequence) and len(batch) > 0 and isinstance(batch[0], str | bytes)


def _mapping_like(original: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    """Return the parts in a mapping of the original's kind, with whatever else that holds, as torch does."""
    if type(original) is dict:
        return parts
    if not isinstance(original, MutableMapping):
        return type(original)(parts)  # type: ignore[call-arg]  # made of a dict, as torch made it
    alike = copy(original)
    alike.update(parts)
    return alike


def _sequence_like(original: Any, parts: list[Any]) -> Any:
    """Return the parts in a sequence of the original's kind; a named tuple wants them one by one."""
    kind = type(original)
    return kind(*parts) if hasattr(original, "_fields") else kind(parts)
