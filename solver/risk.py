"""Caution: how much slower to plan a worker whose forecast is noisy. Axis: W workers."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from paceline._arrays import Array
from paceline._curves import Curves
from paceline.solver.load import Load

Stretched = TypeVar("Stretched", Curves, Load)


def caution(spread: Array, risk: float = 1.0) -> Array:
    """Return the factor by which to stretch each worker's curve, ``[W]``: 1 for the least noisy worker.

    A barrier waits for the last worker, and a noisy worker is often the last. With log-normal errors of log
    deviation ``sigma = sqrt(log(1 + spread**2))`` each worker is planned at the time it exceeds as rarely as the
    largest of W normal errors is exceeded: ``exp(risk * z * (sigma - min sigma))``, with ``z`` the expected
    largest of W standard normal numbers (Blom's approximation). The rule is this library's own, chosen by
    simulating ``E[max_i x_i / v_i]``: ``risk = 1`` is near the best for 8 to 512 workers.

    Parameters
    ----------
    spread
        Relative standard deviation of each forecast's error, ``[W]``, not negative. Infinite means unknown: such a
        worker is taken to be as noisy as the noisiest known one.
    risk
        How much of the caution to apply: 0 none, 1 the whole.

    Examples
    --------
    Half of a fleet of eight is noisy; equal noise, known or not, changes nothing:

    >>> caution(np.repeat([0.05, 0.4], 4)).round(2)
    array([1.  , 1.  , 1.  , 1.  , 1.62, 1.62, 1.62, 1.62])
    >>> caution(np.full(3, np.inf))
    array([1., 1., 1.])
    """
    known = np.isfinite(spread)
    if risk == 0 or not known.any():
        return np.ones(len(spread))
    # log(1 + s**2) without squaring: a spread may be huge
    sigma = np.sqrt(2 * np.log(np.hypot(1.0, np.where(known, spread, spread[known].max()))))
    stretch: Array = np.exp(risk * _expected_largest(len(spread)) * (sigma - sigma.min()))
    return stretch


def cautious(curves: Stretched, spread: Array, risk: float) -> Stretched:
    """Return the curves with which noisy workers are planned: stretched by :func:`caution`, limits as they are.

    The one place where caution is applied: by ``split(..., risk=...)`` to what it balances, and by the load balancer to
    what it compares.
    """
    if not risk:
        return curves
    factor = caution(spread, risk)
    return replace(
        curves, floor=curves.floor * factor, slope=curves.slope * factor, intercept=curves.intercept * factor
    )


def _expected_largest(count: int) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
