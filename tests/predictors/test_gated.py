"""GatedNARX: what it sees, what it serves, and what the shipped network is good for."""

import copy

import numpy as np
import pytest

from paceline.datasets import Trace, synthetic_fleet
from paceline.predictors import GatedNARX, LastValue, Report, Training


def served(model, trace, skip=0):
    """Log errors one step ahead, from iteration ``skip`` on, ``[T, W]``."""
    model.reset(trace.workers)
    covariates_TWD = trace.covariates_named(model.covariate_names)
    errors = []
    for k, speed_W in enumerate(trace.speed):
        covariates_WD = None if covariates_TWD is None else covariates_TWD[k]
        errors.append(np.log(speed_W / model.predict(covariates=covariates_WD).speed))
        model.observe(Report(trace.samples[k], trace.seconds[k], covariates=covariates_WD))
    return np.array(errors[skip:])


def rms(errors):
    return float(np.sqrt(np.nanmean(np.square(errors))))


def small(**arguments):
    training = Training(epochs=4, batch_size=512, learning_rate=1e-2, weight_decay=1e-2)
    return GatedNARX(hidden=8, training=training, **arguments)


@pytest.fixture(scope="module")
def trace():
    return synthetic_fleet("mixed", workers=8, iterations=400, seed=1)


@pytest.fixture(scope="module")
def fitted(trace):
    return small().fit([trace])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "most"), [("mixed", 0.83), ("noexog", 0.88), ("walk", 0.83)])
def test_shipped_network_beats_last_value(kind, most):
    unseen = synthetic_fleet(kind, workers=20, iterations=500, seed=7)
    ratio = rms(served(GatedNARX(pretrained=True), unseen, 100)) / rms(served(LastValue(), unseen, 100))
    assert ratio < most


def test_new_worker_beats_last_value_by_fifty():
    unseen = synthetic_fleet("mixed", workers=100, iterations=50, seed=7)
    assert rms(served(GatedNARX(pretrained=True), unseen, 5)) < 0.85 * rms(served(LastValue(), unseen, 5))


@pytest.mark.slow
def test_only_ratios_of_speeds_matter(trace):
    faster = Trace(
        1000.0 * trace.samples, trace.seconds, covariates=trace.covariates, covariate_names=trace.covariate_names
    )
    model = GatedNARX(pretrained=True)
    assert served(model, faster, 1) == pytest.approx(served(model, trace, 1), abs=1e-8)


@pytest.mark.slow
def test_unknown_covariates_are_harmless(trace):
    names = ("temperature", "humidity")
    foreign = Trace(trace.samples, trace.seconds, covariates=trace.covariates, covariate_names=names)
    without = Trace(trace.samples, trace.seconds)
    assert np.array_equal(
        served(GatedNARX(pretrained=True), foreign, 1), served(GatedNARX(pretrained=True), without, 1)
    )
    assert rms(served(GatedNARX(pretrained=True), foreign, 20)) < 0.95 * rms(served(LastValue(), foreign, 20))


@pytest.mark.slow
def test_covariates_it_knows_help():
    unseen = synthetic_fleet("mixed", workers=20, iterations=500, seed=7)
    without = Trace(unseen.samples, unseen.seconds)
    model = GatedNARX(pretrained=True)
    assert rms(served(model, unseen, 100)) < 0.97 * rms(served(model, without, 100))


def test_a_spike_is_undone_in_the_next_forecast():
    model = GatedNARX(pretrained=True)
    model.reset(["a"])
    rng = np.random.default_rng(0)
    for seconds in (*np.exp(rng.normal(0.0, 0.05, 100)), 20.0):
        model.observe(Report([64], [seconds]))
    assert model.predict().speed[0] > 64 / 1.3


@pytest.mark.slow
def test_the_fitted_network_beats_the_last_value(trace, fitted):
    assert rms(served(fitted, trace, 50)) < 0.9 * rms(served(LastValue(), trace, 50))


@pytest.mark.slow
def test_covariate_of_some_traces_used(trace):
    half = Trace(
        trace.samples, trace.seconds, covariates=trace.covariates[:, :, :1], covariate_names=trace.covariate_names[:1]
    )
    assert small().fit([half, trace]).covariate_names == trace.covariate_names


def test_covariate_of_no_trace_refused(trace):
    with pytest.raises(ValueError, match=r"\['humidity'\] are in none of the traces"):
        small(covariates=("humidity",)).fit([trace])


@pytest.mark.slow
def test_pretrained_fit_continues(trace):
    model = GatedNARX(pretrained=True, training=Training(epochs=1, learning_rate=1e-9, weight_decay=0.0))
    before = {name: weight.copy() for name, weight in model.weights_.items()}
    model.fit([trace])
    assert all(model.weights_[name] == pytest.approx(before[name], abs=1e-5) for name in before)


@pytest.mark.slow
def test_forecast_cache_respects_covariates(trace, fitted):
    served(fitted, trace)
    calm, busy = (fitted.predict(covariates=np.full((8, 2), share)).speed for share in (1.0, 0.3))
    assert not np.allclose(calm, busy)


def test_reset_forgets_covariates(fitted, trace):
    used, new = copy.deepcopy(fitted), copy.deepcopy(fitted)
    used.reset(trace.workers)
    for k in range(20):
        used.observe(Report(trace.samples[k], trace.seconds[k], covariates=3.0 + 0.0 * trace.covariates[k]))
        used.predict()
    for model in (used, new):
        model.reset(trace.workers)
        for k in range(5):
            model.observe(Report(trace.samples[k], trace.seconds[k]))
    assert used.predict().speed.tolist() == new.predict().speed.tolist()
