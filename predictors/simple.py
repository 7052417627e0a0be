"""Predictors that need no training: the last speed, and a smoothed one. Axes: W workers, D drivers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.predictors.fleet import FleetPredictor

Array = NDArray[np.float64]


class LastValue(FleetPredictor):
    """The next speed is the last one seen: the memoryless predictor of LB-BSP, and the yardstick of every table.

    Examples
    --------
    >>> from paceline.predictors import LastValue, Report
    >>> model = LastValue()
    >>> model.reset(["a", "b"])
    >>> model.observe(Report(samples=[32, 32], seconds=[0.25, 0.5]))
    >>> model.predict().speed
    array([128.,  64.])
    """

    def _fresh(self, count: int) -> dict[str, Array]:
        return {"last": np.full(count, np.nan)}

    def _learn(self, speed_W: Array, drivers_WD: Array) -> None:
        self._rows["last"] = np.where(np.isfinite(speed_W), speed_W, self._rows["last"])

    def _next_speed(self, drivers_WD: Array, horizon: int) -> Array:
        return self._rows["last"]


class EWMA(FleetPredictor):
    """Exponentially weighted moving average of past speeds.

    Parameters
    ----------
    smoothing
        Weight of the newest speed, in (0, 1]. At 1 the forecast is the last speed seen.

    Raises
    ------
    ValueError
        If the smoothing lies outside (0, 1].

    Examples
    --------
    One worker drops from 100 to 60 samples/s and the forecast follows:

    >>> from paceline.predictors import EWMA, Report
    >>> model = EWMA(smoothing=0.5)
    >>> model.reset(["a"])
    >>> for seconds in (0.64, 0.64, 64 / 60):
    ...     model.observe(Report(samples=[64], seconds=[seconds]))
    >>> model.predict().speed
    array([80.])
    """

    def __init__(self, smoothing: float = 0.2) -> None:
        if not 0.0 < smoothing <= 1.0:
            raise ValueError(f"smoothing must lie in (0, 1], got {smoothing}")
        super().__init__()
        self.smoothing = smoothing

    def _fresh(self, count: int) -> dict[str, Array]:
        return {"level": np.full(count, np.nan)}

    def _learn(self, speed_W: Array, drivers_WD: Array) -> None:
        level_W = self._rows["level"]
        seen_W = np.isfinite(speed_W)
        moved_W = np.where(np.isfinite(level_W), level_W + self.smoothing * (speed_W - level_W), speed_W)
        self._rows["level"] = np.where(seen_W, moved_W, level_W)

    def _next_speed(self, drivers_WD: Array, horizon: int) -> Array:
        return self._rows["level"]
