"""Check the arguments of `split`, and convert its bounds to multiples. Axis: W workers."""

from __future__ import annotations

import operator

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array
from paceline.solver.load import OVERLAPS, BatchTimeCurves, Load

LARGEST_BATCH = 2**53
"""Above this, float64 cannot represent every whole number of samples. Sums over the workers must stay below it too."""


def checked_load(
    curves: BatchTimeCurves,
    multiples: int,
    batch_multiple: int,
    lower: ArrayLike,
    upper: ArrayLike | None,
    comm: ArrayLike,
    overlap: float = 1.0,
) -> Load:
    """Return the curves with bounds in multiples, rounded inward; raise an error that names a wrong argument."""
    count = len(curves.slope) if np.ndim(curves.slope) else 0
    if not count:
        raise ValueError("curves must hold at least one worker, got none: check curves.slope")
    floor = finite("curves.floor", curves.floor, count)
    slope = finite("curves.slope", curves.slope, count)
    intercept = finite("curves.intercept", curves.intercept, count, least=-np.inf)
    limit = not_nan("curves.limit", curves.limit, count)
    most = limit if upper is None else np.minimum(limit, not_nan("upper", upper, count))
    low = np.ceil(finite("lower", lower, count) / batch_multiple)
    high = np.floor(most / batch_multiple)
    _require_feasible(low, high, multiples, batch_multiple)
    if multiples * count > LARGEST_BATCH:
        raise ValueError(
            f"global_batch must be at most 2**53 multiples divided by the {count} workers, so that sums stay exact, "
            f"got "
            f"{multiples} multiples"
        )
    if overlap not in OVERLAPS:
        raise ValueError(f"overlap must be one of {OVERLAPS}, so that times stay exact, got {overlap}")
    seconds = floor, slope, intercept, finite("comm", comm, count)
    return Load(*seconds, low, np.minimum(high, multiples), batch_multiple, overlap)


def checked_multiples(global_batch: int, batch_multiple: int) -> tuple[int, int]:
    """Return the global batch in multiples, and the batch multiple; an error names the nearest valid batches."""
    size = whole("global_batch", global_batch)
    step = whole("batch_multiple", batch_multiple)
    if size > LARGEST_BATCH:
        raise ValueError(f"global_batch must be at most 2**53 samples, got {size}")
    if size % step:
        below = size - size % step
        choice = f"{below} or {below + step}" if below else f"{step}"
        raise ValueError(
            f"global_batch must be a multiple of batch_multiple {step}, got {size}: {choice} would do, or "
            f"batch_multiple=1"
        )
    return size // step, step


def finite(name: str, values: ArrayLike, count: int, *, least: float = 0.0) -> Array:
    """Return one finite number for each worker, not below ``least``."""
    # The usual argument is one plain number: checking it without an array saves time in every iteration.
    # Curves must be arrays, because their length says how many workers there are.
    if isinstance(values, int | float) and least <= values < np.inf and not name.startswith("curves"):
        return np.full(count, float(values))
    column = _column(name, values, count)
    # NaN survives min and max and fails every comparison, so one `not` catches NaN, infinity and values that are too
    # small. `np.minimum.reduce` skips the Python wrapper of `.min()`, which costs more than a small fleet's arithmetic.
    if not (-np.inf < np.minimum.reduce(column) >= least and np.maximum.reduce(column) < np.inf):
        i = int(np.argmax(~(np.isfinite(column) & (column >= least))))
        hint = "; exclude a worker that cannot run with upper=0" if name == "curves.slope" else ""
        wanted = "finite" if least < 0 else "finite and not negative"
        raise ValueError(f"{name} must be {wanted}, got {column[i]} for worker {i}{hint}")
    return column


def not_nan(name: str, values: ArrayLike, count: int) -> Array:
    """Return one number for each worker: not negative, possibly infinite."""
    column = _column(name, values, count)
    if not np.minimum.reduce(column) >= 0:
        i = int(np.argmax(~(column >= 0)))
        raise ValueError(f"{name} must not be NaN or negative, but may be infinite, got {column[i]} for worker {i}")
    return column


def _column(name: str, values: ArrayLike, count: int) -> Array:
    column = np.asarray(values, dtype=np.float64)
    if column.ndim == 0 and not name.startswith("curves"):
        return np.full(count, column)
    if column.shape != (count,):
        raise ValueError(f"{name} must hold one number for each of the {count} workers, got the shape {column.shape}")
    return column


def whole(name: str, value: int) -> int:
    """Return a whole number of samples, at least 1."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number of samples, got {value!r}") from None
    if number < 1:
        raise ValueError(f"{name} must be at least 1 sample, got {number}")
    return number


def _require_feasible(low: Array, high: Array, multiples: int, batch_multiple: int) -> None:
    rounded = "" if batch_multiple == 1 else f", rounded inward to multiples of {batch_multiple},"
    total, least, most = (
        multiples * batch_multiple,
        np.add.reduce(low) * batch_multiple,
        np.add.reduce(high) * batch_multiple,
    )
    if least > total:
        raise ValueError(
            f"the lower bounds{rounded} sum to {least:.0f}, more than the global_batch {total}: lower them"
        )
    if most < total:
        raise ValueError(
            f"the upper bounds and memory limits{rounded} sum to {most:.0f}, less than the global_batch {total}: "
            "raise them, add workers, or accumulate gradients over smaller batches"
        )
    if (low > high).any():
        i = int(np.argmax(low > high))
        raise ValueError(
            f"worker {i} must take at least {low[i] * batch_multiple:.0f} samples (lower) and at most "
            f"{high[i] * batch_multiple:.0f} (upper and memory limit){rounded.rstrip(',')}: no batch size does both"
        )
