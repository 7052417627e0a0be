"""How well a predictor forecasts one recorded job, one step ahead. Axes: T iterations, W workers, D drivers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.datasets import Trace
from paceline.predictors import Forecast, Predictor, Report

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Step:
    """One boundary of a backtest: the iteration's number, its forecast, and the speed that came, ``[W]``."""

    iteration: int
    forecast: Forecast
    actual: Array


@dataclass(frozen=True, eq=False)
class Backtest:
    """Forecasts of a whole job beside what came; the scores leave the warm-up out.

    Parameters
    ----------
    forecast_TW, actual_TW
        Forecast and recorded speeds, ``[T, W]``, in samples/s; NaN where a worker did not report.
    low_TW, high_TW
        Bounds of the forecast's central 90 % interval, ``[T, W]``, in samples/s.
    warmup
        Iterations at the start that are not scored.
    """

    forecast_TW: Array
    low_TW: Array
    high_TW: Array
    actual_TW: Array
    warmup: int

    @property
    def rmse(self) -> Array:
        """Root mean squared error of each worker, ``[W]``, in samples/s; NaN for one that never reported."""
        return np.sqrt(_mean(np.square(self._error)))

    @property
    def mae(self) -> Array:
        """Mean absolute error of each worker, ``[W]``, in samples/s."""
        return _mean(np.abs(self._error))

    @property
    def coverage(self) -> Array:
        """Share of each worker's speeds inside the 90 % interval, ``[W]``."""
        inside = (self.low_TW <= self.actual_TW) & (self.actual_TW <= self.high_TW)
        return _mean(np.where(np.isnan(self.actual_TW), np.nan, inside)[self.warmup :])

    @property
    def _error(self) -> Array:
        return (self.forecast_TW - self.actual_TW)[self.warmup :]


def iter_backtest(predictor: Predictor, trace: Trace) -> Iterator[Step]:
    """Pass a recorded job before a predictor, one boundary at a time.

    At each boundary the predictor sees the drivers sampled there and all earlier iterations, and nothing later. It
    is reset to the trace's workers first, and never fitted.

    Examples
    --------
    >>> from paceline.predictors import LastValue
    >>> trace = Trace(samples=[[8], [8], [8]], seconds=[[1.0], [2.0], [4.0]])
    >>> [(step.forecast.speed.item(), step.actual.item()) for step in iter_backtest(LastValue(), trace)]
    [(1.0, 8.0), (8.0, 4.0), (4.0, 2.0)]
    """
    predictor.reset(trace.workers)
    drivers_TWD = trace.drivers_named(predictor.driver_names)
    speed_TW = trace.speed
    for k in range(len(trace)):
        drivers_WD = None if drivers_TWD is None else drivers_TWD[k]
        yield Step(k, predictor.predict(drivers_WD), speed_TW[k])
        predictor.observe(
            Report(
                samples=trace.samples[k],
                seconds=trace.seconds[k],
                comm_seconds=None if trace.comm_seconds is None else trace.comm_seconds[k],
                drivers=drivers_WD,
            )
        )


def backtest(predictor: Predictor, trace: Trace, *, warmup: int = 50) -> Backtest:
    """Forecast a whole recorded job, one step ahead.

    Raises
    ------
    ValueError
        If the warm-up leaves no iteration to score.

    Examples
    --------
    >>> from paceline.predictors import LastValue
    >>> trace = Trace(samples=[[8], [8], [8]], seconds=[[1.0], [2.0], [4.0]])
    >>> backtest(LastValue(), trace, warmup=1).mae
    array([3.])
    """
    if not 0 <= warmup < len(trace):
        raise ValueError(f"warmup must be at least 0 and below the {len(trace)} iterations of the trace, got {warmup}")
    steps = list(iter_backtest(predictor, trace))
    return Backtest(
        forecast_TW=np.stack([step.forecast.speed for step in steps]),
        low_TW=np.stack([step.forecast.quantile(0.05) for step in steps]),
        high_TW=np.stack([step.forecast.quantile(0.95) for step in steps]),
        actual_TW=trace.speed,
        warmup=warmup,
    )


def _mean(values_TW: Array) -> Array:
    """Mean over time of what is known, ``[W]``; NaN where nothing is."""
    known = np.isfinite(values_TW)
    total = np.where(known, values_TW, 0.0).sum(axis=0)
    mean: Array = np.divide(total, known.sum(axis=0), out=np.full(len(total), np.nan), where=known.any(axis=0))
    return mean
