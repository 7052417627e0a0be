"""Numbers for JSON, which has no NaN."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


def known(value: float) -> float | None:
    """Return a number for JSON: null if it is not finite.

    >>> known(0.25), known(float("nan"))
    (0.25, None)
    """
    return round(float(value), 7) if math.isfinite(value) else None


def all_known(values: ArrayLike) -> list[float | None]:
    """Return numbers for JSON, ``[W]``."""
    return [known(value) for value in np.asarray(values, dtype=np.float64).tolist()]
