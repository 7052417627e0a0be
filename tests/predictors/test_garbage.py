"""Numbers that no clock should report: they spoil no forecast for long, raise no warning, and stay out of the sums."""

from inspect import signature

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator import LoadBalancer
from paceline.predictors import EWMA, KINDS, LastValue, Report

ANY = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -1.0, 5e-324, 1e-9, 1e300, 1e-300])


def report(rng, first=None):
    """Two workers at about 100 samples/s; or the first with this number of samples and seconds."""
    samples, seconds = np.array([32.0, 32.0]), 0.32 * np.exp(rng.normal(0, 0.02, 2))
    if first is not None:
        samples[0], seconds[0] = first
    return Report(samples, seconds)


def warmed(kind, rng):
    model = kind()
    model.reset(["a", "b"])
    for _ in range(60):
        model.observe(report(rng))
    return model


@pytest.mark.parametrize("samples", [-np.inf, np.inf, np.nan, 32.0])
@pytest.mark.parametrize("seconds", [-np.inf, np.inf, np.nan, 0.0])
def test_nonfinite_report_is_missing(samples, seconds):
    np.testing.assert_array_equal(Report([32.0, samples], [0.25, seconds]).speed, [128.0, np.nan])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "garbage", [(32, 1e-9), (32, 1e-5), (1e300, 0.32), (32, 1e300), (1e-300, 0.32), (1e300, 1e300), (32, 5e-324)]
)
@pytest.mark.slow
def test_one_impossible_report_is_forgotten(kind, garbage):
    """EWMA was off by more than a fifth for 83 iterations after a step of a nanosecond."""
    rng = np.random.default_rng(0)
    model = warmed(kind, rng)
    model.observe(report(rng, garbage))
    for _ in range(20):
        model.observe(report(rng))
    assert model.predict().speed[0] == pytest.approx(100, rel=0.2)


def test_a_missing_report_does_not_lift_the_doubt():
    model = LastValue()
    model.reset(["a"])
    for seconds in (1.0, 0.001, np.nan, 0.001):
        model.observe(Report([10.0], [seconds]))
    assert model.predict().speed[0] == 10_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_any_report_keeps_forecast_usable(kind):
    model = kind()

    @settings(max_examples=25)
    @given(st.lists(st.tuples(*[ANY] * 6), max_size=6))
    def check(rows):
        model.reset(["a", "b"])
        for x0, x1, t0, t1, c0, c1 in rows:
            model.observe(Report([x0, x1], [t0, t1], comm_seconds=[c0, c1]))
            for horizon in (1, 3):
                forecast = model.predict(horizon=horizon)
                assert np.isfinite(forecast.speed).all()
                assert (forecast.speed > 0).all()
                assert not np.isnan(forecast.quantile(0.1)).any()

    check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "covariates" in signature(kind).parameters])
@pytest.mark.parametrize("lie", [np.inf, -np.inf, 1e300, -1e300])
def test_a_covariate_that_cannot_be_is_unknown(kind, lie):
    """A single 1e300 took the running mean of RLS and Auto away, and with it the covariate, for good."""
    rng, told, unknown = np.random.default_rng(0), kind(covariates=["load"]), kind(covariates=["load"])
    for model in (told, unknown):
        model.reset(["a", "b"])
    for k in range(40):
        load_W = rng.uniform(0, 1, (2, len(told.covariate_names)))
        seconds_W = 0.32 * (1 + load_W[:, -1])
        speeds = []
        for model, place in ((told, lie), (unknown, np.nan)):
            given_W = load_W.copy()
            given_W[0, -1] = place if k == 20 else load_W[0, -1]
            speeds.append(model.predict(covariates=given_W).speed)
            model.observe(Report([32.0, 32.0], seconds_W, covariates=given_W))
        np.testing.assert_array_equal(*speeds)


@settings(max_examples=40)
@given(st.lists(st.tuples(*[ANY] * 4), min_size=1, max_size=8), st.sampled_from([EWMA, LastValue]))
def test_any_report_keeps_balancer_quiet(rows, kind):
    balancer = LoadBalancer(kind(), workers=["a", "b"], global_batch=64)
    for x0, x1, t0, t1 in rows:
        plan = balancer.step(Report([x0, x1], [t0, t1]))
        assert plan.sizes.sum() == 64
