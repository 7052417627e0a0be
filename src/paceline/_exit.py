"""Let torch's threads finish before the interpreter closes.

A thread of gloo that has sent a message lets go of its tensors, for which it needs Python's lock. A process whose
training ended just now may be closing its interpreter by then. Python ends such a thread where it stands, and C++ ends
the process: "terminate called without an active exception", with the work done and the exit status of a crash.
``destroy_process_group`` joins these threads only if nothing else holds the group, and torch's own compiler, which
optimizers import, does. Without the wait about one in eight of the short jobs of ``tests/test_exit.py`` crashes on a
busy machine; with it, none of 75.
"""

from __future__ import annotations

import atexit
import time
from functools import cache


@cache
def wait_at_exit() -> None:
    """Have this process wait a moment before its interpreter closes. A second call changes nothing."""
    # a thread that waits for Python's lock takes it as soon as the main thread sleeps
    atexit.register(time.sleep, 0.05)
