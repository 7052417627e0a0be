"""The health report: what is wrong with a made trace is found, and what is not wrong is not."""

import json

import numpy as np
import pytest

from paceline.datasets import Trace, recorded
from paceline.datasets.health import health, ljung_box

NAN = float("nan")


def trace_of(speed_TW, **more):
    speed_TW = np.asarray(speed_TW, dtype=float)
    return Trace(samples=np.ones(speed_TW.shape), seconds=1.0 / speed_TW, **more)


def walk(iterations=400, workers=3, seed=0):
    rng = np.random.default_rng(seed)
    return 100.0 * np.exp(np.cumsum(rng.normal(0, 0.02, (iterations, workers)), axis=0))


def speed_of(trace):
    (speed,) = (one for one in health(trace).series if one.name == "speed")
    return speed


def test_a_wandering_speed_can_be_predicted_and_noise_can_not():
    noise = np.random.default_rng(4).uniform(90, 110, (400, 3))
    assert speed_of(trace_of(walk())).predictable == 1.0
    assert speed_of(trace_of(noise)).predictable == 0.0
    assert any("nothing to predict" in concern for concern in health(trace_of(noise)).concerns)
    assert not any("nothing to predict" in concern for concern in health(trace_of(walk())).concerns)


@pytest.mark.slow
def test_the_test_against_white_noise_agrees_with_statsmodels():
    diagnostic = pytest.importorskip("statsmodels.stats.diagnostic")
    rng = np.random.default_rng(2)
    noise_T = rng.normal(size=300)
    series_TW = np.stack([noise_T, noise_T + 0.3 * np.roll(noise_T, 1)], axis=1)
    expected = [diagnostic.acorr_ljungbox(series_T, lags=[10])["lb_pvalue"].item() for series_T in series_TW.T]
    np.testing.assert_allclose(ljung_box(series_TW), expected, rtol=1e-9)


@pytest.mark.slow
def test_white_noise_is_called_predictable_about_once_in_a_hundred():
    noise = np.random.default_rng(3).normal(size=(200, 2000))
    assert (ljung_box(noise) < 0.01).mean() == pytest.approx(0.01, abs=0.008)


def test_gaps_are_measured():
    speed = walk()
    speed[100:150, 1] = NAN
    found = speed_of(trace_of(speed))
    assert found.longest_gap == 50
    assert found.missing == pytest.approx(50 / 1200)


def test_repeats_are_the_share_of_values_equal_to_the_one_before():
    held = np.repeat(walk(100), 4, axis=0)
    assert speed_of(trace_of(held)).repeated == pytest.approx(0.75, abs=0.01)
    assert any("equals the previous value" in concern for concern in health(trace_of(held)).concerns)


def test_single_spikes_are_outliers_and_a_lasting_change_is_none():
    speed = walk(workers=1)
    changed = speed.copy()
    changed[200:] *= 3
    spiked = speed.copy()
    spiked[[50, 150, 250, 350]] /= 5
    before = speed_of(trace_of(speed)).outliers
    assert speed_of(trace_of(spiked)).outliers >= before + 4 / 400 - 1e-9
    assert speed_of(trace_of(changed)).outliers <= before + 2 / 400


def test_clocks_that_jump_or_go_backwards_are_counted():
    start = np.arange(400.0)[:, None] * np.ones(3)
    start[200:, 0] += 500
    start[300:, 1] -= 50
    found = health(trace_of(walk(), start=start))
    assert (found.clock_gaps, found.clock_backwards) == (1, 1)
    assert "clock: 1 gap, 1 backwards" in str(found)
    assert health(trace_of(walk())).clock_gaps is None


def test_covariates_that_follow_the_speed_or_stand_still_are_told():
    speed = walk()
    follows, still = np.log(speed), np.full(speed.shape, 7.0)
    noise = np.random.default_rng(5).normal(size=speed.shape)
    covariates = np.stack([follows, still, noise, np.full(speed.shape, NAN)], axis=-1)
    found = health(trace_of(speed, covariates=covariates, covariate_names=["follows", "still", "noise", "empty"]))
    by_name = {one.name: one for one in found.series}
    assert by_name["follows"].with_speed == pytest.approx(1.0)
    assert abs(by_name["noise"].with_speed) < 0.2
    assert by_name["still"].constant == 3
    assert "covariate still is constant in all workers" in found.concerns
    assert "covariate empty has no value" in found.concerns


def test_usage_alone_and_derived_speeds_are_said():
    none = np.full((50, 1), NAN)
    usage = Trace(none, none, covariates=np.ones((50, 1, 1)), covariate_names=["cpu"])
    assert "no speed was measured: the trace only has usage" in health(usage).concerns
    derived = trace_of(walk(), meta={"derived": "a model"})
    assert "speeds are derived, not measured: a model" in health(derived).concerns


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (12, 1), (25, 2)])
def test_the_shortest_and_emptiest_traces_have_a_health_too(shape):
    for speed in (np.ones(shape), np.full(shape, NAN)):
        found = health(trace_of(speed, start=np.zeros(shape), covariates=np.ones((*shape, 1)), covariate_names=["x"]))
        assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["workers"] == shape[1]
        assert str(found)


@pytest.mark.slow
def test_recorded_jobs_have_something_to_predict():
    found = health(recorded.load("digits-cnn-bursty"))
    (speed,) = (one for one in found.series if one.name == "speed")
    assert speed.predictable == 1.0
    assert speed.lag_one > 0.3


@pytest.mark.parametrize("step", [2, 3, 7])
def test_nothing_is_said_of_noise_where_no_two_consecutive_iterations_were_reported(step):
    thinned = walk()
    thinned[np.arange(len(thinned)) % step > 0] = NAN
    found = health(trace_of(thinned))
    assert np.isnan([found.series[0].lag_one, found.series[0].predictable, found.series[0].repeated]).all()
    assert any("no worker reported two consecutive iterations" in concern for concern in found.concerns)
    assert not any("white noise" in concern for concern in found.concerns)
    assert not any("consecutive" in concern for concern in health(trace_of(walk())).concerns)


@pytest.mark.parametrize(
    ("samples", "seconds", "why"),
    [
        ([[0], [0]], [[1], [1]], "all its samples are missing or 0"),
        ([[NAN], [NAN]], [[1], [1]], "all its samples are missing"),
        ([[8], [8]], [[NAN], [0]], "all its seconds are missing or 0"),
        ([[8], [NAN]], [[NAN], [1]], "no worker reported samples and seconds of the same iteration"),
    ],
)
def test_the_true_cause_is_said_where_there_is_no_speed(samples, seconds, why):
    assert f"no speed was measured: {why}" in health(Trace(samples, seconds)).concerns


@pytest.mark.parametrize("second", [1e-3, 1.0, 60.0])
def test_a_clock_jumps_by_more_than_ten_of_its_own_intervals(second):
    for jump, gaps in ((10.0, 0), (10.5, 1)):
        start = second * np.concatenate([np.arange(20.0), 19.0 + jump + np.arange(20.0)])[:, None]
        assert health(trace_of(walk(40, 1), start=start)).clock_gaps == gaps


@pytest.mark.parametrize(("rows", "share"), [(10, 0.0), (11, 1 / 11), (12, 1 / 12)])
def test_spikes_are_looked_for_in_series_as_long_as_a_window(rows, share):
    speed = 100.0 + np.arange(rows) % 3
    speed[rows // 2] = 10_000.0
    assert speed_of(trace_of(np.column_stack([speed, speed]))).outliers == pytest.approx(share)
