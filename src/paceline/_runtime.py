"""Helpers of a process: wait at exit, map calls over processes, write progress lines."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar


@cache
def wait_at_exit() -> None:
    """Let torch's threads finish before the interpreter closes. A second call changes nothing.

    A thread of gloo needs Python's lock to free the tensors that it sent. A closing interpreter ends such a thread, and
    C++ then ends the process with "terminate called without an active exception". ``destroy_process_group`` does not
    join these threads, as torch's compiler, which optimizers import, holds the group too. Without the wait about one in
    eight of the short jobs of ``tests/test_exit.py`` crashes on a busy machine; with it, none of 75.
    """
    # a thread that waits for Python's lock takes it as soon as the main thread sleeps
    atexit.register(time.sleep, 0.05)


ResultT = TypeVar("ResultT")


def map_calls(function: Callable[..., ResultT], calls: Iterable[tuple[Any, ...]]) -> list[ResultT]:
    """Return the result of each call, in order: in this process, unless ``joblib.parallel_config`` says otherwise.

    >>> map_calls(pow, [(2, 3), (3, 2)])
    [8, 9]
    """
    # Whoever configured joblib has imported it; nobody else needs it installed.
    joblib = sys.modules.get("joblib")
    if joblib is None:
        return [function(*arguments) for arguments in calls]
    results: list[ResultT] = joblib.Parallel()(joblib.delayed(function)(*arguments) for arguments in calls)
    return results


def environment_with_import_hooks(hooks: dict[str, str], **extra_variables: str) -> dict[str, str]:
    """Return an environment in which processes call a function (``package.module:function``) after an import."""
    home = Path(__file__).resolve().parent
    path = [str(home / "_startup"), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PACELINE_HOOKS": ",".join(map("=".join, hooks.items())), "PACELINE_HOME": str(home.parent)}
    return {**os.environ, **variables, **extra_variables, "PYTHONPATH": os.pathsep.join(path)}


HEARTBEAT_SECONDS = 10.0
"""Seconds between two progress lines; shorter commands write none."""


@contextmanager
def heartbeat(write_line: Callable[[str], None], activity: str) -> Iterator[Callable[[str], None]]:
    """Write a progress line every ten seconds, from a background thread: what is being done, and for how long.

    Yields a function that sets the words of the next line.
    """
    start_time, stop_event = time.monotonic(), threading.Event()

    def update(text: str) -> None:
        nonlocal activity
        activity = text

    def write_lines() -> None:
        while not stop_event.wait(HEARTBEAT_SECONDS):
            write_line(f"{activity} ({time.monotonic() - start_time:,.0f} s so far)")

    thread = threading.Thread(target=write_lines, name="paceline-heartbeat", daemon=True)
    thread.start()
    try:
        yield update
    finally:
        stop_event.set()
        thread.join()
