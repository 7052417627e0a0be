"""Flaws of a pushed gradient: wrong type or shape, NaN or infinity, a wrong count of samples. Axis: P parameters."""

from __future__ import annotations

import numpy as np

from paceline.coordinator.asynchronous.optimizer import Vector


def flaw(gradient: Vector, parameters: Vector) -> str:
    """Return the flaw of a gradient for these parameters; an empty text if it has none.

    >>> flaw(np.array([1.0, np.nan]), np.zeros(2))
    '1 of its 2 numbers is NaN or infinite'
    >>> flaw(np.zeros(3), np.zeros(2))
    'its shape is (3,), that of the parameters (2,)'
    """
    if not isinstance(gradient, np.ndarray) or gradient.dtype.kind != "f":
        return f"it is {getattr(gradient, 'dtype', type(gradient).__name__)}, and must be an array of floats"
    if gradient.shape != parameters.shape:
        return f"its shape is {gradient.shape}, that of the parameters {parameters.shape}"
    if not is_finite(gradient):
        count = int(np.count_nonzero(~np.isfinite(gradient)))
        return f"{count} of its {len(gradient)} numbers {'is' if count == 1 else 'are'} NaN or infinite"
    return ""


def miscounted(samples: int, assigned: int) -> str:
    """Return the flaw in the number of samples that a push claims; an empty text if it has none.

    >>> miscounted(samples=9, assigned=8)
    'it says to be the mean of 9 samples, and 8 were assigned'
    """
    return (
        "" if 1 <= samples <= assigned else f"it says to be the mean of {samples} samples, and {assigned} were assigned"
    )


def is_finite(values: Vector) -> bool:
    """Return whether all numbers are finite.

    >>> is_finite(np.array([1e30, -1e30], dtype=np.float32)), is_finite(np.array([1.0, np.inf]))
    (True, False)
    """
    # The sum of squares reads the numbers once and writes nothing, five times faster than isfinite; it can overflow
    # where all numbers are finite, and only then are they looked at one by one.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(values, values))) or bool(np.isfinite(values).all())
