"""A state holds all that a predictor knows, and a fit in the middle of a job leaves nothing from before it."""

import numpy as np
import pytest
from test_forecasts_kept import BRIEF, covariates_of, job

from paceline.predictors import (
    ARIMA,
    EWMA,
    GRU,
    NARX,
    RLS,
    Auto,
    BarrierHead,
    BatchTime,
    Boosting,
    Calibrated,
    GatedNARX,
    Mixture,
    Report,
)
from paceline.training import fit

LEARNING = {
    "ewma": lambda: EWMA(smoothing=None),
    "rls": RLS,
    "arima": lambda: ARIMA(order=(1, 1, 1)),
    "batch-time": lambda: BatchTime(relative_speed="rls"),
    "mixture": lambda: Mixture([RLS(), EWMA(smoothing=None), "last-value"]),
    "calibrated": lambda: Calibrated("rls"),
    "boosting": lambda: Boosting(trees=2, covariate_lags=1),
    "narx": lambda: NARX(lags=3, hidden=3, training=BRIEF),
    "gated": lambda: GatedNARX(pretrained=True, training=BRIEF),
    "barrier": lambda: BarrierHead(pretrained=True, training=BRIEF),
    "gru": lambda: GRU(hidden=3, training=BRIEF),
    "auto": lambda: Auto(covariates=["load"]),
}
SLOW = ("boosting", "narx", "gated", "barrier", "gru", "auto")
KINDS = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in LEARNING]


def needs(name):
    if name in SLOW:
        pytest.importorskip("sklearn" if name == "boosting" else "torch", reason="needs this extra")


def serve(model, first=0, count=20):
    trace = job(1)
    for k in range(first, first + count):
        covariates = covariates_of(model, trace, k)
        for horizon in (1, 3):
            model.predict(covariates, horizon=horizon)
        model.observe(Report(trace.samples[k], trace.seconds[k], covariates=covariates))


def same(one, other):
    for horizon in (1, 2, 3):
        mine, theirs = (model.predict(horizon=horizon) for model in (one, other))
        np.testing.assert_array_equal(mine.speed, theirs.speed)
        np.testing.assert_array_equal(mine.spread, theirs.spread)


@pytest.mark.parametrize("name", KINDS)
def test_a_state_that_was_loaded_is_the_state_that_was_saved_in_every_array(name):
    needs(name)
    model, resumed = LEARNING[name](), LEARNING[name]()
    if name != "auto":
        model = fit(model, [job(2).select(iterations=slice(0, 60))])
        assert len(model.reference_.covariates) == len(model.covariate_names)
    model.reset(job(1).workers)
    serve(model)
    model.rename("jumps", "again")
    saved = model.state_dict()
    resumed.load_state_dict(saved)
    loaded = resumed.state_dict()
    assert list(loaded) == list(saved)
    for array in saved:
        np.testing.assert_array_equal(loaded[array], saved[array], err_msg=array)
    same(model, resumed)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_the_first_forecast_after_a_fit_in_the_middle_of_a_job_is_that_of_the_fitted_predictor(name):
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
