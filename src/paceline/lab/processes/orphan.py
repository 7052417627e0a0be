"""Processes that end when their parent ends, however it ends."""

import os
import select
import sys
import threading


def die_with_parent() -> None:
    """End this process as soon as its standard input is closed.

    The parent holds that input open, and the kernel closes it even if the parent is killed.
    """
    closed = select.poll()
    closed.register(sys.stdin, select.POLLHUP)
    if closed.poll(0):  # the parent may have been killed already, and C++ code may block the thread
        os._exit(1)
    threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)
