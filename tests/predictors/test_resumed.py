"""A state holds all that a predictor knows, and a fit in the middle of a job leaves nothing from before it."""

from functools import cache

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.predictors import (
    ARIMA,
    EWMA,
    LSTM,
    NARX,
    RLS,
    Auto,
    BatchTime,
    Calibrated,
    GatedNARX,
    Mixture,
    Report,
    Training,
)

ITERATIONS = 150
BRIEF = Training(epochs=2, batch_size=64)


@cache
def job(seed):
    """Return a job in which happens what predictors have rules for; workers join, leave and get other names."""
    rng = np.random.default_rng(seed)
    names = ("steady", "jumps", "cycles", "silent", "noisy", "late")
    shape, k = (ITERATIONS, len(names)), np.arange(ITERATIONS)
    busy_TW, load_TW = (np.cumsum(rng.random(shape) < 0.06, axis=0) % 2).astype(float), rng.random(shape)
    samples_TW = rng.choice([24.0, 32.0, 40.0, 64.0], shape)[k - k % 4]
    log_TW = -0.4 * busy_TW - 0.3 * load_TW + rng.normal(0.0, 0.03, shape) + np.linspace(0.0, 1.0, len(names))
    log_TW[65:110, 1] -= 0.9
    log_TW[k % 6 == 0, 2] -= 1.1
    log_TW[:, 4] += rng.normal(0.0, 0.6, ITERATIONS) * (k > 80)
    log_TW[:3] -= 1.0  # a warm-up
    seconds_TW = (0.05 + 0.01 * samples_TW) * np.exp(-log_TW)
    seconds_TW[rng.random(shape) < 0.06] = np.nan
    seconds_TW[60:85, 3] = np.nan
    for at, worker, factor in ((40, 0, 0.0), (45, 4, 1e-3), (55, 1, 2e-3), (56, 1, 2e-3), (100, 0, 30.0)):
        seconds_TW[at, worker] *= factor
    covariates_TWD = np.stack([busy_TW, load_TW], axis=-1)
    covariates_TWD[rng.random((*shape, 2)) < 0.05] = np.nan
    covariates_TWD[90] *= 40.0
    return Trace(
        samples_TW,
        seconds_TW,
        comm_seconds=0.3 * seconds_TW,
        covariates=covariates_TWD,
        covariate_names=["busy", "load"],
        workers=names,
        meta={"job": f"recorded {seed}"},
    )


def covariates_of(model, trace, k):
    """Return the covariates that the model reads, NaN where the job has none of this name."""
    places = {name: place for place, name in enumerate(trace.covariate_names)}
    missing = np.full(len(trace.workers), np.nan)
    columns = [trace.covariates[k, :, places[n]] if n in places else missing for n in model.covariate_names]
    return np.stack([*columns, missing], axis=1)[:, :-1]


LEARNING = {
    "ewma": lambda: EWMA(smoothing=None),
    "rls": RLS,
    "arima": lambda: ARIMA(order=(1, 1, 1)),
    "batch-time": lambda: BatchTime(relative_speed="rls"),
    "mixture": lambda: Mixture([RLS(), EWMA(smoothing=None), "last-value"]),
    "calibrated": lambda: Calibrated("rls"),
    "narx": lambda: NARX(lags=3, hidden=3, training=BRIEF),
    "gated": lambda: GatedNARX(pretrained=True, training=BRIEF),
    "lstm": lambda: LSTM(hidden=3, training=BRIEF),
    "auto": lambda: Auto(covariates=["load"]),
}
SLOW = ("narx", "gated", "lstm", "auto")
KINDS = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in LEARNING]


def needs(name):
    if name in SLOW:
        pytest.importorskip("torch", reason="needs this extra")


def serve(model, first=0, count=20):
    trace = job(1)
    for k in range(first, first + count):
        covariates = covariates_of(model, trace, k)
        for horizon in (1, 3):
            model.predict(covariates=covariates, horizon=horizon)
        model.observe(Report(trace.samples[k], trace.seconds[k], covariates=covariates))


def same(one, other):
    for horizon in (1, 2, 3):
        mine, theirs = (model.predict(horizon=horizon) for model in (one, other))
        np.testing.assert_array_equal(mine.speed, theirs.speed)
        np.testing.assert_array_equal(mine.spread, theirs.spread)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_fit_mid_job_equals_fitted_predictor(name):
    """A fit may bring other covariates: RLS and the networks then failed at the shape of their own state."""
    needs(name)
    model, resumed = LEARNING[name](), LEARNING[name]()
    model.reset(job(1).workers)
    serve(model)
    assert model.fit([job(2).select(iterations=slice(0, 60))]) is model
    resumed.load_state_dict(model.state_dict())
    same(model, resumed)
    for one in (model, resumed):
        serve(one, first=20)
    same(model, resumed)
