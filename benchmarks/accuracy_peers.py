"""One-step forecasts of other libraries, each as its users would make them and never with a later speed.

Every function takes a set and returns the forecasts of the second half of each trace, ``[T, W]``; a peer that is not
installed raises ImportError. Missing speeds are filled with the last one, as most peers take none.

Axes: T iterations, W workers, D drivers.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from accuracy_sets import Set, half
from numpy.typing import NDArray

from paceline.datasets import Trace

Array = NDArray[np.float64]


def auto_arima(data: Set) -> list[Array]:
    """Orders chosen and fitted on the first half by statsforecast; then filtered forward with those parameters."""
    from statsforecast.models import AutoARIMA

    return [_per_series(trace, lambda speed_T, k: _forward(AutoARIMA(), speed_T, k)) for trace in data.traces]


def auto_ets(data: Set) -> list[Array]:
    """The form and the smoothing chosen on the first half by statsforecast; then filtered forward with those."""
    from statsforecast.models import AutoETS

    return [_per_series(trace, lambda speed_T, k: _forward(AutoETS(), speed_T, k)) for trace in data.traces]


def holt_winters(data: Set) -> list[Array]:
    """River's level and trend, learning on through both halves; no season."""
    from river.time_series import HoltWinters

    return [
        _per_series(trace, lambda speed_T, k: _online(HoltWinters(0.3, 0.1), speed_T, None, k)) for trace in data.traces
    ]


def snarimax(data: Set) -> list[Array]:
    """River's SNARIMAX(2, 1, 1) with drivers, by gradient descent, learning on through both halves."""
    from river.time_series import SNARIMAX

    found = []
    for trace in data.traces:
        drivers_TWD = _drivers(trace)
        columns = [
            _online(SNARIMAX(p=2, d=1, q=1), speed_T, drivers_TWD[:, w], half(trace))
            for w, speed_T in enumerate(_filled(trace.speed).T)
        ]
        found.append(np.stack(columns, axis=1))
    return found


def lightgbm(data: Set) -> list[Array]:
    """One model over all series on differences of log speed and drivers, as mlforecast's users are advised."""
    from lightgbm import LGBMRegressor

    tables = [_differences(trace) for trace in data.traces]
    parts = [(inputs[: half(t)], change[: half(t)]) for (inputs, change), t in zip(tables, data.traces, strict=True)]
    inputs = np.concatenate([i.reshape(-1, i.shape[-1]) for i, _ in parts])
    change = np.concatenate([c.ravel() for _, c in parts])
    model = LGBMRegressor(n_estimators=300, learning_rate=0.05, num_threads=1, verbose=-1)
    model.fit(inputs[np.isfinite(change)], change[np.isfinite(change)])
    found = []
    for (inputs, _), trace in zip(tables, data.traces, strict=True):
        last_TW = np.vstack([np.full(len(trace.workers), np.nan), _filled(trace.speed)[:-1]])[half(trace) :]
        later = inputs[half(trace) :]
        found.append(last_TW * np.exp(model.predict(later.reshape(-1, later.shape[-1])).reshape(last_TW.shape)))
    return found


def lightgbm_bare(data: Set) -> list[Array]:
    """The same without drivers: on some sets they mislead it."""
    bare = [replace(trace, drivers=None, driver_names=()) for trace in data.traces]
    return lightgbm(replace(data, traces=bare))


def neural_mlp(data: Set) -> list[Array]:
    """Neuralforecast's MLP on 24 past speeds and drivers, a fit for all series of one length; never fitted again."""
    import pandas as pd
    from neuralforecast import NeuralForecast
    from neuralforecast.models import MLP

    for name in ("pytorch_lightning", "lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    found: dict[int, Array] = {}
    for length in {len(trace) for trace in data.traces}:
        places = [i for i, trace in enumerate(data.traces) if len(trace) == length]
        names = _common_drivers([data.traces[i] for i in places])
        table = pd.concat([_long(data.traces[i], names) for i in places], ignore_index=True)
        model = MLP(
            h=1,
            input_size=24,
            max_steps=500,
            hidden_size=64,
            windows_batch_size=256,
            inference_windows_batch_size=4096,
            scaler_type="standard",
            futr_exog_list=names or None,
            random_seed=0,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        forecaster = NeuralForecast(models=[model], freq=1)
        tested = length - length // 2
        table = forecaster.cross_validation(df=table, n_windows=None, val_size=0, test_size=tested, step_size=1)
        wide = table.pivot(index="ds", columns="unique_id", values="MLP")
        for i in places:
            found[i] = wide[list(data.traces[i].workers)].to_numpy()
    return [found[i] for i in range(len(data.traces))]


PEERS: dict[str, Callable[[Set], list[Array]]] = {
    "statsforecast AutoARIMA": auto_arima,
    "statsforecast AutoETS": auto_ets,
    "river HoltWinters": holt_winters,
    "river SNARIMAX + drivers": snarimax,
    "LightGBM, global, differenced": lightgbm,
    "LightGBM, the same without drivers": lightgbm_bare,
    "neuralforecast MLP, global": neural_mlp,
}
"""Every peer by the name to show."""


def _per_series(trace: Trace, forecast: Callable[[Array, int], Array]) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.stack([forecast(speed_T, half(trace)) for speed_T in _filled(trace.speed).T], axis=1)


def _forward(model: object, speed_T: Array, start: int) -> Array:
    first = int(np.argmax(np.isfinite(speed_T)))
    known_T = speed_T[first:]
    unit = float(np.median(known_T[: start - first]))
    model.fit(known_T[: start - first] / unit)  # type: ignore[attr-defined]  # any model of statsforecast
    fitted_T = model.forward(known_T / unit, h=1, fitted=True)["fitted"]  # type: ignore[attr-defined]
    return np.asarray(fitted_T[start - first :]) * unit


def _online(model: object, speed_T: Array, drivers_TD: Array | None, start: int) -> Array:
    """Learn one speed after the other; before each, ask for the next. What is not a number says the last speed."""
    found, unit, last = [], float(np.nanmedian(speed_T[:start])), np.nan
    for k, speed in enumerate(speed_T / unit):
        now = None if drivers_TD is None else {str(d): value for d, value in enumerate(drivers_TD[k])}
        if k >= start:
            asked = {} if now is None else {"xs": [now]}
            try:
                (ahead,) = model.forecast(horizon=1, **asked)  # type: ignore[attr-defined]  # any model of river
            except (OverflowError, ValueError, IndexError):
                ahead = last
            found.append(ahead if np.isfinite(ahead) else last)
        if np.isfinite(speed):
            model.learn_one(speed) if now is None else model.learn_one(speed, x=now)  # type: ignore[attr-defined]
            last = speed
    return np.array(found) * unit


def _differences(trace: Trace, lags: int = 8, driver_lags: int = 4) -> tuple[Array, Array]:
    """Return past changes of log speed with drivers now and before, ``[T, W, F]``, and the change to come."""
    change_TW = np.diff(np.log(_filled(trace.speed)), axis=0, prepend=np.nan)
    drivers_TWD = _drivers(trace)
    past = [_later(change_TW, lag)[:, :, None] for lag in range(1, lags + 1)]
    driven = [_later(drivers_TWD, lag) for lag in range(driver_lags + 1)]
    means = [_later(_rolling(change_TW, width), 1)[:, :, None] for width in (4, 16)]
    change_TW = np.where(np.isfinite(trace.speed), change_TW, np.nan)
    return np.concatenate([*past, *means, *driven], axis=2), change_TW


def _later(values_T: Array, lag: int) -> Array:
    moved_T = np.full_like(values_T, np.nan)
    moved_T[lag:] = values_T[: len(values_T) - lag]
    return moved_T


def _rolling(values_TW: Array, width: int) -> Array:
    total_TW = np.nancumsum(values_TW, axis=0)
    return (total_TW - np.nan_to_num(_later(total_TW, width))) / width


def _filled(values_TW: Array) -> Array:
    """Return the values with gaps at the last value before them."""
    last_TW = np.where(np.isfinite(values_TW), np.arange(len(values_TW))[:, None], 0)
    return np.take_along_axis(values_TW, np.maximum.accumulate(last_TW, axis=0), axis=0)


def _drivers(trace: Trace) -> Array:
    """Return the drivers, ``[T, W, D]``, in standard deviations of the first half; gaps at the mean."""
    values_TWD = trace.drivers_named(trace.driver_names)
    if values_TWD is None:
        return np.zeros((*trace.speed.shape, 0))
    values_TWD = np.where(np.isfinite(values_TWD), values_TWD, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a driver that was never sampled
        past = values_TWD[: half(trace)]
        mean_WD, deviation_WD = np.nanmean(past, axis=0), np.nanstd(past, axis=0)
    return np.nan_to_num((values_TWD - mean_WD) / np.where(deviation_WD > 1e-9, deviation_WD, 1.0))


def _common_drivers(traces: list[Trace]) -> list[str]:
    return [name for name in traces[0].driver_names if all(name in trace.driver_names for trace in traces)]


def _long(trace: Trace, names: list[str]):  # type: ignore[no-untyped-def]  # pandas is imported late
    """Return the table that neuralforecast takes; speeds in units of each series' median of the first half."""
    import pandas as pd

    speed_TW, drivers_TWD = _filled(trace.speed), _drivers(trace)
    columns = [trace.driver_names.index(name) for name in names]
    parts = []
    for w, worker in enumerate(trace.workers):
        table = pd.DataFrame({"unique_id": worker, "ds": np.arange(len(trace)), "y": speed_TW[:, w]})
        for name, column in zip(names, columns, strict=True):
            table[name] = drivers_TWD[:, w, column]
        parts.append(table.bfill())
    return pd.concat(parts, ignore_index=True)


def installed() -> Iterator[str]:
    """Yield the names of the peers' packages that are here."""
    from importlib.util import find_spec

    os.environ.setdefault("NIXTLA_ID_AS_COL", "1")
    yield from (name for name in ("statsforecast", "river", "lightgbm", "neuralforecast") if find_spec(name))
