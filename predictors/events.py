"""PeriodicEvents: iterations that take far longer (or shorter) after equal numbers of iterations, before any predictor.

Axes: W workers, D covariates, E remembered events, newest first.
"""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array, Mask, any_true
from paceline._curves import Curves
from paceline.predictors.fleet import hide_workers
from paceline.predictors.nested import NestedPredictor, as_fleet_predictor
from paceline.predictors.protocol import MAX_SPEED, MIN_SPEED, Forecast, Predictor, Report

REMEMBERED_EVENTS, MIN_PERIOD = 3, 4
"""Events at equal distances that make a schedule, and the shortest distance."""


class PeriodicEvents(NestedPredictor):
    """Another predictor, behind one that learns events which return after equal numbers of iterations.

    An evaluation or a checkpoint makes one iteration in so many far slower. Three such errors of the forecast at equal
    distances make a schedule, if that is unlikely to be chance; the first that stays away ends it. The forecast of a
    scheduled iteration is the inner one times the median effect of these events, and its report is hidden from the
    inner predictor. Iterations without a report do not count; periods below four are left to the inner predictor.

    Parameters
    ----------
    predictor
        Name with arguments as in :func:`paceline.predictors.named`, or a predictor of any class.

    Examples
    --------
    Every 25th iteration takes three times as long. The next one is foreseen, and the one after it is as usual:

    >>> from paceline.predictors import PeriodicEvents, Report
    >>> model = PeriodicEvents("ewma")
    >>> model.reset(["a"])
    >>> for k in range(1, 125):
    ...     model.observe(Report(samples=[60], seconds=[3.0 if k % 25 == 0 else 1.0]))
    >>> model.predict().speed.round(), model.predict(horizon=2).speed.round()
    (array([20.]), array([60.]))
    """

    def __init__(self, predictor: str | Predictor = "ewma") -> None:
        super().__init__()
        self.predictor = predictor
        self._inner = (as_fleet_predictor(predictor),)

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        return {
            "seen": np.zeros(num_workers),
            "usual": np.full(num_workers, np.nan),
            "when": np.full((num_workers, REMEMBERED_EVENTS), np.nan),
            "effect": np.full((num_workers, REMEMBERED_EVENTS), np.nan),
            "events": np.zeros(num_workers),
            "returns": np.zeros(num_workers),
            "due": np.full(num_workers, np.nan),
            "due_effect": np.zeros(num_workers),
        }

    def _has_likely_schedule(self) -> Mask:
        """Return whose schedule is unlikely to be chance: each return has the probability of any event."""
        rate_W = (self.state["events"] + 1.0) / (self.state["seen"] + 2.0)
        # prior odds that equal intervals are a schedule
        return np.asarray(rate_W ** (1.0 + self.state["returns"]) < 0.01)

    def _scheduled_effects(self, horizon: int) -> Array:
        """Return the change of log speed by events ``horizon`` iterations ahead whose schedule is believed, else 0."""
        scheduled_W = self.state["due"] == self.state["seen"] + (horizon - 1)
        if not any_true(scheduled_W):
            return np.zeros(len(scheduled_W))
        return np.where(scheduled_W & self._has_likely_schedule(), self.state["due_effect"], 0.0)

    def forecast_log_speed(self, covariates_WD: Array, horizon: int) -> Array:
        return self._inner[0].forecast_log_speed(covariates_WD, horizon) + self._scheduled_effects(horizon)

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        return self._inner[0].forecast_speed(covariates_WD, horizon) * np.exp(self._scheduled_effects(horizon))

    def forecast_speed_at(self, samples_W: Array, covariates_WD: Array) -> Array:
        return self._inner[0].forecast_speed_at(samples_W, covariates_WD) * np.exp(self._scheduled_effects(1))

    def make_forecast(self, covariates_WD: Array, horizon: int) -> Forecast:
        forecast, factor_W = (
            self._inner[0].make_forecast(covariates_WD, horizon),
            np.exp(self._scheduled_effects(horizon)),
        )
        speed_W, curves = np.minimum(np.maximum(forecast.speed * factor_W, MIN_SPEED), MAX_SPEED), forecast.batch_time
        if curves is not None:
            floor_W, slope_W, intercept_W = (c / factor_W for c in (curves.floor, curves.slope, curves.intercept))
            curves = Curves(floor_W, slope_W, intercept_W, curves.limit)
        return Forecast(speed_W, self._spread(speed_W, horizon), curves)

    def update_from_report(self, report: Report, speed_W: Array, covariates_WD: Array) -> None:
        inner, rows = self._inner[0], self.state
        samples_W = np.asarray(report.samples, dtype=np.float64)
        error_W = np.log(speed_W / inner.forecast_speed_at(samples_W, covariates_WD))
        size_W, mean_W, scheduled_W = np.abs(error_W), rows["usual"], rows["due"] == rows["seen"]
        # an event is an error beyond 15% and beyond five usual ones
        event_W = size_W > np.maximum(0.15, 5.0 * mean_W)
        # the newest error weighs 5% in the usual one, and counts for at most 3 of it
        bounded_W = np.minimum(size_W, 3.0 * mean_W + 1e-3)
        smoothed_W = mean_W + 0.05 * (bounded_W - mean_W)
        smoothed_W = np.where(np.isnan(error_W), mean_W, np.where(np.isnan(mean_W), size_W, smoothed_W))
        seen_W = np.isfinite(speed_W)
        if any_true(scheduled_W | event_W):
            hidden_W = self._learn_events(error_W, event_W, np.isfinite(error_W) & scheduled_W)
            if any_true(hidden_W):
                report, speed_W = hide_workers(report, hidden_W), np.where(hidden_W, np.nan, speed_W)
        rows["usual"], rows["seen"] = smoothed_W, rows["seen"] + seen_W
        inner.update_from_report(report, speed_W, covariates_WD)

    def _learn_events(self, error_W: Array, event_W: Mask, scheduled_W: Mask) -> Mask:
        """Learn who had an event, and return whose was one of a schedule that is believed."""
        rows = self.state
        # A smaller one than before counts if it is nearer to the scheduled effect than to none.
        came_W = scheduled_W & (np.abs(error_W - rows["due_effect"]) < np.abs(error_W))
        missed_W, hidden_W = scheduled_W & ~came_W, came_W & self._has_likely_schedule()
        rows["returns"] = np.where(came_W, rows["returns"] + 1.0, np.where(missed_W, -1.0, rows["returns"]))
        when_WE = np.where(missed_W[:, None], np.nan, rows["when"])
        effect_WE = rows["effect"]
        # An inner predictor that has followed an event errs to the other side until it is back.
        # for 8 iterations after an event, an error to the other side is its consequence
        event_W = event_W & ~((rows["seen"] <= when_WE[:, 0] + 8) & (error_W * effect_WE[:, 0] < 0.0))
        rows["events"] = rows["events"] + event_W
        # Beside a schedule, other events are accidents.
        new_W = came_W | (event_W & (np.isnan(rows["due"]) | missed_W))
        rows["when"] = when_WE = _push_newest(when_WE, rows["seen"], new_W)
        rows["effect"] = effect_WE = _push_newest(effect_WE, error_W, new_W)
        period_W, before_W = when_WE[:, 0] - when_WE[:, 1], when_WE[:, 1] - when_WE[:, 2]
        middle_W = np.sort(effect_WE, axis=1)[:, 1]
        spread_W = np.maximum.reduce(np.abs(effect_WE - middle_W[:, None]), axis=1)
        # intervals of one schedule differ from their median by less than half of it
        regular_W = (period_W == before_W) & (period_W >= MIN_PERIOD) & (spread_W < 0.5 * np.abs(middle_W))
        rows["due"] = np.where(regular_W, when_WE[:, 0] + period_W, np.nan)
        rows["due_effect"] = np.where(regular_W, middle_W, 0.0)
        return np.asarray(hidden_W)


def _push_newest(history_WE: Array, newest_W: Array, has_new_W: Mask) -> Array:
    """Return the memory with the newest value in front, of those who have a new one."""
    pushed_WE = np.concatenate([newest_W[:, None], history_WE[:, :-1]], axis=1)
    return np.where(has_new_W[:, None], pushed_WE, history_WE)
