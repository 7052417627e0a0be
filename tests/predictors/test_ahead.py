"""Horizons above 1: covariates, corrections, weights and quantiles are learnt for those that are asked for."""

import numpy as np
import pytest

from paceline.predictors import Auto, Calibrated, Mixture, Report
from paceline.predictors.ahead import FARTHEST, IDLE, MOST
from paceline.predictors.mixture import weights_of


def heard(model, log_TW, load_TW=None, horizons=(1,)):
    """Errors at each horizon and whether 90 % intervals held, ``[T, W]`` each; the model has seen all reports then."""
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
def test_a_horizon_that_was_never_asked_for_keeps_what_covariates_do_to_the_next_iteration():
    load_TW = 1.2 * (np.random.default_rng(0).random((300, 2)) < 0.5)
    model = made(Auto(covariates=["load"]))
    heard(model, loaded(load_TW), load_TW)
    for load in (0.0, 1.2):
        soon, later = (
            model.predict(covariates=covariates_of(model, np.full(2, load)), horizon=h).speed for h in (1, 2)
        )
        assert later == pytest.approx(soon, rel=0.03)
    assert later[0] < 0.4 * 100.0  # the first worker was at load 0 before


@pytest.mark.slow
def test_a_covariate_that_says_nothing_about_the_iteration_after_next_is_not_used_for_it():
    load_TW = 1.2 * (np.random.default_rng(0).random((400, 4)) < 0.5)
    errors, _ = heard(made(Auto(covariates=["load"]), 4), loaded(load_TW), load_TW, horizons=(1, 2))
    assert rms(errors[1][200:]) < 0.2
    assert rms(errors[2][200:]) < 1.05 * 0.6  # the deviation of the load


@pytest.mark.slow
def test_a_covariate_that_lasts_serves_both_iterations_alike():
    iteration_T = np.arange(400)[:, None]
    load_TW = 0.5 + 0.5 * np.sin(2 * np.pi * iteration_T / 200 + np.arange(4)) * np.ones((1, 4))
    load_TW += 0.3 * (np.random.default_rng(2).random((200, 4)) < 0.5).repeat(2, axis=0)
    errors, _ = heard(made(Auto(covariates=["load"]), 4), loaded(load_TW), load_TW, horizons=(1, 2))
    even = slice(201, None, 2)  # both iterations of a pair have the load of the first
    assert rms(errors[2][even]) < 0.07


@pytest.mark.parametrize("make", [Auto, lambda: Calibrated("ewma")])
@pytest.mark.slow
def test_intervals_hold_as_often_as_they_say_at_every_horizon_that_is_asked_for(make):
    rng = np.random.default_rng(3)
    noise_TW = rng.normal(0.0, 0.1, (500, 12)) + np.cumsum(rng.normal(0.0, 0.01, (500, 12)), axis=0)
    _, held = heard(made(make(), 12), noise_TW, horizons=(1, 2, 5))
    for share in (np.nanmean(held[h][150:]) for h in held):
        assert 0.87 < share < 0.93


@pytest.mark.slow
def test_weights_are_learnt_at_the_horizon():
    """One expert is right about the next iteration, the other about the one after."""
    model = made(Mixture(["last-value", "ewma:smoothing=0.05"]))
    rng = np.random.default_rng(4)
    heard(model, np.repeat(rng.normal(0.0, 0.2, (300, 2)), 2, axis=0), horizons=(1, 2, 4))
    next_one, later = model.weights, weights_of(model._ahead[4].rows)
    assert next_one[:, 0].min() > 0.5
    assert later[:, 1].min() > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda: Auto(covariates=["load"]), Calibrated])
def test_a_state_with_horizons_resumes_bit_for_bit_through_gaps_and_changes_of_the_fleet(make):
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


@pytest.mark.slow
def test_memory_is_bounded_and_horizons_that_nobody_asks_for_are_dropped():
    model, log_TW = made(Auto()), np.random.default_rng(6).normal(0.0, 0.1, (IDLE + 1, 2))
    heard(model, log_TW[:40], horizons=range(1, 9))
    parts = [model, model._mixture, model._mixture._inner[-1]]
    assert [len(part._ahead) for part in parts] == [MOST] * 3
    for _ in parts:  # the outer one asks the inner ones
        heard(model, log_TW)
    assert [len(part._ahead) for part in parts] == [0] * 3


def horizons_of(model):
    return {int(name.split("/ahead")[1].split("/")[0]) for name in model.state_dict() if "/ahead" in name}


@pytest.mark.parametrize("make", [Calibrated, lambda: Mixture(["last-value", "ewma"])])
def test_what_is_learnt_ahead_are_the_first_horizons_asked_for_up_to_the_farthest(make):
    model = made(make())
    for horizon in (1, FARTHEST + 1, FARTHEST, 2, 3, 4, 2):
        model.predict(horizon=horizon)
    assert horizons_of(model) == {FARTHEST, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("make", [Calibrated, lambda: Mixture(["last-value", "ewma"])])
def test_a_horizon_is_dropped_by_the_first_report_after_a_long_time_without_a_question(make):
    model = made(make())
    model.predict(horizon=2)
    model.predict(horizon=3)
    for _ in range(IDLE):
        model.observe(Report([1.0, 1.0], [1.0, 2.0]))
        model.predict(horizon=3)
    assert horizons_of(model) == {2, 3}
    model.observe(Report([1.0, 1.0], [1.0, 2.0]))
    assert horizons_of(model) == {3}


@pytest.mark.parametrize("horizon", [1, FARTHEST + 1])
def test_a_state_of_a_horizon_that_nothing_is_learnt_for_is_refused(horizon):
    model = made(Calibrated())
    model.predict(horizon=2)
    state = {name.replace("/ahead2/", f"/ahead{horizon}/"): value for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=f"horizon must be a whole number from 2 to {FARTHEST}, got {horizon}"):
        Calibrated().load_state_dict(state)
