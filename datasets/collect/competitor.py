"""A competitor: a process that takes CPU time from the worker beside it, when the plan says so."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from paceline.datasets.collect.limits import Place
from paceline.datasets.collect.orphan import die_with_parent

BYTES = 1 << 24  # more than a core's own cache holds


def counting() -> Callable[[], object]:
    """Return a piece of work that keeps a core busy for some 0.1 ms."""
    return lambda: sum(range(5_000))


def streaming() -> Callable[[], object]:
    """Return a piece of work that moves some megabytes through memory."""
    source, target = np.ones(BYTES, dtype=np.uint8), np.empty(BYTES, dtype=np.uint8)
    return lambda: np.copyto(target, source)


KINDS = {"cpu": counting, "memory": streaming}
"""What a competitor does while it is busy."""


def compete(spans: Sequence[tuple[float, float]], work: Callable[[], object]) -> None:
    """Work during the spans, which count in seconds from now, and sleep between them."""
    begin = time.monotonic()
    for start, stop in spans:
        time.sleep(max(0.0, begin + start - time.monotonic()))
        while time.monotonic() < begin + stop:
            work()


def main() -> None:
    """Run one competitor: the first line of the standard input is its plan, the second tells it to begin."""
    told = json.loads(sys.stdin.readline())
    work = KINDS[told["kind"]]()
    Place(**told["place"]).enter()
    sys.stdin.readline()
    die_with_parent()
    compete(told["spans"], work)
    while True:  # to end by oneself before the job does would look like a failure
        time.sleep(60)


if __name__ == "__main__":
    main()
