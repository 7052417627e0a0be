"""How large a gain chance alone would promise: forecasts move a little with the noise of reports. Axis: W workers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array

STEP = 1.1
"""How fast the usual size of something is followed. A factor, up or down, finds the median: a jump now and then, as
where competitors come and go, is no noise."""


LEAST = 1e-6
"""Nothing is followed below this: from nothing there is no way up by factors."""

MOST = 0.15
"""A gain from here on is always worth a change: where forecasts swing as much as that, sizes that do not follow may
rest at a bad split for good."""

START = 0.01
"""What is taken for usual before anything was seen: the first jump must not be."""


class Chance:
    """Follows how far forecasts move from plan to plan, and how far they are off.

    A forecast that gives the newest report the weight ``a`` moves by ``a s`` and has an error of its own of
    ``s sqrt(a / 2)``, where ``s`` is how far reports are from it, if they are independent. So that error is
    ``sqrt(move s / 2)``, whatever ``a`` is. Of W workers with errors of this size the slowest seems slower than the
    mean by up to about ``sqrt(2 ln W) + 1`` of them.

    Examples
    --------
    The forecast of one of two workers moves by 4 % from plan to plan, and is some 10 % off:

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
        """Take in reported speeds, NaN where there was no report, and the next forecast; another fleet begins anew."""
        log_forecast = np.log(forecast_W)
        before = self._log_forecast
        if before is not None and len(before) == len(log_forecast):
            self._move = _followed(self._move, _apart(log_forecast - before))
            self._surprise = _followed(self._surprise, _apart(np.log(speed_W) - before))
        self._log_forecast = log_forecast

    def gain(self) -> float:
        """Return the share of the time that a split may promise by chance."""
        if self._log_forecast is None:
            return 0.0
        own_error = math.sqrt(self._move * self._surprise / 2)
        return min((math.sqrt(2 * math.log(len(self._log_forecast))) + 1) * own_error, MOST)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return all that was learnt."""
        last = np.zeros(0) if self._log_forecast is None else self._log_forecast.copy()
        return {"log_forecast": last, "usual": np.array([self._move, self._surprise])}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume; a state that knows nothing of chance begins anew."""
        last = np.array(state.get("log_forecast", np.zeros(0)))
        self._log_forecast = last if len(last) else None
        self._move, self._surprise = map(float, state.get("usual", (START, START)))


def _apart(change_W: Array) -> float:
    """Return how far workers moved apart, as what all did together moves no samples; NaN if nobody is known."""
    known = change_W[np.isfinite(change_W)]
    return float(known.std()) if len(known) else math.nan


def _followed(usual: float, newest: float) -> float:
    if math.isnan(newest):
        return usual
    return max(usual * (STEP if newest > usual else 1 / STEP), LEAST)
