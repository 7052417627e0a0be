"""Waiting shares against a slow definition: one iteration and one worker at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.datasets.waiting_time import MIN_DIFFERENCE, Waiting, waiting

CELLS = st.one_of(st.floats(0.1, 10.0), st.sampled_from([float("nan"), 0.0, float("inf"), -1.0]))


def panels(iterations, workers):
    return st.lists(st.lists(CELLS, min_size=workers, max_size=workers), min_size=iterations, max_size=iterations)


def waited(rows):
    """The time that a worker waits for the slowest on average, over the time that the iterations take."""
    idle = sum(sum(max(row) - one for one in row) / len(row) for row in rows)
    return idle / sum(max(row) for row in rows)


def is_told(value):
    return np.isfinite(value) and value > 0


@given(panels(4, 3), panels(4, 3))
def test_waiting_is_that_of_the_slow_definition(seconds, work):
    several, told = [], []
    for taken, samples in zip(seconds, work, strict=True):
        there = [w for w, one in enumerate(taken) if is_told(one)]
        if len(there) >= 2:
            several.append([taken[w] for w in there])
            if all(is_told(samples[w]) for w in there):
                told.append(([taken[w] for w in there], [samples[w] for w in there]))
    found = waiting(np.array(seconds), np.array(work))
    assert (found.of, found.iterations) == (len(several), len(told))
    without = waiting(np.array(seconds), None)
    assert (without.of, without.iterations) == (len(several), 0)
    if several:
        assert found.share == pytest.approx(waited(several))
        assert without.share == pytest.approx(waited(several))
    if told:
        own = [[np.mean(done) * t / s for t, s in zip(taken, done, strict=True)] for taken, done in told]
        alike = [[s * sum(taken) / sum(done) for s in done] for taken, done in told]
        assert found.from_workers == pytest.approx(waited(own), abs=1e-12)
        assert found.from_work == pytest.approx(waited(alike), abs=1e-12)


@pytest.mark.parametrize(
    ("workers", "work", "less"),
    [
        (0.2, 0.2, False),
        (0.25 + MIN_DIFFERENCE, 0.5, False),
        (0.256, 0.256, True),
        (0.256, 0.25, False),
        (0.25, 0.256, False),
    ],
)
def test_work_follows_the_speeds_if_less_is_waited_than_for_either_by_half_a_percent(workers, work, less):
    found = Waiting(share=0.25, from_workers=workers, from_work=work, iterations=3, of=3)
    assert (found.sentences[-1] == "Together less than either: the work follows the speeds.") is less
    assert len(found.sentences) == 3 + less
    assert "iterations" not in str(found)


def test_what_is_not_known_of_waiting_is_none_in_json_and_what_is_known_stays():
    assert Waiting().to_dict() == {
        "share": None, "from_workers": None, "from_work": None, "iterations": 0, "of": 0, "wall": False,
        "sentences": [
            "How much workers wait is unknown: no two workers reported a time in the same iteration."
        ],
    }  # fmt: skip
    found = Waiting(share=0.125, from_workers=0.5, from_work=0.25, iterations=1, of=2)
    assert found.known
    assert list(found.to_dict().values())[:5] == [0.125, 0.5, 0.25, 1, 2]
    assert found.sentences[1].endswith("they would wait 50%, in 1 of 2 iterations.")
    assert found.sentences[2].endswith("they would wait 25%, in 1 of 2 iterations.")
