"""Serve predictors and score them: errors relative to the last value, intervals, waiting, and the first iterations.

Axes: T iterations, W workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from accuracy_sets import Set, half
from numpy.typing import NDArray

from paceline.datasets import Trace
from paceline.eval import barrier_overhead
from paceline.predictors import Forecast, LastValue, Predictor, Report

Array = NDArray[np.float64]

FIRST, LAST = 5, 50
"""The iterations of a cold start: first and last, both included, counted from a job's first."""

COVERED = (0.85, 0.95)
"""The 90% interval of a worker counts as right if the share of speeds that it holds is in this range."""


@dataclass(frozen=True, eq=False)
class Served:
    """Forecasts of a part of each trace, ``[T, W]``; intervals only of predictors that state them."""

    speed: list[Array]
    low: list[Array] | None = None
    high: list[Array] | None = None


@dataclass(frozen=True, eq=False)
class Scores:
    """Of each series, ``[W]``: RMSE and MAE over those of the last value, and how often the 90% interval holds.

    Series without a speed to score are NaN throughout. Where the last value made no error the ratio is infinite, or 1
    if there was no error either.
    """

    rmse: Array
    mae: Array
    coverage: Array
    overhead: float

    @property
    def mean(self) -> float:
        """Geometric mean of the RMSE ratios; infinite if one of them is."""
        return geometric(self.rmse)

    @property
    def worst(self) -> float:
        """The highest RMSE ratio of a series."""
        return float(np.nanmax(self.rmse))

    @property
    def right(self) -> Array:
        """Whether the 90% interval of a series holds as often as it should; only series whose intervals are known."""
        known = self.coverage[np.isfinite(self.coverage)]
        return np.asarray((known >= COVERED[0]) & (known <= COVERED[1]))

    def at(self, places: NDArray[np.intp]) -> Scores:
        """Return the scores of some of the series."""
        parts = {name: getattr(self, name)[places] for name in ("rmse", "mae", "coverage")}
        return replace(self, **parts)


def geometric(ratio_W: Array) -> float:
    """Return the geometric mean over the series that have speeds to score."""
    with np.errstate(divide="ignore"):
        return float(np.exp(np.nanmean(np.log(ratio_W))))


def served(model: Predictor, data: Set, count: int | None = None) -> Served:
    """Serve each trace from its first iteration; return the second half, or the first ``count`` iterations."""
    parts = [_forecasts(model, trace, count) for trace in data.traces]
    speed, low, high = (list(column) for column in zip(*parts, strict=True))
    return Served(speed, low, high)


def _forecasts(model: Predictor, trace: Trace, count: int | None) -> tuple[Array, Array, Array]:
    found = [forecast for _, forecast in _steps(model, trace, len(trace) if count is None else min(count, len(trace)))]
    found = found[half(trace) :] if count is None else found
    rows = [(f.speed, f.quantile(0.05), f.quantile(0.95)) for f in found]
    speed, low, high = (np.array(column) for column in zip(*rows, strict=True))
    return speed, low, high


def _steps(model: Predictor, trace: Trace, count: int) -> Iterator[tuple[int, Forecast]]:
    model.reset(trace.workers)
    covariates_TWD = trace.covariates_named(model.covariate_names)
    for k in range(count):
        covariates_WD = None if covariates_TWD is None else covariates_TWD[k]
        yield k, model.predict(covariates=covariates_WD)
        model.observe(Report(trace.samples[k], trace.seconds[k], covariates=covariates_WD))


def score(found: Served, data: Set, asked: list[NDArray[np.bool_]] | None = None) -> Scores:
    """Score forecasts of the second half of each trace, or of those of its iterations that were asked for."""
    truth = [trace.speed[half(trace) :] for trace in data.traces]
    if asked is not None:
        truth = [np.where(asked_TW, speed_TW, np.nan) for asked_TW, speed_TW in zip(asked, truth, strict=True)]
    return _scored(found, served(LastValue(), data), truth)


def cold(found: Served, data: Set) -> Scores:
    """Score forecasts of the first iterations of each trace."""
    few = slice(FIRST, LAST + 1)
    last = served(LastValue(), data, LAST + 1)
    return _scored(_part(found, few), _part(last, few), [trace.speed[few] for trace in data.traces])


def _part(found: Served, few: slice) -> Served:
    return Served(*(None if c is None else [p[few] for p in c] for c in (found.speed, found.low, found.high)))  # type: ignore[arg-type]


def _scored(found: Served, last: Served, truth: list[Array]) -> Scores:
    error, base = (_errors(parts.speed, truth) for parts in (found, last))
    coverage = np.full(sum(v.shape[1] for v in truth), np.nan)
    if found.low is not None and found.high is not None:
        inside = [(a <= v) & (v <= b) for a, v, b in zip(found.low, truth, found.high, strict=True)]
        coverage = np.concatenate(
            [_mean(np.where(np.isfinite(v), i, np.nan)) for i, v in zip(inside, truth, strict=True)]
        )
    rmse = [np.concatenate([np.sqrt(_mean(np.square(part))) for part in parts]) for parts in (error, base)]
    mae = [np.concatenate([_mean(np.abs(part)) for part in parts]) for parts in (error, base)]
    overhead = barrier_overhead(_side_by_side(found.speed), _side_by_side(truth))
    return Scores(_ratio(*rmse), _ratio(*mae), coverage, overhead)


def _errors(speed: list[Array], truth: list[Array]) -> list[Array]:
    """Return errors, infinite where a forecast is not a number: no failure may drop out of a mean."""
    pairs = zip(speed, truth, strict=True)
    return [np.where(np.isfinite(v) & ~np.isfinite(p), np.inf, p - v) for p, v in pairs]


def _mean(values_TW: Array) -> Array:
    known_TW = ~np.isnan(values_TW)
    total_W = np.where(known_TW, values_TW, 0.0).sum(axis=0)
    return np.divide(total_W, known_TW.sum(axis=0), out=np.full(len(total_W), np.nan), where=known_TW.any(axis=0))


def _ratio(error_W: Array, base_W: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((error_W == 0) & (base_W == 0), 1.0, error_W / base_W)


def _side_by_side(parts: list[Array]) -> Array:
    """Return all series of a set as one panel; short ones end in gaps."""
    longest = max(len(part) for part in parts)
    return np.concatenate([np.pad(p, ((0, longest - len(p)), (0, 0)), constant_values=np.nan) for p in parts], axis=1)
