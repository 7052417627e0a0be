"""Memory of GatedNARX for each worker, and the inputs made of it: ratios of speeds, in running scales.

Axes: W workers, D covariates, M remembered log speeds (lags and averages), S smoothings, R references, E changes
compared, F inputs.
"""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array, all_finite
from paceline.predictors.networks.network import Rows, scale_of

LAGS, SMOOTHINGS = 8, np.array([0.5, 0.25, 0.1, 0.03])
"""Number of past log speeds, and smoothings of the averages of log speed, in a worker's memory."""

OFFSETS = LAGS - 1 + len(SMOOTHINGS)
"""Number of remembered log speeds other than the last one."""


SCALE_SMOOTHING, LARGEST_CHANGE = 0.05, 5.0
"""Weight of the newest change in a worker's running scale, and the most scales it counts for."""

ECHOES = 4
"""Past changes that the newest one is compared with: noise reverts at once, a random walk does not."""


LARGEST_UNIT, SCALES_IN_UNIT = 0.2, 2.0
"""Unit of the second head, in log speed, because a covariate takes a share of the speed; at most this many scales."""


def fresh(count: int, covariates: int, covariate_lags: int) -> Rows:
    """Return the memory of ``count`` workers that have not reported."""
    # so that a few moves of a covariate say little about its effect
    return {
        "memory": np.full((count, LAGS + len(SMOOTHINGS)), np.nan),
        "scale": np.full(count, np.nan),
        "seen": np.zeros(count),
        "echoes": np.tile(np.eye(1, ECHOES + 1)[0], (count, 1)),
        "past_covariates": np.zeros((count, covariate_lags * covariates)),
        "known_before": np.zeros((count, covariates)),
        "together": np.zeros((count, covariates)),
        "covariate_moves": np.full((count, covariates), 0.3),
    }


# -- what the network sees ---------------------------------------------------------------------------------------


def inputs_of(rows: Rows, standard_WD: Array, known_WD: Array) -> tuple[Array, Array, Array]:
    """Return inputs ``[W, F]``, references ``[W, R]`` and the second head's unit ``[W]``, in running scales.

    ``standard_WD`` are the covariates now, in deviations, 0 where unknown; ``known_WD`` says which are known. Without
    columns no covariate was ever known, and the inputs that covariates make, which would all be 0, are left out.
    """
    memory_WM, scale_W = rows["memory"], scale_of(rows)
    covariates = standard_WD.shape[1]
    past_WQ = rows["past_covariates"] if covariates else standard_WD
    begin = OFFSETS + 2 + ECHOES
    inputs_WF = np.empty((len(memory_WM), begin + 4 * covariates + past_WQ.shape[1]), order="F")
    # Column-major arrays and in-place results: with short rows of many workers this is several times faster.
    off_WM = (memory_WM[:, 1:] - memory_WM[:, :1]) / scale_W[:, None]
    # arcsinh is linear for usual changes and logarithmic for jumps, so no jump saturates the tanh layer.
    np.arcsinh(off_WM, out=inputs_WF[:, :OFFSETS])
    inputs_WF[:, OFFSETS] = np.log(scale_W) + 2.5
    inputs_WF[:, OFFSETS + 1] = 3.0 / np.sqrt(rows["seen"] + 1.0)
    np.divide(rows["echoes"][:, 1:], rows["echoes"][:, :1], out=inputs_WF[:, OFFSETS + 2 : begin])
    if covariates:
        effect_WD = rows["together"] / rows["covariate_moves"]
        inputs_WF[:, begin : begin + covariates] = standard_WD
        inputs_WF[:, begin + covariates : begin + 2 * covariates] = known_WD
        inputs_WF[:, begin + 2 * covariates : begin + 3 * covariates] = effect_WD
        inputs_WF[:, begin + 3 * covariates : begin + 4 * covariates] = effect_WD * (
            standard_WD - past_WQ[:, :covariates]
        )
        inputs_WF[:, begin + 4 * covariates :] = past_WQ
    # gates choose from lags 2, 3, 4 and 6, and the averages
    references_WR = off_WM[:, [0, 1, 2, 4, 7, 8, 9, 10]]
    return inputs_WF, references_WR, np.minimum(LARGEST_UNIT / scale_W, SCALES_IN_UNIT)


def covariate_columns(covariates: int, covariate_lags: int) -> Array:
    """Return which inputs are derived from which covariate, ``[D, F]`` of 0 and 1."""
    one_DD = np.eye(covariates)
    return np.concatenate([np.zeros((covariates, OFFSETS + 2 + ECHOES)), np.tile(one_DD, 4 + covariate_lags)], axis=1)


# -- how it moves on ---------------------------------------------------------------------------------------------


def moved(rows: Rows, log_speed_W: Array, standard_WD: Array, known_WD: Array) -> Rows:
    """Return the memory one iteration later; for a worker without a log speed (NaN) only the covariates move."""
    memory_WM, seen_W, covariates = rows["memory"], rows["seen"], standard_WD.shape[1]
    # Every entry is computed for all workers first, and restored below for those without a log speed.
    # Averages of new workers are plain means at first; without new workers there is a shorter way to the same result.
    settled = np.minimum.reduce(seen_W) >= 1.0 / SMOOTHINGS[-1]
    if not settled:  # the first log speed fills the whole memory
        memory_WM = np.where(seen_W[:, None] == 0, log_speed_W[:, None], memory_WM)
    line_WE = np.empty((len(memory_WM), ECHOES + 2), order="F")
    line_WE[:, 0] = log_speed_W
    line_WE[:, 1:] = memory_WM[:, : ECHOES + 1]
    change_WE = line_WE[:, :-1] - line_WE[:, 1:]
    scale_W1 = scale_of(rows)[:, None]
    bounded_WE = np.minimum(np.maximum(change_WE / scale_W1, -LARGEST_CHANGE), LARGEST_CHANGE)
    newest_W1 = bounded_WE[:, :1]
    later = {
        "memory": _remembered(memory_WM, None if settled else seen_W, log_speed_W),
        "scale": _scaled(rows, np.abs(newest_W1 * scale_W1)[:, 0], settled, change_WE[:, 0]),
        "seen": seen_W + 1.0,
        "echoes": _smoothed(rows["echoes"], newest_W1 * bounded_WE),
    }
    if covariates:
        move_WD = standard_WD - rows["past_covariates"][:, :covariates]
        later["together"] = _smoothed(rows["together"], newest_W1 * move_WD)
        later["covariate_moves"] = _smoothed(rows["covariate_moves"], np.square(move_WD) + 0.3)
    if not all_finite(log_speed_W):
        reported_W = np.isfinite(log_speed_W)
        for name, new in later.items():
            later[name] = np.where(reported_W if new.ndim == 1 else reported_W[:, None], new, rows[name])
    if covariates:
        later["past_covariates"] = np.concatenate([standard_WD, rows["past_covariates"][:, :-covariates]], axis=1)
        later["known_before"] = known_WD
    return rows | later


def _remembered(memory_WM: Array, seen_W: Array | None, log_speed_W: Array) -> Array:
    """Return the memory with these log speeds in front; averages start as plain means."""
    moved_WM = np.empty_like(memory_WM)
    moved_WM[:, 0] = log_speed_W
    moved_WM[:, 1:LAGS] = memory_WM[:, : LAGS - 1]
    averages_WS = memory_WM[:, LAGS:]
    rate = SMOOTHINGS if seen_W is None else np.maximum(SMOOTHINGS, 1.0 / (seen_W[:, None] + 1.0))
    moved_WM[:, LAGS:] = averages_WS + rate * (log_speed_W[:, None] - averages_WS)
    return moved_WM


def _scaled(rows: Rows, bounded_W: Array, settled: np.bool_, change_W: Array) -> Array:
    """Return the running mean of the bounded sizes of changes; NaN before the second log speed."""
    scale_W, seen_W = rows["scale"], rows["seen"]
    if settled:
        return scale_W + SCALE_SMOOTHING * (bounded_W - scale_W)
    rate_W = np.maximum(SCALE_SMOOTHING, 1.0 / np.maximum(seen_W, 1.0))
    later_W = scale_W + rate_W * (bounded_W - scale_W)
    return np.where(seen_W == 1, np.abs(change_W), np.where(seen_W == 0, np.nan, later_W))


def _smoothed(habit: Array, newest: Array) -> Array:
    return habit + 0.03 * (newest - habit)
