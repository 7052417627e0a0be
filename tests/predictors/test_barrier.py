"""BarrierHead: forecasts that keep the slowest worker of a group from being waited for."""

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.datasets.synthetic import synthetic_fleet
from paceline.predictors import BarrierHead, GatedNARX, Report, Training


def forecast(model, trace):
    model.reset(trace.workers)
    covariates_TWD = trace.covariates_named(model.covariate_names)
    speed_TW = np.empty(trace.seconds.shape)
    for k in range(len(trace)):
        covariates_WD = None if covariates_TWD is None else covariates_TWD[k]
        speed_TW[k] = model.predict(covariates=covariates_WD).speed
        model.observe(Report(trace.samples[k], trace.seconds[k], covariates=covariates_WD))
    return speed_TW


def overhead(p_TW, v_TW):
    """How much longer than the best split an iteration takes, mean over iterations."""
    return float(np.mean((p_TW / v_TW).max(axis=1) * v_TW.sum(axis=1) / p_TW.sum(axis=1) - 1.0))


def served_overhead(model, trace, skip=200):
    return overhead(forecast(model, trace)[skip:], trace.speed[skip:])


@pytest.mark.slow
def test_tuned_head_waits_less_than_network():
    network = GatedNARX(pretrained=True)
    training = Training(epochs=4, batch_size=1024, learning_rate=5e-3, weight_decay=1e-2)
    head = BarrierHead(pretrained=True, training=training)
    head.fit([synthetic_fleet("mixed", workers=32, iterations=600, seed=12)])
    trace = synthetic_fleet("mixed", workers=16, iterations=600, seed=11)
    assert served_overhead(head, trace) < served_overhead(network, trace)


def test_untuned_head_equals_shipped_network():
    trace = synthetic_fleet("walk", workers=4, iterations=60, seed=3)
    one, other = BarrierHead(pretrained=True), GatedNARX(pretrained=True)
    assert np.array_equal(forecast(one, trace), forecast(other, trace))


@pytest.mark.slow
def test_fit_shades_noisy_workers():
    rng = np.random.default_rng(0)
    noise_W = np.repeat([0.03, 0.3], 8)
    trace = Trace(np.ones((600, 16)), np.exp(rng.normal(0.0, noise_W, (600, 16))))
    head = BarrierHead(hidden=8, training=Training(epochs=10, batch_size=256, learning_rate=2e-2, weight_decay=1e-2))
    unseen = Trace(np.ones((400, 16)), np.exp(rng.normal(0.0, noise_W, (400, 16))))
    shaded_W = np.log(forecast(head.fit([trace]), unseen)[100:]).mean(axis=0)
    assert shaded_W[8:].mean() < shaded_W[:8].mean() - 0.05


@pytest.mark.slow
def test_fitting_it_again_gives_the_same_weights():
    trace = synthetic_fleet("noexog", workers=8, iterations=200, seed=1)
    training = Training(epochs=2, batch_size=256)
    one, other = (BarrierHead(hidden=4, training=training).fit([trace]) for _ in range(2))
    assert all(np.array_equal(one.weights_[name], other.weights_[name]) for name in one.weights_)


def test_traces_without_a_whole_group_are_refused():
    trace = synthetic_fleet("noexog", workers=1, iterations=30)
    with pytest.raises(ValueError, match="too short to fit groups of 16"):
        BarrierHead(hidden=4, training=Training(epochs=1)).fit([trace])
