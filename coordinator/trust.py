"""How far to trust a forecast gain: noise alone promises some, and what was promised may not come true.

Workers that differ only by noise have forecasts like those of workers that really differ. No rule on forecasts
separates the two as well as the outcome does, so both are tracked. Axis: W workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline._curves import Curves
from paceline.predictors.report import Report

STEP = 1.1
"""Factor by which a running typical size moves up or down per report. Equal factors both ways find the median, so that
a rare jump, as when a competitor comes or goes, does not count as noise."""

LEAST = 1e-6
"""Least typical size: no factor leads up from zero."""

MOST = 0.15
"""A gain from here on is always worth a change. Where forecasts swing this much, a higher bar could hold sizes at a bad
split forever."""

START = 0.01
"""Typical size before the first report, so that a first jump does not set it."""

SMOOTHING = 0.1
"""Weight of the newest iteration: about ten iterations decide, so that a single unlucky one does not."""

DOUBT, RELIEF = 1.15, 1.03
"""Factor by which doubt grows with every iteration that equal batches would have ended sooner, and factor by which it
shrinks with every other."""

FIRST_DOUBT = 0.02
"""Doubt after the first iteration that lost time: no factor leads up from zero."""

LOST = -0.01
"""Sizes that have lately lost this share of the time are replaced by equal ones."""


class Trust:
    """What a forecast gain must exceed to be believed, and whether the sizes in use have lately cost time."""

    def __init__(self) -> None:
        self._chance = Chance()
        self._payoff = Payoff()

    @property
    def least_gain(self) -> float:
        """The gain that noise alone may promise, or that has lately not come true."""
        return max(self._chance.gain(), self._payoff.doubt)

    @property
    def has_lost(self) -> bool:
        """Whether equal batches would lately have been faster."""
        return self._payoff.has_lost

    @property
    def lost(self) -> float:
        """The share of the time by which they would have been."""
        return -math.expm1(self._payoff.gain)

    def judge(self, report: Report, equal: Sizes, curves: Curves) -> None:
        """Compare what the sizes in use took with what equal ones would have taken."""
        self._payoff.learn(report, equal, curves)

    def follow(self, speed_W: Array, forecast_W: Array) -> None:
        """Take in reported speeds and the next forecast."""
        self._chance.learn(speed_W, forecast_W)

    def begin_anew(self) -> None:
        """Forget what sizes have gained that are no longer in use."""
        self._payoff.begin_anew()

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return all that was followed."""
        return {"payoff": np.array([self._payoff.gain, self._payoff.doubt]), **self._chance.state_dict()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume; a state that knows nothing of it begins anew."""
        self._payoff.gain, self._payoff.doubt = map(float, state.get("payoff", (0.0, 0.0)))
        self._chance.load_state_dict(state)


class Chance:
    """Tracks how far forecasts move from plan to plan, and how far off they are.

    Let ``s`` be how far independent reports are from a forecast that gives the newest one the weight ``a``. The
    forecast then moves by ``a s`` per report and has an error of its own of ``s sqrt(a / 2)``. So that error is
    ``sqrt(move s / 2)``, for any ``a``. Among W workers with errors of this size, the slowest seems slower than the
    mean by up to about ``sqrt(2 ln W) + 1`` of them.

    Examples
    --------
    The forecast of one of two workers moves by 4 % from plan to plan, and is about 10 % off:

    >>> chance = Chance()
    >>> for move in (1.02, 0.98) * 20:
    ...     chance.learn(np.array([100.0, 110.5]), np.array([100.0, 100.0 * move]))
    >>> round(chance.gain(), 2)
    0.04
    """

    def __init__(self) -> None:
        self._log_forecast: Array | None = None
        self._move = self._surprise = START

    def learn(self, speed_W: Array, forecast_W: Array) -> None:
        """Take reported speeds (NaN without a report) and the next forecast; a fleet of another size starts again."""
        log_forecast = np.log(forecast_W)
        before = self._log_forecast
        if before is not None and len(before) == len(log_forecast):
            self._move = _followed(self._move, _apart(log_forecast - before))
            self._surprise = _followed(self._surprise, _apart(np.log(speed_W) - before))
        self._log_forecast = log_forecast

    def gain(self) -> float:
        """Return the share of the time that a split may seem to save by chance."""
        if self._log_forecast is None:
            return 0.0
        own_error = math.sqrt(self._move * self._surprise / 2)
        return min((math.sqrt(2 * math.log(len(self._log_forecast))) + 1) * own_error, MOST)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything learnt, as arrays."""
        last = np.zeros(0) if self._log_forecast is None else self._log_forecast.copy()
        return {"log_forecast": last, "usual": np.array([self._move, self._surprise])}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume; a state saved before this class existed starts from the beginning."""
        last = np.array(state.get("log_forecast", np.zeros(0)))
        self._log_forecast = last if len(last) else None
        self._move, self._surprise = map(float, state.get("usual", (START, START)))


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
        if not np.isfinite(report.speed).all() or np.array_equal(samples, equal):
            return
        with np.errstate(all="ignore"):
            # At other sizes times follow the shape of the forecast curves.
            otherwise = seconds * curves.busy_seconds(equal) / curves.busy_seconds(samples)
            ratio = float(otherwise.max() / seconds.max())
        if not 0.0 < ratio < math.inf:  # measured times may lie beyond what float64 can divide
            return
        gain = math.log(ratio)
        self.gain += SMOOTHING * (gain - self.gain)
        self.doubt = min(max(self.doubt, FIRST_DOUBT) * DOUBT, MOST) if gain < 0 else self.doubt / RELIEF

    def begin_anew(self) -> None:
        """Forget the gain of sizes that are no longer in use; the doubt stays."""
        self.gain = 0.0


def _apart(change_W: Array) -> float:
    """Return how far workers moved apart (a common change moves no samples); NaN if none is known."""
    known = change_W[np.isfinite(change_W)]
    return float(known.std()) if len(known) else math.nan


def _followed(usual: float, newest: float) -> float:
    if math.isnan(newest):
        return usual
    return max(usual * (STEP if newest > usual else 1 / STEP), LEAST)
