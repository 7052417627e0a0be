"""CorrectedEWMAs: EWMAs, one of them corrected for covariates that take or give back a share of the speed.

Axes: W workers, D covariates, K covariates that any worker has reported, S smoothings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array, Mask, any_true, finite_mean
from paceline.predictors.averages import smooth
from paceline.predictors.fleet import FleetPredictor

HUBER_BOUND, MAX_MOVE = 2.0, 6.0
"""Errors beyond this many of a worker's usual ones count linearly, and the most usual moves that a covariate counts."""

MIN_ERROR, MAX_STEP = 1e-3, 1.5
"""The least usual error, and the farthest correction, both in log speed."""

SOLVE_EVERY, SOLVE_ALWAYS_UNTIL = 8, 64
"""After so many iterations the effects move slowly, and are solved for only every few."""


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
        self._cached_columns: tuple[Array | None, slice] = (None, slice(0, 0))

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
        if (columns := self._reported_columns()).stop:
            log_WS[:, self.corrected_column] += self._covariate_deviations(covariates_WD, columns).correction_W
        return log_WS

    def _reported_columns(self) -> slice:
        """Return where the covariates are that any worker has reported: the others cost nothing."""
        known_D = self.shared_state["known"]
        if self._cached_columns[0] is not known_D:
            found = known_D.nonzero()[0]
            self._cached_columns = (known_D, slice(int(found[0]), int(found[-1]) + 1) if len(found) else slice(0, 0))
        return self._cached_columns[1]

    def _covariate_deviations(self, covariates_WD: Array, columns: slice) -> _CovariateDeviations:
        """Return how far covariates are from their averages, cached until the next report."""
        deviations, level_WS = self._cached_deviations, self.state["level"]
        if deviations is None or deviations.level_WS is not level_WS or deviations.covariates_WD is not covariates_WD:
            deviations = self._cached_deviations = self._compute_deviations(covariates_WD, columns)
        return deviations

    def _compute_deviations(self, covariates_WD: Array, columns: slice) -> _CovariateDeviations:
        rows, fleet = self.state, self.shared_state
        current_WK = covariates_WD[:, columns]  # a missing covariate keeps its last value
        current_WK = np.where(np.isnan(current_WK), rows["covariate"][:, columns], current_WK)
        deviation_WK = current_WK - rows["covariate_level"][:, columns]
        standardized_WK = deviation_WK / (fleet["unit"][columns] + 1e-150)
        standardized_WK = np.minimum(np.maximum(standardized_WK, -MAX_MOVE), MAX_MOVE)
        standardized_WK[np.isnan(standardized_WK)] = 0.0
        correction_W = np.minimum(np.maximum(standardized_WK @ fleet["effects"][columns], -MAX_STEP), MAX_STEP)
        return _CovariateDeviations(
            rows["level"], covariates_WD, current_WK, deviation_WK, standardized_WK, correction_W
        )

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        if covariates_WD is not self._last_covariates:  # without covariates the same object comes again
            self._last_covariates, known_D = covariates_WD, self.shared_state["known"]
            new_D = np.logical_or.reduce(np.isfinite(covariates_WD)) > known_D
            if any_true(new_D):
                self.shared_state["known"], self._cached_deviations = known_D + new_D, None
        if (columns := self._reported_columns()).stop:
            self._learn(np.log(speed_W), self._covariate_deviations(covariates_WD, columns), columns)
        self.state["level"] = smooth(self.state["level"], speed_W[:, None], self._newest_weights(self._weights))
        self.state["seen"] = self.state["seen"] + np.isfinite(speed_W)

    def _newest_weights(self, smoothings: Array) -> Array:
        """Return the weight of each worker's newest report in averages of these smoothings, ``[W, S]``."""
        return np.maximum(smoothings, self.fading / (self.fading + self.state["seen"][:, None]))

    def _learn(self, log_speed_W: Array, deviations: _CovariateDeviations, columns: slice) -> None:
        """Add this iteration's examples, and move the covariates' averages as that of the speed will move."""
        rows, seen_W, usual_W = self.state, self.state["seen"], self.state["error"]
        off_W = log_speed_W - np.log(rows["level"][:, self.corrected_column])
        size_W, scale_W = np.abs(off_W - deviations.correction_W), np.maximum(usual_W, MIN_ERROR)
        # Huber's weight, in units of each worker's errors
        weight_W = 1.0 / (np.maximum(size_W / HUBER_BOUND, scale_W) * scale_W)
        error_W = usual_W + 0.05 * (np.minimum(size_W, 5.0 * usual_W) - usual_W)
        rate_W1 = self._newest_weights(self._weights[self.corrected_column])
        level_WK = deviations.current_WK - (1.0 - rate_W1) * deviations.deviation_WK
        reported_W = np.isfinite(off_W)
        example_W = reported_W & np.isfinite(usual_W) & (seen_W >= 4)
        weight_W, off_W = np.where(example_W, weight_W, 0.0), np.where(example_W, off_W, 0.0)
        error_W = np.where(reported_W, np.where(np.isnan(usual_W), size_W, error_W), usual_W)
        before_WK = rows["covariate_level"][:, columns]
        level_WK = np.where(reported_W[:, None] & np.isfinite(level_WK), level_WK, before_WK)
        level_WK = np.where(np.isnan(before_WK), deviations.current_WK, level_WK)
        rows["error"] = error_W
        rows["covariate"] = _replace_columns(rows["covariate"], columns, deviations.current_WK)
        rows["covariate_level"] = _replace_columns(rows["covariate_level"], columns, level_WK)
        self._learn_effects(deviations, columns, weight_W, off_W, error_W)

    def _learn_effects(
        self, deviations: _CovariateDeviations, columns: slice, weight_W: Array, target_W: Array, error_W: Array
    ) -> None:
        fleet = self.shared_state
        counted_KW = (deviations.standardized_WK * weight_W[:, None]).T
        products_DD = 0.998 * fleet["products"]  # examples fade
        products_DD[columns, columns] += counted_KW @ deviations.standardized_WK
        products_DD[columns, -1] += counted_KW @ target_W
        count = int(fleet["iterations"][0])
        fleet.update(products=products_DD, iterations=fleet["iterations"] + 1.0)
        if count < SOLVE_ALWAYS_UNTIL or count % SOLVE_EVERY == 0:
            before_K = fleet["unit"][columns]
            unit_K = _typical_deviations(deviations, before_K, 1.0 / (count + 2.0))
            fleet["unit"] = _replace_columns(fleet["unit"], columns, unit_K)
            # Earlier examples were counted in the unit before.
            ratio_K = np.divide(before_K, unit_K, out=np.ones_like(unit_K), where=unit_K > 0.0)
            products_DD[columns, columns] *= ratio_K[:, None] * ratio_K
            products_DD[columns, -1] *= ratio_K
            usual = max(finite_mean(error_W), MIN_ERROR)  # NaN before the first error
            # a squared effect of 1 costs as much as a quarter of a usual example
            ridge = 0.25 / usual**2 if any_true(weight_W) else 1.0
            penalized_KK = products_DD[columns, columns] + ridge * np.eye(len(unit_K))
            solved_K: Array = np.asarray(np.linalg.solve(penalized_KK, products_DD[columns, -1]), dtype=np.float64)
            fleet["effects"] = _replace_columns(fleet["effects"], columns, solved_K)


@dataclass(frozen=True, eq=False)
class _CovariateDeviations:
    """How far covariates are from their averages, with the report and covariates that this was made from."""

    level_WS: Array
    covariates_WD: Array
    current_WK: Array
    deviation_WK: Array
    standardized_WK: Array
    correction_W: Array


def _typical_deviations(deviations: _CovariateDeviations, before_K: Array, rate: float) -> Array:
    """Return the usual size of each covariate's moves: their root mean square over the fleet, and over time."""
    # beside a large constant covariate, rounding is no move
    square_WK = np.square(deviations.deviation_WK) + np.square(1e-9 * deviations.current_WK)
    known_WK: Mask = np.isfinite(square_WK)
    mean_K = np.where(known_WK, square_WK, 0.0).sum(axis=0) / np.maximum(known_WK.sum(axis=0), 1)
    square_K = np.square(before_K)
    return np.asarray(np.sqrt(np.where(square_K == 0.0, mean_K, square_K + max(0.05, rate) * (mean_K - square_K))))


def _replace_columns(values: Array, columns: slice, new: Array) -> Array:
    """Return a copy, ``[W, D]`` or ``[D]``, with these columns replaced."""
    replaced = values.copy(order="F")
    replaced[..., columns] = new
    return replaced
