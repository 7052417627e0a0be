"""What a run saved over equal batches, and what is known of it where parts are missing, by hand."""

import math
from types import MappingProxyType

import numpy as np
import pytest

from paceline.runs.run import DRIFT, OF_FLEET, OF_WORKERS, WORK, Run

NAN = math.nan


def run_of(seconds, **known):
    """A run of workers with these seconds, whose other numbers are given or not known."""
    seconds = np.array(seconds, float)
    length, width = seconds.shape
    workers = {name: np.full((length, width), NAN) for name in (*OF_WORKERS, WORK)}
    fleet = {name: np.full(length, NAN) for name in (*OF_FLEET, DRIFT)}
    workers |= {"seconds": seconds} | {k: np.array(v, float) for k, v in known.items() if k in workers}
    fleet |= {k: np.array(v, float) for k, v in known.items() if k in fleet}
    truths = np.zeros(length, bool)
    names = tuple(f"w{k}" for k in range(width))
    return Run("folder/a.jsonl", names, MappingProxyType(workers), fleet, truths, truths, ("",) * length)


def test_the_share_saved_is_of_all_iterations_of_which_both_times_are_known():
    run = run_of([[0.03, 0.04], [0.05, NAN], [NAN, NAN], [0.1, 0.2]], equal_seconds=[0.06, 0.1, 0.5, NAN])
    assert run.makespan.tolist() == pytest.approx([0.04, 0.05, NAN, 0.2], nan_ok=True)
    assert run.saved == pytest.approx(1 - 0.09 / 0.16)
    assert math.isnan(run_of([[0.1]]).saved)
    assert math.isnan(run_of([[NAN]], equal_seconds=[1.0]).saved)


def test_who_was_slowest_who_waits_and_who_is_silent():
    sizes = [[1, 1, NAN], [1, 1, 1], [1, 1, 1], [1, 1, 1]]
    seconds = [[0.1, 0.4, NAN], [0.2, 0.1, NAN], [NAN, NAN, NAN], [0.3, NAN, NAN]]
    run = run_of(seconds, sizes=sizes)
    assert run.slowest.tolist() == [1, 0, -1, 0]
    assert run.silent_workers.tolist() == [0, 2, 3]
    assert run.wait_seconds[0].tolist() == pytest.approx([0.3, 0.0, NAN], nan_ok=True)
    assert run.waiting_share.tolist() == pytest.approx([0.3 / 0.8, 0.1 / 0.4, NAN, 0.0], nan_ok=True)
    assert run_of([[NAN, 1.0]] * 3, sizes=[[1, 1]] * 3).silent_workers.tolist() == [3, 0]
    assert (len(run), run.skipped, run.lost) == (4, 0, 0)


def test_errors_of_forecasts_are_relative_and_none_of_times_that_are_not_known():
    run = run_of([[0.2, 0.0, NAN, 0.5]], forecast_seconds=[[0.3, 0.1, 0.1, NAN]])
    assert run.forecast_error[0].tolist() == pytest.approx([0.5, NAN, NAN, NAN], nan_ok=True)


def test_a_trace_has_the_times_of_the_run_and_what_else_was_known():
    run = run_of([[0.1, 0.2]] * 2, sizes=[[3, 4]] * 2, time=[100.0, 101.0])
    trace = run.trace()
    assert trace.comm_seconds is None
    assert trace.work is None
    assert trace.start.tolist() == [[100, 100], [101, 101]]
    assert (dict(trace.meta), trace.workers) == ({"job": "a", "source": "live run"}, ("w0", "w1"))
    assert trace.wait_seconds[0].tolist() == pytest.approx([0.1, 0.0])
    known = run_of(
        [[0.1, 0.2]] * 2,
        sizes=[[3, 4]] * 2,
        time=[1, 2],
        comm_seconds=[[NAN, NAN], [NAN, 0.5]],
        work=[[1, 2], [NAN, NAN]],
    )
    assert known.trace().comm_seconds[1].tolist() == pytest.approx([NAN, 0.5], nan_ok=True)
    assert known.trace().work[0].tolist() == [1, 2]


def test_waiting_of_the_last_iterations_is_that_of_a_run_of_these_alone():
    chance = np.random.default_rng(0)
    seconds, work = chance.uniform(1, 2, (6, 3)), chance.uniform(1, 2, (6, 3))
    for last in (1, 4, 6, 9):
        short = run_of(seconds[-last:], work=work[-last:]).waiting()
        assert run_of(seconds, work=work).waiting(last) == short
    assert run_of(seconds).waiting(2).from_work == pytest.approx(NAN, nan_ok=True)
    assert run_of(seconds, work=work).waiting() == run_of(seconds, work=work).waiting(6)
