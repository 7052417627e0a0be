"""A warm start of ARIMA keeps the models of workers that the newer traces lack, to the last bit, and saves them too."""

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.predictors import ARIMA, Report
from paceline.training import fit

ITERATIONS = 120


def trace_of(workers, seed):
    """Return speeds that a covariate slows down, for each worker by another factor."""
    rng = np.random.default_rng(seed)
    shape = (ITERATIONS, len(workers))
    load_TWD = rng.random((*shape, 1))
    speed_TW = 100.0 * np.exp(rng.normal(0.0, 0.05, shape) - load_TWD[..., 0] * np.arange(1, len(workers) + 1))
    return Trace(np.full(shape, 32.0), 32.0 / speed_TW, covariates=load_TWD, covariate_names=["load"], workers=workers)


def forecasts(model, worker):
    """Return forecasts of one worker as it reports, the last for a load far beyond what was seen while fitted."""
    model.reset([worker])
    found = []
    for load, speed in ((0.1, 90.0), (0.9, 40.0), (0.5, 60.0), (9.0, 20.0)):
        found.append(float(model.predict(covariates=[[load]]).speed[0]))
        model.observe(Report(samples=[32.0], seconds=[32.0 / speed], covariates=[[load]]))
    return found


@pytest.mark.parametrize("order", [(1, 0, 0), (0, 1, 1)], ids=str)
def test_warm_start_keeps_absent_workers(order):
    model = ARIMA(order=order).fit([trace_of(["gone", "stays"], seed=0)])
    before = {name: forecasts(model, name) for name in ("gone", "stays")}
    model = fit(ARIMA(order=order), [trace_of(["stays", "new"], seed=1)], start=model)
    after = {name: forecasts(model, name) for name in ("gone", "stays", "new", "stranger")}
    assert after["gone"] == before["gone"]
    assert after["stays"] != before["stays"]
    resumed = ARIMA(order=order)
    resumed.load_state_dict(model.state_dict())
    assert {name: forecasts(resumed, name) for name in after} == after
    afresh = ARIMA(order=order).fit([trace_of(["stays", "new"], seed=1)])
    assert forecasts(afresh, "gone") == forecasts(afresh, "stranger")
