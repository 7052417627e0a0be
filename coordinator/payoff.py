"""Whether balancing pays: what the sizes in use took, against what equal ones would have taken. Axis: W workers.

Forecasts of workers that differ by noise alone look like those of workers that differ. No rule for forecasts tells the
two apart as surely as the outcome does.
"""

from __future__ import annotations

import math

import numpy as np

from paceline._arrays import Sizes
from paceline.predictors import Curves, Report

SMOOTHING = 0.1
"""Weight of the newest iteration: some ten of them decide, so that one unlucky iteration does not."""

DOUBT, RELIEF, MOST = 1.15, 1.03, 0.15
"""How fast doubt grows with every iteration that equal batches would have ended sooner, and fades with every other; and
the gain beyond which no doubt counts."""

FIRST_DOUBT = 0.02
"""Doubt begins with this gain."""

LOST = -0.01
"""Sizes that have cost this share of the time lately are given up for equal ones."""


class Payoff:
    """Follows what the sizes in use have gained over equal ones, and how much to doubt forecast gains.

    Attributes
    ----------
    gain
        Logarithm of the time of equal batches over that of the batches in use, smoothed.
    doubt
        Forecast gains below this are not acted upon.

    Examples
    --------
    The second worker got less, and was not slower:

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
        """Take in a report of an iteration; incomplete ones say nothing, and nor do equal ones.

        Times at other sizes follow the shape of the forecast curves.
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
        """Forget what sizes have gained that are no longer in use; the doubt stays."""
        self.gain = 0.0
