"""The ranges of the whole numbers that a predictor takes: they decide how much memory each worker needs."""

from __future__ import annotations

import numpy as np

MOST = 10_000
"""The largest window, lag or layer. A worker's state then takes at most 80 kB for each, whatever a file asks for."""


def whole(name: str, value: object, least: int, most: int = MOST) -> int:
    """Return a whole number within its range.

    Raises
    ------
    ValueError
        If it is no whole number, or out of the range; the message names it.

    Examples
    --------
    >>> whole("window", 8, least=1)
    8
    >>> whole("window", 10**10, least=1)
    Traceback (most recent call last):
    ValueError: window must be a whole number from 1 to 10000, got 10000000000
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, got {value!r}")
    return int(value)
