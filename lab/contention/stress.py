"""stress-ng as a competitor, where it is installed: one process of it, run and held still by signals."""

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
"""What stress-ng is asked for, by the name of the kind of competitor."""

SETTLE_SECONDS = 0.3
"""So long stress-ng is given to start its own processes before it is held still."""


@contextmanager
def stress_ng(kind: str) -> Iterator[Stressor]:
    """Start stress-ng, held still; it is ended with the block.

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
        """Let it run during the spans, which count in seconds from now, and hold it still between them."""
        begin = time.monotonic()
        for start, stop in spans:
            time.sleep(max(0.0, begin + start - time.monotonic()))
            self.signal(signal.SIGCONT)
            time.sleep(max(0.0, begin + stop - time.monotonic()))
            self.signal(signal.SIGSTOP)

    def signal(self, number: int) -> None:
        """Send a signal to each of its processes, the youngest first."""
        for pid in reversed(_family(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self) -> None:
        """End all of its processes at once."""
        # The children last: those of a parent that runs would be started anew.
        family = _family(self._process.pid)
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


def _family(pid: int) -> list[int]:
    # A process and its descendants, parents before children.
    children: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += map(int, listed.read_text().split())
    return [pid, *(one for child in children for one in _family(child))]
