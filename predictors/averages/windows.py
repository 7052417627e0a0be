"""Predictors over a window of past speeds: its mean, and its median. Axes: W workers, D covariates, L last speeds."""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array
from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.ranges import require_int


class WindowPredictor(FleetPredictor):
    """Base class of predictors over the last ``window`` speeds, newest first."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = require_int("window", window, minimum=1)

    def initial_state(self, count: int) -> dict[str, Array]:
        return {"past": np.full((count, self.window), np.nan)}

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        past_WL = self.state["past"]
        moved_WL = np.concatenate([speed_W[:, None], past_WL[:, :-1]], axis=1)
        self.state["past"] = np.where(np.isfinite(speed_W)[:, None], moved_WL, past_WL)


class RunningMedian(WindowPredictor):
    """The median of the last speeds: a spike shorter than half the window has no effect.

    Parameters
    ----------
    window
        Number of past speeds it looks at, from 1 to 10,000. It follows a lasting change after half of them.

    Raises
    ------
    ValueError
        If the window is out of range.

    Examples
    --------
    One iteration that took ten times as long does not count:

    >>> from paceline.predictors import Report, RunningMedian
    >>> model = RunningMedian(window=3)
    >>> model.reset(["a"])
    >>> for seconds in (0.5, 5.0, 0.5):
    ...     model.observe(Report(samples=[32], seconds=[seconds]))
    >>> model.predict().speed
    array([64.])
    """

    def __init__(self, window: int = 9) -> None:
        super().__init__(window)

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        sorted_WL = np.sort(self.state["past"], axis=1)  # NaN comes last
        count_W = np.isfinite(sorted_WL).sum(axis=1)
        workers = np.arange(len(sorted_WL))
        low_W = sorted_WL[workers, np.maximum(count_W - 1, 0) // 2]
        high_W = sorted_WL[workers, count_W // 2]
        return np.asarray((low_W + high_W) / 2.0)
