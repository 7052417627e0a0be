"""Pooled: a linear correction of another predictor's forecasts, which the whole fleet learns online.

Axes: W workers, D covariates, R references, F inputs, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array, all_true, any_true
from paceline.predictors.linear import (
    NUM_SPEED_INPUTS,
    add_examples,
    advance_inputs,
    bound_step,
    example_penalty,
    initial_inputs,
    make_inputs,
    max_step,
    running_scale,
    solve_ridge,
    target_change,
)
from paceline.predictors.nested import HorizonState, NestedPredictor, as_fleet_predictor
from paceline.predictors.protocol import Predictor, Report


class Pooled(NestedPredictor):
    """Two forecasts of each worker: another predictor's with a correction, and without.

    The correction is a ridge regression of the predictor's error, in each worker's running scale, on past speeds,
    averages, covariates (its own and those named here) and the forecast itself. All workers share its weights, so that
    a large fleet soon learns what a covariate does, and a worker that joins starts with it. It is an expert for a
    mixture, which uses both columns. Further ahead, the correction is learned for each horizon, and corrects the
    forecast of the next iteration: feeding a network's forecasts back to it takes longer and is no better.
    """

    columns = 2

    def __init__(self, predictor: str | Predictor, covariates: Sequence[str] = ()) -> None:
        super().__init__()
        self.predictor = predictor
        self.covariates = tuple(covariates)
        self._inner = (as_fleet_predictor(predictor),)
        self._cached_forecast: _CachedForecast | None = None

    def _all_covariates(self) -> Sequence[str]:
        return [*super()._all_covariates(), *self.covariates]

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        return initial_inputs(num_workers, len(self.covariate_names))

    def initial_shared_state(self) -> dict[str, Array]:
        # the predictor's forecast is among the inputs, after past speeds and averages, and before the covariates
        inputs = NUM_SPEED_INPUTS + 1 + 2 * len(self.covariate_names)
        return {
            "products": np.zeros((inputs, inputs + 1)),
            "weights": np.zeros(inputs),
            "iterations": np.zeros(1),
            "prior": np.zeros(inputs),
        }

    def _initial_horizon_state(self, num_workers: int) -> dict[str, Array]:
        return {}

    def _initial_shared_horizon_state(self) -> dict[str, Array]:
        return self.initial_shared_state()

    def _horizon_record_width(self) -> int:
        """Return the numbers kept of each forecast: the last log speed, the scale and the inputs."""
        return len(self.shared_state["weights"]) + 2

    def _init_horizon_state(self, horizon_state: HorizonState) -> None:
        """Start with the weights of the next iteration, but without its evidence."""
        horizon_state.shared_state.update(weights=self.shared_state["weights"], prior=self.shared_state["weights"])

    def forecast_log_speed(self, covariates_WD: Array, horizon: int) -> Array:
        """Return the forecasts with the correction and without, ``[W, C]``."""
        answer, ahead = self._get_forecast(covariates_WD), self._horizon_state(horizon) if horizon > 1 else None
        step_W = answer.step_W if ahead is None else answer.correction(ahead.shared_state["weights"])
        log_CW = np.empty((self.columns, len(step_W)))
        log_CW[:] = answer.log_speed_W
        log_CW[0] += answer.scale_W * bound_step(step_W, answer.max_step_W)
        return log_CW.T

    def _get_forecast(self, covariates_WD: Array) -> _CachedForecast:
        """Return the inputs and the predictor's forecast, cached for these covariates until the next report."""
        answer, memory_WR = self._cached_forecast, self.state["log_speed"]
        if answer is None or answer.memory_WR is not memory_WR or answer.covariates_WD is not covariates_WD:
            answer = self._cached_forecast = self._compute_forecast(covariates_WD, memory_WR)
        return answer

    def _compute_forecast(self, covariates_WD: Array, memory_WR: Array) -> _CachedForecast:
        (inner, inner_covariates_WD) = self._pair_with_covariates(covariates_WD)[0]
        log_speed_W, scale_W = inner.forecast_log_speed(inner_covariates_WD, 1), running_scale(self.state)
        # Inputs of covariates that nobody reports would all be 0.
        known_WD = covariates_WD[:, :0] if all_true(np.isnan(covariates_WD)) else covariates_WD
        inputs_WF = make_inputs(self.state, known_WD, scale_W, extra_columns=1)
        ahead_W = (log_speed_W - memory_WR[:, 0]) / scale_W
        inputs_WF[:, NUM_SPEED_INPUTS] = np.where(np.isfinite(ahead_W), ahead_W, 0.0)
        max_step_W = max_step(inputs_WF)
        answer = _CachedForecast(
            memory_WR, covariates_WD, known_WD, log_speed_W, inputs_WF, scale_W, max_step_W, log_speed_W
        )
        answer.step_W = answer.correction(self.shared_state["weights"])
        return answer

    def update_from_report(self, report: Report, speed_W: Array, covariates_WD: Array) -> None:
        answer, log_speed_W = self._get_forecast(covariates_WD), np.log(speed_W)
        if self._horizon_states:
            last_W = np.where(np.isnan(self.state["scale"]), np.nan, self.state["log_speed"][:, 0])
            record_WP = np.concatenate([last_W[:, None], answer.scale_W[:, None], answer.inputs_WF], axis=1)
            for ahead in self._active_horizons():
                self._learn_horizon(ahead, record_WP, log_speed_W)
        target_W = target_change(self.state, log_speed_W, answer.scale_W) - answer.inputs_WF[:, NUM_SPEED_INPUTS]
        self._learn_weights(self.shared_state, target_W, answer.step_W, answer.inputs_WF)
        (inner, inner_covariates_WD) = self._pair_with_covariates(covariates_WD)[0]
        inner.update_from_report(report, speed_W, inner_covariates_WD)
        advance_inputs(self.state, log_speed_W, answer.known_WD, answer.scale_W)

    def _learn_horizon(self, horizon_state: HorizonState, record_WP: Array, log_speed_W: Array) -> None:
        """Learn from the forecast made ``horizon`` iterations ago, with the present weights."""
        past_forecast_WP = horizon_state.swap_forecast(record_WP)
        inputs_WF = past_forecast_WP[:, 2:]
        target_W = (log_speed_W - past_forecast_WP[:, 0]) / past_forecast_WP[:, 1] - inputs_WF[:, NUM_SPEED_INPUTS]
        inputs_WF[np.isnan(inputs_WF)] = 0.0  # nothing was expected yet, or a covariate was not known
        step_W = inputs_WF @ horizon_state.shared_state["weights"][: inputs_WF.shape[1]]
        self._learn_weights(horizon_state.shared_state, target_W, step_W, inputs_WF)

    def _learn_weights(self, fleet: dict[str, Array], target_W: Array, step_W: Array, inputs_WF: Array) -> None:
        """Add this iteration's examples to the normal equations, and solve them; without a target (NaN) none is."""
        error_W = target_W - step_W
        penalty_W = example_penalty(error_W, inputs_WF, len(fleet["weights"]))
        seen_W = np.isfinite(error_W)
        if not any_true(seen_W):
            return
        target_W, penalty_W = np.where(seen_W, target_W, 0.0), np.where(seen_W, penalty_W, np.inf)
        if add_examples(fleet, (inputs_WF / penalty_W[:, None]).T, inputs_WF, target_W):
            # a squared weight costs as much as 20 examples of unit inputs
            fleet["weights"] = solve_ridge(fleet["products"], 20.0, fleet["prior"])


@dataclass(eq=False)
class _CachedForecast:
    """Cached answer to the last forecast asked for, and what it was made from."""

    memory_WR: Array
    covariates_WD: Array
    known_WD: Array
    log_speed_W: Array
    inputs_WF: Array
    scale_W: Array
    max_step_W: Array
    step_W: Array

    def correction(self, weights_F: Array) -> Array:
        """Return the correction by these weights, in scales."""
        return np.asarray(self.inputs_WF @ weights_F[: self.inputs_WF.shape[1]])
