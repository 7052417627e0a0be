"""Whether balancing pays: the time of the sizes in use against the time of equal ones. Axis: W workers.

Workers that differ only by noise have forecasts like those of workers that really differ. No rule on forecasts
separates the two as well as the outcome does.
"""

from __future__ import annotations

import math

import numpy as np

from paceline._arrays import Sizes
from paceline.predictors import Curves, Report

SMOOTHING = 0.1
"""Weight of the newest iteration: about ten iterations decide, so that a single unlucky one does not."""

DOUBT, RELIEF, MOST = 1.15, 1.03, 0.15
"""Factor by which doubt grows with every iteration that equal batches would have ended sooner, factor by which it
shrinks with every other, and its upper bound: larger gains are always trusted."""

FIRST_DOUBT = 0.02
"""Doubt after the first iteration that lost time: no factor leads up from zero."""

LOST = -0.01
"""Sizes that have lately lost this share of the time are replaced by equal ones."""


class Payoff:
    """Tracks what the sizes in use have gained over equal ones, and how far to doubt forecast gains.

    Attributes
    ----------
    gain
        Smoothed logarithm of the time of equal batches over that of the batches in use.
    doubt
        Forecast gains below this lead to no change.

    Examples
    --------
    The second worker got fewer samples although it was not slower:

    >>> payoff, curves = Payoff(), Curves.from_speed(np.array([100.0, 80.0]))
    >>> sizes, equal = np.array([66, 54]), np.array([60, 60])
    >>> for _ in range(10):
    ...     payoff.learn(Report(samples=sizes, seconds=[0.66, 0.54]), equal, curves)
    >>> payoff.has_lost, round(payoff.doubt, 2)
    (True, 0.08)
    """

    def __init__(self) -> None:
        self.gain = self.doubt = 0.0

    @property
    def has_lost(self) -> bool:
        """Whether equal batches would lately have been faster."""
        return self.gain < LOST

    def learn(self, report: Report, equal: Sizes, curves: Curves) -> None:
        """Learn from the report of an iteration; incomplete reports and equal sizes teach nothing.

        The times that equal sizes would have taken follow from the measured ones by the shape of the forecast curves.
        """
        samples, seconds = (np.asarray(each, dtype=np.float64) for each in (report.samples, report.seconds))
        if not (np.isfinite(seconds) & (seconds > 0) & (samples > 0)).all() or np.array_equal(samples, equal):
            return
        with np.errstate(all="ignore"):
            otherwise = seconds * curves.busy_seconds(equal) / curves.busy_seconds(samples)
        gain = math.log(float(otherwise.max()) / float(seconds.max()))
        if not math.isfinite(gain):
            return
        self.gain += SMOOTHING * (gain - self.gain)
        self.doubt = min(max(self.doubt, FIRST_DOUBT) * DOUBT, MOST) if gain < 0 else self.doubt / RELIEF

    def begin_anew(self) -> None:
        """Forget the gain of sizes that are no longer in use; the doubt stays."""
        self.gain = 0.0
