"""Spread calls over processes or a cluster through joblib, wherever the caller has configured it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

R = TypeVar("R")


def spread(function: Callable[..., R], calls: Iterable[tuple[Any, ...]]) -> list[R]:
    """Return the result of each call, in order: in this process, unless ``joblib.parallel_config`` says otherwise.

    Parameters
    ----------
    function
        Called with each tuple of arguments.
    calls
        The arguments.

    Examples
    --------
    >>> spread(pow, [(2, 3), (3, 2)])
    [8, 9]
    """
    # Whoever configured joblib has imported it; nobody else needs it installed.
    joblib = sys.modules.get("joblib")
    if joblib is None:
        return [function(*arguments) for arguments in calls]
    results: list[R] = joblib.Parallel()(joblib.delayed(function)(*arguments) for arguments in calls)
    return results
