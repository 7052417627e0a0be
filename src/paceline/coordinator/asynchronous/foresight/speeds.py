"""Forecast speeds of an asynchronous fleet, from any predictor. Axis: W workers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from paceline._arrays import Array, Mask
from paceline.predictors import Predictor, Report

SMOOTHING = 0.2
"""Weight of the newest overhead in a worker's average."""


class Speeds:
    """Turns pushes, which come one by one, into the iterations that predictors learn from.

    Predictors look at a fleet iteration by iteration. An iteration here is a round: as many pushes as there are
    workers. A worker that pushed several times in it reports their sum, one that did not push reports nothing.

    Parameters
    ----------
    predictor
        Any predictor, from now on this object's own; ``None`` forecasts that all are alike.

    Examples
    --------
    >>> from paceline.predictors import LastValue
    >>> speeds = Speeds(LastValue())
    >>> speeds.reset(["a", "b"])
    >>> [speeds.report(who, 32, seconds, 0.0) for who, seconds in (("a", 0.5), ("a", 0.5))]
    [False, True]
    >>> speeds.report("b", 32, 2.0, 0.1), speeds.report("a", 32, 1.0, 0.1)
    (False, True)
    >>> speeds.forecast()[0]
    array([32., 16.])
    """

    def __init__(self, predictor: Predictor | None) -> None:
        self.predictor = predictor
        self.reset(())

    def reset(self, workers: Sequence[str]) -> None:
        """Start with this fleet."""
        self._rows = {worker: row for row, worker in enumerate(workers)}
        self._overhead_W = np.zeros(len(self._rows))
        self._known_W = np.zeros(len(self._rows), dtype=bool)
        self._new_round()
        if self.predictor is not None:
            self.predictor.reset(list(workers))

    def join(self, worker: str) -> None:
        """Add a worker at the end; the round under way begins anew."""
        self._rows[worker] = len(self._rows)
        self._overhead_W = np.append(self._overhead_W, 0.0)
        self._known_W = np.append(self._known_W, False)
        self._new_round()
        if self.predictor is not None:
            self.predictor.join(worker)

    def leave(self, worker: str) -> None:
        """Remove a worker; the round under way begins anew."""
        row = self._rows.pop(worker)
        self._overhead_W, self._known_W = np.delete(self._overhead_W, row), np.delete(self._known_W, row)
        self._rows = {name: row for row, name in enumerate(self._rows)}
        self._new_round()
        if self.predictor is not None:
            self.predictor.leave(worker)

    def report(self, worker: str, samples: int, seconds: float, comm_seconds: float) -> bool:
        """Take in a push; return whether it ended a round. Times that are not known, or nonsense, are left out."""
        row = self._rows[worker]
        self._pushes += 1
        if 0 < seconds < math.inf:
            self._samples_W[row] += samples
            self._seconds_W[row] += seconds
        if 0 <= comm_seconds < math.inf:
            self._overhead_W[row] += SMOOTHING * (comm_seconds - self._overhead_W[row])
        if self._pushes < len(self._rows):
            return False
        if self.predictor is not None:
            reported_W = self._seconds_W > 0
            samples_W, seconds_W = (np.where(reported_W, sum_W, np.nan) for sum_W in (self._samples_W, self._seconds_W))
            self.predictor.observe(Report(samples=samples_W, seconds=seconds_W))
            self._known_W |= reported_W
        self._new_round()
        return True

    def forecast(self) -> tuple[Array, Array]:
        """Return the forecast of each worker's speed in samples/s, and its spread, ``[W]``."""
        if self.predictor is None:
            return np.ones(len(self._rows)), np.zeros(len(self._rows))
        forecast = self.predictor.predict()
        return forecast.speed, forecast.spread

    @property
    def known(self) -> Mask:
        """Mask of the workers whose speed the predictor has seen, ``[W]``; the forecasts of others are guesses."""
        return self._known_W if self.predictor is not None else np.ones(len(self._rows), dtype=bool)

    @property
    def overhead(self) -> Array:
        """Smoothed time of a step besides computing, ``[W]``, in seconds."""
        return self._overhead_W

    def _new_round(self) -> None:
        self._pushes = 0
        self._samples_W, self._seconds_W = np.zeros(len(self._rows)), np.zeros(len(self._rows))
