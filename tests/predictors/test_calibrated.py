"""Calibrated intervals hold as often as they say."""

from statistics import NormalDist

import numpy as np
import pytest

from paceline.datasets import synthetic_fleet
from paceline.predictors import BatchTime, Calibrated, Forecast, Report

WARM_UP = 200


def held(model, speed_TW, low, high):
    """How often each worker's speed lay between two quantiles after the warm-up, ``[W]``; None leaves an end open."""
    model.reset([str(w) for w in range(speed_TW.shape[1])])
    inside = []
    for speed_W in speed_TW:
        forecast = model.predict()
        lowest_W = 0.0 if low is None else forecast.quantile(low)
        highest_W = np.inf if high is None else forecast.quantile(high)
        inside.append((lowest_W <= speed_W) & (speed_W <= highest_W))
        model.observe(Report(np.full(len(speed_W), 64.0), 64.0 / speed_W))
    return np.mean(inside[WARM_UP:], axis=0)


@pytest.mark.parametrize("inner", ["last-value", "ewma:smoothing=0.03", "rls"])
@pytest.mark.slow
def test_coverage_between_88_and_92_percent(inner):
    speed_TW = synthetic_fleet("mixed", workers=50, iterations=1000).speed
    coverage_W = held(Calibrated(inner), speed_TW, 0.05, 0.95)
    assert 0.88 < coverage_W.mean() < 0.92
    assert coverage_W.min() > 0.86
    assert coverage_W.max() < 0.98


@pytest.mark.slow
def test_both_ends_hold_under_skewed_errors():
    rng = np.random.default_rng(0)
    speed_TW = 100.0 / (1.0 + rng.exponential(0.3, (1500, 20)))
    model = Calibrated("ewma:smoothing=0.05")
    assert held(model, speed_TW, None, 0.05).mean() == pytest.approx(0.05, abs=0.01)
    assert held(model, speed_TW, 0.95, None).mean() == pytest.approx(0.05, abs=0.01)
    forecast = model.predict()
    down, up = forecast.speed / forecast.quantile(0.05), forecast.quantile(0.95) / forecast.speed
    assert down.mean() > 1.2 * up.mean()


@pytest.mark.slow
def test_spread_follows_changed_errors():
    rng = np.random.default_rng(0)
    model = Calibrated("ewma:smoothing=0.02")
    model.reset([str(w) for w in range(50)])
    for noise in (0.05, 0.2):
        for _ in range(500):
            model.observe(Report(np.full(50, 64.0), np.exp(rng.normal(0.0, noise, 50))))
        assert model.predict().spread.mean() == pytest.approx(noise, rel=0.15)


def test_speed_and_curves_are_the_inner_ones():
    model, inner = Calibrated("batch-time"), BatchTime()
    for predictor in (model, inner):
        predictor.reset(["a"])
        for size in (40, 80, 40, 80):
            predictor.observe(Report([size], [0.2 + 0.01 * size]))
    assert model.predict().speed == pytest.approx(inner.predict().speed)
    assert model.predict().curves.intercept == pytest.approx(inner.predict().curves.intercept)


def test_quantiles_interpolated_or_normal():
    quantiles = np.array([[80.0, 100.0, 110.0], [np.nan] * 3])
    known = Forecast(np.array([99.0, 50.0]), np.array([0.1, 0.1]), levels=(0.1, 0.5, 0.9), quantiles=quantiles)
    assert known.quantile(0.1)[0] == pytest.approx(80.0)
    assert known.quantile(0.5)[0] == pytest.approx(100.0)
    assert 100.0 < known.quantile(0.7)[0] < 110.0 < known.quantile(0.99)[0]
    assert known.quantile(0.1)[1] == pytest.approx(Forecast(np.array([50.0]), np.array([0.1])).quantile(0.1)[0])


def test_unlearned_horizon_widens_by_fourth_root():
    model = Calibrated("last-value")
    model.reset(["a"])
    for k in range(100):
        model.observe(Report([64], [1.0 + 0.1 * (k % 3)]))
    near, far = model.predict(horizon=1), model.predict(horizon=16)
    for q in (0.05, 0.95):
        assert np.log(far.quantile(q) / far.speed) == pytest.approx(2 * np.log(near.quantile(q) / near.speed))


def test_quantiles_extrapolate_at_both_ends():
    known = Forecast(np.array([100.0]), np.array([0.1]), levels=(0.1, 0.5, 0.9), quantiles=np.array([[50.0, 100, 400]]))
    low, high = known.quantile(0.01)[0], known.quantile(0.99)[0]
    score = NormalDist().inv_cdf(0.99) / NormalDist().inv_cdf(0.9)
    assert low == pytest.approx(100 * 0.5**score)
    assert high == pytest.approx(100 * 4.0**score)


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, np.nan])
def test_a_quantile_of_a_certainty_is_refused(q):
    with pytest.raises(ValueError, match="q must lie strictly between 0 and 1"):
        Forecast(np.array([100.0]), np.array([0.1])).quantile(q)


def test_unknown_quantiles_are_zero_and_infinite():
    unknown = Forecast(np.array([100.0]), np.array([np.inf]))
    assert [unknown.quantile(q)[0] for q in (0.01, 0.5, 0.99)] == [0.0, 100.0, np.inf]


def test_untracked_quantiles_are_log_normal():
    forecast = Forecast(np.array([100.0]), np.array([0.3]))
    samples = 100.0 * np.exp(np.sqrt(np.log(1 + 0.3**2)) * np.random.default_rng(0).normal(size=200_000))
    assert samples.std() / np.exp(np.log(samples).mean() + np.log(samples).var() / 2) == pytest.approx(0.3, rel=0.02)
    for q in (0.1, 0.5, 0.9):
        assert forecast.quantile(q)[0] == pytest.approx(np.quantile(samples, q), rel=0.01)
        assert forecast.quantile(q)[0] * forecast.quantile(1 - q)[0] == pytest.approx(100.0**2)


def test_few_errors_widen_intervals_enough():
    rng = np.random.default_rng(0)
    model, inside = Calibrated("ewma:smoothing=0.001"), []
    model.reset([str(w) for w in range(400)])
    for k in range(20):
        speed_W = 100.0 * np.exp(rng.normal(0.0, 0.1, 400)) if k else np.full(400, 100.0)
        if k > 4:
            forecast = model.predict()
            inside.append((forecast.quantile(0.05) <= speed_W) & (speed_W <= forecast.quantile(0.95)))
        model.observe(Report(speed_W, np.ones(400)))
    assert 0.87 < np.mean(inside) < 0.92


@pytest.mark.slow
def test_intervals_widen_within_ten_reports():
    rng = np.random.default_rng(2)
    deviation_T = np.where(np.arange(260) < 200, 0.001, 0.3)
    model, inside = Calibrated("ewma:smoothing=0.01"), []
    model.reset([str(w) for w in range(200)])
    for deviation in deviation_T:
        speed_W, forecast = 100.0 * np.exp(deviation * rng.normal(0.0, 1.0, 200)), model.predict()
        inside.append(((forecast.quantile(0.05) <= speed_W) & (speed_W <= forecast.quantile(0.95))).mean())
        model.observe(Report(speed_W, np.ones(200)))
    assert np.mean(inside[150:200]) > 0.87
    assert inside[200] < 0.1, "the first of the new errors cannot be foreseen"
    assert np.mean(inside[201:210]) > 0.85
    assert 0.87 < np.mean(inside[210:]) < 0.95


@pytest.mark.slow
@pytest.mark.parametrize("horizon", [1, 5, 20])
def test_intervals_narrow_after_noisy_phase(horizon):
    rng = np.random.default_rng(4)
    deviation_T = np.where(np.arange(400) < 100, 0.3, 0.03)
    model, made, inside = Calibrated("ewma:smoothing=0.1"), [], []
    model.reset([str(w) for w in range(40)])
    for deviation in deviation_T:
        made.append(model.predict(horizon=horizon))
        speed_W = 100.0 * np.exp(deviation * rng.normal(0.0, 1.0, 40))
        forecast = made[max(len(made) - horizon, 0)]
        inside.append(((forecast.quantile(0.05) <= speed_W) & (speed_W <= forecast.quantile(0.95))).mean())
        model.observe(Report(speed_W, np.ones(40)))
    assert 0.85 < np.mean(inside[200:]) < 0.93
