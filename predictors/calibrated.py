"""Calibrated: any predictor, with quantiles that are corrected by counting how often they hold.

Axes: W workers, D covariates, L levels.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from paceline._arrays import Array, any_true
from paceline.predictors.events import PeriodicEvents
from paceline.predictors.fleet import FleetPredictor, fill_unknown_speeds
from paceline.predictors.nested import HorizonState, NestedPredictor, as_fleet_predictor
from paceline.predictors.protocol import MAX_SPEED, MIN_SPEED, Forecast, Predictor, Report

QUANTILE_LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""The quantiles that are tracked; those in between are interpolated."""

LEVELS_L = np.array(QUANTILE_LEVELS)
NORMAL_SCORES_L = np.array([NormalDist().inv_cdf(level) for level in QUANTILE_LEVELS])

LOW_INDEX, HIGH_INDEX = QUANTILE_LEVELS.index(0.05), QUANTILE_LEVELS.index(0.95)

SCALE_SMOOTHING = 0.02
"""Weight of the newest error in the running scale."""

NORMAL_MULTIPLES_L = math.sqrt(math.pi / 2.0) * NORMAL_SCORES_L
"""Quantiles of normal errors, in their mean size."""

EARLY_FADING = 8.0
"""Early errors fade as in a mean with weights that grow with the seventh power of time: the first ones, of a warm-up,
are the largest."""

HORIZON_WIDENING_POWER = 0.25
"""Power of the horizon by which intervals widen before its first error."""

RECENT_ERRORS, SUDDEN_SCALES = 3, 12.0
"""Of the last ``RECENT_ERRORS + 1`` errors, so many must be beyond this many scales, to both sides, for noise that has
grown."""


class Calibrated(NestedPredictor):
    """Another predictor's forecast, with quantiles of its relative error tracked online, worker by worker.

    Quantiles are multiples of the running size of the error. Each moves up a little when the error exceeds it and down
    a little when it does not, so that it settles where it holds with its nominal probability, also of skewed errors.
    Intervals widen and narrow as fast as that size follows. The speed forecast is that of the inner predictor.

    Parameters
    ----------
    predictor
        Name with arguments as in :func:`paceline.predictors.named`, or a predictor of any class.

    Notes
    -----
    The steps are those of Gibbs and Candes, Adaptive conformal inference under distribution shift, 2021, applied to the
    quantile itself. Further horizons have quantiles of their own errors, which start from those of the next iteration,
    widened by the fourth root of the horizon. A model file can only hold a predictor that was given by name.

    Examples
    --------
    One iteration in five takes twice as long. The interval reaches down to it, and hardly above the usual speed:

    >>> from paceline.predictors import Calibrated, Report
    >>> model = Calibrated("ewma:smoothing=0.05")
    >>> model.reset(["a"])
    >>> for k in range(1000):
    ...     model.observe(Report(samples=[100], seconds=[2.0 if k % 5 == 0 else 1.0]))
    >>> forecast = model.predict()
    >>> bool(forecast.quantile(0.05)[0] < 60), bool(forecast.quantile(0.9)[0] < 110)
    (True, True)
    """

    def __init__(self, predictor: str | Predictor = "ewma") -> None:
        super().__init__()
        self.predictor = predictor
        self._inner = (as_fleet_predictor(predictor),)
        self._only_speed = _forecasts_only_speed(self._inner[0])

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        return {
            "quantiles": np.full((num_workers, len(QUANTILE_LEVELS)), np.nan),
            "multiples": np.tile(NORMAL_MULTIPLES_L, (num_workers, 1)),
            "scale": np.full(num_workers, np.nan),
            "compared": np.zeros(num_workers),
            "recent": np.full((num_workers, RECENT_ERRORS), np.nan),
        }

    def _init_horizon_state(self, horizon_state: HorizonState) -> None:
        """Start without any errors: those of the next iteration are too small for this horizon."""

    def _horizon_record_width(self) -> int:
        """Return the numbers kept of each forecast: 1 for the expected log speed, and one for each quantile."""
        return 1 + len(QUANTILE_LEVELS)

    def make_forecast(self, covariates_WD: Array, horizon: int) -> Forecast:
        inner, curves = self._inner[0], None
        if self._only_speed:
            speed_W = fill_unknown_speeds(inner.forecast_speed(covariates_WD, horizon))
        else:
            forecast = inner.make_forecast(covariates_WD, horizon)
            speed_W, curves = forecast.speed, forecast.batch_time
        horizon_state = self._horizon_state(horizon) if horizon > 1 else None
        error_WL = np.minimum(self._error_quantiles(horizon, horizon_state), 50.0)
        quantiles_WL = np.minimum(np.maximum(speed_W[:, None] * np.exp(error_WL), MIN_SPEED), MAX_SPEED)
        # The deviation of a normal error with this 90% interval.
        width = NORMAL_SCORES_L[HIGH_INDEX] - NORMAL_SCORES_L[LOW_INDEX]
        sigma_W = (error_WL[:, HIGH_INDEX] - error_WL[:, LOW_INDEX]) / width
        spread_W = np.sqrt(np.expm1(np.minimum(np.square(sigma_W), 100.0)))
        spread_W = np.where(np.isnan(spread_W), np.inf, spread_W)
        return Forecast(speed_W, spread_W, curves, QUANTILE_LEVELS, quantiles_WL)

    def _error_quantiles(self, horizon: int, horizon_state: HorizonState | None) -> Array:
        """Return quantiles of the error; of workers without errors at this horizon, those of the next one, wider."""
        next_WL = self.state["quantiles"]
        if horizon == 1:
            return next_WL
        wider_WL = math.pow(horizon, HORIZON_WIDENING_POWER) * next_WL
        if horizon_state is None:
            return wider_WL
        ahead_WL = horizon_state.state["quantiles"]
        return np.asarray(np.where(np.isnan(ahead_WL), wider_WL, ahead_WL))

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        return self._inner[0].forecast_speed(covariates_WD, horizon)

    def forecast_log_speed(self, covariates_WD: Array, horizon: int) -> Array:
        return self._inner[0].forecast_log_speed(covariates_WD, horizon)

    def forecast_speed_at(self, samples_W: Array, covariates_WD: Array) -> Array:
        return self._inner[0].forecast_speed_at(samples_W, covariates_WD)

    def update_from_report(self, report: Report, speed_W: Array, covariates_WD: Array) -> None:
        for horizon_state in self._active_horizons() if self._horizon_states else ():
            expected_W1 = self._inner[0].forecast_log_speed(covariates_WD, horizon_state.horizon)[:, None]
            quantiles_WL = self._error_quantiles(horizon_state.horizon, horizon_state)
            record_WP = np.concatenate([expected_W1, quantiles_WL], axis=1)
            self._learn_horizon(horizon_state, np.log(speed_W), horizon_state.swap_forecast(record_WP))
        self._inner[0].update_from_report(report, speed_W, covariates_WD)

    def _learn_horizon(self, horizon_state: HorizonState, log_speed_W: Array, past_forecast_WP: Array) -> None:
        """Move quantiles by whether those stated ``horizon`` iterations ago held: overlapping errors move together."""
        rows, error_W = horizon_state.state, log_speed_W - past_forecast_WP[:, 0]
        first_W = (rows["compared"] == 0) & np.isfinite(error_W)
        if any_true(first_W):
            wider_W = math.pow(horizon_state.horizon, HORIZON_WIDENING_POWER) * self.state["scale"]
            rows["scale"] = np.where(first_W, wider_W, rows["scale"])
            rows["multiples"] = np.where(first_W[:, None], self.state["multiples"], rows["multiples"])
            rows["compared"] = np.where(first_W, 10.0, rows["compared"])
        _track_quantiles(rows, error_W, past_forecast_WP[:, 1:])

    def _track_error(self, error_W: Array) -> None:
        super()._track_error(error_W)
        _track_quantiles(self.state, error_W, self.state["quantiles"])


def _forecasts_only_speed(predictor: FleetPredictor) -> bool:
    if isinstance(predictor, PeriodicEvents):
        return _forecasts_only_speed(predictor._inner[0])
    return type(predictor).make_forecast is FleetPredictor.make_forecast


def _track_quantiles(worker_states: dict[str, Array], error_W: Array, predicted_WL: Array) -> None:
    """Move every quantile by whether the stated one held; a worker that did not report keeps its own."""
    size_W = np.maximum(np.abs(error_W), 1e-4)
    sudden_W = _find_sudden_noise(worker_states, error_W, size_W)
    seen_W, scale_W, multiples_WL = np.isfinite(error_W), worker_states["scale"], worker_states["multiples"]
    rate_W = np.maximum(SCALE_SMOOTHING, EARLY_FADING / (EARLY_FADING + worker_states["compared"]))
    # one error counts for at most ten scales
    later_W = scale_W + rate_W * (np.minimum(size_W, 10.0 * scale_W) - scale_W)
    scale_W = np.where(seen_W, np.where(np.isnan(later_W), size_W, later_W), scale_W)
    # a quantile moves by 0.15 running scales per iteration
    moved_WL = multiples_WL + 0.15 * (LEVELS_L - (error_W[:, None] <= predicted_WL))
    moved_WL = np.where(seen_W[:, None] & np.isfinite(predicted_WL), moved_WL, multiples_WL)
    crossed_WL = moved_WL[:, 1:] < moved_WL[:, :-1]
    if any_true(crossed_WL):  # few quantiles ever cross
        crossed_W = crossed_WL.any(axis=1)
        moved_WL[crossed_W] = np.sort(moved_WL[crossed_W], axis=1)
    worker_states |= {"scale": scale_W, "multiples": moved_WL, "compared": worker_states["compared"] + seen_W}
    # wider by 3/n after n errors, about as Student's t: the scale is uncertain too
    wide_W = scale_W * (1.0 + 3.0 / (1.0 + worker_states["compared"]))
    worker_states["quantiles"] = wide_W[:, None] * worker_states["multiples"]
    if sudden_W is not None:
        sudden_WL = sudden_W[:, None] * (NORMAL_SCORES_L / NORMAL_SCORES_L[HIGH_INDEX])
        worker_states["quantiles"] = np.where(
            np.abs(sudden_WL) > np.abs(worker_states["quantiles"]), sudden_WL, worker_states["quantiles"]
        )


def _find_sudden_noise(worker_states: dict[str, Array], error_W: Array, size_W: Array) -> Array | None:
    """Return the size that the next errors of a worker may have whose last one was sudden; None without any such.

    One may be an outlier, and the next interval alone is wider. With several, to both sides, noise has grown, and the
    intervals start again. Errors to one side only are no noise: a forecast that is late follows by itself.
    """
    recent_WR, far_W = worker_states["recent"], size_W > SUDDEN_SCALES * worker_states["scale"]
    last_WR = np.concatenate([error_W[:, None], recent_WR], axis=1)
    worker_states["recent"] = np.where(np.isnan(error_W)[:, None], recent_WR, last_WR[:, :-1])
    if not any_true(far_W):
        return None
    far_W &= worker_states["compared"] >= 20
    bound_W1 = SUDDEN_SCALES * worker_states["scale"][:, None]
    above_WR, below_WR = last_WR > bound_W1, last_WR < -bound_W1
    restarted_W = (
        far_W & above_WR.any(axis=1) & below_WR.any(axis=1) & ((above_WR | below_WR).sum(axis=1) >= RECENT_ERRORS)
    )
    if any_true(restarted_W):
        worker_states["scale"] = np.where(restarted_W, np.abs(last_WR).mean(axis=1), worker_states["scale"])
        worker_states["multiples"] = np.where(restarted_W[:, None], NORMAL_MULTIPLES_L, worker_states["multiples"])
        worker_states["compared"] = np.where(restarted_W, RECENT_ERRORS + 1.0, worker_states["compared"])
    # Three times: normal errors are in 80% of cases within three times the size of another.
    sudden_W: Array = 3.0 * np.where(above_WR | below_WR, np.abs(last_WR), 0.0).max(axis=1) * (far_W & ~restarted_W)
    return sudden_W
