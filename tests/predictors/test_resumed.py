"""A state holds all that a predictor knows, and a fit in the middle of a job leaves nothing from before it."""

import numpy as np
import pytest

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
    checks,
)

BRIEF = Training(epochs=2, batch_size=64)

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
    "auto": lambda: Auto(covariates=["cpu_busy"]),
}
SLOW = ("narx", "gated", "lstm", "auto")
KINDS = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in LEARNING]


def needs(name):
    if name in SLOW:
        pytest.importorskip("torch", reason="needs this extra")


def serve(model, first=0, count=20):
    trace = checks.example_trace()
    panel_TWD = trace.covariates_named(model.covariate_names)
    for k in range(first, first + count):
        covariates = None if panel_TWD is None else panel_TWD[k]
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
    model.reset(checks.WORKER_NAMES)
    serve(model)
    assert model.fit([checks.example_trace(80, seed=2)]) is model
    resumed.load_state_dict(model.state_dict())
    same(model, resumed)
    for one in (model, resumed):
        serve(one, first=20)
    same(model, resumed)
