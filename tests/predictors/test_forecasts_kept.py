"""Forecasts are those that were kept: whoever changes a number of a predictor means to, and says so in CHANGELOG."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from kept import require_kept

from paceline.datasets import Trace
from paceline.predictors import (
    ARIMA,
    EWMA,
    GRU,
    LSTM,
    NARX,
    RLS,
    Auto,
    BarrierHead,
    BatchTime,
    Boosting,
    Calibrated,
    ChangePoint,
    GatedNARX,
    Holt,
    HuberEWMA,
    LastValue,
    LeaderSearch,
    LocalLevel,
    Mixture,
    MovingAverage,
    Report,
    RunningMedian,
    SimpleRNN,
    Training,
)
from paceline.predictors.averages.seasonal import Seasonal
from paceline.predictors.linear.pooled import Pooled

KEPT = Path(__file__).parent / "forecasts.json"

ITERATIONS, BLOCK = 150, 15
"""Iterations of the job, and iterations of which a line of the record gives the means over the fleet."""

BRIEF = Training(epochs=2, batch_size=64, closed_loop=2)

ALIKE, NEARLY = 5e-6, 1e-4
"""How far a number may be from the record, and how far where another library fits, whose sums depend on the machine."""

UNFITTED = {
    "last-value": LastValue,
    "ewma": EWMA,
    "huber-ewma": HuberEWMA,
    "holt": Holt,
    "moving-average": MovingAverage,
    "running-median": RunningMedian,
    "change-point": ChangePoint,
    "local-level": LocalLevel,
    "seasonal": Seasonal,
    "leader-search": lambda: LeaderSearch(window=2),
    "arima": ARIMA,
    "rls": lambda: RLS(covariates=["load"]),
    "batch-time": BatchTime,
    "batch-time-overlap": lambda: BatchTime(relative_speed="last-value", overlap=2.0, near=40.0),
    "pooled": lambda: Mixture([Pooled("ewma", ["busy", "load"])]),
    "mixture": lambda: Mixture(["last-value", "ewma", "holt", "batch-time"]),
    "mixture-of-speeds": lambda: Mixture(["last-value", "ewma:smoothing=0.1", "running-median", "rls"]),
    "calibrated": Calibrated,
    "calibrated-curves": lambda: Calibrated("batch-time"),
    "auto": lambda: Auto(covariates=["load"]),
    "gated-online": lambda: GatedNARX(pretrained=True, online=True),
}
FITTED = {
    "fitted-ewma": lambda: EWMA(smoothing=None),
    "fitted-rls": RLS,
    "fitted-arima": ARIMA,
    "fitted-arima-212": lambda: ARIMA(order=(2, 1, 2)),
    "fitted-arima-101": lambda: ARIMA(order=(1, 0, 1), covariates=["load"], log_speed=False),
    "fitted-batch-time": lambda: BatchTime(devices={"steady": "gpu", "jumps": "gpu"}),
    "fitted-mixture": lambda: Mixture(["ewma", "rls", "arima"]),
}
TRAINED = {
    "fitted-boosting": lambda: Boosting(trees=10),
    "fitted-narx": lambda: NARX(lags=4, covariate_lags=2, hidden=4, training=BRIEF),
    "fitted-gated": lambda: GatedNARX(hidden=4, covariate_lags=2, training=BRIEF),
    "fitted-barrier": lambda: BarrierHead(pretrained=True, training=BRIEF),
    "fitted-rnn": lambda: SimpleRNN(hidden=4, training=BRIEF),
    "fitted-lstm": lambda: LSTM(hidden=4, training=BRIEF),
    "fitted-gru": lambda: GRU(hidden=4, training=BRIEF),
}


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


def fleets():
    """Yield each iteration and the columns of those in the fleet: one joins at 50, and one leaves at 120."""
    for k in range(ITERATIONS):
        yield k, np.array([0, 1, 2, 3, 4, 5][(k >= 120) : 6 - (k < 50)])


def changed(model, k):
    if k == 50:
        model.join("late")
    if k == 95:
        model.rename("jumps", "again")
    if k == 120:
        model.leave("steady")


def covariates_of(model, trace, k):
    """Return the covariates that the model reads, NaN where the job has none of this name."""
    places = {name: place for place, name in enumerate(trace.covariate_names)}
    missing = np.full(len(trace.workers), np.nan)
    columns = [trace.covariates[k, :, places[n]] if n in places else missing for n in model.covariate_names]
    return np.stack([*columns, missing], axis=1)[:, :-1]


def told(forecast):
    """Return the means over the fleet of what a forecast tells, in logs."""
    curves = forecast.curves
    numbers = (
        np.log(forecast.speed),
        np.minimum(forecast.spread, 10.0),
        np.log(np.clip(forecast.quantile(0.07), 1e-9, 1e12)),
        np.log(np.clip(forecast.quantile(0.6), 1e-9, 1e12)),
        np.log(curves.seconds(np.full(len(forecast.speed), 100))),
        np.minimum(curves.limit, 1e3) / 1e3,
    )
    return [float(number.mean()) for number in numbers]


def served(model):
    """Return the means of each block of iterations, ``[blocks, 2 horizons of 6 numbers each]``."""
    trace, rows = job(1), []
    model.reset(trace.workers[:5])
    for k, of in fleets():
        changed(model, k)
        covariates = covariates_of(model, trace, k)[of]
        rows.append([number for h in (1, 3) for number in told(model.predict(covariates, horizon=h))])
        lost = np.isin(of, 3) & (k == 70)
        model.observe(
            Report(
                trace.samples[k, of] * np.where(lost, 4, 1),
                trace.seconds[k, of],
                comm_seconds=trace.comm_seconds[k, of],
                covariates=covariates,
                out_of_memory=lost if k % 10 == 0 else None,
            )
        )
    return np.array(rows).reshape(-1, BLOCK, len(rows[0])).mean(axis=1)


def fitted(name):
    return (FITTED | TRAINED)[name]().fit([job(2), job(3)])


@pytest.mark.slow
@pytest.mark.parametrize("name", UNFITTED)
def test_forecasts_are_what_was_kept(name):
    require_kept(KEPT, name, served(UNFITTED[name]()), rel=ALIKE)


@pytest.mark.slow
@pytest.mark.parametrize("name", FITTED)
def test_forecasts_after_a_fit_are_what_was_kept(name):
    require_kept(KEPT, name, served(fitted(name)), rel=ALIKE)


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.slow
def test_forecasts_after_a_fit_by_another_library_are_what_was_kept(name):
    pytest.importorskip("sklearn" if "boosting" in name else "torch", reason="needs this extra")
    require_kept(KEPT, name, served(fitted(name)), rel=NEARLY)
