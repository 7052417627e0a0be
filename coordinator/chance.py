"""How large a gain noise alone can promise: forecasts move a little with the noise of reports. Axis: W workers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array

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


def _apart(change_W: Array) -> float:
    """Return how far workers moved apart (a common change moves no samples); NaN if none is known."""
    known = change_W[np.isfinite(change_W)]
    return float(known.std()) if len(known) else math.nan


def _followed(usual: float, newest: float) -> float:
    if math.isnan(newest):
        return usual
    return max(usual * (STEP if newest > usual else 1 / STEP), LEAST)
