"""Staleness: forecast from speeds before a push, measured after it; and stragglers by either.

What limits it is in ``rules.py``; a push beyond a scheme's bound is dropped in ``server.py``. Axis: W workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array
from paceline.coordinator.asynchronous.schemes import Sizing, SizingInputs
from paceline.coordinator.asynchronous.workers import Workers
from paceline.predictors import Predictor, Report


def expected_staleness(seconds: Array) -> Array:
    """Return how many pushes of others come while each worker is at a step, ``[W]``.

    E[tau_i] = sum over j != i of t_i / t_j, with t the time from pull to push: in the time t_i worker j pushes
    t_i / t_j times in the mean, if it does not wait for others (renewal argument).

    >>> expected_staleness(np.array([1.0, 1.0, 4.0]))
    array([1.25, 1.25, 8.  ])
    """
    expected_W: Array = seconds * (1.0 / seconds).sum() - 1.0
    return np.maximum(expected_W, 0.0)


def straggler_threshold(staleness: Array) -> float:
    """Return the staleness above which a worker is a straggler: from the fleet's median and spread.

    The spread is that of the fresher half of the fleet, so that it tells the usual noise even where every second
    worker is a straggler. Workers of unknown staleness, NaN, are left out; the bound is infinite below two workers.

    >>> straggler_threshold(np.array([3.0, 3.1, 2.9, 12.0])).__round__(2)
    4.57
    >>> straggler_threshold(np.array([0.2, np.nan]))
    inf
    """
    known = staleness[np.isfinite(staleness)]
    if len(known) < 2:
        return math.inf
    median = float(np.median(known))
    fresher = known[known <= median]
    # A normal distribution's standard deviation, over its median absolute deviation.
    spread = 1.4826 * float(np.median(np.abs(fresher - np.median(fresher))))
    # Three spreads are the usual limit for outliers. Half of the median is ours: it keeps a fleet whose staleness
    # hardly spreads from calling its last member a straggler.
    return median + max(3.0 * spread, 0.5 * median, 1.0)


@dataclass(frozen=True, kw_only=True)
class StalenessReport:
    """Staleness of one worker, in versions: smoothed and forecast, and above which limits it is a straggler.

    Examples
    --------
    >>> seen = {"staleness": 9.0, "expected_staleness": 20.1, "threshold": 4.6, "expected_threshold": 4.9}
    >>> print(StalenessReport(worker="g3", size=4, batch=32, **seen).why)
    g3 is a straggler: its pushes have been 9 versions stale, where 4.6 are the limit of the usual; its next push is
    expected to be 20 versions stale; it takes 4 of 32 samples
    """

    worker: str
    size: int
    """Samples of its next step."""
    batch: int
    staleness: float
    """NaN where it is not known, like the next."""
    expected_staleness: float
    threshold: float
    expected_threshold: float

    @property
    def is_straggler(self) -> bool:
        """True if the worker is a straggler by its measured staleness or by its forecast staleness."""
        return self.staleness > self.threshold or self.expected_staleness > self.expected_threshold

    @property
    def why(self) -> str:
        """How stale the worker is, and how many samples it takes, in a sentence."""
        kind = f"{self.worker} is {'a straggler' if self.is_straggler else 'no straggler'}"
        parts = []
        if math.isfinite(self.staleness):
            limit = f", where {self.threshold:.2g} are the limit of the usual" if math.isfinite(self.threshold) else ""
            parts.append(f"its pushes have been {self.staleness:.2g} versions stale{limit}")
        if math.isfinite(self.expected_staleness):
            parts.append(f"its next push is expected to be {self.expected_staleness:.2g} versions stale")
        parts.append(f"it takes {self.size} of {self.batch} samples")
        return f"{kind}: {'; '.join(parts)}"


class SizePlanner:
    """Plans the steps to come whenever a round of pushes has been seen, or the fleet has changed.

    Predictors look at a fleet iteration by iteration. An iteration here is a round: as many pushes as there are
    workers. A worker that pushed several times in it reports their sum, one that did not push reports nothing.
    """

    def __init__(self, fleet: Workers, sizing: Sizing, batch: int, predictor: Predictor | None, min_batch: int) -> None:
        self.fleet, self.sizing, self.batch, self.min_batch = fleet, sizing, batch, min_batch
        self.predictor = predictor
        if predictor is not None:
            predictor.reset([])
        self.staleness: Array = np.empty(0)
        """The staleness forecast for each worker's next push, ``[W]``; NaN without a predictor."""
        self._pushes = 0

    def join(self, worker: str) -> None:
        """Take in a worker, the last of the fleet; the round under way starts again."""
        self.fleet.members[worker].size = self.batch
        if self.predictor is not None:
            self.predictor.join(worker)
        self._start_round()

    def leave(self, worker: str) -> None:
        """Forget a worker, which the fleet has no more; the round under way starts again."""
        if self.predictor is not None:
            self.predictor.leave(worker)
        self._start_round()

    def report(self, worker: str, samples: int, seconds: float, comm_seconds: float) -> None:
        """Learn what a step took, in seconds. Times that are not known, or invalid, are left out."""
        member = self.fleet.members[worker]
        self._pushes += 1
        if 0 < seconds < math.inf:
            member.round_samples += samples
            member.round_seconds += seconds
        if 0 <= comm_seconds < math.inf:
            # Weight of the newest overhead in a worker's average.
            member.overhead_seconds += 0.2 * (comm_seconds - member.overhead_seconds)
        if self._pushes < len(self.fleet):
            return
        if self.predictor is not None:
            seconds_W = np.array([member.round_seconds for member in self.fleet])
            samples_W = np.array([member.round_samples for member in self.fleet], dtype=np.float64)
            samples_W[seconds_W == 0] = seconds_W[seconds_W == 0] = np.nan
            self.predictor.observe(Report(samples=samples_W, seconds=seconds_W))
            for member in self.fleet:
                member.has_reports |= member.round_seconds > 0
        self._start_round()

    def _start_round(self) -> None:
        """Plan the sizes of the round to come."""
        self._pushes = 0
        for member in self.fleet:
            member.round_samples, member.round_seconds = 0, 0.0
        workers = len(self.fleet)
        if not workers:
            return
        if self.predictor is None:
            speed_W, spread_W, known_W = np.ones(workers), np.zeros(workers), np.ones(workers, dtype=bool)
        else:
            forecast = self.predictor.predict()
            speed_W, spread_W = forecast.speed, forecast.spread
            known_W = np.array([member.has_reports for member in self.fleet])  # the forecasts of others are guesses
        overhead_W = np.array([member.overhead_seconds for member in self.fleet])
        inputs = SizingInputs(
            self.batch, self.fleet.sizes, self.fleet.staleness, speed_W, known_W, overhead_W, spread_W
        )
        sizes_W = np.maximum(self.sizing(inputs), self.min_batch)
        for member, size in zip(self.fleet, sizes_W.tolist(), strict=True):
            member.size = size
        forecast_W = expected_staleness(overhead_W + sizes_W / speed_W)
        self.staleness = np.full(workers, math.nan) if self.predictor is None else forecast_W
