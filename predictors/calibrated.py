"""Calibrated: any predictor, with quantiles that are corrected by counting how often they hold.

Axes: W workers, D drivers, L levels.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from paceline._arrays import Array, Mask, anywhere
from paceline._curves import Curves
from paceline.predictors.adopted import adopted
from paceline.predictors.fleet import FleetPredictor, with_prior
from paceline.predictors.forecast import Forecast
from paceline.predictors.nested import NestedPredictor
from paceline.predictors.protocol import Predictor
from paceline.predictors.report import FASTEST, SLOWEST, Report

LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""The quantiles that are tracked; those in between are interpolated."""

LEVELS_L = np.array(LEVELS)
SCORES_L = np.array([NormalDist().inv_cdf(level) for level in LEVELS])

STEP = 0.3
"""How far a quantile moves in one iteration, in running scales."""

SCALE_SMOOTHING, LARGEST_JUMP, SMALLEST_SCALE = 0.02, 10.0, 1e-3
"""Weight of the newest error in the running scale, the most scales that one error counts for, and the least scale."""

FRESH = 20
"""Errors until which quantiles are those of normal errors: too few to count how often they hold."""

NORMAL_SCALE = 1.25
"""Deviation of normal errors over their mean size, sqrt(pi / 2)."""

EARLY_FADING = 4.0
"""Early errors fade as in a mean with weights that grow with the cube of time: the first ones, of a warm-up, are the
largest."""

SETTLED = max(EARLY_FADING / SCALE_SMOOTHING, FRESH)
"""Errors after which nothing is early any more."""

FARTHEST = 2.5
"""Farthest a quantile may lie, in root mean squares of recent errors, so that it soon recovers from a first spike."""


class Calibrated(NestedPredictor):
    """Another predictor's forecast, with quantiles of its relative error tracked online, worker by worker.

    Each quantile moves up a little when the error exceeds it and down a little when it does not. The ratio of the two
    steps is such that the quantile settles where it holds with its nominal probability. Skewed errors get skewed
    intervals, and a predictor that gets worse gets wider ones. The speed forecast is that of the inner predictor.

    Parameters
    ----------
    predictor
        Name with arguments as in :func:`paceline.predictors.named`, or a predictor of any class.

    Notes
    -----
    The steps are those of Gibbs and Candes, Adaptive conformal inference under distribution shift, 2021, applied to the
    quantile itself and scaled by the running size of the error. Intervals widen with the square root of the horizon. A
    model file can only hold a predictor that was given by name.

    Examples
    --------
    One iteration in five takes twice as long. The interval reaches down to it, and hardly above the usual speed:

    >>> from paceline.predictors import Calibrated, Report
    >>> model = Calibrated("running-median")
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
        self._inner = (adopted(predictor),)
        self._speed_alone = type(self._inner[0])._forecast is FleetPredictor._forecast

    def _fresh(self, count: int) -> dict[str, Array]:
        return {
            "quantiles": np.full((count, len(LEVELS)), np.nan),
            "scale": np.full(count, np.nan),
            "compared": np.zeros(count),
        }

    # -- forecasting ---------------------------------------------------------------------------------------------

    def _forecast(self, drivers_WD: Array, horizon: int) -> Forecast:
        speed_W, curves = self._inner_forecast(drivers_WD, horizon)
        wider = math.sqrt(horizon)
        error_WL = np.minimum(wider * self._rows["quantiles"], 50.0)
        quantiles_WL = np.minimum(np.maximum(speed_W[:, None] * np.exp(error_WL), SLOWEST), FASTEST)
        sigma_W = wider * self._deviation()
        spread_W = np.sqrt(np.expm1(np.minimum(np.square(sigma_W), 100.0)))
        if not self._calm:
            spread_W = np.where(np.isnan(spread_W), np.inf, spread_W)
        return Forecast(speed_W, spread_W, curves, LEVELS, quantiles_WL)

    def _inner_forecast(self, drivers_WD: Array, horizon: int) -> tuple[Array, Curves | None]:
        inner = self._inner[0]
        if self._speed_alone:
            return with_prior(inner._next_speed(drivers_WD, horizon)), None
        forecast = inner._forecast(drivers_WD, horizon)
        return forecast.speed, forecast.batch_time

    def _deviation(self) -> Array:
        """Return the deviation in log speed of a normal error with this 90 % interval, NaN where none is known."""
        low, high = LEVELS.index(0.05), LEVELS.index(0.95)
        quantiles_WL = self._rows["quantiles"]
        return np.asarray((quantiles_WL[:, high] - quantiles_WL[:, low]) / (SCORES_L[high] - SCORES_L[low]))

    def _next_speed(self, drivers_WD: Array, horizon: int) -> Array:
        return self._inner[0]._next_speed(drivers_WD, horizon)

    def _speed_of(self, samples_W: Array, drivers_WD: Array) -> Array:
        return self._inner[0]._speed_of(samples_W, drivers_WD)

    # -- learning ------------------------------------------------------------------------------------------------

    def _learn_report(self, report: Report, speed_W: Array, drivers_WD: Array) -> None:
        self._inner[0]._learn_report(report, speed_W, drivers_WD)

    def _compare(self, error_W: Array) -> None:
        """Move every quantile by this error; a worker that did not report keeps its quantiles."""
        rows = self._rows
        # Without new workers or missing reports there is a shorter way.
        settled = self._calm and np.minimum.reduce(rows["compared"]) >= SETTLED
        size_W = np.maximum(np.abs(error_W), SMALLEST_SCALE)
        rate = SCALE_SMOOTHING if settled else self._early_rate()
        scale_W = rows["scale"] + rate * (np.minimum(size_W, LARGEST_JUMP * rows["scale"]) - rows["scale"])
        if not settled:
            scale_W = np.where(rows["compared"] == 0, size_W, scale_W)
        missed_WL = error_W[:, None] <= rows["quantiles"]
        moved_WL = rows["quantiles"] + (STEP * scale_W)[:, None] * (LEVELS_L - missed_WL)
        if not settled:
            moved_WL = self._early(moved_WL, scale_W)
        super()._compare(error_W)
        reach_W1 = FARTHEST * np.sqrt(np.maximum(rows["squared_error"], SMALLEST_SCALE**2))[:, None]
        moved_WL = _rising(np.minimum(np.maximum(moved_WL, -reach_W1), reach_W1))
        if settled:
            seen_W: Mask | float = 1.0
        else:
            seen_W = np.isfinite(error_W)
            moved_WL = np.where(seen_W[:, None], moved_WL, rows["quantiles"])
            scale_W = np.where(seen_W, scale_W, rows["scale"])
        rows["quantiles"], rows["scale"], rows["compared"] = moved_WL, scale_W, rows["compared"] + seen_W

    def _early_rate(self) -> Array:
        return np.maximum(SCALE_SMOOTHING, EARLY_FADING / (EARLY_FADING + self._rows["compared"]))

    def _early(self, moved_WL: Array, scale_W: Array) -> Array:
        """Return the quantiles, of workers with few errors those of a normal error of this scale, and wider.

        The factor 1 + 2 / n is about that of the quantiles of Student's t: the scale of n errors is uncertain itself,
        and early errors count for few.
        """
        count_W = self._rows["compared"] + 1.0
        wide_W = NORMAL_SCALE * scale_W * (1.0 + 2.0 / count_W)
        return np.where((count_W < FRESH)[:, None], wide_W[:, None] * SCORES_L, moved_WL)


def _rising(quantiles_WL: Array) -> Array:
    """Sort quantiles that have crossed; few ever do."""
    crossed_WL = quantiles_WL[:, 1:] < quantiles_WL[:, :-1]
    if anywhere(crossed_WL):
        crossed_W = crossed_WL.any(axis=1)
        quantiles_WL[crossed_W] = np.sort(quantiles_WL[crossed_W], axis=1)
    return quantiles_WL
