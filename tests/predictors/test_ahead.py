"""Horizons above 1: covariates, corrections, weights and quantiles are learned for those that are asked for."""

import re

import numpy as np
import pytest

from paceline.predictors import Auto, Calibrated, Mixture, Report
from paceline.predictors.pooled import Pooled


def heard(model, log_TW, load_TW=None, horizons=(1,)):
    """Errors at each horizon and whether 90% intervals held, ``[T, W]`` each; the model has seen all reports then."""
    errors, held = ({h: np.full(log_TW.shape, np.nan) for h in horizons} for _ in range(2))
    for k, log_W in enumerate(log_TW):
        covariates_WD = None if load_TW is None else covariates_of(model, load_TW[k])
        for h in horizons:
            if k + h <= len(log_TW):
                forecast, truth_W = model.predict(covariates=covariates_WD, horizon=h), log_TW[k + h - 1]
                errors[h][k + h - 1] = truth_W - np.log(forecast.speed)
                low_W, high_W = forecast.quantile(0.05), forecast.quantile(0.95)
                held[h][k + h - 1] = (low_W <= np.exp(truth_W)) & (np.exp(truth_W) <= high_W)
        model.observe(Report(np.exp(log_W), np.ones_like(log_W), covariates=covariates_WD))
    return errors, held


def covariates_of(model, load_W):
    covariates_WD = np.full((len(load_W), len(model.covariate_names)), np.nan)
    covariates_WD[:, model.covariate_names.index("load")] = load_W
    return covariates_WD


def rms(errors):
    return float(np.sqrt(np.nanmean(np.square(errors))))


def made(model, workers=2):
    model.reset([str(w) for w in range(workers)])
    return model


def loaded(load_TW, seed=1):
    return np.log(100.0) - load_TW + np.random.default_rng(seed).normal(0.0, 0.02, load_TW.shape)


@pytest.mark.slow
def test_unasked_horizon_keeps_covariate_effect():
    load_TW = 1.2 * (np.random.default_rng(0).random((300, 2)) < 0.5)
    model = made(Auto(covariates=["load"]))
    heard(model, loaded(load_TW), load_TW)
    for load in (0.0, 1.2):
        soon, later = (
            model.predict(covariates=covariates_of(model, np.full(2, load)), horizon=h).speed for h in (1, 2)
        )
        assert later == pytest.approx(soon, rel=0.03)
    assert later[0] < 0.4 * 100.0  # the first worker was at load 0 before


def test_correction_is_learned_for_the_horizon():
    """Speeds that swing from one iteration to the next: two ahead, the correction is the other way around."""
    random, log_TW = np.random.default_rng(3), np.zeros((600, 2))
    for t in range(1, len(log_TW)):
        log_TW[t] = -0.6 * log_TW[t - 1] + random.normal(0.0, 0.1, 2)
    last, corrected = (
        heard(made(Mixture([expert])), log_TW, horizons=(2,))[0][2] for expert in ("last-value", Pooled("last-value"))
    )
    assert rms(corrected[200:]) < 0.88 * rms(last[200:])  # the best that can be is 0.82


@pytest.mark.slow
def test_uninformative_covariate_unused_ahead():
    load_TW = 1.2 * (np.random.default_rng(0).random((400, 4)) < 0.5)
    errors, _ = heard(made(Auto(covariates=["load"]), 4), loaded(load_TW), load_TW, horizons=(1, 2))
    assert rms(errors[1][200:]) < 0.2
    assert rms(errors[2][200:]) < 1.05 * 0.6  # the deviation of the load


@pytest.mark.slow
def test_lasting_covariate_serves_both_horizons():
    iteration_T = np.arange(400)[:, None]
    load_TW = 0.5 + 0.5 * np.sin(2 * np.pi * iteration_T / 200 + np.arange(4)) * np.ones((1, 4))
    load_TW += 0.3 * (np.random.default_rng(2).random((200, 4)) < 0.5).repeat(2, axis=0)
    errors, _ = heard(made(Auto(covariates=["load"]), 4), loaded(load_TW), load_TW, horizons=(1, 2))
    even = slice(201, None, 2)  # both iterations of a pair have the load of the first
    assert rms(errors[2][even]) < 0.07


@pytest.mark.parametrize("make", [Auto, lambda: Calibrated("ewma")])
@pytest.mark.slow
def test_interval_coverage_at_every_horizon(make):
    rng = np.random.default_rng(3)
    noise_TW = rng.normal(0.0, 0.1, (500, 12)) + np.cumsum(rng.normal(0.0, 0.01, (500, 12)), axis=0)
    _, held = heard(made(make(), 12), noise_TW, horizons=(1, 2, 5))
    for share in (np.nanmean(held[h][150:]) for h in held):
        assert 0.87 < share < 0.93


@pytest.mark.slow
def test_mixture_weights_learned_per_horizon():
    """One expert is right about the next iteration, the other about the one after."""
    last, average = "last-value", "ewma:smoothing=0.05"
    log_TW = np.repeat(np.random.default_rng(4).normal(0.0, 0.2, (300, 2)), 2, axis=0)
    model = made(Mixture([last, average]))
    errors, _ = heard(model, log_TW, horizons=(1, 4))
    of_last, of_average = (
        rms(heard(made(Mixture([one])), log_TW, horizons=(4,))[0][4][300:]) for one in (last, average)
    )
    assert model.weights[:, 0].min() > 0.5
    assert rms(errors[4][300:]) < 1.1 * of_average < 0.9 * of_last


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda: Auto(covariates=["load"]), Calibrated])
def test_state_with_horizons_resumes_exactly(make):
    rng = np.random.default_rng(5)
    log_TW = rng.normal(0.0, 0.1, (120, 3))
    log_TW[rng.random((120, 3)) < 0.1] = np.nan
    model = made(make(), 3)
    heard(model, log_TW[:60], horizons=(1, 2, 3))
    model.leave("1")
    model.join("new")
    resumed = make()
    resumed.load_state_dict(model.state_dict())
    for one in (model, resumed):
        heard(one, log_TW[60:], horizons=(1, 2, 3))
    for horizon in (1, 2, 3):
        one, other = (m.predict(horizon=horizon) for m in (model, resumed))
        np.testing.assert_array_equal(one.speed, other.speed)
        np.testing.assert_array_equal(one.quantiles, other.quantiles)


def horizons_of(model):
    return {int(name.split("/ahead")[1].split("/")[0]) for name in model.state_dict() if "/ahead" in name}


@pytest.mark.parametrize("make", [Calibrated, lambda: Mixture(["last-value", "ewma"])])
def test_first_asked_horizons_are_learned(make):
    model = made(make())
    for horizon in (1, 65, 64, 2, 3, 4, 2):
        model.predict(horizon=horizon)
    assert horizons_of(model) == {64, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("make", [Calibrated, lambda: Mixture(["last-value", "ewma"])])
def test_horizon_dropped_after_idle_reports(make):
    model = made(make())
    model.predict(horizon=2)
    model.predict(horizon=3)
    for _ in range(256):
        model.observe(Report([1.0, 1.0], [1.0, 2.0]))
        model.predict(horizon=3)
    assert horizons_of(model) == {2, 3}
    model.observe(Report([1.0, 1.0], [1.0, 2.0]))
    assert horizons_of(model) == {3}


def test_frame_has_the_forecasts_of_all_horizons():
    model = Auto()
    model.reset(["a", "b"])
    for k in range(30):
        model.observe(Report(samples=[64, 64], seconds=[1.0 + 0.1 * (k % 3), 2.0]))
    frame = model.predict_frame([1, 5], interval=0.5)
    for horizon, rows in frame.groupby("horizon"):
        forecast = model.predict(horizon=horizon)
        assert list(rows["worker"]) == ["a", "b"]
        for column, expected in (("speed", forecast.speed), ("low", forecast.quantile(0.25))):
            np.testing.assert_array_equal(rows[column], expected)
        assert (rows["low"] <= rows["high"]).all()
    for horizons in (5, []):
        with pytest.raises(TypeError, match=re.escape(f"such as [1, 5, 20], got {horizons}")):
            model.predict_frame(horizons)
    with pytest.raises(ValueError, match="interval must lie strictly between 0 and 1, got 90"):
        model.predict_frame(interval=90)
