"""Array types that every package uses. Their axes are part of an array's name: ``speed_TW``, ``sizes_W``."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
"""Measurements and forecasts; NaN means "not known"."""

Sizes = NDArray[np.int64]
"""Counts: batch sizes, and numbers of samples."""

Mask = NDArray[np.bool_]
"""Entries for which a condition holds."""


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


# A predictor asks these dozens of times in an iteration. `any`, `all` and `count_nonzero` go through Python, and take
# several times as long as a reduction, which small fleets notice.
def any_true(mask: Mask | Array) -> bool:
    """Return whether the condition holds for any entry, or any number is not 0."""
    return bool(np.logical_or.reduce(mask, axis=None))


def all_true(mask: Mask) -> bool:
    """Return whether the condition holds for every entry."""
    return bool(np.logical_and.reduce(mask, axis=None))


def all_finite(numbers: Array) -> bool:
    """Return whether no number is NaN or infinite; numbers must be small enough for a sum, as logarithms are."""
    return isfinite(np.add.reduce(numbers, axis=None))


def substate(state: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """Return the entries of a state whose names begin with ``prefix/``, without that prefix."""
    return {name.removeprefix(f"{prefix}/"): value for name, value in state.items() if name.startswith(f"{prefix}/")}


def finite_mean(values: Array) -> float:
    """Return the mean of the known values; NaN if there is none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def finite_median(values: Array) -> float:
    """Return the median of the known values; NaN if there is none."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
