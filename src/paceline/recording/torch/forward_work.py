"""Samples and work of a forward pass: the cost that a loader states, or else the size of its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_stated: list[float] = []
"""Work that a loader stated for the forward pass that begins: one number, or none."""


def state_work(work: float) -> None:
    """State the cost of the samples of the forward pass that begins now, in this process, for the recorder."""
    _stated[:] = [work]


def work_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """Return the work of a forward pass with these arguments: as the loader stated it, or their elements.

    Examples
    --------
    >>> import torch
    >>> state_work(3.5)
    >>> work_of((torch.zeros(4, 100),), {}), work_of((torch.zeros(4, 100),), {})
    (3.5, 400.0)
    """
    return _stated.pop() if _stated else elements_of(args, kwargs)


def elements_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """Return how many elements the tensors among these arguments have together; NaN if there is none.

    They are a stand-in for cost: of text padded tokens, of images pixels, of graphs nodes and edges, each times what is
    known of it.

    >>> import torch
    >>> elements_of((), {"tokens": torch.zeros(4, 100), "mask": torch.zeros(4, 100)})
    800.0
    """
    sizes = [_elements(shape) for shape in shapes_in([*args, *kwargs.values()])]
    return float(sum(sizes)) if sizes else float("nan")


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for length in shape:
        count *= int(length)
    return count


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
