"""RLS recovers what it can, and never diverges."""

import numpy as np
import pytest

from paceline.datasets import Trace, synthetic_fleet
from paceline.predictors import RLS, LastValue, Report


def errors(model, trace, skip):
    """Log errors one step ahead, ``[T - skip, W]``."""
    model.reset(trace.workers)
    covariates_TWD = trace.covariates_named(model.covariate_names)
    found = []
    for k in range(len(trace)):
        covariates_WD = None if covariates_TWD is None else covariates_TWD[k]
        found.append(np.log(trace.speed[k] / model.predict(covariates=covariates_WD).speed))
        model.observe(Report(trace.samples[k], trace.seconds[k], covariates=covariates_WD))
    return np.array(found[skip:])


def rms(values):
    return float(np.sqrt(np.mean(np.square(values))))


def autoregressive(coefficients, noise, iterations=2000, workers=5):
    rng = np.random.default_rng(0)
    log_speed = np.zeros((iterations, workers))
    for k in range(2, iterations):
        past = coefficients[0] * log_speed[k - 1] + coefficients[1] * log_speed[k - 2]
        log_speed[k] = past + rng.normal(0.0, noise, workers)
    return Trace(samples=np.full_like(log_speed, 64.0), seconds=0.64 / np.exp(log_speed))


@pytest.mark.slow
def test_autoregression_forecast_near_noise():
    trace = autoregressive((0.2, 0.6), noise=0.1)
    assert rms(errors(RLS(), trace, skip=1000)) < 1.03 * 0.1


@pytest.mark.slow
def test_beats_last_value_on_synthetic_kinds():
    for kind in ("mixed", "noexog", "walk"):
        trace = synthetic_fleet(kind, workers=10, iterations=800)
        assert rms(errors(RLS(), trace, 400)) < 0.97 * rms(errors(LastValue(), trace, 400))


@pytest.mark.slow
def test_covariates_that_explain_the_speed_are_used():
    trace = synthetic_fleet("mixed", workers=10, iterations=800)
    blind = rms(errors(RLS(covariates=()), trace, 400))
    assert rms(errors(RLS(covariates=("cpu_share", "memory_pressure")), trace, 400)) < 0.99 * blind


@pytest.mark.slow
def test_fit_halves_first_step_gap():
    fleet = autoregressive((0.2, 0.6), noise=0.1, iterations=400, workers=12)
    known, new = fleet.select(workers=fleet.workers[:8]), fleet.select(slice(0, 60), fleet.workers[8:])
    fresh, fitted = rms(errors(RLS(), new, 5)), rms(errors(RLS().fit([known]), new, 5))
    assert fitted - 0.1 < 0.5 * (fresh - 0.1)


@pytest.mark.slow
def test_constant_and_spikes_stay_bounded():
    model = RLS()
    model.reset(["a"])
    rng = np.random.default_rng(0)
    for k in range(5000):
        seconds = 0.5 if k % 1000 < 900 else 0.5 * np.exp(rng.normal(0, 3))
        model.observe(Report([64], [seconds]))
        assert 1e-6 < model.predict().speed[0] < 1e9
    assert np.trace(model.state["covariance"][0]) <= model.prior_variance_.sum() * (1 + 1e-9)
    assert np.abs(model.state["weights"]).max() < 5


def test_a_covariate_that_a_trace_lacks_is_named():
    with pytest.raises(ValueError, match="gpu"):
        RLS(covariates=("gpu",)).fit([synthetic_fleet("walk", workers=1, iterations=10)])


def test_unlearned_forecast_is_last_speed():
    model = RLS()
    model.reset(["a"])
    for seconds in (1.0, 2.0):  # one change sets the scale of changes, and teaches no weight
        model.observe(Report([64], [seconds]))
    assert model.predict().speed == pytest.approx([32.0])
