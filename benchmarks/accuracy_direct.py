"""Peers: ridge regressions fitted directly at a horizon, LightGBM, and a zero-shot network where installed.

Axes: T iterations, W workers, D covariates, F inputs, H horizons, N examples.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from accuracy_sets import Set, common_covariates, covariates_of, half, log_speed, speeds, squared, tuning
from numpy.typing import NDArray

from paceline.datasets import Trace

Array = NDArray[np.float64]

LAGS, SMOOTHINGS, COVARIATE_LAGS = (4, 16), (0.2, 0.05), 2
"""Past log speeds that a ridge may see, smoothings of the averages beside them, and boundaries of covariates."""

PENALTIES = (1.0, 30.0)
"""Penalties of a squared weight, in examples of unit inputs."""

LEAST_DEVIATION = 1e-3
"""Series that hardly vary are scaled by this, in log speed."""

FARTHEST = 8.0
"""A forecast counts as at most this many deviations from the series' mean."""

ZERO_SHOT, ORIGINS, BATCH = "fracast", 20, 16
"""The network, the iterations of a series before which it is asked, as it takes about 50 ms for a forecast, and the
number that it is asked together."""

SHORTEST = 16
"""Reports before its first forecast; it refuses fewer than 8."""


@dataclass(frozen=True, order=True)
class Choice:
    """A configuration of the ridge: past speeds, whether it sees covariates and all series together, the penalty."""

    lags: int
    covariates: bool
    together: bool
    penalty: float


@dataclass(frozen=True, eq=False)
class Scaled:
    """A trace in deviations of the first half: targets ``[T, W]`` (NaN without a report), covariates, and the units."""

    level_TW: Array
    target_TW: Array
    covariates_TWD: Array
    mean_W: Array
    deviation_W: Array
    start: int


def ridge(data: Set, horizon: int = 1) -> list[Array]:
    """Return forecasts of the second half, each made ``horizon`` iterations before its report, ``[T, W]`` a trace.

    One linear model of the log speed at that horizon for each series, or one for all; which, and how many lags, and
    whether it sees covariates, is chosen for the set on the last fifth of the first half.
    """
    names = common_covariates(data.traces)
    scaled = [_scaled(trace, names, horizon) for trace in data.traces]
    grid = itertools.product(LAGS, (False, True) if names else (False,), (True, False), PENALTIES)
    best = min((_loss(scaled, Choice(*values), horizon), Choice(*values)) for values in grid)[1]
    found = []
    for one, ahead_TW, trace in zip(scaled, _fitted(scaled, best, horizon, tuned=False), data.traces, strict=True):
        log_TW = one.mean_W + one.deviation_W * np.clip(ahead_TW, -FARTHEST, FARTHEST)
        found.append(speeds(_moved(log_TW, horizon - 1)[one.start :], trace))
    return found


def _scaled(trace: Trace, names: Sequence[str], horizon: int) -> Scaled:
    log_TW, start = log_speed(trace), half(trace)
    mean_W, deviation_W = log_TW[:start].mean(axis=0), np.maximum(log_TW[:start].std(axis=0), LEAST_DEVIATION)
    level_TW = (log_TW - mean_W) / deviation_W
    target_TW = _moved(np.where(np.isfinite(trace.speed), level_TW, np.nan), 1 - horizon)
    covariates_TWD = covariates_of(trace)[:, :, [trace.covariate_names.index(name) for name in names]]
    return Scaled(level_TW, target_TW, covariates_TWD, mean_W, deviation_W, start)


def _loss(scaled: list[Scaled], choice: Choice, horizon: int) -> float:
    """Return the mean squared error of the last fifth of the first half, fitted before it."""
    errors = []
    for one, ahead_TW in zip(scaled, _fitted(scaled, choice, horizon, tuned=True), strict=True):
        part = slice(max(tuning(one.start) - horizon + 1, 0), max(one.start - horizon + 1, 0))
        errors.append((ahead_TW - one.target_TW)[part].ravel())
    error = np.concatenate(errors)
    return float(np.nanmean(np.square(error))) if np.isfinite(error).any() else float("inf")


def _fitted(scaled: list[Scaled], choice: Choice, horizon: int, tuned: bool) -> Iterator[Array]:
    """Yield forecasts in deviations, by the iteration in which they are made, fitted to targets before the part."""
    parts = []
    for one in scaled:
        inputs_TWF, end = _inputs(one, choice), (tuning(one.start) if tuned else one.start) - horizon + 1
        known_TW = np.isfinite(inputs_TWF).all(axis=2) & np.isfinite(one.target_TW)
        known_TW[max(end, 0) :] = False
        parts.append((inputs_TWF, known_TW, one.target_TW))
    pooled = _weights(*_examples(parts), choice.penalty) if choice.together else None
    for inputs_TWF, known_TW, target_TW in parts:
        columns = []
        for w in range(target_TW.shape[1]):
            known_T = known_TW[:, w]
            own = (
                pooled
                if pooled is not None
                else _weights(inputs_TWF[known_T, w], target_TW[known_T, w], choice.penalty)
            )
            columns.append(np.nan_to_num(inputs_TWF[:, w]) @ own)
        yield np.stack(columns, axis=1)


def _examples(parts: list[tuple[Array, NDArray[np.bool_], Array]]) -> tuple[Array, Array]:
    return np.concatenate([i[k] for i, k, _ in parts]), np.concatenate([t[k] for _, k, t in parts])


def _weights(inputs_NF: Array, target_N: Array, penalty: float) -> Array:
    penalized_FF = inputs_NF.T @ inputs_NF + penalty * np.eye(inputs_NF.shape[1])
    return np.asarray(np.linalg.solve(penalized_FF, inputs_NF.T @ target_N))


def _inputs(one: Scaled, choice: Choice) -> Array:
    """Return past levels, averages of them and covariates, as they are known before each iteration, ``[T, W, F]``."""
    columns = [_moved(one.level_TW, lag)[:, :, None] for lag in range(1, choice.lags + 1)]
    columns += [_moved(_averaged(one.level_TW, smoothing), 1)[:, :, None] for smoothing in SMOOTHINGS]
    columns += [_moved(one.covariates_TWD, lag) for lag in range(COVARIATE_LAGS)] if choice.covariates else []
    return np.concatenate(columns, axis=2)


def _averaged(values_TW: Array, smoothing: float) -> Array:
    average_TW = values_TW.copy()
    for k in range(1, len(values_TW)):
        average_TW[k] = average_TW[k - 1] + smoothing * (values_TW[k] - average_TW[k - 1])
    return average_TW


def _moved(values_T: Array, by: int) -> Array:
    """Return the values so many iterations later, earlier if that is below 0; NaN where there is none."""
    moved_T = np.full_like(values_T, np.nan)
    count = max(len(values_T) - abs(by), 0)
    if by >= 0:
        moved_T[len(values_T) - count :] = values_T[:count]
    else:
        moved_T[:count] = values_T[len(values_T) - count :]
    return moved_T


# -- one model over all series, of changes ----------------------------------------------------------------------------

CHANGES, BOUNDARIES, WIDTHS = 8, 4, (4, 16)
"""Past changes, past boundaries of covariates, and widths of the moving means of changes that LightGBM sees."""

MOST_EXAMPLES = 60_000
"""Examples to choose the configuration on: more are thinned evenly. The final fit takes all."""

LEAST_SCALE = 1e-3
"""Series that hardly change are scaled by this, in log speed."""


def lightgbm(data: Set) -> list[Array]:
    """One model over all series on scaled differences of log speed and covariates, as mlforecast advises."""
    from lightgbm import LGBMRegressor

    names = common_covariates(data.traces)
    tables = {
        covariates: [_change_inputs(trace, names if covariates else []) for trace in data.traces]
        for covariates in (False, True)
    }
    starts = [half(trace) for trace in data.traces]

    def fitted(covariates: bool, ends: list[int], most: int | None, **options: Any) -> Any:
        inputs, change = _changes(tables[covariates], [0] * len(ends), ends)
        every = 1 if most is None else -(-len(change) // most)
        model = LGBMRegressor(n_estimators=300, learning_rate=0.05, num_threads=1, verbose=-1, seed=0, **options)
        return model.fit(inputs[::every], change[::every])

    def loss(choice: tuple[bool, dict[str, Any]]) -> float:
        covariates, options = choice
        firsts = [tuning(start) for start in starts]
        inputs, change = _changes(tables[covariates], firsts, starts)
        return squared(fitted(covariates, firsts, MOST_EXAMPLES, **options).predict(inputs), change)

    grid = [{"objective": objective, "num_leaves": leaves} for objective in ("l2", "huber") for leaves in (8, 31)]
    covariates, options = min(itertools.product((False, True) if names else (False,), grid), key=loss)
    model = fitted(covariates, starts, None, **options)
    found = []
    for (inputs, _, scale_W), trace, start in zip(tables[covariates], data.traces, starts, strict=True):
        later = inputs[start:]
        change_TW = model.predict(later.reshape(-1, later.shape[-1])).reshape(later.shape[:2])
        found.append(speeds(log_speed(trace)[start - 1 : -1] + scale_W * change_TW, trace))
    return found


def _change_inputs(trace: Trace, names: list[str]) -> tuple[Array, Array, Array]:
    """Return inputs ``[T, W, F]``, the change to come ``[T, W]`` and each series' scale of changes ``[W]``."""
    log_TW, start = log_speed(trace), half(trace)
    change_TW = np.diff(log_TW, axis=0, prepend=np.nan)
    scale_W = np.maximum(np.nan_to_num(np.nanstd(change_TW[: tuning(start)], axis=0)), LEAST_SCALE)
    change_TW = change_TW / scale_W
    columns = [trace.covariate_names.index(name) for name in names]
    covariates_TWD = covariates_of(trace)[:, :, columns]
    past = [_moved(change_TW, lag)[:, :, None] for lag in range(1, CHANGES + 1)]
    driven = [_moved(covariates_TWD, lag) for lag in range(BOUNDARIES + 1)] if names else []
    means = [_moved(_rolling(change_TW, width), 1)[:, :, None] for width in WIDTHS]
    known_TW = np.where(np.isfinite(trace.speed), change_TW, np.nan)
    return np.concatenate([*past, *means, *driven], axis=2), known_TW, scale_W


def _changes(tables: list[tuple[Array, Array, Array]], firsts: list[int], ends: list[int]) -> tuple[Array, Array]:
    parts = [(i[a:b], c[a:b]) for (i, c, _), a, b in zip(tables, firsts, ends, strict=True)]
    inputs = np.concatenate([i.reshape(-1, i.shape[-1]) for i, _ in parts])
    change = np.concatenate([c.ravel() for _, c in parts])
    return inputs[np.isfinite(change)], change[np.isfinite(change)]


def _rolling(values_TW: Array, width: int) -> Array:
    total_TW = np.nancumsum(values_TW, axis=0)
    return (total_TW - np.nan_to_num(_moved(total_TW, width))) / width


# -- a network that was trained on other series and is not fitted ------------------------------------------------------


def next_of_few(data: Set) -> list[Array]:
    """Return its forecasts of the second half of each trace, one iteration ahead, NaN where it is not asked.

    It is asked before few iterations, evenly spread.
    """
    import torch
    from fracast import FracastModel

    torch.set_num_threads(1)
    network, forecasts = FracastModel.from_pretrained(weights="fp32"), []
    for trace in data.traces:
        log_TW, found_TW = log_speed(trace), np.full(trace.speed.shape, np.nan)
        asked = np.unique(np.linspace(max(half(trace), SHORTEST), len(trace) - 1, ORIGINS).astype(np.intp))
        pairs = [(k, w) for k in asked for w in range(len(trace.workers))]
        for i in range(0, len(pairs), BATCH):
            some = pairs[i : i + BATCH]
            context = np.stack([_context(log_TW[:k, w], network.context_length) for k, w in some])
            ahead = network.forecast_batch(context, horizon=1)[:, 0, network.quantiles.index(0.5)]
            for (k, w), log_speed_ahead in zip(some, ahead, strict=True):
                found_TW[k, w] = np.exp(log_speed_ahead)
        forecasts.append(found_TW[half(trace) :])
    return forecasts


def _context(log_T: Array, length: int) -> Array:
    """Return the newest reports, NaN before the first: the network takes a fixed number."""
    return np.concatenate([np.full(max(length - len(log_T), 0), np.nan), log_T[-length:]])
