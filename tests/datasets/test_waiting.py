"""Where waiting comes from, on jobs whose answer is known."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.datasets.waiting_time import waiting
from paceline.recording import Recorder, merge

SPEED_W, WORK_TW = np.array([1.0, 1.0, 0.5]), np.array([[4.0, 2.0, 3.0], [1.0, 6.0, 2.0]])


def test_uneven_samples_alone_are_told_as_such():
    found = waiting(WORK_TW / 7.0, WORK_TW)
    assert found.share == pytest.approx((4 - 3 + 6 - 3) / (4 + 6))
    assert found.from_work == pytest.approx(found.share)
    assert found.from_workers == pytest.approx(0)


def test_uneven_workers_alone_are_told_as_such():
    found = waiting(np.full((5, 3), 8.0) / SPEED_W, np.full((5, 3), 8.0))
    assert found.share == pytest.approx((2 - 4 / 3) / 2)
    assert found.from_workers == pytest.approx(found.share)
    assert found.from_work == pytest.approx(0)


def test_work_that_follows_the_speeds_hides_both():
    work_TW = 10 * SPEED_W[None] * np.ones((4, 1))
    found = waiting(work_TW / SPEED_W, work_TW)
    assert found.share == pytest.approx(0)
    assert found.from_workers == pytest.approx((2 - 4 / 3) / 2)
    assert found.from_work == pytest.approx((1 - 2.5 / 3) / 1)
    assert found.sentences[-1] == "Together less than either: the work follows the speeds."


panels = st.integers(1, 6).flatmap(
    lambda count: st.lists(st.lists(st.floats(0.01, 100), min_size=3, max_size=3), min_size=count, max_size=count).map(
        np.array
    )
)


@given(work_TW=panels, speed=st.floats(0.01, 100), unit=st.floats(0.001, 1000))
@settings(derandomize=True, max_examples=60)
def test_units_are_irrelevant_shares_bounded(work_TW, speed, unit):
    seconds_TW = work_TW / SPEED_W
    found, scaled = waiting(seconds_TW, work_TW), waiting(seconds_TW * speed, work_TW * unit)
    for name in ("share", "from_workers", "from_work"):
        assert getattr(scaled, name) == pytest.approx(getattr(found, name), abs=1e-9)
        assert 0 <= getattr(found, name) < 1 or getattr(found, name) == pytest.approx(0, abs=1e-9)
    assert found.from_workers == pytest.approx((2 - 4 / 3) / 2)  # these speeds, whatever the work


@given(work_TW=panels, order=st.permutations(range(3)))
@settings(derandomize=True, max_examples=30)
def test_the_order_of_workers_does_not_matter(work_TW, order):
    found = waiting(work_TW / SPEED_W, work_TW)
    other = waiting((work_TW / SPEED_W)[:, order], work_TW[:, order])
    assert (other.share, other.from_workers, other.from_work) == pytest.approx(
        (found.share, found.from_workers, found.from_work)
    )


def test_what_cannot_be_told_is_said():
    seconds_TW = np.array([[1.0, 2.0], [1.0, np.nan], [2.0, 1.0]])
    assert "no two workers" in waiting(np.array([[1.0], [2.0]]), None).sentences[0]
    nothing = waiting(seconds_TW, None)
    assert (nothing.share, nothing.of, nothing.is_known) == (pytest.approx(0.25), 2, False)
    assert nothing.sentences[1].endswith("is unknown: no work was recorded with the times.")
    assert nothing.to_dict()["from_work"] is None
    half = waiting(seconds_TW, np.array([[1.0, 1.0], [1.0, 1.0], [np.nan, 1.0]]))
    assert (half.iterations, half.of) == (1, 2)
    assert "in 1 of 2 iterations" in half.sentences[1]


def test_silent_worker_left_out_of_iteration():
    work_TW = np.array([[1.0, 1.0, 1.0]])
    found = waiting(np.array([[1.0, 2.0, np.nan]]), work_TW)
    assert found.from_workers == pytest.approx(found.share) == pytest.approx(0.25)


def recorded(path, work):
    with Recorder(path, worker=path.stem) as recorder:
        for number in range(3):
            with recorder.iteration(samples=8, **({} if work is None else {"work": work + number})):
                pass
    return path


def test_recorder_work_reaches_merged_trace(tmp_path):
    trace = merge([recorded(tmp_path / f"{worker}.jsonl", 10.0 * (1 + worker)) for worker in range(2)])
    assert trace.work.tolist() == [[10, 20], [11, 21], [12, 22]]
    assert merge([recorded(tmp_path / "none.jsonl", None)]).work is None


def test_files_without_work_are_read(tmp_path):
    header, *rows = recorded(tmp_path / "new.jsonl", None).read_text("utf-8").splitlines()
    about = json.loads(header)
    at = about["columns"].index("work")
    about["columns"].remove("work")
    older = [json.dumps(json.loads(row)[:at] + json.loads(row)[at + 1 :]) for row in rows]
    (tmp_path / "old.jsonl").write_text("\n".join([json.dumps(about), *older]) + "\n")
    old, new = merge([tmp_path / "old.jsonl"]), merge([tmp_path / "new.jsonl"])
    assert old.work is None
    assert np.array_equal(old.seconds, new.seconds)
