"""Valid arguments of predictors: ranges of whole numbers, which decide memory, and names of covariates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


def require_int(name: str, value: object, minimum: int, maximum: int = 10_000) -> int:
    """Return a whole number within its range.

    Raises
    ------
    ValueError
        If it is not a whole number, or out of the range; the message names it.

    Examples
    --------
    >>> require_int("window", 8, minimum=1)
    8
    >>> require_int("window", 10**10, minimum=1)
    Traceback (most recent call last):
    ValueError: window must be a whole number from 1 to 10000, got 10000000000
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not minimum <= value <= maximum:
        raise ValueError(f"{name} must be a whole number from {minimum} to {maximum}, got {value!r}")
    return int(value)


def covariate_names(covariates: Sequence[str]) -> tuple[str, ...]:
    """Return names of covariates; refuse one bare text, which would be taken for a name in each letter.

    Raises
    ------
    ValueError
        If it is a text, or holds anything other than texts.

    Examples
    --------
    >>> covariate_names(["cpu_share"])
    ('cpu_share',)
    >>> covariate_names("cpu_share")
    Traceback (most recent call last):
    ValueError: covariates must be a list of names such as ['cpu_share'], got 'cpu_share'
    """
    names = tuple(covariates) if isinstance(covariates, Iterable) else (None,)
    if isinstance(covariates, str) or not all(isinstance(name, str) for name in names):
        example = [covariates] if isinstance(covariates, str) else ["cpu_share"]
        raise ValueError(f"covariates must be a list of names such as {example}, got {covariates!r}")
    return names
