"""Backtest of a predictor on one recorded job, and what its errors cost at a barrier.

Axes: T iterations, W workers, D covariates, G groups, M members of a group.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline._arrays import Array, finite_mean
from paceline.datasets import Trace
from paceline.predictors import Forecast, Predictor, Report
from paceline.predictors.nested import PredictorAdapter
from paceline.predictors.protocol import require_predictor


def traces_by_name(traces: Iterable[Trace] | Trace) -> dict[str, Trace]:
    """Return the traces by name; refuse two traces of one name, which tables would merge."""
    jobs: dict[str, Trace] = {}
    for trace in [traces] if isinstance(traces, Trace) else traces:
        require_trace(trace)
        if trace.name in jobs:
            raise ValueError(f"traces must have different names, got {trace.name!r} twice: set meta['job']")
        jobs[trace.name] = trace
    return jobs


def require_trace(trace: object) -> None:
    """Raise an error unless this is a trace in memory."""
    if not isinstance(trace, Trace):
        raise TypeError(
            f"a recorded job must be a Trace, got an object of {type(trace).__name__}: read a file with "
            "paceline.datasets.read_traces, or convert a frame with Trace.from_frame"
        )


def require_warmup(warmup: int, trace: Trace) -> None:
    """Raise an error unless the warm-up leaves an iteration of the trace."""
    if not 0 <= warmup < len(trace):
        raise ValueError(f"warmup must be in [0, {len(trace)}), the iterations of trace {trace.name!r}, got {warmup}")


def require_forecasts(
    predictor: Predictor, speed_TW: Array, spread_TW: Array, workers: Sequence[str], first: int = 0
) -> None:
    """Raise an error unless every forecast, ``[T, W]``, is a finite speed above 0, with a spread that is a number.

    >>> from paceline.predictors import EWMA
    >>> require_forecasts(EWMA(), np.array([[90.0, np.nan]]), np.array([[0.1, 0.1]]), ["a", "b"], first=7)
    Traceback (most recent call last):
    ValueError: EWMA forecast nan samples/s for worker b in iteration 7: a forecast must be a finite speed above 0 for
    every worker, before its first report and in gaps too
    """
    named = type(predictor.predictor if isinstance(predictor, PredictorAdapter) else predictor).__name__
    for values_TW, right_TW, name, requirement in (
        (speed_TW, np.isfinite(speed_TW) & (speed_TW > 0), "{:g} samples/s", "a finite speed above 0"),
        (spread_TW, spread_TW >= 0, "a spread of {:g}", "a spread of at least 0, infinite where nothing is known,"),
    ):
        if not right_TW.all():
            t, w = (int(axis[0]) for axis in np.nonzero(~right_TW))
            raise ValueError(
                f"{named} forecast {name.format(values_TW[t, w])} for worker {workers[w]} in iteration {first + t}: a "
                f"forecast must be {requirement} for every worker, before its first report and in gaps too"
            )


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
        Bounds of the forecast's central 90% interval, ``[T, W]``, in samples/s.
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
    warmup: int
    seconds: float = float("nan")

    @property
    def rmse(self) -> Array:
        """Root mean squared error of each worker, ``[W]``, in samples/s; NaN for one that never reported."""
        return np.sqrt(mean_over_time(np.square(self.error)))

    @property
    def mae(self) -> Array:
        """Mean absolute error of each worker, ``[W]``, in samples/s; NaN for one that never reported."""
        return mean_over_time(np.abs(self.error))

    @property
    def coverage(self) -> Array:
        """Share of each worker's speeds inside the 90% interval, ``[W]``: 0.9 if the spread is right."""
        inside = (self.low_TW <= self.actual_TW) & (self.actual_TW <= self.high_TW)
        return mean_over_time(np.where(np.isnan(self.actual_TW), np.nan, inside)[self.warmup :])

    @property
    def overhead(self) -> float:
        """Extra time of groups of 16 workers over that with all speeds known: the ratio of the times, less 1.

        See :func:`paceline.eval.barrier_overhead`; a smaller fleet is one group, and a single worker never waits.
        """
        return barrier_overhead(self.forecast_TW[self.warmup :], self.actual_TW[self.warmup :])

    @property
    def num_scored(self) -> NDArray[np.int64]:
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
        samples, seconds = trace.samples[boundary], trace.seconds[boundary]
        comm_seconds = None if trace.comm_seconds is None else trace.comm_seconds[boundary]
        report = Report(samples, seconds, comm_seconds=comm_seconds, covariates=covariates_WD)
        yield BacktestStep(k, predictor.predict(covariates=covariates_WD, horizon=horizon), speed_TW[k])
        predictor.observe(report)


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
        warmup=warmup,
        seconds=seconds,
    )


def mean_over_time(values_TW: Array) -> Array:
    """Return the mean over time of known values, ``[W]``; NaN if there is none."""
    known = np.isfinite(values_TW)
    total = np.where(known, values_TW, 0.0).sum(axis=0)
    mean: Array = np.divide(total, known.sum(axis=0), out=np.full(len(total), np.nan), where=known.any(axis=0))
    return mean


def barrier_overhead(forecast: ArrayLike, actual: ArrayLike) -> float:
    """Return how much longer iterations sized by forecasts take than iterations sized by the true speeds.

    A batch is split in proportion to the forecasts p, the workers run at the speeds v, and all of a group of 16, or of
    fewer where there are fewer, wait for the last one: that takes ``max(p / v) * sum(v) / sum(p)`` times what a split
    by v takes. Only the ratios of the forecasts matter.

    Parameters
    ----------
    forecast, actual
        Forecast and measured speeds, ``[T, W]``, in samples/s; a worker that did not report (NaN) is left out.

    Returns
    -------
    float
        Mean ratio over iterations and groups, less 1. 0 is perfect, and is the value of a single worker. NaN without
        reports.

    Raises
    ------
    ValueError
        If the shapes differ.

    Examples
    --------
    Two workers of 100 samples/s. The forecast of one is 50% too high, so it gets 60% of the batch and the other
    waits:

    >>> round(barrier_overhead([[150.0, 100.0]], [[100.0, 100.0]]), 3)
    0.2
    """
    forecast_TW, actual_TW = np.asarray(forecast, dtype=np.float64), np.asarray(actual, dtype=np.float64)
    if forecast_TW.shape != actual_TW.shape or forecast_TW.ndim != 2:
        raise ValueError(
            f"forecast and actual must both have the shape [iterations, workers], got {forecast_TW.shape} and "
            f"{actual_TW.shape}"
        )
    members_GM = _draw_groups(forecast_TW.shape[1], np.random.default_rng(0))
    return finite_mean(
        np.concatenate([_overheads(forecast_TW[:, members], actual_TW[:, members]) for members in members_GM])
    )


def _draw_groups(workers: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the members of each group; workers that do not fill a group are left out of that grouping."""
    size = min(16, workers)
    if size == workers:
        return np.arange(workers)[None, :]
    count = workers // size
    rounds = -(-8 // count)  # larger fleets are divided again and again, until there are eight groups
    return np.concatenate([rng.permutation(workers)[: count * size].reshape(count, size) for _ in range(rounds)])


def _overheads(forecast_TM: Array, actual_TM: Array) -> Array:
    """Return the overhead of each iteration in which a member reported, ``[T]``; a single member never waits."""
    seen_TM = np.isfinite(actual_TM) & np.isfinite(forecast_TM)
    enough_T = seen_TM.any(axis=1)
    forecast_TM, actual_TM, seen_TM = forecast_TM[enough_T], actual_TM[enough_T], seen_TM[enough_T]
    slowest_T = np.where(seen_TM, forecast_TM / actual_TM, 0.0).max(axis=1, initial=0.0)
    total_T, forecast_T = (np.where(seen_TM, speed_TM, 0.0).sum(axis=1) for speed_TM in (actual_TM, forecast_TM))
    return np.asarray(slowest_T * total_T / forecast_T - 1.0)
