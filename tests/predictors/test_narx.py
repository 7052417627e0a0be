"""NARX: its linear path, and the network on what the path leaves."""

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.eval import backtest
from paceline.predictors import NARX, Report, Training

pytest.importorskip("torch", reason="needs the torch extra")

BRIEF = Training(epochs=4)


def driven(seed, noise_W, iterations=300):
    """Return a job whose speed falls to a half where a competitor runs, whatever the noise of the worker."""
    rng = np.random.default_rng(seed)
    shape = (iterations, len(noise_W))
    busy_TW = (np.cumsum(rng.random(shape) < 0.03, axis=0) % 2).astype(float)
    log_speed_TW = rng.uniform(2.0, 5.0, shape[1]) - 0.7 * busy_TW + rng.normal(0.0, noise_W, shape)
    return Trace(np.exp(log_speed_TW), np.ones(shape), covariates=busy_TW[:, :, None], covariate_names=["busy"])


def errors(predictor, trace, warmup=50):
    result = backtest(predictor, trace, warmup=warmup)
    return np.sqrt(np.nanmean(np.square(np.log(result.forecast_TW / result.actual_TW)[result.warmup :]), axis=0))


@pytest.fixture(scope="module")
def steady():
    """Return a NARX fitted to speeds that return to a level after every step."""
    return NARX(training=BRIEF).fit(driven(0, np.full(6, 0.1)).select(iterations=slice(0, 200)))


@pytest.mark.slow
def test_covariate_share_alike_for_unseen_workers():
    noise_W = np.repeat([0.02, 0.2], 3)
    model = NARX(training=BRIEF).fit([driven(seed, noise_W) for seed in (1, 2)])
    assert np.all(errors(model, driven(3, noise_W)) < 1.15 * noise_W)


@pytest.mark.slow
def test_a_level_is_averaged_over_more_than_the_lags():
    rng = np.random.default_rng(0)
    fitted, unseen = (Trace(np.exp(rng.normal(3.0, 0.1, (600, 8))), np.ones((600, 8))) for _ in range(2))
    model = NARX(lags=3, training=BRIEF).fit(fitted)
    assert np.mean(errors(model, unseen)) < 0.105, "three lags alone leave 0.115"


@pytest.mark.slow
def test_without_a_gain_there_is_no_linear_path():
    steps = np.random.default_rng(0).normal(0.0, 0.1, (400, 6))
    model = NARX(training=BRIEF).fit(Trace(np.exp(np.cumsum(steps, axis=0)), np.ones(steps.shape)))
    assert not model.weights_["linear"].any()


@pytest.mark.slow
def test_with_a_gain_there_is_a_linear_path(steady):
    assert steady.weights_["linear"].any()


@pytest.mark.slow
def test_a_worker_unlike_the_fitted_ones_is_learned(steady):
    slowed = driven(6, np.full(3, 0.1), iterations=600)
    hastened = Trace(1.0 / slowed.samples, slowed.seconds, covariates=slowed.covariates, covariate_names=["busy"])
    assert np.all(errors(steady, hastened[:200]) > 0.16), "it was fitted to workers that the same covariate slows"
    assert np.all(errors(steady, hastened, warmup=300) < 0.15), "their noise alone is 0.1"


@pytest.mark.slow
def test_silence_changes_no_forecast(steady):
    trace = driven(5, np.full(3, 0.1), iterations=60)
    steady.reset(trace.workers)
    for k in range(60):
        steady.observe(Report(trace.samples[k], trace.seconds[k], covariates=trace.covariates[k]))
    before = steady.predict(covariates=trace.covariates[-1]).speed
    for _ in range(30):
        steady.observe(Report(np.zeros(3), np.zeros(3), covariates=trace.covariates[-1]))
    np.testing.assert_allclose(steady.predict(covariates=trace.covariates[-1]).speed, before, rtol=0.2)
