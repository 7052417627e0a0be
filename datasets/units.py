"""Units of time, by the names that files give them."""

from __future__ import annotations

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
