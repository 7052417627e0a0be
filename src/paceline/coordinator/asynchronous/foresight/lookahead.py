"""Looking ahead: the sizes of the steps to come, and how stale their pushes are expected to be. Axis: W workers."""

from __future__ import annotations

import math

import numpy as np

from paceline._arrays import Array, Sizes
from paceline.coordinator.asynchronous.foresight.speeds import Speeds
from paceline.coordinator.asynchronous.foresight.staleness import expected_staleness
from paceline.coordinator.asynchronous.rules.batch_rules import Outlook, Sizing
from paceline.coordinator.asynchronous.workers import Workers
from paceline.predictors import Predictor


class Lookahead:
    """Plans the steps to come whenever a round of pushes has been seen, or the fleet has changed.

    Parameters
    ----------
    fleet
        The server's workers.
    sizing
        Chooses the sizes.
    batch
        Samples of a full batch.
    predictor
        Forecasts speeds; ``None`` takes all workers for equally fast, and forecasts no staleness.
    least
        The fewest samples of a step.

    Attributes
    ----------
    sizes
        Samples of each worker's next step, ``[W]``.
    staleness
        Staleness forecast for it, ``[W]``; NaN without a predictor.
    """

    def __init__(self, fleet: Workers, sizing: Sizing, batch: int, predictor: Predictor | None, least: int = 1) -> None:
        self.fleet = fleet
        self.sizing = sizing
        self.batch = batch
        self.least = least
        self._speeds = Speeds(predictor)
        self._rows: dict[str, int] = {}
        self.sizes: Sizes = np.empty(0, np.int64)
        self.staleness: Array = np.empty(0)

    def join(self, worker: str) -> None:
        """Add a worker, which the fleet has already, at the end."""
        self._speeds.join(worker)
        self.sizes = np.append(self.sizes, self.batch)
        self._plan()

    def leave(self, worker: str) -> None:
        """Remove a worker, which the fleet has no more."""
        self._speeds.leave(worker)
        self.sizes = np.delete(self.sizes, self._rows[worker])
        self._plan()

    def report(self, worker: str, samples: int, seconds: float, comm_seconds: float) -> None:
        """Learn what a step took, in seconds."""
        if self._speeds.report(worker, samples, seconds, comm_seconds):
            self._plan()

    def size(self, worker: str) -> int:
        """Return the samples of a worker's next step."""
        return int(self.sizes[self._rows[worker]])

    def expected(self, worker: str) -> float:
        """Return the staleness forecast for a worker's next push, in versions; NaN without a predictor."""
        return float(self.staleness[self._rows[worker]])

    def _plan(self) -> None:
        self._rows = {member.name: row for row, member in enumerate(self.fleet)}
        if not self._rows:
            return
        (speed_W, spread_W), overhead_W = self._speeds.forecast(), self._speeds.overhead
        seen_W = np.array([member.staleness for member in self.fleet])
        outlook = Outlook(self.batch, self.sizes, seen_W, speed_W, self._speeds.known, overhead_W, spread_W)
        self.sizes = np.maximum(self.sizing.sizes(outlook), self.least)
        forecast_W = expected_staleness(overhead_W + self.sizes / speed_W)
        self.staleness = np.full(len(seen_W), math.nan) if self._speeds.predictor is None else forecast_W
