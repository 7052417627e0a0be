"""Callbacks that torch's threads run when gradients are summed, and that must be gone before the interpreter is.

A thread of gloo runs the callback and then lets go of it, for which it needs Python's lock. A process whose training
ended just now may be closing its interpreter by then, which ends in a crash: see :mod:`paceline._runtime`. Torch does the
same with any Python communication hook: 2 of 12 short jobs on a busy machine, without a line of ours.

A process that forks in that moment, to start a loading process, has the same problem: the thread may hold the lock of
CPython's list of threads, which nobody releases in the child. A test run hung there once.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


_held: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()


def then(
    future: torch.futures.Future[Any], callback: Callable[[torch.futures.Future[Any]], torch.Tensor]
) -> torch.futures.Future[torch.Tensor]:
    """Return ``future.then(callback)``; the process waits for torch to drop the callback before it ends or forks."""
    _held.add(callback)
    return future.then(callback)


def let_go() -> None:
    """Wait until torch's threads have dropped all callbacks."""
    # a thread lets go within microseconds, or never where it waits for a lost rank
    latest = time.monotonic() + 2.0
    while len(_held) and time.monotonic() < latest:
        time.sleep(0.0005)  # gives Python's lock to whoever wants it


atexit.register(let_go)  # runs before the interpreter begins to close
if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(before=let_go)
