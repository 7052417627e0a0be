"""Fit a batch time curve to a few measurements, some of which may be outliers.

Axes: N measurements, P pairs of them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array

CurveParameters = tuple[float, float, float]

MAX_POINTS = 24
"""More measurements than this are first reduced to this many groups of neighboring sizes: the search tries all pairs
of measurements with all floors, so its cost grows with the fourth power of their number."""

MAX_OUTLIER_THRESHOLD = 0.2
"""Relative deviation from which a measurement gets less weight, no matter how noisy the others are."""

ROUNDING_ERROR = 1e-9
"""Relative deviations below this are rounding."""


def fit_curve(sizes: ArrayLike, seconds: ArrayLike, weights: ArrayLike | None = None) -> CurveParameters:
    """Fit ``t(x) = max(floor, intercept + slope * x)`` to measured times; return floor, slope, intercept.

    Deviations are logarithms of ratios, because batch sizes depend only on ratios of times. Of all lines through two
    measurements with all floors through one, those with the least sum of absolute deviations are chosen, so that an
    outlier has no influence. Huber's reweighted least squares then averages the noise of the others. A floor is kept
    only if it explains more than an additional parameter would by chance; that of a plain line is 0, or half the time
    at the smallest size where the intercept is negative, so that every time is positive.

    A device that is not saturated below 32 samples, with one disturbed measurement:

    >>> sizes = [8, 16, 32, 64, 128, 256]
    >>> floor, slope, intercept = fit_curve(sizes, [0.4, 0.4, 0.4, 0.7, 9.9, 2.62])
    >>> round(floor, 3), round(slope, 3), round(intercept, 3)
    (0.4, 0.01, 0.06)
    """
    size_N, seconds_N, weight_N = _validate_measurements(sizes, seconds, weights)
    if len(size_N) > MAX_POINTS:
        size_N, seconds_N, weight_N = _merge_neighbors(size_N, seconds_N, weight_N)
    slope_P, intercept_P = _lines_through_pairs(size_N, seconds_N)
    line_PN = intercept_P[:, None] + slope_P[:, None] * size_N
    best = int((_capped_deviation(line_PN, seconds_N) @ weight_N).argmin())
    line = (0.0, float(slope_P[best]), float(intercept_P[best]))
    plain = _refine_curve(line, size_N, seconds_N, weight_N)
    # A floor, a slope and an intercept pass through any three points, so fewer than four cannot prove a floor.
    if len(size_N) < 4:
        return _make_positive(plain, size_N)
    loss_PN = _capped_deviation(np.maximum(line_PN[:, None, :], seconds_N[:, None]), seconds_N) @ weight_N
    pair, point = np.unravel_index(int(loss_PN.argmin()), loss_PN.shape)
    line = (float(seconds_N[point]), float(slope_P[pair]), float(intercept_P[pair]))
    bent = _refine_curve(line, size_N, seconds_N, weight_N)
    return bent if _floor_is_proven(plain, bent, size_N, seconds_N, weight_N) else _make_positive(plain, size_N)


def weights_by_nearness(sizes: ArrayLike, batch: float) -> Array:
    """Return weights for :func:`fit_curve` that make the curve accurate near one batch size, ``[N]``.

    >>> weights_by_nearness([16, 32, 64], 32).round(2)
    array([0.37, 1.  , 0.37])
    """
    # at half or twice the size the weight falls to 1/e
    octaves_N = np.log2(np.asarray(sizes, dtype=np.float64) / batch)
    return np.maximum(np.exp(-np.square(octaves_N)), 1e-3)


def weights_by_uncertainty(uncertainty: ArrayLike) -> Array:
    """Return weights for :func:`fit_curve` from relative uncertainties, ``[N]``; what is not known counts as a median.

    >>> weights_by_uncertainty([0.0, 0.02, 0.2, float("nan")]).round(2)
    array([1.  , 0.69, 0.02, 0.69])
    """
    share_N = np.asarray(uncertainty, dtype=np.float64)
    known_N = np.isfinite(share_N)
    typical = float(np.median(share_N[known_N])) if known_N.any() else 0.0
    # a curve of two lines has a median error of 3% itself (benchmarks/curves.md)
    return 1.0 / (1.0 + np.square(np.where(known_N, share_N, typical) / 0.03))


def curve_seconds(fit: CurveParameters, sizes: ArrayLike) -> Array:
    """Return the times of batches of these sizes under a fitted curve, in seconds."""
    floor, slope, intercept = fit
    return np.maximum(floor, intercept + slope * np.asarray(sizes, dtype=np.float64))


def _lines_through_pairs(size_N: Array, seconds_N: Array) -> tuple[Array, Array]:
    """Return slopes and intercepts of the lines through every two measurements, ``[P]``; no slope is negative."""
    i, j = np.nonzero(np.triu(size_N[:, None] != size_N))
    slope_P = np.maximum((seconds_N[j] - seconds_N[i]) / (size_N[j] - size_N[i]), 0.0)
    return slope_P, seconds_N[i] - slope_P * size_N[i]


def _log_deviation(times: Array, seconds_N: Array) -> Array:
    """Return the absolute log ratios of times and measurements; infinite where a time is not positive."""
    with np.errstate(divide="ignore"):
        return np.abs(np.log(np.maximum(times, 0.0) / seconds_N))


def _capped_deviation(times: Array, seconds_N: Array) -> Array:
    """Return the deviations, capped at a factor of 2; infinite where a time is not positive."""
    deviation = _log_deviation(times, seconds_N)
    # off by more than a factor of 2 counts as off by 2
    return np.where(times > 0, np.minimum(deviation, math.log(2.0)), np.inf)


def _refine_curve(fit: CurveParameters, size_N: Array, seconds_N: Array, weight_N: Array) -> CurveParameters:
    """Return the curve after a few rounds of Huber's reweighted least squares, for floor and line separately."""
    floor, slope, intercept = fit
    scale = _outlier_threshold(fit, size_N, seconds_N)
    for _ in range(4):
        fitted_N = curve_seconds((floor, slope, intercept), size_N)
        deviation_N = _log_deviation(fitted_N, seconds_N)
        # Dividing by the fitted time squared makes the squares relative, like the deviations of the search.
        trust_N = weight_N * np.minimum(1.0, scale / np.maximum(deviation_N, scale)) / np.square(fitted_N)
        level_N = intercept + slope * size_N < floor
        if len(np.unique(size_N[~level_N])) >= 2:
            slope, intercept = _weighted_line(size_N[~level_N], seconds_N[~level_N], trust_N[~level_N])
        if level_N.any():
            floor = float(np.average(seconds_N[level_N], weights=trust_N[level_N]))
        # Least squares may go below zero at small sizes; the search's curve never does.
        if not np.all(curve_seconds((floor, slope, intercept), size_N) > 0):
            return fit
    return floor, slope, intercept


def _outlier_threshold(fit: CurveParameters, size_N: Array, seconds_N: Array) -> float:
    """Return the relative deviation from which a measurement is an outlier.

    It is judged without the best-fitting measurements, one per parameter: a curve can always pass through those.
    """
    parameters = 3 if fit[0] > 0 else 2
    deviation_N = np.sort(_log_deviation(curve_seconds(fit, size_N), seconds_N))[parameters:]
    typical = float(deviation_N[(len(deviation_N) - 1) // 2]) if len(deviation_N) else 0.0
    # three typical deviations
    return min(max(3.0 * typical, ROUNDING_ERROR), MAX_OUTLIER_THRESHOLD)


def _weighted_line(size_N: Array, seconds_N: Array, weight_N: Array) -> tuple[float, float]:
    """Return slope (at least 0) and intercept of the weighted least-squares line."""
    size, seconds = np.average(size_N, weights=weight_N), np.average(seconds_N, weights=weight_N)
    away_N = weight_N * (size_N - size)
    slope = max(float(away_N @ (seconds_N - seconds) / (away_N @ (size_N - size))), 0.0)
    return slope, float(seconds - slope * size)


def _floor_is_proven(
    line_fit: CurveParameters, floor_fit: CurveParameters, size_N: Array, seconds_N: Array, weight_N: Array
) -> bool:
    count = float(weight_N.sum() ** 2 / np.square(weight_N).sum())  # effective number of measurements (Kish)
    if count <= 3:
        return False
    deviation_2N = np.stack([_log_deviation(curve_seconds(fit, size_N), seconds_N) for fit in (line_fit, floor_fit)])
    # An outlier, far from both curves, proves nothing. What only one of them misses counts in full: with the same cap
    # for all, a line that is off by a factor of 2 at the small sizes would be no worse than one that is off by 20%.
    explained_N = deviation_2N.min(axis=0) <= MAX_OUTLIER_THRESHOLD
    loss_2 = np.square(np.minimum(deviation_2N, math.log(2.0))[:, explained_N]) @ weight_N[explained_N]
    # ROUNDING_ERROR keeps two exact fits comparable: their losses are rounding errors.
    plain_loss, bent_loss = loss_2 + ROUNDING_ERROR
    # A floor is accepted if it halves the loss per degree of freedom.
    return bool(2.0 * bent_loss / (count - 3) < plain_loss / (count - 2))


def _make_positive(line: CurveParameters, size_N: Array) -> CurveParameters:
    floor, slope, intercept = line
    if intercept >= 0:
        return line
    if intercept > -ROUNDING_ERROR * slope * float(size_N.max()):  # only rounding made it negative
        return floor, slope, 0.0
    return 0.5 * float(curve_seconds(line, size_N.min())), slope, intercept


def _validate_measurements(
    sizes: ArrayLike, seconds: ArrayLike, weights: ArrayLike | None
) -> tuple[Array, Array, Array]:
    size_N, seconds_N = (np.asarray(values, dtype=np.float64) for values in (sizes, seconds))
    weight_N = np.ones(size_N.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    for name, values in (("sizes", size_N), ("seconds", seconds_N), ("weights", weight_N)):
        if values.ndim != 1 or values.shape != size_N.shape:
            raise ValueError(f"{name} must hold one number for each measurement, got the shape {values.shape}")
        if (bad_N := ~(np.isfinite(values) & (values > 0))).any():
            raise ValueError(f"{name} must be positive and finite, got {values[bad_N][0]}")
    if len(np.unique(size_N)) < 2:
        raise ValueError(f"sizes must hold at least two different batch sizes to fit a curve, got {np.unique(size_N)}")
    return size_N, seconds_N, weight_N


def _merge_neighbors(size_N: Array, seconds_N: Array, weight_N: Array) -> tuple[Array, Array, Array]:
    """Return the medians of groups of neighboring sizes; one size is never in two groups."""
    distinct, place_N = np.unique(size_N, return_inverse=True)
    group_N = place_N * min(MAX_POINTS, len(distinct)) // len(distinct)
    groups = [group_N == g for g in range(group_N.max() + 1)]
    size, time = (np.array([np.median(values[group]) for group in groups]) for values in (size_N, seconds_N))
    return size, time, np.array([weight_N[group].sum() for group in groups])
