"""One iteration of a fleet as other libraries serve it: learn the newest speeds, then forecast the next.

Every function takes a fleet's past, ``[T, W]`` and ``[T, W, D]``, and returns what serves one iteration; a peer that
is not installed raises ImportError. Axes: T iterations, W workers, D covariates.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Step = Callable[[Array, Array], object]
"""Takes the speeds of the iteration just finished, ``[W]``, and the covariates now, ``[W, D]``."""


def holt_winters(speed_TW: Array, covariates_TWD: Array) -> Step:
    """River's level and trend, one model for each worker."""
    from river.time_series import HoltWinters

    return _one_by_one(lambda: HoltWinters(0.3, 0.1), speed_TW, covariates_TWD, driven=False)


def snarimax(speed_TW: Array, covariates_TWD: Array) -> Step:
    """River's SNARIMAX(2, 1, 1) with covariates, one model for each worker."""
    from river.time_series import SNARIMAX

    return _one_by_one(lambda: SNARIMAX(p=2, d=1, q=1), speed_TW, covariates_TWD, driven=True)


def river_linear(speed_TW: Array, covariates_TWD: Array) -> Step:
    """River's scaled linear regression on four past speeds and the covariates, one model for each worker."""
    from river.linear_model import LinearRegression
    from river.preprocessing import StandardScaler

    models = [StandardScaler() | LinearRegression() for _ in speed_TW[0]]
    past: list[list[float]] = [list(speed_T) for speed_T in speed_TW[-4:].T]
    asked = [_inputs(lags, covariates_D) for lags, covariates_D in zip(past, covariates_TWD[-1].tolist(), strict=True)]

    def step(speed_W: Array, covariates_WD: Array) -> list[float]:
        found = []
        for w, (speed, covariates_D) in enumerate(zip(speed_W.tolist(), covariates_WD.tolist(), strict=True)):
            models[w].learn_one(asked[w], speed)
            past[w] = [*past[w][1:], speed]
            asked[w] = _inputs(past[w], covariates_D)
            found.append(models[w].predict_one(asked[w]))
        return found

    return step


def statsforecast_forward(speed_TW: Array, covariates_TWD: Array) -> Step:
    """Statsforecast's ARIMA(2, 0, 1), fitted once, filtered over the whole past again: it cannot be updated."""
    from statsforecast.models import ARIMA

    models = [ARIMA(order=(2, 0, 1)).fit(speed_T) for speed_T in speed_TW.T]
    past_TW = speed_TW

    def step(speed_W: Array, covariates_WD: Array) -> list[object]:
        nonlocal past_TW
        past_TW = np.vstack([past_TW[1:], speed_W])
        return [model.forward(speed_T, h=1) for model, speed_T in zip(models, past_TW.T, strict=True)]

    return step


def statsmodels_append(speed_TW: Array, covariates_TWD: Array) -> Step:
    """Statsmodels' ARIMA(2, 0, 1), fitted once, with the newest speed appended and nothing fitted again."""
    from statsmodels.tsa.arima.model import ARIMA

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [ARIMA(speed_T, order=(2, 0, 1)).fit() for speed_T in speed_TW.T]

    def step(speed_W: Array, covariates_WD: Array) -> list[object]:
        results[:] = [result.append([speed]) for result, speed in zip(results, speed_W, strict=True)]
        return [result.forecast(1) for result in results]

    return step


def mlforecast_linear(speed_TW: Array, covariates_TWD: Array) -> Step:
    """Mlforecast: one linear regression over all workers on four lags and the covariates; update, then predict."""
    import pandas as pd
    from mlforecast import MLForecast
    from sklearn.linear_model import LinearRegression

    ids, covariates = np.arange(speed_TW.shape[1]), [f"covariate{d}" for d in range(covariates_TWD.shape[2])]

    def table(when: int, covariates_WD: Array, **more: Array) -> pd.DataFrame:
        columns = {"unique_id": ids, "ds": np.full(len(ids), when), **more}
        return pd.DataFrame(columns | dict(zip(covariates, covariates_WD.T, strict=True)))

    past = [table(t, covariates_TWD[t], y=speed_TW[t]) for t in range(len(speed_TW))]
    forecaster = MLForecast(models=[LinearRegression()], freq=1, lags=[1, 2, 3, 4], num_threads=1)
    forecaster.fit(pd.concat(past, ignore_index=True), static_features=[])
    when, covariates_now = len(speed_TW), covariates_TWD[-1]

    def step(speed_W: Array, covariates_WD: Array) -> pd.DataFrame:
        nonlocal when, covariates_now
        forecaster.update(table(when, covariates_now, y=speed_W))
        when, covariates_now = when + 1, covariates_WD
        return forecaster.predict(1, X_df=table(when, covariates_WD))

    return step


PEERS: dict[str, tuple[Callable[[Array, Array], Step], int]] = {
    "river HoltWinters": (holt_winters, 10_000),
    "river linear": (river_linear, 1000),
    "river SNARIMAX + covariates": (snarimax, 1000),
    "mlforecast linear": (mlforecast_linear, 10_000),
    "statsforecast ARIMA forward": (statsforecast_forward, 32),
    "statsmodels ARIMA append": (statsmodels_append, 8),
}
"""Every other library under the name to show, and the largest fleet that it is measured on."""


def _one_by_one(make: Callable[[], object], speed_TW: Array, covariates_TWD: Array, driven: bool) -> Step:
    models = [make() for _ in speed_TW[0]]

    def learn(speed_W: Array, covariates_WD: Array) -> list[dict[str, float]]:
        now = [{"cpu": cpu, "memory": memory} for cpu, memory in covariates_WD.tolist()]
        for model, speed, x in zip(models, speed_W.tolist(), now, strict=True):
            model.learn_one(speed, x=x) if driven else model.learn_one(speed)  # type: ignore[attr-defined]
        return now

    def step(speed_W: Array, covariates_WD: Array) -> list[list[float]]:
        now = learn(speed_W, covariates_WD)
        if not driven:
            return [model.forecast(1) for model in models]  # type: ignore[attr-defined]
        return [model.forecast(1, xs=[x]) for model, x in zip(models, now, strict=True)]  # type: ignore[attr-defined]

    for speed_W, covariates_WD in zip(speed_TW[-8:], covariates_TWD[-8:], strict=True):
        learn(speed_W, covariates_WD)
    return step


def _inputs(lags: list[float], covariates_D: list[float]) -> dict[str, float]:
    return {str(lag): speed for lag, speed in enumerate(lags)} | {"cpu": covariates_D[0], "memory": covariates_D[1]}
