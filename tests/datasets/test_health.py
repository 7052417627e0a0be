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


def test_walk_predictable_noise_not():
    noise = np.random.default_rng(4).uniform(90, 110, (400, 3))
    assert speed_of(trace_of(walk())).predictable == 1.0
    assert speed_of(trace_of(noise)).predictable == 0.0
    assert any("nothing to predict" in concern for concern in health(trace_of(noise)).concerns)
    assert not any("nothing to predict" in concern for concern in health(trace_of(walk())).concerns)


@pytest.mark.slow
def test_ljung_box_equals_statsmodels():
    diagnostic = pytest.importorskip("statsmodels.stats.diagnostic")
    rng = np.random.default_rng(2)
    noise_T = rng.normal(size=300)
    series_TW = np.stack([noise_T, noise_T + 0.3 * np.roll(noise_T, 1)], axis=1)
    expected = [diagnostic.acorr_ljungbox(series_T, lags=[10])["lb_pvalue"].item() for series_T in series_TW.T]
    np.testing.assert_allclose(ljung_box(series_TW), expected, rtol=1e-9)


@pytest.mark.slow
def test_white_noise_false_alarms_one_percent():
    noise = np.random.default_rng(3).normal(size=(200, 2000))
    assert (ljung_box(noise) < 0.01).mean() == pytest.approx(0.01, abs=0.008)


def test_gaps_are_measured():
    speed = walk()
    speed[100:150, 1] = NAN
    found = speed_of(trace_of(speed))
    assert found.longest_gap == 50
    assert found.missing == pytest.approx(50 / 1200)


def test_repeated_share():
    held = np.repeat(walk(100), 4, axis=0)
    assert speed_of(trace_of(held)).repeated == pytest.approx(0.75, abs=0.01)
    assert any("equals the previous value" in concern for concern in health(trace_of(held)).concerns)


def test_spikes_are_outliers_lasting_change_not():
    speed = walk(workers=1)
    changed = speed.copy()
    changed[200:] *= 3
    spiked = speed.copy()
    spiked[[50, 150, 250, 350]] /= 5
    before = speed_of(trace_of(speed)).outliers
    assert speed_of(trace_of(spiked)).outliers >= before + 4 / 400 - 1e-9
    assert speed_of(trace_of(changed)).outliers <= before + 2 / 400


def test_clock_jumps_and_backsteps_counted():
    start = np.arange(400.0)[:, None] * np.ones(3)
    start[200:, 0] += 500
    start[300:, 1] -= 50
    found = health(trace_of(walk(), start=start))
    assert (found.clock_gaps, found.clock_backwards) == (1, 1)
    assert "clock: 1 gap, 1 backwards" in str(found)
    assert health(trace_of(walk())).clock_gaps is None


def test_following_and_constant_covariates_named():
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
def test_shortest_and_empty_traces_have_health(shape):
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
def test_no_consecutive_iterations_no_noise_claim(step):
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
def test_cause_of_missing_speed(samples, seconds, why):
    assert f"no speed was measured: {why}" in health(Trace(samples, seconds)).concerns


@pytest.mark.parametrize("second", [1e-3, 1.0, 60.0])
def test_clock_gap_is_ten_intervals(second):
    for jump, gaps in ((10.0, 0), (10.5, 1)):
        start = second * np.concatenate([np.arange(20.0), 19.0 + jump + np.arange(20.0)])[:, None]
        assert health(trace_of(walk(40, 1), start=start)).clock_gaps == gaps


@pytest.mark.parametrize(("rows", "share"), [(10, 0.0), (11, 1 / 11), (12, 1 / 12)])
def test_spikes_need_a_window_of_rows(rows, share):
    speed = 100.0 + np.arange(rows) % 3
    speed[rows // 2] = 10_000.0
    assert speed_of(trace_of(np.column_stack([speed, speed]))).outliers == pytest.approx(share)
