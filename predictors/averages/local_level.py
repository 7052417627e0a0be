"""LocalLevel: a log level for each worker that a report moves the more, the longer ago the last one was.

Axes: W workers, R workers that reported, D covariates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline._arrays import Array
from paceline.predictors.fleet import FleetPredictor


class LocalLevel(FleetPredictor):
    """Level of the log speed, followed by a Kalman filter: made for workers that report rarely.

    A federated client may be asked every hundredth round. An average weights its reports alike, whether one iteration
    or a hundred lie between them; this filter corrects a level that was measured long ago by more.

    Parameters
    ----------
    smoothing
        Weight of the newest report of a worker that reports in every iteration, in (0, 1]; after a gap it is larger.

    Raises
    ------
    ValueError
        If the smoothing lies outside (0, 1].

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

    def __init__(self, smoothing: float = 0.5) -> None:
        if not 0.0 < smoothing <= 1.0:
            raise ValueError(f"smoothing must lie in (0, 1], got {smoothing}")
        super().__init__()
        self.smoothing = smoothing

    def join(self, worker: str) -> None:
        self.join_all([worker])

    def join_all(self, workers: Sequence[str]) -> None:
        """Add many workers at the end of the fleet at once: one by one, each would copy the rows of all."""
        together = LocalLevel(self.smoothing)
        together.reset(workers)
        if there := set(self.workers).intersection(together.workers):
            raise ValueError(f"worker {min(there)!r} is already in the fleet")
        if self.workers:
            self.state = {name: np.append(rows, together.state[name]) for name, rows in self.state.items()}
        else:
            self.state, self.shared_state = together.state, together.shared_state
        self.workers = (*self.workers, *together.workers)

    def leave_all(self, workers: Sequence[str]) -> None:
        """Remove many workers at once; the others keep their state."""
        gone = set(workers)
        if missing := gone.difference(self.workers):
            raise ValueError(f"worker {min(missing)!r} is not in the fleet")
        stays_W = np.array([worker not in gone for worker in self.workers], dtype=np.bool_)
        self.state = {name: rows[stays_W] for name, rows in self.state.items()}
        self.workers = tuple(worker for worker in self.workers if worker not in gone)

    def initial_state(self, count: int) -> dict[str, Array]:
        return {name: np.full(count, np.nan) for name in ("level", "doubt", "when")}

    def initial_shared_state(self) -> dict[str, Array]:
        return {"iteration": np.zeros(1)}

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        now = self.shared_state["iteration"] = self.shared_state["iteration"] + 1.0
        reporting = np.flatnonzero(np.isfinite(speed_W))
        level_W, doubt_W, when_W = (self.state[name].copy() for name in ("level", "doubt", "when"))
        newest_R, level_R, first_R = np.log(speed_W[reporting]), level_W[reporting], np.isnan(level_W[reporting])
        gain_R = self._gain(doubt_W[reporting], now - when_W[reporting])
        level_W[reporting] = np.where(first_R, newest_R, level_R + gain_R * (newest_R - level_R))
        # The variance after a report is the gain itself, in units of a report's variance.
        # a worker imports, compiles and warms up in its first report: four times the variance of later ones
        doubt_W[reporting] = np.where(first_R, 4.0, gain_R)
        when_W[reporting] = now
        self.state |= {"level": level_W, "doubt": doubt_W, "when": when_W}

    def _gain(self, doubt_R: Array, gap_R: Array) -> Array:
        """Return the weight of a report after so many iterations; at a smoothing of 1 only the newest one counts."""
        if self.smoothing == 1.0:
            return np.ones(len(doubt_R))
        doubt_R = doubt_R + gap_R * self.smoothing**2 / (1.0 - self.smoothing)
        return np.asarray(1.0 - 1.0 / (doubt_R + 1.0))

    def _track_error(self, error_W: Array) -> None:
        before_W, newest_W = self.state["squared_error"], np.square(error_W)
        # workers may report rarely, so a fifth, not a twentieth as elsewhere
        moved_W = np.where(np.isnan(before_W), newest_W, before_W + 0.2 * (newest_W - before_W))
        self.state["squared_error"] = np.where(np.isnan(newest_W), before_W, moved_W)

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        return np.asarray(np.exp(self.state["level"]))
