"""Slow workers by their definition: running medians of nine, below nine tenths of the usual speed, for five or more."""

import itertools
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.report.run_page import slow_workers


def by_definition(rows):
    found = []
    for w in range(len(rows[0])):
        usual = [row[1 - w] if len(row) == 2 else statistics.median(row) for row in rows]
        share = [row[w] / one for row, one in zip(rows, usual, strict=True)]
        smooth = [statistics.median(share[max(t - 4, 0) : t + 5]) for t in range(len(share))]
        times = []
        for slow, part in itertools.groupby(range(len(smooth)), key=lambda t, smooth=smooth: smooth[t] < 0.9):
            part = list(part)
            if slow and len(part) >= min(5, len(rows)):
                speed = statistics.median(smooth[t] for t in part)
                times.append((len(part) * (1 - speed), w, part[0], part[-1], part[-1] == len(rows) - 1, speed))
        found += [max(times, key=lambda one: one[0])] if times else []
    return sorted(found, key=lambda one: -one[0])


@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from([1, 4, 5, 9, 30, 60]))
@settings(max_examples=25)
def test_slow_times_are_those_of_the_definition(seed, workers, iterations):
    rng = np.random.default_rng(seed)
    speed = rng.choice([8.0, 9.0], (iterations, workers))
    for _ in range(2):
        begin, worker = rng.integers(iterations), rng.integers(workers)
        speed[begin : begin + rng.integers(1, 25), worker] *= rng.choice([0.3, 0.8, 0.9])
    if workers == 1:
        speed = np.tile(speed, 2) * [1.0, 1.5]
    expected = by_definition(speed.tolist())
    found = [(one.lost, one.worker, one.first, one.last, one.lasts, one.speed) for one in slow_workers(speed)]
    assert found == [pytest.approx(one) for one in expected]


def test_who_lost_most_comes_first_and_a_worker_is_slow_as_long_as_it_lost_most():
    speed = np.full((120, 5), 8.0)
    speed[10:30, 1], speed[50:80, 2], speed[90:110, 2] = 4.0, 6.0, 1.0
    assert [(one.worker, one.first, one.last, one.lost) for one in slow_workers(speed)] == [
        (2, 90, 109, 17.5), (1, 10, 29, 10.0),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 4, 5, 400, 401, 4000])
def test_a_job_of_any_length_is_looked_at_in_four_hundred_pieces_at_most(length):
    speed = np.full((length, 3), 8.0)
    speed[:, 0] = 6.0
    (one,) = slow_workers(speed)
    assert (one.worker, one.first, one.last, one.lasts, one.speed) == (0, 0, length - 1, True, 0.75)
    assert one.lost == 0.25 * length
