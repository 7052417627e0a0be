"""Processes that end when their parent ends, however it ends."""

import os
import select
import sys
import threading
from collections.abc import Callable


def die_with_parent(last: Callable[[], object] = lambda: None) -> None:
    """End this process, after a call of ``last``, as soon as its standard input is closed.

    The parent holds that input open, and the kernel closes it even if the parent is killed.
    """
    closed = select.poll()
    closed.register(sys.stdin, select.POLLHUP)
    if closed.poll(0):  # it may have been killed by now; a thread would wait for C++ that waits for others
        _end(last)
    threading.Thread(target=_watch, args=(last,), daemon=True).start()


def _watch(last: Callable[[], object]) -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    _end(last)


def _end(last: Callable[[], object]) -> None:
    last()
    os._exit(1)
