"""One-step forecasts of other libraries, each as its users would make them and never with a later speed.

Every function takes a set and returns the forecasts of the second half of each trace, ``[T, W]``; a peer that is not
installed raises ImportError. All forecast log speeds, see the covariates that ours see, clipped as ours are, and choose
between their configurations on the last fifth of the first half. Axes: T iterations, W workers, D covariates.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from accuracy_direct import ORIGINS, ZERO_SHOT, lightgbm, next_of_few, ridge
from accuracy_sets import Set, covariates_of, half, log_speed, speeds, squared, tuning
from numpy.typing import NDArray

from paceline.datasets import Trace

Array = NDArray[np.float64]

Forecaster = Callable[[Array, Array, int], Array]
"""From a log speed ``[T]``, covariates ``[T, D]`` and the first iteration to forecast, forecasts from there on."""

SHORTEST = 8
"""Peers get no model on fewer points than this: their forecast is then the last value."""

LEAST_MOVE = 1e-9
"""A covariate that moves less than this in the part to fit is left out: a regression on it has no solution."""


@dataclass(frozen=True)
class Peer:
    """Another library: how it is served, what is chosen on the last fifth of the first half, and whether it is slow.

    A sparse one forecasts a few iterations of those few series: the others are NaN, and Auto is compared on the same.
    """

    forecasts: Callable[[Set], list[Array]]
    configuration: str
    slow: bool = False
    sparse: bool = False


def auto_arima(covariates: bool) -> Forecaster:
    """Orders and coefficients fitted by statsforecast; then filtered forward with those."""

    def forecast(log_T: Array, covariates_TD: Array, start: int) -> Array:
        from statsforecast.models import AutoARIMA

        model = AutoARIMA()
        moving_D = covariates_TD[:start].std(axis=0) > LEAST_MOVE
        x_TD = np.ascontiguousarray(covariates_TD[:, moving_D]) if covariates and moving_D.any() else None
        ahead = None if x_TD is None else x_TD[:1]
        model.fit(log_T[:start], X=None if x_TD is None else x_TD[:start])
        return np.asarray(model.forward(log_T, h=1, X=x_TD, X_future=ahead, fitted=True)["fitted"][start:])

    return forecast


def auto_ets(damped: bool | None) -> Forecaster:
    """Form and smoothing fitted by statsforecast; then filtered forward with those."""

    def forecast(log_T: Array, covariates_TD: Array, start: int) -> Array:
        from statsforecast.models import AutoETS

        model = AutoETS(damped=damped)
        center = log_T[:start].mean() - 10.0  # its forms with multiplied errors need values above 0
        model.fit(log_T[:start] - center)
        return np.asarray(model.forward(log_T - center, h=1, fitted=True)["fitted"][start:]) + center

    return forecast


def holt_winters(level: float, trend: float | None) -> Forecaster:
    """River's level and trend, learning on through both halves; no season."""

    def forecast(log_T: Array, covariates_TD: Array, start: int) -> Array:
        from river.time_series import HoltWinters

        model, found, center = HoltWinters(level, trend), [], float(log_T[0])
        for k, value in enumerate(log_T - center):
            if k >= start:
                try:
                    (ahead,) = model.forecast(horizon=1)
                except (OverflowError, ValueError, IndexError):
                    ahead = np.nan
                found.append(ahead)
            model.learn_one(value)
        return np.array(found) + center

    return forecast


def each_series(candidates: Sequence[Forecaster]) -> Callable[[Set], list[Array]]:
    """Return the forecasts of a set, where each series takes the candidate that is best on the part that decides."""

    def forecasts(data: Set) -> list[Array]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [_panel(trace, candidates) for trace in data.traces]

    return forecasts


def _panel(trace: Trace, candidates: Sequence[Forecaster]) -> Array:
    log_TW, covariates_TWD, start = log_speed(trace), covariates_of(trace), half(trace)
    columns = [_chosen(log_TW[:, w], covariates_TWD[:, w], start, candidates) for w in range(log_TW.shape[1])]
    return speeds(np.stack(columns, axis=1), trace)


def _chosen(log_T: Array, covariates_TD: Array, start: int, candidates: Sequence[Forecaster]) -> Array:
    first = tuning(start)
    if first < SHORTEST:
        return log_T[start - 1 : -1]

    def loss(forecast: Forecaster) -> float:
        return squared(_attempt(forecast, log_T[:start], covariates_TD[:start], first), log_T[first:start])

    if candidates is ARIMA and not covariates_TD.shape[1]:
        candidates = ARIMA[:1]
    best = candidates[0] if len(candidates) == 1 else min(candidates, key=loss)
    return _attempt(best, log_T, covariates_TD, start)


def _attempt(forecast: Forecaster, log_T: Array, covariates_TD: Array, start: int) -> Array:
    """Return the forecasts, or not-a-number where the library gave up on this series."""
    try:
        return forecast(log_T, covariates_TD, start)
    except ImportError:
        raise
    except Exception:  # any of several libraries; the series then counts as the last value
        return np.full(len(log_T) - start, np.nan)


ARIMA = (auto_arima(False), auto_arima(True))
HOLT_WINTERS = [holt_winters(level, trend) for level in (0.1, 0.2, 0.3, 0.5, 0.8) for trend in (None, 0.1)]

PEERS: dict[str, Peer] = {
    "statsforecast AutoARIMA": Peer(
        each_series(ARIMA), "orders by its own criterion; with or without covariates, chosen per series", slow=True
    ),
    "statsforecast AutoETS": Peer(
        each_series([auto_ets(None), auto_ets(True)]), "form by its own criterion; damping chosen per series", slow=True
    ),
    "river HoltWinters": Peer(
        each_series(HOLT_WINTERS), "level .1, .2, .3, .5 or .8 and trend none or .1, chosen per series", slow=True
    ),
    "LightGBM": Peer(
        lightgbm,
        "one model for all series, scaled series by series, of changes of log speed; objective (squares, Huber), "
        "leaves (8, 31) and covariates (with, without) chosen per set; 300 trees, rate .05",
    ),
    "ridge": Peer(
        ridge,
        "log speeds of 4 or 16 lags and two averages, covariates of two boundaries or none, penalty 1 or 30, one fit "
        "for "
        "each series or for all; chosen per set",
    ),
    ZERO_SHOT: Peer(
        next_of_few,
        "a network of 85,001 weights trained on other series, not fitted; log speeds alone, at most 2,048; its median; "
        f"{ORIGINS} iterations of each series",
        slow=True,
        sparse=True,
    ),
}
"""Every peer by the name to show."""

COLD = {"river HoltWinters": HOLT_WINTERS[4]}
"""The peer that can serve from the first iteration on, in the configuration that it then has: (.3, none)."""


def from_the_start(name: str, data: Set, count: int) -> list[Array]:
    """Return a cold peer's forecasts of the first iterations of each trace, ``[T, W]``; the first one has none."""
    found = []
    for trace in data.traces:
        log_TW, covariates_TWD = log_speed(trace)[:count], covariates_of(trace)[:count]
        columns = [_attempt(COLD[name], log_TW[:, w], covariates_TWD[:, w], 1) for w in range(log_TW.shape[1])]
        ahead_TW = np.stack(columns, axis=1)
        ahead_TW = np.where(np.isfinite(ahead_TW), ahead_TW, log_TW[:-1])
        found.append(np.vstack([log_TW[:1], np.clip(ahead_TW, -20.0, 40.0)]))
    return [np.exp(part) for part in found]


def installed() -> Iterator[str]:
    """Yield the names of the peers' packages that are here."""
    from importlib.util import find_spec

    os.environ.setdefault("NIXTLA_ID_AS_COL", "1")
    yield from (name for name in ("statsforecast", "river", "lightgbm", ZERO_SHOT) if find_spec(name))
