"""Inputs of linear models of the next change in log speed: past speeds, averages and covariates, in a worker's scales.

Axes: W workers, D covariates, R remembered log speeds, F inputs.
"""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array, Mask, all_finite
from paceline.predictors.averages.smoothed import smoothed

Rows = dict[str, Array]

LAGS, SMOOTHINGS = 6, np.array([0.5, 0.2, 0.05])
"""Number of past log speeds, and smoothings of the averages of log speed, that serve as inputs."""

REFERENCES = LAGS - 1 + len(SMOOTHINGS)
"""Inputs made of these: all but the last log speed, from which the others are measured."""


SCALE_SMOOTHING, SMALLEST_SCALE = 0.05, 1e-3
"""Weight of the newest change in a worker's running scale, and the least scale in log speed."""


HUBER = 2.0
"""Errors beyond this many scales count linearly, and inputs beyond it get less weight."""


def fresh(count: int, covariates: int) -> Rows:
    """Return the memory of ``count`` workers that have not reported."""
    return {
        "log_speed": np.full((count, LAGS), np.nan),
        "averages": np.full((count, len(SMOOTHINGS)), np.nan),
        "scale": np.full(count, np.nan),
        "seen": np.zeros(count),
        "last_covariates": np.full((count, covariates), np.nan),
        "covariate_mean": np.full((count, covariates), np.nan),
        "covariate_spread": np.zeros((count, covariates)),
    }


def inputs_of(rows: Rows, covariates_WD: Array, scale_W: Array, more: int = 0) -> Array:
    """Return how far references are from the last speed, then covariates from their mean and last value, in scales.

    ``more`` columns between the two are left for the caller to fill.
    """
    covariates, last_W1 = covariates_WD.shape[1], rows["log_speed"][:, :1]
    begin = REFERENCES + more
    inputs_WF = np.empty((len(last_W1), begin + 2 * covariates), order="F")
    if more:
        inputs_WF[:, REFERENCES:begin] = 0.0
    np.subtract(rows["log_speed"][:, 1:], last_W1, out=inputs_WF[:, : LAGS - 1])
    np.subtract(rows["averages"], last_W1, out=inputs_WF[:, LAGS - 1 : REFERENCES])
    inputs_WF[:, :REFERENCES] /= scale_W[:, None]
    if covariates:
        # Relative to the mean, so that the unit of a covariate does not matter.
        floor_WD = 1e-9 * np.abs(rows["covariate_mean"]) + 1e-150
        spread_WD = np.maximum(np.sqrt(rows["covariate_spread"]), floor_WD)
        driven_WF = inputs_WF[:, begin:]
        np.divide(covariates_WD - rows["covariate_mean"], spread_WD, out=driven_WF[:, :covariates])
        np.divide(covariates_WD - rows["last_covariates"], spread_WD, out=driven_WF[:, covariates:])
        # covariates count as at most 4 deviations from their mean, or from their last value
        np.minimum(np.maximum(driven_WF, -4.0), 4.0, out=driven_WF)
    if not all_finite(inputs_WF):
        inputs_WF[np.isnan(inputs_WF)] = 0.0  # an unknown input adds nothing to the forecast
    return inputs_WF


def target_of(rows: Rows, log_speed_W: Array, scale_W: Array) -> Array:
    """Return the change to this log speed in scales, NaN for a worker without any change before to scale by."""
    target_W = (log_speed_W - rows["log_speed"][:, 0]) / scale_W
    if not all_finite(rows["scale"]):
        target_W[np.isnan(rows["scale"])] = np.nan
    return np.asarray(target_W)


def reach_of(inputs_WF: Array) -> Array:
    """Return the farthest that a step may go: as far as the worker has moved lately, and a little more."""
    return np.asarray(np.maximum.reduce(np.abs(inputs_WF[:, :REFERENCES]), axis=1) + HUBER)


def bounded(step: Array, reach_W: Array) -> Array:
    """Return steps no farther than their reach: weights that have gone astray do bounded harm."""
    return np.asarray(np.minimum(np.maximum(step, -reach_W), reach_W))


def farness(inputs_WF: Array, inputs: int) -> Array:
    """Return the factor by which an example counts less for its inputs: their mean square over Huber's, or 1.

    ``inputs`` is the number of all inputs, those that are 0 throughout and left out included.
    """
    square_W = np.add.reduce(np.square(inputs_WF), axis=1)
    return np.asarray(np.maximum(square_W / (HUBER**2 * inputs), 1.0))


def doubt_of(error_W: Array, far_W: Array) -> Array:
    """Return the factor by which an example counts less, 1 for a usual one: Huber's weights times ``farness``."""
    return np.asarray(np.maximum(np.abs(error_W) / HUBER, 1.0) * far_W)


def move(rows: Rows, log_speed_W: Array, covariates_WD: Array, scale_W: Array) -> None:
    """Move the delay line, averages, scale and covariates on; a worker that did not report keeps its own.

    Without columns no covariate is known, and none moves.
    """
    change_W = np.abs(log_speed_W - rows["log_speed"][:, 0])
    moved_WR = np.empty_like(rows["log_speed"])
    moved_WR[:, 0], moved_WR[:, 1:] = log_speed_W, rows["log_speed"][:, :-1]
    bounded_W = np.minimum(change_W, 5.0 * scale_W)
    later_W = rows["scale"] + SCALE_SMOOTHING * (bounded_W - rows["scale"])
    seen_W: Mask | float = 1.0
    if all_finite(later_W):  # without gaps there is a shorter way
        rows["log_speed"], rows["scale"] = moved_WR, later_W
        rows["averages"] = rows["averages"] + SMOOTHINGS * (log_speed_W[:, None] - rows["averages"])
    else:
        seen_W = np.isfinite(log_speed_W)
        scale_W = np.where(np.isnan(rows["scale"]), change_W, later_W)
        rows["scale"] = np.where(np.isfinite(change_W), scale_W, rows["scale"])
        rows["log_speed"] = np.where(seen_W[:, None], moved_WR, rows["log_speed"])
        rows["averages"] = smoothed(rows["averages"], log_speed_W[:, None], SMOOTHINGS)
    if covariates_WD.shape[1]:
        _move_covariates(rows, covariates_WD)
    rows["seen"] = rows["seen"] + seen_W


def _move_covariates(rows: Rows, covariates_WD: Array) -> None:
    off_WD = covariates_WD - rows["covariate_mean"]
    # plain means of the first 50 values, then running ones
    rate_W1 = np.maximum(0.02, 1.0 / (rows["seen"] + 1.0))[:, None]
    mean_WD = rows["covariate_mean"] + rate_W1 * off_WD
    spread_WD = rows["covariate_spread"] + rate_W1 * (np.square(off_WD) - rows["covariate_spread"])
    if not all_finite(mean_WD):  # a first sample becomes the mean, and a missing one changes nothing
        unknown_WD, first_WD = np.isnan(covariates_WD), np.isnan(rows["covariate_mean"])
        mean_WD = np.where(unknown_WD, rows["covariate_mean"], np.where(first_WD, covariates_WD, mean_WD))
        spread_WD = np.where(unknown_WD | first_WD, rows["covariate_spread"], spread_WD)
        covariates_WD = np.where(unknown_WD, rows["last_covariates"], covariates_WD)
    rows["covariate_spread"], rows["covariate_mean"], rows["last_covariates"] = spread_WD, mean_WD, covariates_WD


def scale_of(rows: Rows) -> Array:
    """Return the running scale of each worker's changes in log speed, ``[W]``, never zero."""
    return np.asarray(np.fmax(rows["scale"], SMALLEST_SCALE))
