"""Seasonal: speeds that repeat every few iterations, such as those slowed down by an evaluation or a checkpoint.

Axes: W workers, D covariates, P lags, L remembered deviations, newest first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, any_true
from paceline.predictors.fleet import FleetPredictor

MIN_PERIOD, MAX_PERIOD = 2, 40
"""Periods that are looked for, in iterations. Rare events with longer ones are left to `PeriodicEvents`."""


class Seasonal(FleetPredictor):
    """Level of the log speed, plus the deviations one and two periods ago where a period shows.

    The period is the lag at which deviations from the level correlate most with earlier ones; it is updated in every
    iteration, and each worker has its own. The correction is their mean, shrunk by that correlation. Without a period
    it is an EWMA of the log speed. Iterations without a report do not count.
    """

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        # two past cycles: one is as noisy as the last value, and more lag behind changes
        return {
            "level": np.full(num_workers, np.nan),
            "variance": np.zeros(num_workers),
            "scale": np.full(num_workers, 1e-3),
            "deviations": np.zeros((num_workers, 2 * MAX_PERIOD)),
            # one for each lag, and one beside the first and the last
            "echoes": np.zeros((num_workers, MAX_PERIOD - MIN_PERIOD + 3)),
            "power": np.zeros(num_workers),
            "seen": np.zeros(num_workers),
        }

    def forecast_log_speed(self, covariates_WD: Array, horizon: int) -> Array:
        rows, (period_W, share_W) = self.state, self._find_period()
        if not any_true(share_W):
            return rows["level"]
        workers = np.arange(len(period_W))
        # The place of the deviation one period before that iteration.
        ahead_W = period_W - 1 - ((horizon - 1) % period_W if horizon > 1 else 0)
        past_W = rows["deviations"][workers, ahead_W] + rows["deviations"][workers, ahead_W + period_W]
        return np.asarray(rows["level"] + share_W * past_W * (rows["scale"] / 2))

    def _find_period(self) -> tuple[NDArray[np.intp], Array]:
        """Return each worker's period, and the share of past deviations that is expected again, 0 without a period."""
        rows, echoes_WP = self.state, self.state["echoes"]
        workers = np.arange(len(echoes_WP))
        best_W = 1 + echoes_WP[:, 1:-1].argmax(axis=1)
        # After a jump all deviations have one sign, and neighboring lags correlate as well: a period stands out.
        beside_W = echoes_WP[workers, best_W - 1] + echoes_WP[workers, best_W + 1]
        share_W = echoes_WP[workers, best_W] - np.maximum(beside_W / 2.0, 0.0)
        share_W /= np.maximum(rows["power"], 1e-9)
        # the best correlation must exceed 0 by 2 standard errors
        share_W *= share_W * np.sqrt(rows["seen"]) > 2.0
        return MIN_PERIOD - 1 + best_W, share_W

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        rows, log_speed_W, seen_W = self.state, np.log(speed_W), self.state["seen"]
        off_W = log_speed_W - rows["level"]
        known_W = np.isfinite(off_W)  # False without a report, and for the first
        rows["level"] = np.where(np.isnan(rows["level"]), log_speed_W, rows["level"])
        off_W = np.where(known_W, off_W, 0.0)
        # running correlations over about 50 iterations
        rate_W = known_W * np.maximum(0.02, 1.0 / (seen_W + 1.0))
        # Otherwise a slow warm-up would hold the level down for dozens of iterations.
        fading_W = np.maximum(0.1, 2.0 / (2.0 + 1.0 + seen_W))
        # Deviations count as at most 10 root mean squares. An event every k iterations is at most sqrt(k) of them, so
        # that none is cut, but a single stall is.
        largest = 10.0
        size_W = np.minimum(np.abs(off_W), largest * rows["scale"])
        rows["variance"] = rows["variance"] + rate_W * (np.square(size_W) - rows["variance"])
        rows["level"] = rows["level"] + fading_W * off_W
        rows["scale"] = np.sqrt(np.maximum(rows["variance"], 1e-3**2))
        newest_W = np.minimum(np.maximum(off_W / rows["scale"], -largest), largest)
        past_WL = rows["deviations"]
        # Two products and a sum in place: these arrays are the largest that the predictor has.
        moved_WP = rows["echoes"] * (1.0 - rate_W)[:, None]
        moved_WP[:, 1:-1] += past_WL[:, MIN_PERIOD - 1 : MAX_PERIOD] * (rate_W * newest_W)[:, None]
        rows["echoes"] = moved_WP
        rows["power"] = rows["power"] + rate_W * (np.square(newest_W) - rows["power"])
        shifted_WL = np.empty_like(past_WL)
        shifted_WL[:, 0], shifted_WL[:, 1:] = newest_W, past_WL[:, :-1]
        rows["deviations"] = np.where(known_W[:, None], shifted_WL, past_WL)
        rows["seen"] = seen_W + known_W
