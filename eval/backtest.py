"""Backtest of a predictor on one recorded job, one step ahead. Axes: T iterations, W workers, D covariates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline.datasets import Trace
from paceline.eval.contract import require_forecasts
from paceline.eval.overhead import barrier_overhead
from paceline.eval.recorded_jobs import require_trace, require_warmup
from paceline.eval.residuals import position
from paceline.predictors import Forecast, Predictor, Report
from paceline.predictors.protocol import require_predictor


@dataclass(frozen=True, eq=False)
class BacktestStep:
    """One iteration of a backtest: its number, its forecast, and the measured speed, ``[W]``, in samples/s."""

    iteration: int
    forecast: Forecast
    actual: Array


@dataclass(frozen=True, eq=False)
class Backtest:
    """Forecasts of a whole job beside the measured speeds; the scores leave out the warm-up.

    Parameters
    ----------
    forecast_TW, actual_TW
        Forecast and recorded speeds, ``[T, W]``, in samples/s; the recorded is NaN where a worker did not report.
    spread_TW
        Relative standard deviation of each forecast, ``[T, W]``; infinite before the first report.
    low_TW, high_TW
        Bounds of the forecast's central 90 % interval, ``[T, W]``, in samples/s.
    position_TW
        Probability that the forecast gave to a speed below the measured one, ``[T, W]``: uniform in [0, 1] if the
        forecasts are calibrated (the probability integral transform).
    warmup
        Iterations at the start that are not scored.
    seconds
        Mean time to observe one iteration and predict the next, for the whole fleet, in seconds.
    """

    forecast_TW: Array
    spread_TW: Array
    low_TW: Array
    high_TW: Array
    actual_TW: Array
    position_TW: Array
    warmup: int
    seconds: float = float("nan")

    @property
    def rmse(self) -> Array:
        """Root mean squared error of each worker, ``[W]``, in samples/s; NaN for one that never reported."""
        return np.sqrt(_mean(np.square(self.error)))

    @property
    def mae(self) -> Array:
        """Mean absolute error of each worker, ``[W]``, in samples/s; NaN for one that never reported."""
        return _mean(np.abs(self.error))

    @property
    def coverage(self) -> Array:
        """Share of each worker's speeds inside the 90 % interval, ``[W]``: 0.9 if the spread is right."""
        inside = (self.low_TW <= self.actual_TW) & (self.actual_TW <= self.high_TW)
        return _mean(np.where(np.isnan(self.actual_TW), np.nan, inside)[self.warmup :])

    @property
    def overhead(self) -> float:
        """Extra time of groups of 16 workers over that with all speeds known: the ratio of the times, less 1.

        See :func:`paceline.eval.barrier_overhead`; a smaller fleet is one group, and a single worker never waits.
        """
        return barrier_overhead(self.forecast_TW[self.warmup :], self.actual_TW[self.warmup :])

    @property
    def scored(self) -> NDArray[np.int64]:
        """Number of scored speeds of each worker, ``[W]``."""
        counts: NDArray[np.int64] = np.isfinite(self.error).sum(axis=0)
        return counts

    @property
    def error(self) -> Array:
        """Scored forecasts less the measured speeds, ``[T, W]``, in samples/s; NaN where there was no report."""
        return (self.forecast_TW - self.actual_TW)[self.warmup :]


def iter_backtest(predictor: Predictor, trace: Trace, *, horizon: int = 1) -> Iterator[BacktestStep]:
    """Feed a recorded job to a predictor, one boundary at a time.

    At each boundary the predictor sees the covariates sampled there and all earlier iterations only. It
    is reset to the trace's workers first, and never fitted.

    Parameters
    ----------
    predictor
        Any predictor, fitted where it needs it.
    trace
        The recorded job.
    horizon
        How many iterations ahead to forecast. At 1 the step of iteration k was forecast at the boundary before it,
        at 2 one boundary earlier; the iterations that no forecast reaches have no step.

    Examples
    --------
    >>> from paceline.predictors import LastValue
    >>> trace = Trace(samples=[[8], [8], [8]], seconds=[[1.0], [2.0], [4.0]])
    >>> [(step.forecast.speed.item(), step.actual.item()) for step in iter_backtest(LastValue(), trace)]
    [(1.0, 8.0), (8.0, 4.0), (4.0, 2.0)]
    """
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1 iteration, got {horizon}")
    predictor.reset(trace.workers)
    covariates_TWD = trace.covariates_named(predictor.covariate_names)
    speed_TW = trace.speed
    for boundary in range(len(trace) - horizon + 1):
        covariates_WD = None if covariates_TWD is None else covariates_TWD[boundary]
        k = boundary + horizon - 1
        yield BacktestStep(k, predictor.predict(covariates=covariates_WD, horizon=horizon), speed_TW[k])
        predictor.observe(_report(trace, boundary, covariates_WD))


def backtest(predictor: Predictor, trace: Trace, *, warmup: int = 50) -> Backtest:
    """Forecast a whole recorded job, one step ahead.

    Parameters
    ----------
    predictor
        Any predictor, fitted where it needs it.
    trace
        The recorded job, preferably one that the predictor was not fitted to.
    warmup
        Iterations at the start that are forecast but not scored.

    Raises
    ------
    TypeError
        If either is something else, such as a name or a path.
    ValueError
        If the warm-up leaves no iteration to score, or a forecast is not a speed, such as NaN.

    Examples
    --------
    >>> from paceline.predictors import LastValue
    >>> trace = Trace(samples=[[8], [8], [8]], seconds=[[1.0], [2.0], [4.0]])
    >>> backtest(LastValue(), trace, warmup=1).mae
    array([3.])
    """
    require_predictor(predictor)
    require_trace(trace)
    require_warmup(warmup, trace)
    began = time.perf_counter()
    steps = list(iter_backtest(predictor, trace))
    seconds = (time.perf_counter() - began) / len(trace)
    forecast_TW = np.stack([step.forecast.speed for step in steps])
    spread_TW = np.stack([step.forecast.spread for step in steps])
    require_forecasts(predictor, forecast_TW, spread_TW, trace.workers)
    return Backtest(
        forecast_TW=forecast_TW,
        spread_TW=spread_TW,
        low_TW=np.stack([step.forecast.quantile(0.05) for step in steps]),
        high_TW=np.stack([step.forecast.quantile(0.95) for step in steps]),
        actual_TW=trace.speed,
        position_TW=np.stack([position(step.forecast, step.actual) for step in steps]),
        warmup=warmup,
        seconds=seconds,
    )


def _report(trace: Trace, k: int, covariates_WD: Array | None) -> Report:
    comm_seconds = None if trace.comm_seconds is None else trace.comm_seconds[k]
    return Report(trace.samples[k], trace.seconds[k], comm_seconds=comm_seconds, covariates=covariates_WD)


def _mean(values_TW: Array) -> Array:
    """Return the mean over time of known values, ``[W]``; NaN if there is none."""
    known = np.isfinite(values_TW)
    total = np.where(known, values_TW, 0.0).sum(axis=0)
    mean: Array = np.divide(total, known.sum(axis=0), out=np.full(len(total), np.nan), where=known.any(axis=0))
    return mean
