"""How far the clocks of two hosts are apart, by asking for the time there and back, as NTP does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class ClockOffset(NamedTuple):
    """How far this host's clock is ahead of the other's: the truth lies within the error on either side."""

    offset_seconds: float
    error_seconds: float


def clock_offset(ask: Callable[[], float], *, rounds: int = 8, clock: Callable[[], float] = time.time) -> ClockOffset:
    """Estimate how far this host's clock is ahead of another's.

    Whatever the other answers was true at some moment between asking and hearing: the middle of the two is at most
    half of the round trip off, so the quickest of several round trips is believed.

    Parameters
    ----------
    ask
        Returns the other's time, in seconds since 1970.
    rounds
        How often to ask.
    clock
        This host's time.

    Raises
    ------
    ValueError
        If it is not to be asked at all.

    Examples
    --------
    The other's clock is 5 s behind; the way there takes 0.2 s, the way back 0.4 s:

    >>> now = iter([100.0, 100.6])
    >>> clock_offset(lambda: 100.2 - 5, rounds=1, clock=lambda: next(now))
    ClockOffset(offset_seconds=5.1, error_seconds=0.3)
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    best = ClockOffset(0.0, float("inf"))
    for _ in range(rounds):
        asked = clock()
        other = ask()
        heard = clock()
        if (heard - asked) / 2 < best.error_seconds:
            best = ClockOffset(round((asked + heard) / 2 - other, 9), round((heard - asked) / 2, 9))
    return best
