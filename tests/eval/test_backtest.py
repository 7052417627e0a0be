"""The overhead at a barrier: known numbers and laws."""

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.eval import backtest, barrier_overhead, iter_backtest
from paceline.predictors import EWMA, KINDS, NARX, Forecast, LastValue, Training, checks
from paceline.training import fit


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def predictor(request):
    if request.param is NARX:
        return fit(NARX(lags=3, training=Training(epochs=2)), [checks.example_trace()])
    return request.param()


def poisoned(trace: Trace, k: int) -> Trace:
    """The same trace, with everything that is measured in iteration k or later replaced by garbage."""
    seconds, covariates = trace.seconds.copy(), trace.covariates.copy()
    seconds[k:] = np.random.default_rng(k).uniform(1e-3, 1e3, seconds[k:].shape)
    covariates[k + 1 :] = 1e6  # the covariates of boundary k are sampled before iteration k, so they may be seen
    return Trace(
        trace.samples, seconds, covariates=covariates, covariate_names=trace.covariate_names, workers=trace.workers
    )


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 7, 30])
def test_no_forecast_looks_ahead(predictor, k):
    trace = checks.example_trace(60, seed=4)
    clean = [step.forecast for step in iter_backtest(predictor, trace)]
    other = [step.forecast for step in iter_backtest(predictor, poisoned(trace, k))]
    for before, after in zip(clean[: k + 1], other[: k + 1], strict=True):
        np.testing.assert_array_equal(before.speed, after.speed)
        np.testing.assert_array_equal(before.spread, after.spread)
    assert any((a.speed != b.speed).any() for a, b in zip(clean[k + 1 :], other[k + 1 :], strict=True))


@pytest.mark.parametrize(("horizon", "boundaries"), [(1, [0.25, 0.75]), (2, [0.25])])
def test_covariates_are_of_boundary_before(horizon, boundaries):
    seen = []

    class Watches(LastValue):
        covariate_names = ("cpu_busy",)

        def predict(self, *, covariates=None, horizon=1):
            seen.append(("predict", covariates.item()))
            return super().predict(covariates=covariates, horizon=horizon)

        def observe(self, report):
            seen.append(("observe", report.covariates.item()))
            super().observe(report)

    trace = Trace([[1]] * 2, [[1]] * 2, covariates=[[[0.25]], [[0.75]]], covariate_names=["cpu_busy"])
    list(iter_backtest(Watches(), trace, horizon=horizon))
    assert seen == [(call, value) for value in boundaries for call in ("predict", "observe")]


def test_scores_by_hand_skip_warmup_and_gaps():
    trace = Trace(samples=[[6], [6], [6], [6]], seconds=[[1.0], [2.0], [np.nan], [6.0]])  # speeds 6, 3, -, 1
    result = backtest(LastValue(), trace, warmup=1)
    np.testing.assert_allclose(result.mae, [(3 + 2) / 2])
    np.testing.assert_allclose(result.rmse, [np.sqrt((9 + 4) / 2)])


def test_a_worker_that_never_reported_has_no_score():
    trace = Trace(samples=[[6, 6]] * 3, seconds=[[1.0, np.nan]] * 3)
    assert np.isnan(backtest(LastValue(), trace, warmup=0).rmse[1])


@pytest.mark.parametrize("warmup", [-1, 3, 10])
def test_warmup_too_long_refused(warmup):
    with pytest.raises(ValueError, match=r"warmup must be in \[0, 3\), the iterations of trace"):
        backtest(LastValue(), Trace([[1]] * 3, [[1]] * 3), warmup=warmup)


def test_path_or_name_refused_with_hint(tmp_path):
    with pytest.raises(
        TypeError, match=r"must be a Trace, got an object of \w*Path: read a file with paceline\.datasets\.read_traces"
    ):
        backtest(LastValue(), tmp_path / "a.parquet")
    with pytest.raises(TypeError, match=r"named\('ewma'\) creates one"):
        backtest("ewma", checks.example_trace())


def test_horizon_two_forecast_one_earlier():
    trace = Trace(samples=[[6]] * 4, seconds=[[1.0], [2.0], [3.0], [6.0]])  # speeds 6, 3, 2, 1
    steps = list(iter_backtest(LastValue(), trace, horizon=2))
    assert [step.iteration for step in steps] == [1, 2, 3]
    assert [step.actual.item() for step in steps] == [3.0, 2.0, 1.0]
    assert [step.forecast.speed.item() for step in steps[1:]] == [6.0, 3.0]


def test_horizon_two_does_not_look_ahead():
    trace = checks.example_trace(40)
    clean, other = (
        [step.forecast.speed for step in iter_backtest(EWMA(), t, horizon=2)] for t in (trace, poisoned(trace, 20))
    )
    np.testing.assert_array_equal(clean[:21], other[:21])  # the forecasts of iterations 1 to 21
    assert (clean[21] != other[21]).any()


def test_a_horizon_below_one_is_refused():
    with pytest.raises(ValueError, match="horizon must be at least 1 iteration, got 0"):
        list(iter_backtest(LastValue(), checks.example_trace(), horizon=0))


def test_a_backtest_starts_afresh_and_never_fits():
    class Unfittable(EWMA):
        def fit(self, traces):
            raise AssertionError("a backtest must not fit")

    model = Unfittable()
    first, second = backtest(model, checks.example_trace()), backtest(model, checks.example_trace())
    np.testing.assert_array_equal(first.forecast_TW, second.forecast_TW)


def test_communication_reaches_the_predictor():
    seen = []

    class Watches(LastValue):
        def observe(self, report):
            seen.append(report.comm_seconds.item())
            super().observe(report)

    list(iter_backtest(Watches(), Trace([[1]] * 2, [[1]] * 2, comm_seconds=[[0.25], [0.5]])))
    assert seen == [0.25, 0.5]


def test_coverage_counts_speeds_inside_interval():
    class Sure(LastValue):
        def predict(self, *, covariates=None, horizon=1):
            return Forecast(speed=np.array([10.0]), spread=np.array([0.1]))  # 90% between 8.5 and 11.8

    speeds = np.array([10.0, 9.0, 8.0, np.nan, 13.0, 11.0])[:, None]
    result = backtest(Sure(), Trace(np.ones_like(speeds), 1 / speeds), warmup=0)
    assert result.coverage.tolist() == [3 / 5]
    assert result.num_scored.tolist() == [5]
    later = backtest(Sure(), Trace(np.ones_like(speeds), 1 / speeds), warmup=2)
    assert later.coverage.tolist() == [1 / 3]
    assert (result.spread_TW == 0.1).all()


RNG = np.random.default_rng(0)
ACTUAL = np.exp(RNG.normal(size=(50, 20)))
FORECAST = ACTUAL * np.exp(RNG.normal(scale=0.1, size=ACTUAL.shape))


def test_true_speeds_have_no_overhead():
    assert barrier_overhead(ACTUAL, ACTUAL) == pytest.approx(0.0, abs=1e-12)
    assert barrier_overhead(FORECAST, ACTUAL) > 0.05


def test_overhead_refuses_bad_shapes():
    with pytest.raises(
        ValueError, match=r"must both have the shape \[iterations, workers\], got \(50, 19\) and \(50, 20\)"
    ):
        barrier_overhead(FORECAST[:, 1:], ACTUAL)


@pytest.mark.parametrize("workers", [1, 7, 16, 20, 33, 70])
def test_overhead_of_groups_counted_one_by_one(workers):
    """As many random groupings as give eight groups, of whole groups only; whoever did not report is left out."""
    rng = np.random.default_rng(workers)
    actual, forecast = rng.lognormal(0, 0.5, (12, workers)), rng.lognormal(0, 0.5, (12, workers))
    actual[rng.random(actual.shape) < 0.2] = np.nan
    forecast[rng.random(actual.shape) < 0.1] = np.nan
    draw, groups = np.random.default_rng(0), []
    while len(groups) < (8 if workers > 16 else 1):
        order = draw.permutation(workers) if workers > 16 else np.arange(workers)
        size = min(16, workers)
        groups += [order[k : k + size] for k in range(0, workers - size + 1, size)]
    each = []
    for members in groups:
        for t in range(12):
            there = [w for w in members if np.isfinite(actual[t, w]) and np.isfinite(forecast[t, w])]
            if there:
                share = forecast[t, there] / forecast[t, there].sum()
                each.append((share / actual[t, there]).max() * actual[t, there].sum() - 1)
    assert barrier_overhead(forecast, actual) == pytest.approx(np.mean(each))
