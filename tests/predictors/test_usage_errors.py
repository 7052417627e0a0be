"""Mistakes that users make with predictors end in a sentence, and the unit of a covariate does not matter."""

import numpy as np
import pandas as pd
import pytest

from paceline.datasets import Trace
from paceline.predictors import EWMA, NARX, RLS, BatchTime, FleetPredictor, LastValue, Report, Training


def loaded_trace(unit=1.0, iterations=200, workers=3):
    rng = np.random.default_rng(0)
    load = rng.uniform(0, 1, (iterations, workers))
    speed = 100 * (1 - 0.5 * load) * rng.lognormal(0, 0.02, load.shape)
    covariates = unit * load[..., None]
    return Trace(np.full(load.shape, 64.0), 64 / speed, covariates=covariates, covariate_names=["load"])


def error(model, trace):
    model.reset(trace.workers)
    errors = []
    for k in range(len(trace)):
        errors.append(np.log(model.predict(covariates=trace.covariates[k]).speed / trace.speed[k]))
        model.observe(Report(samples=trace.samples[k], seconds=trace.seconds[k], covariates=trace.covariates[k]))
    return np.sqrt(np.mean(np.square(errors[100:])))


@pytest.mark.parametrize("unit", [1e-15, 1e-9, 1e-7, 1e9])
def test_rls_ignores_the_unit_of_a_covariate(unit):
    usual = error(RLS(covariates=["load"]), loaded_trace())
    assert error(RLS(covariates=["load"]), loaded_trace(unit)) == pytest.approx(usual, rel=1e-3)


def profile(device):
    about = {"source": "mine", "model": "m", "held": ""}
    return pd.DataFrame([{"device": device, **about, "batch": size, "seconds": 0.1 + 0.01 * size} for size in (8, 64)])


def test_batch_time_refuses_a_device_without_a_curve():
    model = BatchTime(devices={"rank0": "t4"}).fit_profiles(profile("Tesla T4"))
    with pytest.raises(ValueError, match=r"\['t4'\].*curves were fitted for \['Tesla T4'\]"):
        model.reset(["rank0", "rank1"])


def test_batch_time_refuses_devices_of_no_worker():
    with pytest.raises(ValueError, match=r"\(rank-0\).*\(rank0 and rank1\)"):
        BatchTime(devices={"rank-0": "t4"}).reset(["rank0", "rank1"])


def test_fit_takes_one_trace_or_a_frame():
    trace = loaded_trace()
    for given in (trace, [trace], trace.to_frame()):
        assert RLS().fit(given).covariate_names == ("load",)


def test_fit_refuses_what_is_no_trace():
    with pytest.raises(TypeError, match=r"traces must be a Trace.*got str"):
        RLS().fit("traces/")


@pytest.mark.parametrize("kind", [NARX, RLS])
def test_fit_refuses_a_covariate_that_is_nan(kind):
    trace = loaded_trace(np.nan)
    with pytest.raises(ValueError, match=r"\['load'\] have no value"):
        kind(covariates=["load"]).fit(trace)
    options = {"training": Training(epochs=1)} if kind is NARX else {}
    with pytest.warns(UserWarning, match=r"\['load'\] are left out"):
        assert kind(covariates=None, **options).fit(trace).covariate_names == ()


@pytest.mark.parametrize("kind", [NARX, RLS])
def test_fit_warns_of_a_constant_covariate(kind):
    options = {"training": Training(epochs=1)} if kind is NARX else {}
    with pytest.warns(UserWarning, match=r"\['load'\] never change"):
        kind(covariates=["load"], **options).fit(loaded_trace(0.0))


def test_leave_names_few_of_many_workers():
    model = LastValue()
    model.reset([f"w{k}" for k in range(201)])
    with pytest.raises(ValueError, match=r"'zzz'.*w7 and 193 others") as refused:
        model.leave("zzz")
    assert len(str(refused.value)) < 200


class Forgetful(EWMA):
    def __init__(self):
        self.window = 3


class ForgetfulBase(FleetPredictor):
    def __init__(self):
        self.window = 3

    def initial_state(self, num_workers):
        return {"last": np.ones(num_workers)}

    def update(self, speed_W, covariates_WD):
        self.state["last"] = speed_W

    def forecast_speed(self, covariates_WD, horizon):
        return self.state["last"]


@pytest.mark.parametrize("kind", [Forgetful, ForgetfulBase])
def test_missing_super_init_names_the_class_and_file(kind):
    with pytest.raises(RuntimeError, match=rf"{kind.__name__}.*test_usage_errors.py.*super\(\)"):  # noqa: PT012
        model = kind()
        model.reset(["a"])
        model.observe(Report(samples=[8], seconds=[1]))
        model.predict()
