"""The offset of a clock is told to the nanosecond, by the fastest of its rounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.recording.clock_offset import clock_offset

MOMENTS = st.lists(
    st.tuples(st.integers(1, 99).map(lambda ticks: ticks / 64), st.floats(-9.0, 9.0)),
    min_size=1,
    max_size=5,
    unique_by=lambda moment: moment[0],
)


@given(MOMENTS)
def test_the_offset_is_that_of_the_first_fastest_round_to_nine_digits(rounds):
    times, answers, at = [], [], 100.0
    for way, ahead in rounds:
        times += [at, at + way]
        answers.append(at + way / 2 - ahead)
        at += way + 1.0
    told, clock = iter(answers), iter(times)
    found = clock_offset(lambda: next(told), rounds=len(rounds), clock=lambda: next(clock))
    halves = [(heard - asked) / 2 for asked, heard in zip(times[::2], times[1::2], strict=True)]
    best = halves.index(min(halves))
    middle = (times[2 * best] + times[2 * best + 1]) / 2
    assert found.offset_seconds == round(middle - answers[best], 9)
    assert found.error_seconds == round(halves[best], 9)


def test_a_third_of_a_second_is_told_to_the_nanosecond():
    times = iter([0.0, 2 / 3])
    found = clock_offset(lambda: 0.0, rounds=1, clock=lambda: next(times))
    assert found == (pytest.approx(0.333333333, abs=1e-15), pytest.approx(0.333333333, abs=1e-15))
