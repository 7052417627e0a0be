"""The numbers of a record and those that dashboards show, each computed once more in a plain loop."""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import iterations

from paceline._curves import Curves
from paceline.datasets.waiting_time import waiting
from paceline.predictors import Report
from paceline.runs.iteration import Iteration
from paceline.runs.sink import of_workers, of_workers_in_round, summary

(FIRST,) = iterations(1, workers=("a", "b", "c"), speeds=(3.0, 2.0, 1.0))
SECONDS = st.just(math.nan) | st.integers(0, 8).map(float)
same = partial(pytest.approx, nan_ok=True, abs=0)


@st.composite
def records(draw):
    """Draw an iteration of three workers, of which some report nothing, and some have no curve at a size."""
    three = partial(st.lists, min_size=3, max_size=3)
    curves = Curves(*(np.array(draw(three(st.integers(0, 3).map(float)))) for _ in range(3)), np.full(3, np.inf))
    work = draw(st.none() | three(st.integers(0, 8).map(float) | st.just(math.nan)))
    forecast = SimpleNamespace(curves=curves)
    return replace(
        FIRST,
        sizes=np.array(draw(three(st.integers(0, 8)))),
        seconds=np.array(draw(three(SECONDS))),
        forecast_seconds=np.array(draw(three(st.integers(0, 8).map(float)))),
        work=None if work is None else np.array(work),
        plan=replace(FIRST.plan, forecast=forecast),
        wall_seconds=draw(st.integers(1, 9)),
        overhead_seconds=draw(st.integers(0, 3)),
    )


def mean(values):
    return sum(values) / len(values) if values else math.nan


def busy(curves, worker, amount):
    """Seconds of a worker for an amount, by its curve."""
    line = curves.intercept[worker] + curves.slope[worker] * amount
    return max(curves.floor[worker], line) if amount > 0 else 0.0


def equal_seconds(one):
    amounts = one.sizes if one.work is None or any(map(math.isnan, one.work)) else one.work
    curves, alike, moved = one.plan.forecast.curves, sum(amounts) / 3, []
    for w in range(3):
        used = busy(curves, w, amounts[w])
        if used > 0 and not math.isnan(one.seconds[w]):
            moved.append(one.seconds[w] * busy(curves, w, alike) / used)
    return max(moved, default=math.nan)


@settings(max_examples=60)
@given(records())
def test_every_number_of_an_iteration_is_what_it_says(one):
    told = [seconds for seconds in one.seconds if not math.isnan(seconds)]
    longest = max(told, default=math.nan)
    assert one.makespan == same(longest)
    assert one.slowest == ("abc"[list(one.seconds).index(longest)] if told else "")
    assert one.wait_seconds.tolist() == same([longest - seconds for seconds in one.seconds])
    share = mean([longest - seconds for seconds in told]) / longest if longest > 0 else math.nan
    assert one.waiting_share == pytest.approx(share, nan_ok=True)
    numbers, equal = summary(one), equal_seconds(one)
    assert {type(number) for number in numbers.values()} == {float}
    errors = [
        abs(forecast / seconds - 1)
        for forecast, seconds in zip(one.forecast_seconds, one.seconds, strict=True)
        if seconds > 0
    ]
    causes = waiting(one.seconds[None], None if one.work is None else one.work[None])
    assert numbers == pytest.approx(
        {
            "seconds": longest,
            "forecast_seconds": max(one.forecast_seconds),
            "equal_seconds": equal,
            "gain": 1 - longest / equal if equal > 0 else math.nan,
            "waiting_share": share,
            "waiting_from_workers": causes.from_workers,
            "waiting_from_work": causes.from_work,
            "forecast_error": mean(errors),
            "wall_seconds": one.wall_seconds,
            "overhead_seconds": one.overhead_seconds,
            "drift": one.plan.drift,
        },
        nan_ok=True,
    )


@settings(max_examples=20)
@given(records())
def test_the_numbers_of_workers_are_floats_in_the_order_of_the_fleet(one):
    rows = {
        "samples": one.sizes,
        "work": one.work,
        "seconds": one.seconds,
        "forecast_seconds": one.forecast_seconds,
        "wait_seconds": one.wait_seconds,
    }
    found, known = of_workers(one), {name: list(row) for name, row in rows.items() if row is not None}
    assert list(found) == list(known)
    assert {name: same(row) for name, row in known.items()} == found
    assert {type(value) for row in found.values() for value in row} == {float}


def test_an_infinite_time_is_no_report_of_the_fleet():
    one = replace(FIRST, seconds=np.array([2.0, math.inf, 1.0]))
    assert summary(one) == same(summary(replace(FIRST, seconds=np.array([2.0, math.nan, 1.0]))))


@pytest.mark.parametrize("comm", [None, [1, 2, 3]])
def test_a_record_is_made_of_a_plan_its_report_and_the_next_plan(monkeypatch, comm):
    monkeypatch.setattr("paceline.runs.iteration.clock.time", lambda: 77.0)
    used = replace(FIRST.plan, iteration=5)
    report = Report(samples=[1.6, 2.4, 3], seconds=[1, 2, 3], comm_seconds=comm)
    one = Iteration.of(used, report, FIRST.plan)
    assert (one.index, one.time, one.worker, one.agreed) == (5, 77.0, "a", True)
    assert (one.sizes.tolist(), one.sizes.dtype) == ([2, 2, 3], np.int64)
    assert (one.seconds.tolist(), one.seconds.dtype) == ([1, 2, 3], np.float64)
    assert one.comm_seconds.tolist() == same(comm or [math.nan] * 3)
    assert one.comm_seconds.dtype == np.float64
    assert one.forecast_seconds is used.seconds
    assert one.plan is FIRST.plan
    assert math.isnan(one.wall_seconds)
    assert one.overhead_seconds == 0
    assert one.global_batch == 7
    with pytest.raises(ValueError, match="must have the same workers"):
        Iteration.of(replace(used, workers=("a", "b", "d")), report, FIRST.plan)


def test_the_numbers_of_workers_in_a_round_are_floats():
    fields = ("sizes", "staleness", "expected", "done", "wasted", "waited")
    found = of_workers_in_round(SimpleNamespace(**{name: np.array([k, k + 1]) for k, name in enumerate(fields)}))
    assert list(found.values()) == [[k, k + 1] for k in range(6)]
    assert {type(value) for row in found.values() for value in row} == {float}
