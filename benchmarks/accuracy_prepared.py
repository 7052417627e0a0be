"""Series as other libraries take them: logarithms, no gaps, covariates in deviations.

Axes: T iterations, W workers, D covariates.
"""

from __future__ import annotations

import warnings

import numpy as np
from accuracy_sets import half
from numpy.typing import NDArray

from paceline.datasets import Trace

Array = NDArray[np.float64]

FARTHEST = 4.0
"""Covariates count as at most this many deviations from their mean, as in our own predictors."""

FARTHEST_FORECAST = 3.0
"""A peer's forecast counts as at most this far, in log speed, outside what the worker has shown before."""

VALIDATION = 5
"""The last fifth of the first half decides between a peer's configurations."""


def tuning(start: int) -> int:
    """Return the first iteration of the part that decides, given the first that is scored."""
    return start - max(start // VALIDATION, 1)


def filled(values_TW: Array) -> Array:
    """Return the values with gaps at the last value before them, or the first after the beginning."""
    last_TW = np.where(np.isfinite(values_TW), np.arange(len(values_TW))[:, None], 0)
    panel_TW = np.take_along_axis(values_TW, np.maximum.accumulate(last_TW, axis=0), axis=0)
    first_W = panel_TW[np.argmax(np.isfinite(panel_TW), axis=0), np.arange(panel_TW.shape[1])]
    return np.where(np.isfinite(panel_TW), panel_TW, first_W)


def log_speed(trace: Trace) -> Array:
    """Return log speeds without gaps, ``[T, W]``."""
    return np.log(filled(trace.speed))


def covariates_of(trace: Trace) -> Array:
    """Return the covariates, ``[T, W, D]``, in standard deviations of the first half, clipped; gaps at the mean."""
    values_TWD = trace.covariates_named(trace.covariate_names)
    if values_TWD is None:
        return np.zeros((*trace.speed.shape, 0))
    values_TWD = np.where(np.isfinite(values_TWD), values_TWD, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a covariate that was never sampled
        past = values_TWD[: half(trace)]
        mean_WD, deviation_WD = np.nanmean(past, axis=0), np.nanstd(past, axis=0)
    standard_TWD = (values_TWD - mean_WD) / np.where(deviation_WD > 1e-9, deviation_WD, 1.0)
    return np.clip(np.nan_to_num(standard_TWD), -FARTHEST, FARTHEST)


def speeds(forecast_TW: Array, trace: Trace) -> Array:
    """Return speeds of log forecasts of the second half, bounded by what each worker has shown before.

    What is not a number counts as the last value.
    """
    log_TW, start = log_speed(trace), half(trace)
    low_TW = np.minimum.accumulate(log_TW, axis=0)[start - 1 : -1] - FARTHEST_FORECAST
    high_TW = np.maximum.accumulate(log_TW, axis=0)[start - 1 : -1] + FARTHEST_FORECAST
    known_TW = np.where(np.isfinite(forecast_TW), forecast_TW, log_TW[start - 1 : -1])
    return np.asarray(np.exp(np.clip(known_TW, low_TW, high_TW)))


def squared(forecast: Array, truth: Array) -> float:
    """Return the mean squared error by which configurations are chosen; infinite for what is not a number."""
    error = float(np.mean(np.square(forecast - truth)))
    return error if np.isfinite(error) else np.inf
