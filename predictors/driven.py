"""CorrectedEWMAs: EWMAs, one of them corrected for covariates that take or give back a share of the speed.

Axes: W workers, D covariates, S smoothings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array, Mask, any_true, finite_mean
from paceline.predictors.averages import smooth
from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.linear import add_examples, solve_ridge

HUBER_BOUND, MAX_MOVE = 2.0, 6.0
"""Errors beyond this many of a worker's usual ones count linearly, and the most usual moves that a covariate counts."""

MIN_ERROR, MAX_STEP = 1e-3, 1.5
"""The least usual error, and the farthest correction, both in log speed."""


class CorrectedEWMAs(FleetPredictor):
    """Several EWMAs at once, each one column of the forecast; ``corrected_column`` also knows the covariates' effect.

    The weight of the newest speed is at least ``fading / (fading + earlier reports)``, so that no average is held back
    by a worker's first speeds: at 2 its weights first grow linearly with time.

    The log of the corrected one is corrected by ``effect * (z - EWMA of z)`` for each covariate z: a competitor that
    takes a third of the processor takes a third of the speed, on whichever worker. All workers share the effects, a
    weighted ridge regression that is learned online; examples count less the larger a worker's usual error is.
    """

    def __init__(
        self, smoothings: Sequence[float], fading: float, corrected_column: int, covariates: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.smoothings = tuple(smoothings)
        self.fading = fading
        self.columns = len(self.smoothings)
        self._weights = np.array(self.smoothings)
        self.corrected_column = corrected_column
        self.covariates = tuple(covariates)
        self._cached_deviations: _CovariateDeviations | None = None
        self._last_covariates: Array | None = None

    @property
    def covariate_names(self) -> tuple[str, ...]:
        return self.covariates

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        covariates = len(self.covariates)
        return {
            "level": np.full((num_workers, self.columns), np.nan),
            "seen": np.zeros(num_workers),
            "covariate": np.full((num_workers, covariates), np.nan),
            "covariate_level": np.full((num_workers, covariates), np.nan),
            "error": np.full(num_workers, np.nan),
        }

    def initial_shared_state(self) -> dict[str, Array]:
        covariates = len(self.covariates)
        return {
            "known": np.zeros(covariates),
            "products": np.zeros((covariates, covariates + 1)),
            "effects": np.zeros(covariates),
            "unit": np.zeros(covariates),
            "iterations": np.zeros(1),
        }

    def forecast_log_speed(self, covariates_WD: Array, horizon: int) -> Array:
        log_WS = np.log(self.state["level"])
        if any_true(self.shared_state["known"]):
            log_WS[:, self.corrected_column] += self._covariate_deviations(covariates_WD).correction_W
        return log_WS

    def _covariate_deviations(self, covariates_WD: Array) -> _CovariateDeviations:
        """Return how far covariates are from their averages, cached until the next report."""
        deviations, level_WS = self._cached_deviations, self.state["level"]
        if deviations is None or deviations.level_WS is not level_WS or deviations.covariates_WD is not covariates_WD:
            deviations = self._cached_deviations = self._compute_deviations(covariates_WD)
        return deviations

    def _compute_deviations(self, covariates_WD: Array) -> _CovariateDeviations:
        rows, fleet = self.state, self.shared_state
        # A missing covariate keeps its last value.
        current_WD = np.where(np.isnan(covariates_WD), rows["covariate"], covariates_WD)
        deviation_WD = current_WD - rows["covariate_level"]
        standardized_WD = deviation_WD / (fleet["unit"] + 1e-150)
        standardized_WD = np.minimum(np.maximum(standardized_WD, -MAX_MOVE), MAX_MOVE)
        standardized_WD[np.isnan(standardized_WD)] = 0.0
        correction_W = np.minimum(np.maximum(standardized_WD @ fleet["effects"], -MAX_STEP), MAX_STEP)
        return _CovariateDeviations(
            rows["level"], covariates_WD, current_WD, deviation_WD, standardized_WD, correction_W
        )

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        if covariates_WD is not self._last_covariates:  # without covariates the same object comes again
            reported_D = np.logical_or.reduce(np.isfinite(covariates_WD))
            self._last_covariates = covariates_WD
            self.shared_state["known"] = np.maximum(self.shared_state["known"], reported_D)
        if any_true(self.shared_state["known"]):  # covariates that nobody reports cost nothing
            self._learn(np.log(speed_W), self._covariate_deviations(covariates_WD))
        self.state["level"] = smooth(self.state["level"], speed_W[:, None], self._newest_weights(self._weights))
        self.state["seen"] = self.state["seen"] + np.isfinite(speed_W)

    def _newest_weights(self, smoothings: Array) -> Array:
        """Return the weight of each worker's newest report in averages of these smoothings, ``[W, S]``."""
        return np.maximum(smoothings, self.fading / (self.fading + self.state["seen"][:, None]))

    def _learn(self, log_speed_W: Array, deviations: _CovariateDeviations) -> None:
        """Add this iteration's examples, and move the covariates' averages as that of the speed will move."""
        rows, seen_W, mean_error_W = self.state, self.state["seen"], self.state["error"]
        off_W = log_speed_W - np.log(rows["level"][:, self.corrected_column])
        size_W, scale_W = np.abs(off_W - deviations.correction_W), np.maximum(mean_error_W, MIN_ERROR)
        # Huber's weight, in units of each worker's errors
        weight_W = 1.0 / (np.maximum(size_W / HUBER_BOUND, scale_W) * scale_W)
        error_W = mean_error_W + 0.05 * (np.minimum(size_W, 5.0 * mean_error_W) - mean_error_W)
        rate_W1 = self._newest_weights(self._weights[self.corrected_column])
        level_WD = deviations.current_WD - (1.0 - rate_W1) * deviations.deviation_WD
        reported_W = np.isfinite(off_W)
        example_W = reported_W & np.isfinite(mean_error_W) & (seen_W >= 4)
        weight_W, off_W = np.where(example_W, weight_W, 0.0), np.where(example_W, off_W, 0.0)
        error_W = np.where(reported_W, np.where(np.isnan(mean_error_W), size_W, error_W), mean_error_W)
        before_WD = rows["covariate_level"]
        level_WD = np.where(reported_W[:, None] & np.isfinite(level_WD), level_WD, before_WD)
        level_WD = np.where(np.isnan(before_WD), deviations.current_WD, level_WD)
        rows |= {"error": error_W, "covariate": deviations.current_WD, "covariate_level": level_WD}
        self._learn_effects(deviations, weight_W, off_W, error_W)

    def _learn_effects(
        self, deviations: _CovariateDeviations, weight_W: Array, target_W: Array, error_W: Array
    ) -> None:
        fleet = self.shared_state
        counted_DW = (deviations.standardized_WD * weight_W[:, None]).T
        if add_examples(fleet, counted_DW, deviations.standardized_WD, target_W):
            before_D, products_DD = fleet["unit"], fleet["products"]
            rate = 1.0 / (fleet["iterations"][0] + 1.0)
            fleet["unit"] = unit_D = _typical_deviations(deviations, before_D, rate)
            # Earlier examples were counted in the unit before.
            ratio_D = np.divide(before_D, unit_D, out=np.ones_like(unit_D), where=unit_D > 0.0)
            products_DD[:, :-1] *= ratio_D[:, None] * ratio_D
            products_DD[:, -1] *= ratio_D
            usual = max(finite_mean(error_W), MIN_ERROR)  # NaN before the first error
            # a squared effect of 1 costs as much as a quarter of a usual example
            ridge = 0.25 / usual**2 if any_true(weight_W) else 1.0
            fleet["effects"] = solve_ridge(products_DD, ridge, np.zeros(len(unit_D)))


@dataclass(frozen=True, eq=False)
class _CovariateDeviations:
    """How far covariates are from their averages, with the report and covariates that this was made from."""

    level_WS: Array
    covariates_WD: Array
    current_WD: Array
    deviation_WD: Array
    standardized_WD: Array
    correction_W: Array


def _typical_deviations(deviations: _CovariateDeviations, before_D: Array, rate: float) -> Array:
    """Return the usual size of each covariate's moves: their root mean square over the fleet, and over time."""
    # beside a large constant covariate, rounding is no move
    square_WD = np.square(deviations.deviation_WD) + np.square(1e-9 * deviations.current_WD)
    known_WD: Mask = np.isfinite(square_WD)
    mean_D = np.where(known_WD, square_WD, 0.0).sum(axis=0) / np.maximum(known_WD.sum(axis=0), 1)
    square_D = np.square(before_D)
    return np.asarray(np.sqrt(np.where(square_D == 0.0, mean_D, square_D + max(0.05, rate) * (mean_D - square_D))))
