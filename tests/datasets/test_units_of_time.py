"""Units of time, each against what its prefix says."""

from fractions import Fraction

import pytest

from paceline.datasets.units import TIMES, seconds_of

NAMES = {
    Fraction(1, 10**9): {"ns", "nsec", "nanoseconds"},
    Fraction(1, 10**6): {"us", "usec", "microseconds"},
    Fraction(1, 10**3): {"ms", "msec", "milliseconds"},
    Fraction(1): {"s", "sec", "seconds"},
    Fraction(60): {"min", "minutes"},
    Fraction(60 * 60): {"h", "hours"},
}


@pytest.mark.parametrize("seconds", NAMES)
def test_every_name_of_a_unit_stands_for_its_seconds(seconds):
    assert {name for name, held in TIMES.items() if held == float(seconds)} == NAMES[seconds]
    assert {seconds_of(name) for name in NAMES[seconds]} == {float(seconds)}


def test_there_are_no_others():
    assert len(TIMES) == sum(map(len, NAMES.values()))
    with pytest.raises(ValueError, match="days"):
        seconds_of("days")
