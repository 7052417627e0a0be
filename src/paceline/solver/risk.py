"""Caution: how much slower than forecast to plan a worker whose forecast is noisy. Axis: W workers."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import hypot, inf, log, sqrt
from typing import TypeVar

import numpy as np

from paceline._arrays import Array, all_finite
from paceline._curves import Curves
from paceline.solver.load import Load

Stretched = TypeVar("Stretched", Curves, Load)


def caution(spread: Array, risk: float = 1.0) -> Array:
    """Return the factor by which to stretch each worker's curve, ``[W]``: 1 for the least noisy worker.

    A barrier waits for the last worker, and a noisy worker is often the last. Errors are taken to be log-normal with
    log deviation ``sigma = sqrt(log(1 + spread**2))``. Each worker is planned at the time that it exceeds as rarely as
    W normal errors exceed their expected maximum: ``exp(risk * z * (sigma - min sigma))``, where ``z`` is the expected
    maximum of W standard normal numbers (Blom's approximation). The rule is this library's own, chosen by simulating
    ``E[max_i x_i / v_i]``: ``risk = 1`` is close to optimal for 8 to 512 workers.

    Parameters
    ----------
    spread
        Relative standard deviation of each forecast's error, ``[W]``, not negative. Infinite means unknown: such a
        worker counts as noisy as the noisiest known one.
    risk
        How much of the caution to apply: 0 none, 1 all of it.

    Examples
    --------
    Half of a fleet of eight is noisy. Equal noise changes nothing, known or unknown:

    >>> caution(np.repeat([0.05, 0.4], 4)).round(2)
    array([1.  , 1.  , 1.  , 1.  , 1.62, 1.62, 1.62, 1.62])
    >>> caution(np.full(3, np.inf))
    array([1., 1., 1.])
    """
    return np.asarray(np.exp(risk * log_caution(spread)))


def log_caution(spread: Array) -> Array:
    """Return the logarithm of the whole caution, ``[W]``: 0 for the least noisy worker."""
    if not all_finite(spread):
        known = np.isfinite(spread)
        if not known.any():
            return np.zeros(len(spread))
        spread = np.where(known, spread, spread[known].max())
    # log(1 + s**2) without squaring, which would overflow for a huge spread.
    sigma = np.sqrt(2 * np.log(np.hypot(1.0, spread)))
    return np.asarray(_expected_largest(len(spread)) * (sigma - np.minimum.reduce(sigma)))


def log_cautions(spreads: list[float]) -> list[float]:
    """Return :func:`log_caution` in plain floats, which a small fleet computes in a fraction of numpy's time."""
    if not sum(spreads) < inf:  # not known of somebody, or NaN
        noisiest = max([spread for spread in spreads if spread < inf], default=0.0)
        spreads = [spread if spread < inf else noisiest for spread in spreads]
    sigmas = [sqrt(2 * log(hypot(1.0, spread))) for spread in spreads]
    least, largest = min(sigmas), _expected_largest(len(spreads))
    return [largest * (sigma - least) for sigma in sigmas]


def cautious(curves: Stretched, spread: Array, risk: float) -> Stretched:
    """Return the curves to plan noisy workers with: stretched by :func:`caution`, limits unchanged.

    Caution is applied only here. ``split(..., risk=...)`` applies it to the curves it balances, the load balancer to
    the plans it compares.
    """
    if not risk:
        return curves
    factor = caution(spread, risk)
    return replace(
        curves, floor=curves.floor * factor, slope=curves.slope * factor, intercept=curves.intercept * factor
    )


@lru_cache(maxsize=64)
def _expected_largest(count: int) -> float:
    from statistics import NormalDist

    # Blom's approximation of the expected maximum of `count` standard normal numbers.
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
