"""Numbers for narrow tables: three digits and a unit, ``-`` if unknown."""

from __future__ import annotations

import numpy as np

from paceline import _wording


def time(seconds: float) -> str:
    """Return a time with its unit.

    >>> time(0.0414), time(95), time(700), time(90_000), time(float("nan"))
    ('41.4 ms', '95 s', '11.7 min', '25 h', '-')
    """
    if not np.isfinite(seconds):
        return "-"
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return _wording.duration(seconds)


def speed(samples_a_second: float) -> str:
    """Return a speed.

    >>> speed(4.25), speed(24_144), speed(12_345_678), speed(float("nan"))
    ('4.25/s', '24,144/s', '12.3 M/s', '-')
    """
    if not np.isfinite(samples_a_second):
        return "-"
    if samples_a_second >= 1e6:
        return f"{samples_a_second / 1e6:.3g} M/s"
    return f"{samples_a_second:,.0f}/s" if samples_a_second >= 100 else f"{samples_a_second:.3g}/s"


def samples(number: float) -> str:
    """Return a number of samples.

    >>> samples(64.0), samples(123_456_789)
    ('64', '123 M')
    """
    return f"{number:.0f}" if number < 1e7 else f"{number / 1e6:.0f} M"


def percent(share: float) -> str:
    """Return a share in percent; shares above 1000 % are not shown exactly.

    >>> percent(0.034), percent(123.4), percent(float("nan"))
    ('3.4 %', '>1000 %', '-')
    """
    if not np.isfinite(share):
        return "-"
    return _wording.percent(share) if share <= 10 else ">1000 %"
