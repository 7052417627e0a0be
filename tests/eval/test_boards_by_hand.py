"""Backtests and boards of predictors against what a few lines of arithmetic give."""

import importlib
import itertools
import math

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.datasets.health import ljung_box
from paceline.eval import (
    backtest,
    barrier_overhead,
    leaderboard,
)
from paceline.eval.contract import require_forecasts
from paceline.eval.recorded_jobs import by_name, require_warmup
from paceline.eval.residuals import position
from paceline.eval.significance import absolute, lead, squared
from paceline.predictors import EWMA, Forecast, LastValue, Report

NAN = float("nan")


def trace_of(*speeds, **more):
    speed_TW = np.array(speeds, dtype=float).T
    return Trace(np.ones_like(speed_TW), 1 / speed_TW, **more)


def jobs():
    rng = np.random.default_rng(0)
    first = rng.uniform(1, 2, (3, 30))
    first[1, 10:20] = NAN
    first[2] = 1.5  # never changes, so it is left out
    return [
        trace_of(*first, workers=["a", "b", "c"], meta={"job": "first"}),
        trace_of(*rng.uniform(1, 3, (1, 25)), workers=["a"], meta={"job": "second"}),
    ]


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by half a second whenever it is looked at."""
    times = itertools.count(7.0, 0.5)
    monkeypatch.setattr("time.perf_counter", lambda: next(times))


def test_a_backtest_holds_the_forecasts_their_ends_and_the_time_of_an_iteration(clock):
    (trace, _) = jobs()
    found = backtest(EWMA(smoothing=0.5), trace, warmup=4)
    model = EWMA(smoothing=0.5)
    model.reset(trace.workers)
    for t in range(30):
        ahead = model.predict()
        for told, wanted in (
            (found.forecast_TW, ahead.speed),
            (found.spread_TW, ahead.spread),
            (found.low_TW, ahead.quantile(0.05)),
            (found.high_TW, ahead.quantile(0.95)),
            (found.position_TW, position(ahead, trace.speed[t])),
        ):
            np.testing.assert_array_equal(told[t], wanted)
        model.observe(Report(trace.samples[t], trace.seconds[t]))
    assert (found.warmup, found.seconds) == (4, 0.5 / 30)
    assert found.scored.tolist() == [26, 16, 26]
    assert found.overhead == barrier_overhead(found.forecast_TW[4:], trace.speed[4:])
    np.testing.assert_array_equal(found.error, found.forecast_TW[4:] - trace.speed[4:])


@pytest.mark.slow
def test_a_board_relates_errors_to_the_last_values_and_says_what_led(clock):
    traces = jobs()
    board = leaderboard({"ewma": EWMA(smoothing=0.5)}, traces, warmup=5, fit_seconds={"ewma": 2.0})
    mine = {trace.name: backtest(EWMA(smoothing=0.5), trace, warmup=5) for trace in traces}
    last = {trace.name: backtest(LastValue(), trace, warmup=5) for trace in traces}
    assert board.left_out == ("first/c",)
    assert board.fit_seconds == {"ewma": 2.0}
    kept = {"first": [0, 1], "second": [0]}
    rows = [
        ("ewma", job, traces[k].workers[w], mine[job].rmse[w] / last[job].rmse[w], mine[job].mae[w] / last[job].mae[w])
        for k, job in enumerate(kept)
        for w in kept[job]
    ]
    own = board.workers[board.workers["predictor"] == "ewma"]
    assert list(own[["predictor", "trace", "worker", "rmse", "mae"]].itertuples(index=False, name=None)) == rows
    assert own["coverage"].tolist() == [mine[job].coverage[w] for job in kept for w in kept[job]]
    times = board.jobs[board.jobs["predictor"] == "ewma"]
    assert times["overhead"].tolist() == [mine[job].overhead for job in kept]
    assert times["microseconds"].tolist() == [1e6 * (0.5 / 30), 1e6 * (0.5 / 25)]
    for measure, figures in (("rmse", squared), ("mae", absolute)):
        differences = [
            figures(mine[job].error[:, kept[job]], getattr(last[job], measure)[kept[job]])
            - figures(last[job].error[:, kept[job]], getattr(last[job], measure)[kept[job]])
            for job in kept
        ]
        wanted = lead(differences, [2 / 3, 1 / 3])
        assert vars(board.lead("ewma", measure=measure)) == pytest.approx(vars(wanted))
        (row,) = [row for row in board.leads(measure).to_dict("records") if row["predictor"] == "ewma"]
        told = [row[name] for name in (measure, "low", "high", "p")]
        assert told == pytest.approx([wanted.ratio, wanted.low, wanted.high, wanted.p])
        assert row["than last-value"] == wanted.verdict
    assert board.lead("last-value", "ewma", among=3).ratio == pytest.approx(1 / board.lead("ewma").ratio)
    left = board.residuals["ewma"]["first"]
    assert left.position.value == pytest.approx(np.nanmean(mine["first"].position_TW[5:, :2], axis=0).mean())
    np.testing.assert_allclose(left.white, ljung_box(mine["first"].error[:, :2]))


@pytest.mark.slow
def test_the_best_leads_and_those_behind_are_told_beside_it_and_beside_the_last_value():
    class Doubled(LastValue):
        def _next_speed(self, covariates_WD, horizon):
            return 2.0 * super()._next_speed(covariates_WD, horizon)

    rng = np.random.default_rng(1)
    noise = [trace_of(*rng.uniform(1, 2, (2, 120)), meta={"job": f"{k}"}) for k in range(2)]
    board = leaderboard({"doubled": Doubled(), "ewma": EWMA(smoothing=0.1)}, noise, warmup=5)
    table = board.leads().set_index("predictor")
    assert table.index.tolist() == ["ewma", "last-value", "doubled"]
    assert table["than last-value"].tolist() == ["better", "", "worse"]
    assert table["than the best"].tolist() == ["the best", "worse", "worse"]
    assert table["rank"].tolist() == [1.0, 2.0, 3.0]
    calibrated = board.calibration
    assert calibrated["predictor"].tolist() == ["ewma", "last-value", "doubled"]
    assert calibrated["coverage"].tolist() == board.overall["coverage"].tolist()
    assert calibrated["intervals"].tolist()[2] == "too high"


def test_a_lead_among_several_is_that_of_the_test_for_so_many(monkeypatch):
    asked, boards = [], importlib.import_module("paceline.eval.leaderboard")

    def noted(differences, weights, *, among):
        asked.append(among)
        return lead(differences, weights, among=among)

    monkeypatch.setattr(boards, "lead", noted)
    board = leaderboard({"ewma": EWMA(), "slow": EWMA(smoothing=0.1)}, jobs()[:1], warmup=5)
    board.lead("ewma", among=7)
    board.lead("ewma")
    assert asked == [7, 2]
    board.leads()
    assert asked[2:] == [2, 3] * 3


def test_two_scored_speeds_are_enough_for_a_ratio_and_an_end_of_an_interval_is_inside():
    class Sure(LastValue):
        def predict(self, covariates=None, *, horizon=1):
            return Forecast(np.array([4.0, 4.0]), np.zeros(2))

    trace = trace_of([1.0, 2.0, 4.0, 8.0, 4.0], [1.0, NAN, 2.0, NAN, 4.0])
    assert leaderboard({}, [trace], warmup=1).left_out == ()
    assert leaderboard({}, [trace], warmup=3).left_out == ("trace/1",)
    found = backtest(Sure(), trace, warmup=1)
    assert (found.low_TW == 4.0).all()
    assert (found.high_TW == 4.0).all()
    assert found.coverage.tolist() == [0.5, 0.5]


# -- jobs and contracts ----------------------------------------------------------------------------------------------


def test_jobs_go_by_their_names_and_a_warm_up_leaves_an_iteration():
    first, second = jobs()
    assert list(by_name([first, second]).items()) == [("first", first), ("second", second)]
    assert by_name(first) == {"first": first}
    require_warmup(0, first)
    require_warmup(29, first)
    for wrong in (-1, 30):
        with pytest.raises(ValueError, match=f"below the 30 iterations of trace 'first', got {wrong}"):
            require_warmup(wrong, first)


def test_a_forecast_is_a_speed_above_nothing_and_a_spread_is_no_less():
    fine = np.array([[1e-9, 5.0], [2.0, 3.0]])
    require_forecasts(EWMA(), fine, np.array([[0.0, math.inf], [0.1, 0.2]]), ["a", "b"])
    for wrong in (0.0, -1.0, math.inf, NAN):
        speed = fine.copy()
        speed[1, 1] = wrong
        with pytest.raises(
            ValueError, match=rf"^EWMA forecast {wrong:g} samples/s for worker b in iteration 1: a forec"
        ):
            require_forecasts(EWMA(), speed, np.ones((2, 2)), ["a", "b"])
    for wrong in (-0.001, NAN):
        spread = np.array([[0.1, 0.2], [wrong, wrong]])
        with pytest.raises(
            ValueError, match=f"a spread of {wrong:g} for worker a in iteration 8: a forecast must be a sp"
        ):
            require_forecasts(EWMA(), fine, spread, ["a", "b"], 7)


# -- evaluations and drift -------------------------------------------------------------------------------------------
