"""Run one step of training.py in a process of its own: nothing before it has filled memory or imported a library.

Run by :func:`alone` as ``python training_alone.py FILE FUNCTION ARGUMENTS``.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Found = dict[str, Any]
"""What a step measured: numbers, texts, and lists of these, as JSON keeps them."""


class Clock:
    """Seconds since it was made: by the wall, and of this process's processor time.

    Other work on the machine changes the second less.
    """

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def __call__(self) -> list[float]:
        """Return both."""
        return [time.perf_counter() - self._wall, time.process_time() - self._processor]


def peak() -> int:
    """Return the most bytes that this process has held."""
    status = Path("/proc/self/status").read_text()  # not getrusage: its peak includes that of the process that forked
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def alone(function: Callable[..., Found], **arguments: object) -> Found:
    """Call a function of one of these files in a process of its own, and return what it found."""
    command = [sys.executable, __file__, function.__module__, function.__name__, json.dumps(arguments)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    file, name, given = sys.argv[1:]
    print(json.dumps(getattr(importlib.import_module(file), name)(**json.loads(given))))
