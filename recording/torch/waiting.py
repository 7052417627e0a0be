"""The one place that knows when this process waits for other processes: inside a collective.

Where a process waits cannot be listed call by call: a broadcast of buffers, synchronised batch normalisation, tensor
parallelism and gathered losses all wait somewhere inside forward or backward. All of them end up in a handful of
functions of torch, and these are timed for as long as somebody listens.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol

import torch

WAITS = (
    ("torch._C._distributed_c10d", "Work", "wait"),  # where every collective of torch.distributed blocks
    ("torch.distributed", None, "_broadcast_coalesced"),  # buffers of DistributedDataParallel: it blocks inside C++
    ("torch.distributed._functional_collectives", None, "wait_tensor"),  # tensor parallelism, as it is run eagerly
)
"""Where torch blocks: module, class or None, and name. They are no public names of torch; a test holds that they
exist in the tested version, and where one is missing its waiting counts as own time, as it did without it."""


class Listener(Protocol):
    """Who wants to know when the training thread waits."""

    def wait_begins(self) -> None:
        """The process starts to wait for others."""
        ...

    def wait_ends(self) -> None:
        """It goes on."""
        ...


_lock = threading.Lock()
_listeners: list[tuple[weakref.ref[Listener], int]] = []
_originals: dict[tuple[str, str | None, str], Callable[..., Any]] = {}
_inside = threading.local()


def listen(listener: Listener) -> Callable[[], None]:
    """Tell a listener from now on when the thread that calls this waits, which trains; return what ends it.

    The listener is held weakly: what measures a model must not outlive it.
    Waiting of other threads, such as one that writes checkpoints, is not told: it delays nobody.

    Examples
    --------
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> class Counting:
    ...     waits = 0
    ...     def wait_begins(self):
    ...         self.waits += 1
    ...     def wait_ends(self):
    ...         pass
    >>> counting = Counting()
    >>> stop = listen(counting)
    >>> dist.barrier()
    >>> stop()
    >>> dist.barrier()
    >>> counting.waits
    1
    >>> dist.destroy_process_group()
    """
    with _lock:
        if not _listeners:
            _replace()
        known = (weakref.ref(listener), threading.get_ident())
        _listeners.append(known)

    def stop() -> None:
        with _lock:
            rest = [other for other in _listeners if other is not known]
            if _listeners and not rest:
                _restore()
            _listeners[:] = rest

    return stop


@contextmanager
def unheard() -> Iterator[None]:
    """Wait without telling the listeners: for collectives of ours, which are no part of the training."""
    before = getattr(_inside, "depth", 0)
    _inside.depth = before + 1
    try:
        yield
    finally:
        _inside.depth = before


def _replace() -> None:
    for place in WAITS:
        holder = _holder(place)
        if holder is not None and hasattr(holder, place[2]):
            _originals[place] = getattr(holder, place[2])
            setattr(holder, place[2], _timed(_originals[place]))


def _restore() -> None:
    for place, original in _originals.items():
        setattr(_holder(place), place[2], original)
    _originals.clear()


def _holder(place: tuple[str, str | None, str]) -> Any:
    try:
        module = import_module(place[0])
    except ImportError:
        return None
    return module if place[1] is None else getattr(module, place[1], None)


def _timed(wait: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(wait)
    def timed(*args: Any, **named: Any) -> Any:
        # One wait may be made of others: the outermost counts.
        if getattr(_inside, "depth", 0) or not (listeners := _told_here()):
            return wait(*args, **named)
        with unheard():
            for listener in listeners:
                listener.wait_begins()
            try:
                return wait(*args, **named)
            finally:
                for listener in listeners:
                    listener.wait_ends()

    return timed


def _told_here() -> list[Listener]:
    """Return those whose training this thread runs."""
    here = threading.get_ident()
    told = [known for known, trains in _listeners if trains == here]
    # The backward pass of a CUDA device runs in a thread of torch's own, of which Python knows no more than that.
    if not told and isinstance(threading.current_thread(), threading._DummyThread) and torch.cuda.is_initialized():
        told = [known for known, _ in _listeners]
    return [listener for known in told if (listener := known()) is not None]
