"""A competitor: a process that takes CPU, memory bandwidth or the disk from the worker beside it, following a plan."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import numpy as np

from paceline.lab.contention.stress import STRESSORS, stress_ng
from paceline.lab.processes.orphan import die_with_parent
from paceline.recording.place import Place

BYTES = 1 << 24  # more than a core's own cache holds


def counting() -> Callable[[], object]:
    """Return a function that keeps a core busy for about 0.1 ms."""
    return lambda: sum(range(5_000))


def streaming() -> Callable[[], object]:
    """Return a function that moves 16 MiB through memory."""
    source, target = np.ones(BYTES, dtype=np.uint8), np.empty(BYTES, dtype=np.uint8)
    return lambda: np.copyto(target, source)


def storing() -> Callable[[], object]:
    """Return a function that writes a megabyte to the disk, waits until it is there, and reads it."""
    # Not in the usual temporary folder, which is often in memory. The file has no name, so nothing is left of it.
    file = tempfile.TemporaryFile(dir="/var/tmp", buffering=0)  # noqa: SIM115 - it lives as long as the competitor
    data = bytes(1 << 20)

    def store() -> None:
        file.seek(0)
        file.write(data)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # so that reading uses the disk, not the cache
        file.seek(0)
        file.read()

    return store


KINDS: dict[str, Callable[[], Callable[[], object]]] = {"cpu": counting, "memory": streaming, "disk": storing}
"""The work of this package's own competitors, by name."""


def compete(spans: Sequence[tuple[float, float]], work: Callable[[], object]) -> None:
    """Work during the spans, in seconds from now, and sleep between them."""
    begin = time.monotonic()
    for start, stop in spans:
        time.sleep(max(0.0, begin + start - time.monotonic()))
        while time.monotonic() < begin + stop:
            work()


def main() -> None:
    """Run one competitor: the first line of the standard input is its plan, the second starts it."""
    told = json.loads(sys.stdin.readline())
    Place(**told["place"]).enter()
    if told["kind"] in STRESSORS:
        sys.stdin.readline()
        with stress_ng(told["kind"]) as stressor:
            die_with_parent(last=stressor.end)
            stressor.compete(told["spans"])
    else:
        work = KINDS[told["kind"]]()
        sys.stdin.readline()
        die_with_parent()
        compete(told["spans"], work)
    while True:  # a competitor that ended before the job would look like a failure
        time.sleep(60)


if __name__ == "__main__":
    main()
