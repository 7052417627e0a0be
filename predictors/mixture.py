"""Mixture: several predictors at once; on each worker the best of them gain the trust.

Axes: W workers, D covariates, E experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline._arrays import Array, Mask, all_finite
from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.nested import HorizonState, NestedPredictor, as_fleet_predictor
from paceline.predictors.protocol import Predictor, Report

DISCOUNT, UNIFORM_SHARE = 0.998, 0.01
"""Factor by which the past fades in each iteration, and the part of the trust that all experts share equally."""

SCALE_SMOOTHING, MAX_ERROR = 0.05, 3.0
"""Weight of the newest error in a worker's running scale, and the most scales that one iteration may count for."""


class Mixture(NestedPredictor):
    """Weighted mean of several predictors' log speeds; each worker's weights follow how well its experts forecast.

    The weights are those of Bernstein online aggregation: exponential in each expert's accumulated regret minus its
    square, so that an expert that is right by luck gains little. The past fades, and every expert keeps a small share.

    Parameters
    ----------
    experts
        Names with arguments as in :func:`paceline.predictors.named`, or predictors of any class. Those that need
        fitting forecast the last value until they are fitted.

    Notes
    -----
    Wintenberger, Optimal learning with Bernstein online aggregation, Machine Learning 106, 2017. The losses are
    linearized (the gradient trick), so that the mixture competes with the best weighted mean of the experts. A model
    file can only hold experts that were given by name.

    Examples
    --------
    One worker's speed is noise around 100 samples/s, so the slow average soon has nearly all the trust:

    >>> from paceline.predictors import Mixture, Report
    >>> model = Mixture(["last-value", "ewma:smoothing=0.03"])
    >>> model.reset(["a"])
    >>> for k in range(200):
    ...     model.observe(Report(samples=[100], seconds=[0.9 if k % 2 else 1.1]))
    >>> bool(model.weights[0, 1] > 0.9)
    True
    """

    skipped_checks: ClassVar[Mapping[str, str]] = {
        "a_missing_report_changes_nothing": "one of its usual experts is ARIMA, whose state moves on in silence"
    }

    def __init__(
        self,
        experts: Sequence[str | Predictor] = (
            "last-value",
            "ewma:smoothing=0.5",
            "ewma:smoothing=0.25",
            "ewma:smoothing=0.1",
            "ewma:smoothing=0.03",
            "huber-ewma",
            "arima",
            "rls",
            "narx",
        ),
    ) -> None:
        if isinstance(experts, str) or not len(experts):
            raise ValueError(f"experts must be a list of at least one predictor or name, got {experts!r}")
        super().__init__()
        self.experts = tuple(experts)
        self._inner = tuple(map(as_fleet_predictor, self.experts))
        # If no expert's forecast depends on the batch size, one forecast serves both to plan with and to be judged.
        query_methods = {type(inner).forecast_speed_at for inner in self._inner}
        self._single_query = query_methods == {FleetPredictor.forecast_speed_at}
        self._columns = sum(inner.columns for inner in self._inner)
        self._cached_forecasts: dict[int, _CachedForecast] = {}

    @property
    def weights(self) -> Array:
        """Trust in each expert, ``[W, E]``, in the order of ``experts``; each row sums to 1."""
        self._require_fleet()
        return expert_weights(self.state)

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        return {
            "regret": np.zeros((num_workers, self._columns)),
            "square": np.zeros((num_workers, self._columns)),
            "scale": np.full(num_workers, np.nan),
        }

    def _horizon_record_width(self) -> int:
        return self._columns + 1

    def _forget(self, reset_W: Mask) -> None:
        """Reset workers; forecasts already made of them are not scored."""
        super()._forget(reset_W)
        for answer in self._cached_forecasts.values():
            answer.expected_WE[reset_W] = np.nan
            answer.mean_W[reset_W] = np.nan

    def forecast_log_speed(self, covariates_WD: Array, horizon: int) -> Array:
        return self._get_forecast(covariates_WD, horizon, self._horizon_state(horizon) if horizon > 1 else None).mean_W

    def forecast_speed_at(self, samples_W: Array, covariates_WD: Array) -> Array:
        """Return the mixed forecast, and keep the experts' own: the next report shows how far each was off."""
        if self._single_query:
            return np.exp(self._get_forecast(covariates_WD, 1, None).mean_W)

        def log_speed_at(inner: FleetPredictor, inner_covariates_WD: Array) -> Array:
            return np.asarray(np.log(inner.forecast_speed_at(samples_W, inner_covariates_WD)))

        expected_WE = self._expert_forecasts(covariates_WD, log_speed_at)
        mean_W = _weighted_mean(self.weights, expected_WE)
        self._cached_forecasts[1] = _CachedForecast(None, None, expected_WE, mean_W)
        return np.exp(mean_W)

    def _get_forecast(self, covariates_WD: Array, horizon: int, horizon_state: HorizonState | None) -> _CachedForecast:
        """Return the answer for these covariates and this horizon, cached until the next report."""
        rows = self.state if horizon_state is None else horizon_state.state
        answer, regret_WE = self._cached_forecasts.get(horizon), rows["regret"]
        if answer is None or answer.regret_WE is not regret_WE or answer.covariates is not covariates_WD:
            expected_WE = self._expert_forecasts(
                covariates_WD, lambda inner, mine: inner.forecast_log_speed(mine, horizon)
            )
            mean_W = _weighted_mean(expert_weights(rows), expected_WE)
            answer = _CachedForecast(regret_WE, covariates_WD, expected_WE, mean_W)
            self._cached_forecasts[horizon] = answer
        return answer

    def _expert_forecasts(self, covariates_WD: Array, forecast: Callable[[FleetPredictor, Array], Array]) -> Array:
        expected_EW = np.empty((self._columns, len(covariates_WD)))
        end = 0
        for inner, inner_covariates_WD in self._pair_with_covariates(covariates_WD):
            expected_EW[end : (end := end + inner.columns)] = forecast(inner, inner_covariates_WD).T
        return expected_EW.T

    def update_from_report(self, report: Report, speed_W: Array, covariates_WD: Array) -> None:
        log_speed_W, answers = np.log(speed_W), self._cached_forecasts
        for ahead in self._active_horizons() if self._horizon_states else ():
            answer = self._get_forecast(covariates_WD, ahead.horizon, ahead)
            past_forecast_WP = ahead.swap_forecast(np.concatenate([answer.expected_WE, answer.mean_W[:, None]], axis=1))
            _learn_weights(
                ahead.state, log_speed_W, past_forecast_WP[:, :-1], past_forecast_WP[:, -1], is_further_horizon=True
            )
        if 1 in answers:
            _learn_weights(self.state, log_speed_W, answers[1].expected_WE, answers[1].mean_W)
        answers.clear()
        for inner, inner_covariates_WD in self._pair_with_covariates(covariates_WD):
            inner.update_from_report(report, speed_W, inner_covariates_WD)


@dataclass(frozen=True, eq=False)
class _CachedForecast:
    """Cached forecasts of the experts and the mixture, and what they were made from."""

    regret_WE: Array | None
    covariates: Array | None
    expected_WE: Array
    mean_W: Array


def expert_weights(worker_states: Mapping[str, Array]) -> Array:
    """Return how far each expert is trusted, ``[W, E]``."""
    count = worker_states["regret"].shape[1]
    rate_WE = np.minimum(0.5 / MAX_ERROR, np.sqrt(math.log(count + 1.0) / np.maximum(worker_states["square"], 1e-12)))
    merit_WE = rate_WE * (worker_states["regret"] - rate_WE * worker_states["square"]) + np.log(rate_WE)
    trust_WE = np.exp(merit_WE - np.maximum.reduce(merit_WE, axis=1, keepdims=True))
    trust_WE *= (1.0 - UNIFORM_SHARE) / np.add.reduce(trust_WE, axis=1, keepdims=True)
    return np.asarray(trust_WE + UNIFORM_SHARE / count)


def _weighted_mean(weights_WE: Array, expected_WE: Array) -> Array:
    """Return the weighted mean over the experts that know the worker, NaN where none does."""
    mean_W = np.add.reduce(weights_WE * expected_WE, axis=1)
    if all_finite(mean_W):
        return np.asarray(mean_W)
    known_WE = np.isfinite(expected_WE)
    weights_WE = np.where(known_WE, weights_WE, 0.0)
    with np.errstate(invalid="ignore"):
        known_W = (weights_WE * np.where(known_WE, expected_WE, 0.0)).sum(axis=1)
        return np.asarray(known_W / weights_WE.sum(axis=1))


def _learn_weights(
    worker_states: dict[str, Array],
    log_speed_W: Array,
    expected_WE: Array,
    mean_W: Array,
    is_further_horizon: bool = False,
) -> None:
    """Update the experts' weights: each gains or loses by its part in the error of the mixture."""
    error_W = log_speed_W - mean_W
    # a constant worker has no error to divide by
    size_W = np.maximum(np.abs(error_W), 1e-6)
    before_W, seen_W = worker_states["scale"], np.isfinite(error_W)
    if is_further_horizon:
        # The running root mean square: far ahead, most of the error is that of few changes, which would count for
        # little beside their mean size. One error counts as at most 10 scales.
        square_W, largest_W = np.square(before_W), np.minimum(size_W, 10.0 * before_W)
        scale_W = np.asarray(np.sqrt(square_W + SCALE_SMOOTHING * (np.square(largest_W) - square_W)))
    else:
        scale_W = before_W + SCALE_SMOOTHING * (np.minimum(size_W, 5.0 * before_W) - before_W)
    scale_W = np.where(np.isnan(before_W), size_W, scale_W)
    better_WE = _clip_error((expected_WE - mean_W[:, None]) / scale_W[:, None])
    gain_WE = _clip_error(error_W / scale_W)[:, None] * better_WE
    gain_WE[np.isnan(gain_WE)] = 0.0  # a worker that did not report, or one that the expert does not know
    discount_W1 = np.where(seen_W, DISCOUNT, 1.0)[:, None]
    worker_states["regret"] = discount_W1 * worker_states["regret"] + gain_WE
    worker_states["square"] = discount_W1 * worker_states["square"] + np.square(gain_WE)
    worker_states["scale"] = np.where(seen_W, scale_W, before_W)


def _clip_error(error: Array) -> Array:
    return np.minimum(np.maximum(error, -MAX_ERROR), MAX_ERROR)
