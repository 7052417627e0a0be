"""Detection of waits for other processes: a process waits while it is inside a collective.

The calls that wait cannot be listed one by one: a broadcast of buffers, synchronized batch normalization, tensor
parallelism and gathered losses all wait somewhere inside the forward or backward pass. All of them end in a few
functions of torch, which are wrapped while there is a listener.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pkgutil import resolve_name
from typing import Any, Protocol

import torch

BLOCKING_CALLS = (
    ("torch._C._distributed_c10d:Work", "wait"),  # where every collective of torch.distributed blocks
    ("torch.distributed", "_broadcast_coalesced"),  # buffers of DistributedDataParallel: it blocks inside C++
    ("torch.distributed._functional_collectives", "wait_tensor"),  # tensor parallelism in eager mode
)
"""Calls in which torch blocks: module or class, and name. The names are private to torch. A test waits in these ways in
the tested version; if a name is missing, its waiting counts as the worker's busy time."""

GATHER_CALLS = (
    ("torch._C._distributed_c10d:ProcessGroup", "allgather"),
    ("torch._C._distributed_c10d:ProcessGroup", "all_gather_single"),
    ("torch._C._distributed_c10d:ProcessGroup", "_allgather_base"),  # its name in older versions
    ("torch._C._distributed_c10d:ProcessGroup", "gather"),
)
"""Calls that gather the tensors of all ranks, in the same form; a call that this torch lacks is not checked."""

BeforeGather = Callable[[Any, Any], None]
"""Called with the process group and this rank's tensor."""


class WaitListener(Protocol):
    """An object that is notified when the training thread waits."""

    def wait_begins(self) -> None:
        """Note that the process starts to wait for others."""

    def wait_ends(self) -> None:
        """Note that the wait is over."""


_listeners_lock = threading.Lock()
_listeners: list[tuple[weakref.ref[WaitListener], int, BeforeGather | None]] = []
_originals: list[tuple[Any, str, Callable[..., Any]]] = []
_thread_state = threading.local()


def listen(listener: WaitListener, before_gather: BeforeGather | None = None) -> Callable[[], None]:
    """Notify a listener whenever the calling thread, the one that trains, waits; return a function that ends this.

    The listener is held weakly, so that measuring a model does not keep it alive. Waits of other threads, such as one
    that writes checkpoints, are not reported, because they delay no training. ``before_gather``, which must not hold
    the listener, is called before tensors of all ranks are gathered; an error in it keeps them from being so.
    """
    # The functions are wrapped only while somebody listens, so that an unrecorded process runs torch unchanged.
    with _listeners_lock:
        if not _listeners:
            _wrap_calls()
        known = (weakref.ref(listener), threading.get_ident(), before_gather)
        _listeners.append(known)

    def stop() -> None:
        with _listeners_lock:
            rest = [other for other in _listeners if other is not known]
            if _listeners and not rest:
                _restore_calls()
            _listeners[:] = rest

    return stop


@contextmanager
def without_listeners() -> Iterator[None]:
    """Wait without notifying the listeners: for this library's own collectives, which are not part of the training."""
    _thread_state.depth = getattr(_thread_state, "depth", 0) + 1
    try:
        yield
    finally:
        _thread_state.depth -= 1


def _wrap_calls() -> None:
    for wrapped, calls in ((_notify_listeners, BLOCKING_CALLS), (_check_before_gather, GATHER_CALLS)):
        for owner_name, name in calls:
            with suppress(ImportError, AttributeError):  # this torch lacks it
                owner = resolve_name(owner_name)
                # Not `getattr`: of a method in C++ it returns the function, which would not be bound once restored.
                original = inspect.getattr_static(owner, name)
                setattr(owner, name, wrapped(original))
                _originals.append((owner, name, original))


def _restore_calls() -> None:
    for owner, name, original in _originals:
        setattr(owner, name, original)
    _originals.clear()


def _notify_listeners(wait_function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(wait_function)
    def notifying_wait(*args: Any, **kwargs: Any) -> Any:
        # A wait may contain other waits; only the outermost counts.
        if getattr(_thread_state, "depth", 0) or not (listeners := _active_listeners()):
            return wait_function(*args, **kwargs)
        with without_listeners():
            for listener in listeners:
                listener.wait_begins()
            try:
                return wait_function(*args, **kwargs)
            finally:
                for listener in listeners:
                    listener.wait_ends()

    return notifying_wait


def _check_before_gather(gather_function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(gather_function)
    def checked_gather(group: Any, *args: Any, **kwargs: Any) -> Any:
        # torch itself gives outputs and inputs by position; whoever names them gathers as without us.
        if len(args) > 1 and not getattr(_thread_state, "depth", 0):
            inputs = args[1]
            here = threading.get_ident()
            for check in [check for _, trains, check in _listeners if check and trains == here]:
                with without_listeners():
                    check(group, inputs[0] if isinstance(inputs, list) else inputs)
        return gather_function(group, *args, **kwargs)

    return checked_gather


def _active_listeners() -> list[WaitListener]:
    here = threading.get_ident()
    active = [known for known, trains, _ in _listeners if trains == here]
    # The backward pass on a CUDA device runs in a thread that torch made, and Python shows such threads as dummies.
    if not active and isinstance(threading.current_thread(), threading._DummyThread) and torch.cuda.is_initialized():
        active = [known for known, *_ in _listeners]
    return [listener for known in active if (listener := known()) is not None]


class FSDPWaits:
    """Notifies a listener of the waits of every module that ``fully_shard`` was given before.

    It is notified in the thread that waits, which is one of torch's own in the backward pass. Waits may lie inside
    waits that it learns of elsewhere: only the outermost count.
    """

    def __init__(self, model: torch.nn.Module, listener: WaitListener) -> None:
        # hooks of different kinds get different arguments
        self._begins: Callable[..., None] = lambda *_: listener.wait_begins()
        self._ends: Callable[..., None] = lambda *_: listener.wait_ends()
        self._is_callback_queued = False
        kind = getattr(torch.distributed.fsdp, "FSDPModule", ())
        self._handles: list[Any] = []
        for module in model.modules():
            if isinstance(module, kind):
                self._handles += [
                    module.register_forward_pre_hook(self._begins, prepend=True),
                    module.register_forward_pre_hook(self._after_unshard, with_kwargs=True),
                    module.register_forward_hook(self._after_forward, prepend=True),
                ]

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _after_unshard(self, _: Any, args: Any, kwargs: Any) -> None:
        self._ends()
        for tensor in _iter_tensors((args, kwargs)):
            # FSDP2 scatters a module's gradients at the end of this node
            if tensor.grad_fn is not None and type(tensor.grad_fn).__name__ == "RegisterPostBackwardFunctionBackward":
                tensor.grad_fn.register_prehook(self._begins)
                tensor.grad_fn.register_hook(self._ends)
                return

    def _after_forward(self, _: Any, args: Any, output: Any) -> None:
        # The hook of the gradient comes before FSDP2's own, that of the node after it.
        for tensor in _iter_tensors(output):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(self._before_backward)
                tensor.grad_fn.register_prehook(self._ends)

    def _before_backward(self, _: Any) -> None:
        if not self._is_callback_queued:  # before FSDP2's own callback, in which it waits for the last gradients
            self._is_callback_queued = True
            queue_callback(self._before_final_wait)
        self._begins()

    def _before_final_wait(self) -> None:
        self._begins()
        queue_callback(self._after_final_wait)  # behind those of all modules: they are queued by now

    def _after_final_wait(self) -> None:
        self._is_callback_queued = False
        self._ends()


def queue_callback(callback: Callable[[], None]) -> None:
    """Call a function at the end of the current backward pass."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def _iter_tensors(values: Any) -> Iterator[torch.Tensor]:
    return (value for value in torch.utils._pytree.tree_leaves(values) if isinstance(value, torch.Tensor))
