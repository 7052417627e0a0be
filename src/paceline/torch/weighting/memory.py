"""Places of tensors in memory, by which a batch is recognised in a model's inputs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import torch

Place = tuple[int, int, "weakref.ref[torch.Tensor]", "weakref.ref[torch.Tensor]"]
"""Place of a tensor: its first and last byte, weak references to the owner of that memory and to the tensor."""


def places_of(tensors: Iterable[torch.Tensor]) -> list[Place]:
    """Return the places in memory of those tensors that have one; the memory of a view belongs to its base."""
    places: list[Place] = []
    for tensor in tensors:
        try:
            begin = tensor.data_ptr()
        except RuntimeError:  # as sparse ones
            continue
        if begin:
            extent = tensor.numel()
            if not tensor.is_contiguous():
                extent = 1
                for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
                    extent += (length - 1) * stride
            owner = tensor if tensor._base is None else tensor._base
            end = begin + extent * tensor.element_size()
            places.append((begin, end, weakref.ref(owner), weakref.ref(tensor)))
    return places


def address_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor in memory; 0 if it has none, as a sparse or an empty one."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def lies_in(places: Sequence[Place], address: int) -> bool:
    """Return whether an address lies in one of these places, of a tensor that still exists."""
    for begin, end, owner, _ in places:  # noqa: SIM110 - each step of a generator costs as much as a call
        if begin <= address < end and owner() is not None:
            return True
    return False
