"""Averages at the ends of what they may be asked, and what a fit of a smoothing is."""

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.predictors import (
    ARIMA,
    EWMA,
    RLS,
    Auto,
    Calibrated,
    ChangePoint,
    Holt,
    HuberEWMA,
    LastValue,
    LeaderSearch,
    LocalLevel,
    MovingAverage,
    Report,
    RunningMedian,
)
from paceline.predictors.averages.smoothed import Averages, smoothed, speed_of_log
from paceline.predictors.fitting import Fitting

DEFAULTS = {
    LastValue: "LastValue()",
    EWMA: "EWMA(smoothing=0.2)",
    HuberEWMA: "HuberEWMA(smoothing=0.3, threshold=2.0)",
    Holt: "Holt(level_smoothing=0.3, trend_smoothing=0.05, damping=0.9)",
    MovingAverage: "MovingAverage(window=8)",
    RunningMedian: "RunningMedian(window=9)",
    ChangePoint: "ChangePoint(smoothing=0.05, threshold=3.0)",
    LocalLevel: "LocalLevel(smoothing=0.5)",
    LeaderSearch: "LeaderSearch(step=0.125, window=5, tolerance=0.05)",
    RLS: "RLS(covariates=None, forgetting=0.998)",
    ARIMA: "ARIMA(order=None, covariates=None, method='css', log_speed=True)",
    Calibrated: "Calibrated(predictor='ewma')",
    Auto: "Auto(covariates=())",
}


@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda kind: kind.__name__)
def test_a_predictor_that_is_told_nothing_is_this_one(kind):
    assert repr(kind()) == DEFAULTS[kind]


def test_averages_that_are_told_nothing_of_fading_do_not_fade():
    assert Averages([0.5]).fading == 0.0


def test_a_level_moves_by_its_share_starts_at_its_first_value_and_stays_in_a_gap():
    levels, newest = np.array([np.nan, np.nan, 2.0, 2.0]), np.array([np.nan, 4.0, np.nan, 4.0])
    np.testing.assert_array_equal(smoothed(levels, newest, 0.25), [np.nan, 4.0, 2.0, 2.5])
    np.testing.assert_array_equal(smoothed(levels[3:], newest[3:], 0.25), [2.5])
    weights = np.array([0.25, 1.0])
    found = smoothed(np.array([[2.0, 2.0], [np.nan, 2.0]]), np.array([[4.0], [4.0]]), weights)
    np.testing.assert_array_equal(found, [[2.5, 4.0], [4.0, 4.0]])


def test_a_speed_of_any_log_is_one_that_can_be():
    logs = np.array([-1e6, np.log(1e-9), 0.0, 1.0, np.log(1e12), 1e6])
    np.testing.assert_allclose(speed_of_log(logs), [1e-9, 1e-9, 1.0, np.e, 1e12, 1e12], rtol=1e-12)


GRID = [0.01, 0.02, 0.03, *(0.05 * k for k in range(1, 21))]


def squared_errors(traces):
    """Return the sum of squared log errors of each smoothing, worker by worker and report by report."""
    total = []
    for smoothing in GRID:
        square = 0.0
        for speed_T in (speed_T[np.isfinite(speed_T)] for trace in traces for speed_T in trace.speed.T):
            level = speed_T[0] if len(speed_T) else None
            for speed in speed_T[1:]:
                square += np.log(speed / level) ** 2
                level += smoothing * (speed - level)
        total.append(square)
    return np.array(total)


def gappy(seed, iterations=40):
    rng = np.random.default_rng(seed)
    seconds_TW = np.exp(
        rng.normal(0.0, 0.2, (iterations, 3)) + np.cumsum(rng.normal(0.0, 0.05, (iterations, 3)), axis=0)
    )
    seconds_TW[rng.random((iterations, 3)) < 0.2] = np.nan
    seconds_TW[:, 2] = np.nan
    return Trace(np.full_like(seconds_TW, 8.0), seconds_TW)


def test_a_smoothing_is_that_of_the_least_errors_over_all_workers_of_all_traces():
    traces = [gappy(seed) for seed in range(3)]
    model, wanted = EWMA(smoothing=None).fit(traces), squared_errors(traces)
    np.testing.assert_allclose(model.errors_G_, wanted, rtol=1e-9)
    assert model.smoothing_ == pytest.approx(GRID[int(wanted.argmin())])
    assert 0.01 < model.smoothing_ < 1.0


def test_a_warm_start_adds_its_errors_to_those_before_and_needs_them():
    earlier, later = gappy(4), gappy(5)
    model = EWMA(smoothing=None).fit([earlier])
    resumed = EWMA(smoothing=None)
    resumed.load_state_dict(model.state_dict())
    for one in (model, resumed):
        one.fit_streamed([later], Fitting(warm=True))
        np.testing.assert_allclose(one.errors_G_, squared_errors([earlier, later]), rtol=1e-9)
        one.fit([later])
        np.testing.assert_allclose(one.errors_G_, squared_errors([later]), rtol=1e-9)
    with pytest.raises(ValueError, match="does not hold the errors of its earlier traces: fit it afresh"):
        EWMA(smoothing=None).fit_streamed([later], Fitting(warm=True))


@pytest.mark.parametrize("seconds", [[[1.0]], [[1.0], [np.nan]], [[np.nan, 1.0], [1.0, np.nan]]])
def test_one_speed_of_each_worker_teaches_no_smoothing(seconds):
    seconds_TW = np.array(seconds)
    with pytest.raises(ValueError, match="a worker with two speeds to learn the smoothing from, got none"):
        EWMA(smoothing=None).fit([Trace(np.ones_like(seconds_TW), seconds_TW)])


def test_two_speeds_of_one_worker_are_enough():
    assert EWMA(smoothing=None).fit([Trace([[1.0], [1.0]], [[1.0], [2.0]])]).errors_G_ == pytest.approx(
        np.log(2.0) ** 2
    )


@pytest.mark.parametrize("errors", [np.ones(22), np.ones((23, 1)), np.where(np.arange(23) == 5, np.nan, 1.0)])
def test_errors_of_a_file_that_are_not_those_of_the_grid_are_refused(errors):
    with pytest.raises(ValueError, match="errors must be 23 finite numbers, got the shape"):
        EWMA(smoothing=None).load_state_dict({"learnt/smoothing": np.array(0.5), "learnt/errors": errors})


def test_what_an_ewma_has_learnt_is_its_smoothing_and_its_errors_if_it_may_learn_any():
    fitted = EWMA(smoothing=None).fit([gappy(6)])
    assert set(fitted._learnt()) == {"smoothing", "errors"}
    assert set(EWMA(smoothing=None)._learnt()) == {"smoothing"}
    assert EWMA(0.5).fit([gappy(6)])._learnt() == {}
    fitted.load_state_dict({"learnt/smoothing": np.array(0.3)})
    assert (fitted.smoothing_, fitted.errors_G_) == (0.3, None)
    fitted.load_state_dict({})
    assert fitted.smoothing_ == 0.3
    with pytest.raises(ValueError, match="EWMA learns nothing from traces"):
        EWMA(0.5).load_state_dict({"learnt/smoothing": np.array(0.3)})


@pytest.mark.parametrize("horizon", [1, 4])
def test_the_spread_of_a_local_level_takes_a_fifth_of_its_newest_error(horizon):
    model, square = LocalLevel(1.0), None
    model.reset(["a", "b"])
    for k, speed in enumerate([1.0, 2.0, np.nan, 3.0, 3.5, 0.5]):
        forecast = model.predict()
        model.observe(Report([speed, 1.0], [1.0, np.nan]))
        if k and not np.isnan(speed):
            error = np.log(speed / forecast.speed[0]) ** 2
            square = error if square is None else square + 0.2 * (error - square)
        wanted = np.inf if square is None else np.sqrt(square * horizon)
        np.testing.assert_allclose(model.predict(horizon=horizon).spread, [wanted, np.inf])
