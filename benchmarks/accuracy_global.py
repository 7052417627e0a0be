"""A peer with one model over all series of a set: LightGBM on differences.

Axes: T iterations, W workers, D covariates, F inputs, N examples.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from accuracy_prepared import covariates_of, log_speed, speeds, squared, tuning
from accuracy_sets import Set, common_covariates, half
from numpy.typing import NDArray

from paceline.datasets import Trace

Array = NDArray[np.float64]

LAGS, COVARIATE_LAGS, WIDTHS = 8, 4, (4, 16)
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
        covariates: [_table(trace, names if covariates else []) for trace in data.traces]
        for covariates in (False, True)
    }
    starts = [half(trace) for trace in data.traces]

    def fitted(covariates: bool, ends: list[int], most: int | None, **options: Any) -> Any:
        inputs, change = _examples(tables[covariates], [0] * len(ends), ends)
        every = 1 if most is None else -(-len(change) // most)
        model = LGBMRegressor(n_estimators=300, learning_rate=0.05, num_threads=1, verbose=-1, seed=0, **options)
        return model.fit(inputs[::every], change[::every])

    def loss(choice: tuple[bool, dict[str, Any]]) -> float:
        covariates, options = choice
        firsts = [tuning(start) for start in starts]
        inputs, change = _examples(tables[covariates], firsts, starts)
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


def _table(trace: Trace, names: list[str]) -> tuple[Array, Array, Array]:
    """Return inputs ``[T, W, F]``, the change to come ``[T, W]`` and each series' scale of changes ``[W]``."""
    log_TW, start = log_speed(trace), half(trace)
    change_TW = np.diff(log_TW, axis=0, prepend=np.nan)
    scale_W = np.maximum(np.nan_to_num(np.nanstd(change_TW[: tuning(start)], axis=0)), LEAST_SCALE)
    change_TW = change_TW / scale_W
    columns = [trace.covariate_names.index(name) for name in names]
    covariates_TWD = covariates_of(trace)[:, :, columns]
    past = [_later(change_TW, lag)[:, :, None] for lag in range(1, LAGS + 1)]
    driven = [_later(covariates_TWD, lag) for lag in range(COVARIATE_LAGS + 1)] if names else []
    means = [_later(_rolling(change_TW, width), 1)[:, :, None] for width in WIDTHS]
    known_TW = np.where(np.isfinite(trace.speed), change_TW, np.nan)
    return np.concatenate([*past, *means, *driven], axis=2), known_TW, scale_W


def _examples(tables: list[tuple[Array, Array, Array]], firsts: list[int], ends: list[int]) -> tuple[Array, Array]:
    parts = [(i[a:b], c[a:b]) for (i, c, _), a, b in zip(tables, firsts, ends, strict=True)]
    inputs = np.concatenate([i.reshape(-1, i.shape[-1]) for i, _ in parts])
    change = np.concatenate([c.ravel() for _, c in parts])
    return inputs[np.isfinite(change)], change[np.isfinite(change)]


def _later(values_T: Array, lag: int) -> Array:
    moved_T = np.full_like(values_T, np.nan)
    moved_T[lag:] = values_T[: len(values_T) - lag]
    return moved_T


def _rolling(values_TW: Array, width: int) -> Array:
    total_TW = np.nancumsum(values_TW, axis=0)
    return (total_TW - np.nan_to_num(_later(total_TW, width))) / width
