"""The measured columns of a trace, in memory and in files, and the units of time that files give them."""

from __future__ import annotations

COLUMNS = ("samples", "seconds", "comm_seconds", "wait_seconds", "start")
"""The measured columns, in the order of storage; the last three are optional."""

WORK = "work"
"""A further optional one: what a worker's samples cost."""

MEASURED = (*COLUMNS, WORK)

LARGEST = 1e15
"""Largest measured value (in seconds 30 million years): what is larger is an error, and no sum of it overflows."""

UNITS = {
    "samples": "samples",
    "seconds": "s",
    "comm_seconds": "s",
    "wait_seconds": "s",
    "start": "s since 1970-01-01 UTC",
    WORK: "any, the same for all workers",
}

TIMES = {
    **dict.fromkeys(("ns", "nsec", "nanoseconds"), 1e-9),
    **dict.fromkeys(("us", "usec", "microseconds"), 1e-6),
    **dict.fromkeys(("ms", "msec", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "seconds"), 1.0),
    **dict.fromkeys(("min", "minutes"), 60.0),
    **dict.fromkeys(("h", "hours"), 3600.0),
}
"""Seconds of each unit."""


def seconds_of(unit: str) -> float:
    """Return how many seconds one of this unit is.

    Raises
    ------
    ValueError
        If it is not a unit of time.

    Examples
    --------
    >>> seconds_of("ms")
    0.001
    """
    if unit not in TIMES:
        raise ValueError(f"unit must be one of {list(TIMES)}, got {unit!r}")
    return TIMES[unit]
