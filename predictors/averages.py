"""Averages: the last speed, exponentially smoothed speeds, and a filtered level.

Axes: T iterations, W workers, R workers that reported, D covariates, G smoothings tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, any_true
from paceline.predictors.fitting import FitOptions
from paceline.predictors.fleet import FleetPredictor, load_finite

if TYPE_CHECKING:
    from paceline.datasets import Trace


SMOOTHING_GRID: Array = np.concatenate([[0.01, 0.02, 0.03], np.arange(1, 21) / 20.0])
"""The smoothings that ``fit`` chooses from."""


class LastValue(FleetPredictor):
    """The next speed is the last one seen: the memoryless predictor of LB-BSP, and the baseline of every table.

    Examples
    --------
    >>> from paceline.predictors import LastValue, Report
    >>> model = LastValue()
    >>> model.reset(["a", "b"])
    >>> model.observe(Report(samples=[32, 32], seconds=[0.25, 0.5]))
    >>> model.predict().speed
    array([128.,  64.])
    """

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        return {"last": np.full(num_workers, np.nan)}

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        self.state["last"] = np.where(np.isfinite(speed_W), speed_W, self.state["last"])

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        return self.state["last"]


class EWMA(FleetPredictor):
    """Exponentially weighted moving average of past speeds.

    Parameters
    ----------
    smoothing
        Weight of the newest speed, in (0, 1]. At 1 the forecast is the last speed seen. With ``None``, ``fit`` chooses
        the weight with the least squared error of the log speed, one iteration ahead, over all workers of the traces;
        until then it is 0.2.

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

    smoothing_: float = 0.2

    def __init__(self, smoothing: float | None = 0.2) -> None:
        super().__init__()
        self.smoothing = smoothing
        self.errors_G_ = np.zeros(len(SMOOTHING_GRID))
        if smoothing is not None:
            _require_smoothing(smoothing)
            self.smoothing_ = smoothing

    def fit_streamed(self, traces: Iterable[Trace], fit_options: FitOptions) -> Self:
        """Learn the smoothing; a warm start adds its errors to those of the earlier traces."""
        if self.smoothing is not None:
            return self
        parts = [_ewma_errors(trace.speed) for trace in fit_options.drop_held_out(traces)]
        if not sum(count for _, count in parts):
            raise ValueError(
                "traces must hold a worker with at least two speeds to learn the smoothing from, got none: use longer "
                "traces, or set smoothing="
            )
        earlier = [self.errors_G_] if fit_options.warm_start else []
        self.errors_G_ = np.sum([*earlier, *(error_G for error_G, _ in parts)], axis=0)
        self.smoothing_ = float(SMOOTHING_GRID[np.argmin(self.errors_G_)])
        return self

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        return {"level": np.full(num_workers, np.nan)}

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        self.state["level"] = smooth(self.state["level"], speed_W, self.smoothing_)

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        return self.state["level"]

    def fitted_state(self) -> dict[str, NDArray[Any]]:
        if self.smoothing is not None:
            return {}
        return {"smoothing": np.array(self.smoothing_), "errors": self.errors_G_}

    def load_fitted_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        if self.smoothing is not None:
            super().load_fitted_state(state)
        elif "smoothing" in state:
            _require_smoothing(smoothing := np.asarray(state["smoothing"]).item())
            self.smoothing_, self.errors_G_ = smoothing, load_finite(state, "errors", self.errors_G_)


class HuberEWMA(FleetPredictor):
    """EWMA of the log speed in which an iteration counts for at most two usual changes.

    A single spike hardly moves it. A lasting jump raises the usual change, and is followed within about 20 iterations.

    Parameters
    ----------
    smoothing
        Weight of the newest log speed, in (0, 1].

    Notes
    -----
    The clipped step is the derivative of the loss of P. J. Huber, "Robust estimation of a location parameter",
    Annals of Mathematical Statistics 35, 1964.

    Examples
    --------
    One iteration that took a hundred times as long hardly changes the forecast:

    >>> from paceline.predictors import HuberEWMA, Report
    >>> model = HuberEWMA(smoothing=0.5)
    >>> model.reset(["a"])
    >>> for seconds in (0.50, 0.51, 0.49, 0.50, 50.0):
    ...     model.observe(Report(samples=[64], seconds=[seconds]))
    >>> model.predict().speed.round()
    array([126.])
    """

    def __init__(self, smoothing: float = 0.3) -> None:
        _require_smoothing(smoothing)
        super().__init__()
        self.smoothing = smoothing

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        return {"level": np.full(num_workers, np.nan), "deviation": np.full(num_workers, np.nan)}

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        level_W, deviation_W, log_speed_W = self.state["level"], self.state["deviation"], np.log(speed_W)
        change_W = log_speed_W - level_W
        # two usual changes, of at least 1e-3, so that the level of a constant worker can move
        bound_W = 2.0 * np.where(np.isnan(deviation_W), np.inf, np.maximum(deviation_W, 1e-3))
        clipped_W = np.minimum(np.maximum(change_W, -bound_W), bound_W)
        aim_W = np.where(np.isnan(level_W), log_speed_W, level_W + clipped_W)
        self.state["level"] = smooth(level_W, aim_W, self.smoothing)
        # The deviation uses the whole change, unclipped, so that it soon lets a lasting jump pass.
        self.state["deviation"] = smooth(deviation_W, np.abs(change_W), 0.05)

    def forecast_log_speed(self, covariates_WD: Array, horizon: int) -> Array:
        return self.state["level"]


def smooth(level_W: Array, newest_W: Array, smoothing: float | Array) -> Array:
    """Move the level towards the newest value; the first value becomes the level, and a gap (NaN) keeps it."""
    moved_W = level_W + smoothing * (newest_W - level_W)
    unmoved_W = np.isnan(moved_W)
    if not any_true(unmoved_W):
        return moved_W
    return np.where(unmoved_W, np.where(np.isnan(newest_W), level_W, newest_W), moved_W)


def _ewma_errors(speed_TW: Array) -> tuple[Array, int]:
    """Return the summed squared log errors of each smoothing in the grid, and the number of errors in each sum."""
    error_G, count = np.zeros(len(SMOOTHING_GRID)), 0
    level_GW = np.full((len(SMOOTHING_GRID), speed_TW.shape[1]), np.nan)
    for speed_W in speed_TW:
        error_GW = np.square(np.log(speed_W / level_GW))
        compared_W = np.isfinite(error_GW[0])
        error_G += error_GW[:, compared_W].sum(axis=1)
        count += int(compared_W.sum())
        level_GW = smooth(level_GW, speed_W, SMOOTHING_GRID[:, None])
    return error_G, count


def _require_smoothing(smoothing: float) -> None:
    if not 0.0 < smoothing <= 1.0:
        raise ValueError(f"smoothing must lie in (0, 1], got {smoothing}")


class LocalLevel(FleetPredictor):
    """Level of the log speed, followed by a Kalman filter: made for workers that report rarely.

    An average weights reports alike, whether one iteration or a hundred lie between them, as for a federated client;
    this filter corrects a level that was measured long ago by more.

    Parameters
    ----------
    smoothing
        Weight of the newest report of a worker that reports in every iteration, in (0, 1]; after a gap it is larger.

    Notes
    -----
    The local-level model of A. C. Harvey, "Forecasting, Structural Time Series Models and the Kalman Filter", 1989,
    section 2.3. ``doubt`` is the level's variance over that of a report; it grows by
    ``smoothing**2 / (1 - smoothing)`` an iteration, for which the gain of gapless reports settles at ``smoothing``.

    Examples
    --------
    Two workers drop from 100 to 50 samples/s; the second one was silent for 20 iterations before it reported so:

    >>> from paceline.predictors import LocalLevel, Report
    >>> model = LocalLevel(smoothing=0.2)
    >>> model.reset(["steady", "silent"])
    >>> for k in range(60):
    ...     model.observe(Report(samples=[100, 100 if k < 40 else np.nan], seconds=[1.0, 1.0]))
    >>> model.observe(Report(samples=[100, 100], seconds=[2.0, 2.0]))
    >>> model.predict().speed.round()
    array([87., 68.])
    """

    _error_smoothing = 0.2  # workers may report rarely

    def __init__(self, smoothing: float = 0.5) -> None:
        _require_smoothing(smoothing)
        super().__init__()
        self.smoothing = smoothing

    def join(self, worker: str) -> None:
        self.join_all([worker])

    def join_all(self, workers: Sequence[str]) -> None:
        """Add many workers at the end of the fleet at once: one by one, each would copy the rows of all."""
        together = LocalLevel(self.smoothing)
        together.reset([*self.workers, *workers])
        for name, rows in self.state.items():
            together.state[name][: len(rows)] = rows
        self.workers, self.state = together.workers, together.state
        self.shared_state = self.shared_state or together.shared_state

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        return {name: np.full(num_workers, np.nan) for name in ("level", "doubt", "when")}

    def initial_shared_state(self) -> dict[str, Array]:
        return {"iteration": np.zeros(1)}

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        now = self.shared_state["iteration"] = self.shared_state["iteration"] + 1.0
        reporting = np.flatnonzero(np.isfinite(speed_W))
        level_W, doubt_W, when_W = (self.state[name].copy() for name in ("level", "doubt", "when"))
        newest_R, level_R, first_R = np.log(speed_W[reporting]), level_W[reporting], np.isnan(level_W[reporting])
        if self.smoothing == 1.0:  # only the newest report counts
            gain_R = np.ones(len(reporting))
        else:
            grown_R = doubt_W[reporting] + (now - when_W[reporting]) * self.smoothing**2 / (1.0 - self.smoothing)
            gain_R = 1.0 - 1.0 / (grown_R + 1.0)
        level_W[reporting] = np.where(first_R, newest_R, level_R + gain_R * (newest_R - level_R))
        # The variance after a report is the gain itself, in units of a report's variance; the first report, with
        # imports, compiling and warming up, has four times the variance of later ones.
        doubt_W[reporting] = np.where(first_R, 4.0, gain_R)
        when_W[reporting] = now
        self.state |= {"level": level_W, "doubt": doubt_W, "when": when_W}

    def forecast_log_speed(self, covariates_WD: Array, horizon: int) -> Array:
        return self.state["level"]
