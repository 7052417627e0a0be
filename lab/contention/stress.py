"""stress-ng as a competitor, if it is installed: one instance, continued and stopped by signals."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

STRESSORS = {
    "stress-ng-cpu": ("--cpu", "1"),
    "stress-ng-memory": ("--stream", "1"),
    "stress-ng-disk": ("--hdd", "1", "--hdd-bytes", "16m", "--temp-path", "/var/tmp"),
}
"""Arguments of stress-ng for each kind of competitor."""

SETTLE_SECONDS = 0.3
"""Seconds that stress-ng gets to start its child processes before it is stopped."""


@contextmanager
def stress_ng(kind: str) -> Iterator[Stressor]:
    """Start stress-ng in the stopped state; it ends with the block.

    Raises
    ------
    FileNotFoundError
        If stress-ng is not installed.
    """
    if shutil.which("stress-ng") is None:
        raise FileNotFoundError(f"competitors of the kind {kind!r} need stress-ng, which is not installed")
    stressor = Stressor(subprocess.Popen(["stress-ng", *STRESSORS[kind]], stdout=subprocess.DEVNULL))
    try:
        time.sleep(SETTLE_SECONDS)
        stressor.signal(signal.SIGSTOP)
        yield stressor
    finally:
        stressor.end()


class Stressor:
    """A running stress-ng and the processes that it started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def compete(self, spans: Sequence[tuple[float, float]]) -> None:
        """Let stress-ng run during the spans, in seconds from now, and stop it between them."""
        begin = time.monotonic()
        for start, stop in spans:
            time.sleep(max(0.0, begin + start - time.monotonic()))
            self.signal(signal.SIGCONT)
            time.sleep(max(0.0, begin + stop - time.monotonic()))
            self.signal(signal.SIGSTOP)

    def signal(self, number: int) -> None:
        """Send a signal to all processes of stress-ng, children before parents."""
        for pid in reversed(_family(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self) -> None:
        """End all processes of stress-ng at once."""
        # Parents first: a running parent would restart its children.
        family = _family(self._process.pid)
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


def _family(pid: int) -> list[int]:
    # Return a process and its descendants, parents before children.
    children: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += map(int, listed.read_text().split())
    return [pid, *(one for child in children for one in _family(child))]
