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

from paceline._arrays import Array
from paceline.solver.decided import FEW

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
    """What a forecast gain must exceed to be believed, and whether the sizes in use have lately cost time.

    Noise promises gains by chance. Let ``s`` be how far independent reports are from a forecast that gives the newest
    one the weight ``a``. The forecast then moves by ``a s`` per report and has an error of its own of
    ``s sqrt(a / 2)``, which is ``sqrt(move s / 2)`` for any ``a``. Among W workers with errors of this size, the
    slowest seems slower than the mean by up to about ``sqrt(2 ln W) + 1`` of them.

    Attributes
    ----------
    gain
        Smoothed logarithm of the time of equal batches over that of the batches in use.
    doubt
        Forecast gains below this lead to no change, because such gains have lately not come true.

    Examples
    --------
    The forecast of one of two workers moves by 4 % from plan to plan, and is about 10 % off:

    >>> trust = Trust()
    >>> for move in (1.02, 0.98) * 20:
    ...     trust.follow(np.array([100.0, 110.5]), np.array([100.0, 100.0 * move]))
    >>> round(trust.least_gain, 2)
    0.04

    Sizes took 0.66 s where equal ones would have taken 0.6 s:

    >>> for _ in range(10):
    ...     trust.judge(taken=0.66, equal=0.6)
    >>> trust.has_lost, round(trust.lost, 2), round(trust.doubt, 2)
    (True, 0.06, 0.08)
    """

    def __init__(self) -> None:
        self.gain = self.doubt = 0.0
        self._forecast_W: Array | None = None
        self._move = self._surprise = START

    @property
    def least_gain(self) -> float:
        """The gain that noise alone may promise, or that has lately not come true."""
        if self._forecast_W is None:
            return self.doubt
        own_error = math.sqrt(self._move * self._surprise / 2)
        return max(min((math.sqrt(2 * math.log(len(self._forecast_W))) + 1) * own_error, MOST), self.doubt)

    @property
    def has_lost(self) -> bool:
        """Whether equal batches would lately have been faster."""
        return self.gain < LOST

    @property
    def lost(self) -> float:
        """The share of the time by which they would have been."""
        return -math.expm1(self.gain)

    def judge(self, taken: float, equal: float) -> None:
        """Learn how long an iteration took, and how long equal batches would have taken, in seconds."""
        ratio = equal / taken
        if not 0.0 < ratio < math.inf:  # measured times may lie beyond what float64 can divide
            return
        gain = math.log(ratio)
        self.gain += SMOOTHING * (gain - self.gain)
        self.doubt = min(max(self.doubt, FIRST_DOUBT) * DOUBT, MOST) if gain < 0 else self.doubt / RELIEF

    def follow(self, speed_W: Array, forecast_W: Array) -> None:
        """Take reported speeds (NaN without a report) and the next forecast; a fleet of another size starts again."""
        before_W, self._forecast_W = self._forecast_W, forecast_W
        if before_W is not None and len(before_W) == len(forecast_W):
            self._move = _followed(self._move, forecast_W, before_W)
            self._surprise = _followed(self._surprise, speed_W, before_W)

    def begin_anew(self) -> None:
        """Forget what sizes have gained that are no longer in use; the doubt stays."""
        self.gain = 0.0

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return all that was followed."""
        last = np.zeros(0) if self._forecast_W is None else self._forecast_W.copy()
        usual = np.array([self._move, self._surprise])
        return {"payoff": np.array([self.gain, self.doubt]), "forecast": last, "usual": usual}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume; a state that knows nothing of it begins anew."""
        self.gain, self.doubt = map(float, state.get("payoff", (0.0, 0.0)))
        self._move, self._surprise = map(float, state.get("usual", (START, START)))
        last = np.array(state.get("forecast", np.zeros(0)))
        self._forecast_W = last if len(last) else None


def _followed(usual: float, now_W: Array, before_W: Array) -> float:
    """Return the usual move, a step nearer to how far workers' logarithms have moved apart: the standard deviation.

    A common change moves no samples. Where nothing is known of any worker, it stays.
    """
    newest = _apart_few(now_W.tolist(), before_W.tolist()) if len(now_W) <= FEW else _apart(now_W, before_W)
    return usual if math.isnan(newest) else max(usual * (STEP if newest > usual else 1 / STEP), LEAST)


def _apart_few(now_W: list[float], before_W: list[float]) -> float:
    """Return the standard deviation of the changes of logarithms; NaN where nothing is known of any worker."""
    changes = []
    for now, before in zip(now_W, before_W, strict=True):
        ratio = now / before
        if 0.0 < ratio < math.inf:
            changes.append(math.log(ratio))
    if not changes:
        return math.nan
    mean, squares = sum(changes) / len(changes), 0.0
    for change in changes:
        squares += (change - mean) ** 2
    return math.sqrt(squares / len(changes))


def _apart(now_W: Array, before_W: Array) -> float:
    """Return the same for many workers."""
    with np.errstate(all="ignore"):
        change_W = np.log(now_W / before_W)
    known_W = change_W[np.isfinite(change_W)]
    return float(known_W.std()) if len(known_W) else math.nan
