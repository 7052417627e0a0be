"""The number of samples in the arguments of a forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def leading_size(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """Return the length of the first tensor among the arguments, also inside lists, tuples and mappings.

    NaN if there is none.

    Examples
    --------
    >>> import torch
    >>> leading_size((), {"batch": {"pixels": torch.zeros(16, 3), "label": torch.zeros(16)}})
    16.0
    """
    shape = next(shapes_in([*args, *kwargs.values()]), None)
    return float(shape[0]) if shape else float("nan")


def shapes_in(values: Sequence[Any]) -> Iterator[Sequence[int]]:
    """Yield the shapes of tensors, also inside lists, tuples and mappings; numbers have none."""
    for value in values:
        if isinstance(value, Mapping):
            yield from shapes_in(list(value.values()))
        elif isinstance(value, (list, tuple)):
            yield from shapes_in(value)
        elif hasattr(value, "shape") and len(value.shape):
            yield value.shape
