"""Hooks on a model that its copies do not carry along, and the one that sums gradients over the ranks.

This file has no ``from __future__ import annotations``: DistributedDataParallel compares the hook's annotations with
its own types, and would not accept strings.
"""

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.recording.torch.callbacks import then

ONE_HOOK = (
    "and DistributedDataParallel takes only one, which balancing needs: give yours to attach(..., hook=); an optimizer "
    "must not step within the backward pass"
)

DEEPEST = 4
"""Levels of containers and objects that are looked into for tensors."""

PLAIN = (str, bytes, int, float, complex, type(None))


class Sums(Protocol):
    """Sums the gradients of a bucket over the ranks."""

    def hook(self, bucket: Any, group: dist.ProcessGroup) -> "torch.futures.Future[torch.Tensor]":
        """Return the future of the sum."""
        ...


class Only(functools.partial[None]):
    """A hook that only one module runs: copies and pickles of the module carry it along, but it does nothing there."""

    def __new__(cls, call: Callable[..., None]) -> "Only":
        """Hide a hook from the compiler: addresses and numbers of nodes are those of the run, not of the trace."""
        return super().__new__(cls, torch.compiler.disable(call))  # an optimizer imports dynamo anyway

    def __reduce__(self) -> Any:
        """Copy and pickle as a hook that does nothing."""
        return _nothing, ()


def _nothing() -> Callable[..., None]:
    return ignored


def ignored(*arguments: Any) -> None:
    """Do nothing."""


def ddp_of(model: torch.nn.Module) -> DistributedDataParallel | None:
    """Return the model as DistributedDataParallel, also from inside ``torch.compile``; None for any other model."""
    inside = getattr(model, "_orig_mod", model)
    return inside if isinstance(inside, DistributedDataParallel) else None


def tensors_in(thing: Any, depth: int = DEEPEST) -> list[torch.Tensor]:
    """Return the tensors of a batch, or of a model's inputs or output, also inside sequences, mappings and objects.

    >>> [tensor.item() for tensor in tensors_in({"loss": torch.tensor(1), "parts": [torch.tensor(2), None]})]
    [1, 2]
    """
    if isinstance(thing, torch.Tensor):
        return [thing]
    inside: Any = ()
    if isinstance(thing, Mapping):
        inside = thing.values()
    elif isinstance(thing, (list, tuple)):
        inside = thing
    elif not isinstance(thing, (*PLAIN, torch.nn.Module, type)):
        slots = [name for kind in type(thing).__mro__ for name in vars(kind).get("__slots__", ())]
        inside = [*getattr(thing, "__dict__", {}).values(), *(getattr(thing, name, None) for name in slots)]
    found: list[torch.Tensor] = []
    for value in inside:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif depth and not isinstance(value, PLAIN):
            found += tensors_in(value, depth - 1)
    return found


CommHook = Callable[[Any], "torch.futures.Future[torch.Tensor]"]
"""A communication hook of the script with its state bound: takes a bucket, and averages it over the ranks."""


def averaging(hook: Callable[..., Any], state: object) -> CommHook:
    """Return a script's communication hook with its state bound.

    Raises
    ------
    TypeError
        If it is not a function.
    """
    if not callable(hook):
        raise TypeError(
            "hook must be a function of a state and a bucket, such as fp16_compress_hook of "
            f"torch.distributed.algorithms.ddp_comm_hooks.default_hooks, got {type(hook).__name__}"
        )

    def bound(bucket: Any) -> Any:
        return hook(state, bucket)

    return bound


def gradients_in(bucket: Any) -> list[torch.Tensor]:
    """Return the gradients in a bucket, each of its parameter's shape.

    Complex gradients lie in it as pairs of real numbers; ``bucket.gradients()`` returns only the first half of them.
    """
    parameters = bucket.parameters()
    if not parameters[0].is_complex():
        gradients: list[torch.Tensor] = bucket.gradients()
        return gradients
    flat = torch.view_as_complex(bucket.buffer().view(-1, 2))
    found, begin = [], flat.storage_offset()
    for one in parameters:
        found.append(flat.as_strided(one.shape, one.stride(), begin))
        begin += one.numel()
    return found


class _Slot:
    """The changeable part of a communication hook, because DistributedDataParallel takes one hook and never drops it.

    ``weighting`` returns the weighting of the model's gradients, or None. It refers to it weakly; other hooks of the
    model keep it alive. Python's garbage collector cannot see the cycle of a model whose hook, held by torch, holds the
    model.
    """

    def __init__(self) -> None:
        self.weighting: Callable[[], Sums | None] = _nobody


def _hook_for(slot: _Slot, group: dist.ProcessGroup) -> Callable[..., Any]:
    # A function, not a method: copying a model copies its hooks, and a method's object would bring the process group
    # along, while a function is never copied.
    def hook(
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        if (weighting := slot.weighting()) is not None:
            return weighting.hook(bucket, group)
        average = bucket.buffer().div_(group.size())  # no balance is attached any more: average as torch does
        future = group.allreduce([average]).get_future()
        return then(future, lambda arrived: arrived.value()[0])

    return hook


_slots: "weakref.WeakKeyDictionary[DistributedDataParallel, _Slot]" = weakref.WeakKeyDictionary()


def _refuse_hook(state: object, hook: object) -> None:
    raise ValueError(f"balancing has given the model a communication hook, {ONE_HOOK}")


def was_attached(ddp: DistributedDataParallel) -> bool:
    """Return whether the model is attached, or was and its balance is closed."""
    return ddp in _slots


def take_hook(ddp: DistributedDataParallel, weighting: Sums) -> None:
    """Let this weighting sum the gradients of a model.

    Raises
    ------
    ValueError
        If the model is attached already, or has a communication hook of its own.
    """
    slot = _slots.get(ddp)
    if slot is None:
        slot = _Slot()
        try:
            group: Any = ddp.process_group
            ddp.register_comm_hook(None, _hook_for(slot, group))
        except RuntimeError as error:
            raise ValueError(f"the model already has a communication hook, {ONE_HOOK}") from error
        # One of the script, or of torch for an optimizer that steps within the backward pass, comes later.
        ddp.register_comm_hook = _refuse_hook  # type: ignore[method-assign]
        _slots[ddp] = slot
    elif slot.weighting() is not None:
        raise ValueError("the model is attached already: close() that balance before attaching it again")
    slot.weighting = weakref.ref(weighting)


def drop_hook(ddp: DistributedDataParallel) -> None:
    """Let the model average plainly: DistributedDataParallel cannot drop its hook."""
    _slots[ddp].weighting = _nobody


def _nobody() -> None:
    """Return None: no weighting is attached to the model any more."""
