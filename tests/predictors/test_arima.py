"""ARIMA forecasts as statsmodels does with the same coefficients, and its fast fit is as good."""

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.predictors import ARIMA, Report, checks
from paceline.predictors.arima import POOLED_KEY
from paceline.predictors.arima_fit import Coefficients, fit_css

MODELS = {  # order: autoregression, moving average
    (1, 0, 0): ([0.6], []),
    (2, 0, 1): ([0.5, 0.2], [0.4]),
    (0, 0, 2): ([], [0.5, -0.3]),
    (0, 1, 1): ([], [-0.6]),
    (2, 1, 2): ([0.4, -0.3], [-0.5, 0.2]),
    (3, 1, 0): ([0.3, 0.1, -0.2], []),
    (1, 2, 1): ([0.3], [-0.4]),
}
BURN_IN = 60
"""Iterations after which the two diffuse starts of a differenced series are forgotten."""

EFFECT = np.array([-8.0, 3.0])
"""Effects of the two synthetic covariates on the speed."""


def panel(order, iterations=240, workers=3, seed=0, effect=EFFECT):
    """Speeds of this ARIMA around 200, driven by two covariates; returns speeds and covariates."""
    from scipy.signal import lfilter

    rng = np.random.default_rng(seed)
    ar, ma = MODELS[order]
    error_TW = lfilter([1.0, *ma], [1.0, *(-np.array(ar))], rng.normal(size=(iterations, workers)), axis=0)
    for _ in range(order[1]):
        error_TW = 0.2 * np.cumsum(error_TW, axis=0)
    covariates_TWD = rng.random((iterations, workers, 2))
    return 200.0 + error_TW + covariates_TWD @ effect, covariates_TWD


def given(order, driven):
    """Return our model with the coefficients that made the panel."""
    ar, ma = MODELS[order]
    names = ("cpu", "memory") if driven else ()
    model = ARIMA(order=order, covariates=names, log_speed=False)
    model.order_ = order
    effect = EFFECT if driven else np.zeros(0)
    constant = 0.0 if order[1] else 199.0
    range_2D = np.repeat([[-10.0], [10.0]], len(names), axis=1)
    model.coefficients_ = {POOLED_KEY: Coefficients(effect, np.array(ar), np.array(ma), constant, range_2D)}
    return model


def reference(order, driven, speed_T, covariates_TD):
    """Return statsmodels' results with the same coefficients, its parameters in its own order."""
    model = pytest.importorskip("statsmodels.tsa.arima.model")
    trend = "n" if order[1] else "c"
    parameters = [*([] if order[1] else [199.0]), *(EFFECT if driven else []), *np.concatenate(MODELS[order]), 2.0]
    exog = covariates_TD if driven else None
    return model.ARIMA(speed_T, exog=exog, order=order, trend=trend).filter(parameters)


def observe(model, speed_TW, covariates_TWD, driven):
    """Let the model see these iterations, and return what it forecast for each before it was seen."""
    forecasts = []
    for speed_W, covariates_WD in zip(speed_TW, covariates_TWD, strict=True):
        covariates = covariates_WD if driven else None
        forecasts.append(model.predict(covariates=covariates).speed)
        model.observe(Report(samples=np.ones(len(speed_W)), seconds=1.0 / speed_W, covariates=covariates))
    return np.array(forecasts)


@pytest.mark.parametrize("order", MODELS, ids=str)
@pytest.mark.parametrize("driven", [False, True], ids=["alone", "with covariates"])
@pytest.mark.parametrize("gaps", [False, True], ids=["complete", "with gaps"])
@pytest.mark.slow
def test_forecasts_equal_statsmodels(order, driven, gaps):
    speed_TW, covariates_TWD = panel(order)
    if gaps:
        speed_TW[100:107, 0] = np.nan
        speed_TW[np.random.default_rng(1).random(speed_TW.shape) < 0.1] = np.nan
    model = given(order, driven)
    model.reset(["a", "b", "c"])
    one_ahead_TW = observe(model, speed_TW, covariates_TWD, driven)
    first = BURN_IN if order[1] else 20
    for w in range(3):
        results = reference(order, driven, speed_TW[:150, w], covariates_TWD[:150, w])
        results = results.append(speed_TW[150:, w], exog=covariates_TWD[150:, w] if driven else None, refit=False)
        np.testing.assert_allclose(one_ahead_TW[first:, w], results.fittedvalues[first:], rtol=1e-6)
        ahead = covariates_TWD[-1, w]  # further ahead, the covariates stay
        expected = results.forecast(10, exog=np.tile(ahead, (10, 1)) if driven else None)
        for horizon in (1, 2, 5, 10):
            forecast = model.predict(covariates=covariates_TWD[-1] if driven else None, horizon=horizon).speed[w]
            assert forecast == pytest.approx(expected[horizon - 1], rel=1e-6)


def trace_of(speed_TW, covariates_TWD):
    return Trace(
        samples=np.ones_like(speed_TW),
        seconds=1.0 / speed_TW,
        covariates=covariates_TWD,
        covariate_names=["cpu", "memory"],
    )


def scored(model, trace, start):
    """Return the root mean squared error over the iterations from ``start`` on."""
    model.reset(trace.workers)
    forecast_TW = observe(model, trace.speed, trace.covariates, bool(model.covariate_names))
    return float(np.sqrt(np.nanmean(np.square(forecast_TW - trace.speed)[start:])))


@pytest.mark.parametrize("order", [(0, 1, 1), (2, 1, 2)], ids=str)
@pytest.mark.parametrize("names", [(), ("cpu", "memory")], ids=["alone", "with covariates"])
@pytest.mark.filterwarnings("ignore")  # of statsmodels, about its starting values
@pytest.mark.slow
def test_css_fit_as_good_as_likelihood(order, names):
    pytest.importorskip("statsmodels")
    trace = trace_of(*panel(order, iterations=1200, workers=2, seed=5, effect=EFFECT if names else 0.0 * EFFECT))
    error = {}
    for method in ("css", "likelihood"):
        model = ARIMA(order, covariates=names, method=method, log_speed=False).fit([trace.select(slice(600))])
        error[method] = scored(model, trace, start=600)
    assert error["css"] <= 1.001 * error["likelihood"]


@pytest.mark.slow
@pytest.mark.parametrize("order", [(1, 0, 0), (0, 0, 2), (0, 1, 1), (3, 1, 0)], ids=str)
def test_fit_recovers_coefficients_through_gaps(order):
    speed_TW, covariates_TWD = panel(order, iterations=4000, workers=2)
    speed_TW[np.random.default_rng(2).random(speed_TW.shape) < 0.01] = np.nan
    model = ARIMA(order, log_speed=False).fit([trace_of(speed_TW, covariates_TWD)])
    ar, ma = MODELS[order]
    for fit in model.coefficients_.values():
        np.testing.assert_allclose(fit.covariates / model.covariate_scale_, EFFECT, rtol=0.05)
        np.testing.assert_allclose(fit.ar, ar, atol=0.08)
        np.testing.assert_allclose(fit.ma, ma, atol=0.08)


@pytest.mark.slow
def test_order_search_finds_present_lags():
    assert ARIMA().fit([trace_of(*panel((0, 1, 1), iterations=1500))]).order_ == (0, 1, 1)
    p, d, q = ARIMA(log_speed=False).fit([trace_of(*panel((2, 1, 2), iterations=3000))]).order_
    assert (d, p + q >= 2) == (1, True)


def test_unfitted_arima_is_log_ewma():
    rng = np.random.default_rng(0)
    speeds, level = np.exp(rng.normal(3.0, 0.2, 80)), None
    model = ARIMA()
    model.reset(["a"])
    for speed in speeds:
        level = np.log(speed) if level is None else level + 0.3 * (np.log(speed) - level)
        model.observe(Report(samples=[1.0], seconds=[1.0 / speed]))
    assert model.predict().speed == pytest.approx(np.exp(level), rel=1e-9)


def test_worker_coefficients_and_pooled_for_new():
    rng = np.random.default_rng(0)
    noise_TW = rng.normal(size=(800, 2))
    steady_T, moving_T = noise_TW[:, 0], np.cumsum(noise_TW[:, 1])
    speed_TW = 100.0 * np.exp(0.01 * np.stack([steady_T, moving_T], axis=1))
    trace = Trace(samples=np.ones((800, 2)), seconds=1.0 / speed_TW, workers=["steady", "moving"])
    model = ARIMA(order=(0, 1, 1)).fit([trace])
    model.reset(["steady", "moving", "stranger"])
    for speed in [*[100.0] * 100, 110.0]:
        model.observe(Report(samples=np.ones(3), seconds=np.full(3, 1.0 / speed)))
    steady, moving, stranger = model.predict().speed
    assert 100.0 < steady < 101.0 < stranger < moving < 110.5


def test_css_fit_stays_invertible():
    value_TN = np.random.default_rng(0).normal(size=(500, 1))  # its difference has a moving average of exactly -1
    fit, _ = fit_css(value_TN, np.zeros((500, 1, 0)), (0, 1, 1))
    assert fit.ma == pytest.approx([-0.95])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ARIMA(order=(1, 0)), "order must be three numbers"),
        (lambda: ARIMA(order=(1, -1, 0)), "order must be a whole number from 0 to 32, got -1"),
        (lambda: ARIMA(method="guess"), "'css' or 'likelihood', got 'guess'"),
        (lambda: ARIMA().fit([]), "at least one trace"),
        (
            lambda: ARIMA(covariates=("gpu",)).fit([checks.example_trace()]),
            r"covariates \['gpu'\] are not in every trace",
        ),
        (lambda: ARIMA().fit([checks.example_trace(8)]), "fit it to longer traces, or choose a smaller order"),
    ],
)
def test_invalid_arguments_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.slow
def test_flat_covariate_spike_is_harmless():
    rng = np.random.default_rng(15)
    covariate_TW = rng.normal(0.0, [1.0, 1e-3], (400, 2))
    log_TW = rng.normal(0.0, 0.05, (400, 2)) + covariate_TW * [0.1, 300.0]
    trace = Trace(
        np.ones_like(log_TW),
        np.exp(-log_TW),
        workers=["a", "b"],
        covariates=covariate_TW[:, :, None],
        covariate_names=("load",),
    )
    model = ARIMA().fit([trace])
    model.reset(trace.workers)
    for k in range(300):
        model.observe(Report(trace.samples[k], trace.seconds[k], covariates=trace.covariates[k]))
    spiked = model.predict(covariates=[[8.0], [8.0]]).speed
    assert spiked[1] < 2.0 * np.exp(log_TW[:, 1].max())


def thinned(trace, step):
    """The same job, of which only every ``step``-th iteration was logged."""
    kept = np.arange(len(trace))[:, None] % step == 0
    return Trace(np.where(kept, trace.samples, np.nan), np.where(kept, trace.seconds, np.nan), workers=trace.workers)


@pytest.mark.parametrize("step", [2, 10])
@pytest.mark.slow
def test_sparse_log_warns_and_fits_local_level(step):
    rng = np.random.default_rng(step)
    level_TW = np.cumsum(rng.normal(0, 0.005, (3000, 2)), axis=0)
    whole = trace_of(100.0 * np.exp(level_TW + rng.normal(0, 0.05, (3000, 2))), np.zeros((3000, 2, 2)))
    dense = ARIMA(covariates=()).fit([whole.select(slice(1500))])
    with pytest.warns(UserWarning, match="only 0 of .* speeds directly follow"):
        sparse = ARIMA(covariates=()).fit([thinned(whole.select(slice(1500)), step)])
    assert scored(sparse, whole, start=1500) < 1.05 * scored(dense, whole, start=1500)
