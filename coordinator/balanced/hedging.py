"""Choice of how far to follow forecasts, by the cost that each choice would have had. Axes: W workers, C choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, inf, log
from operator import sub
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, all_finite
from paceline.predictors.forecast import Forecast
from paceline.solver.risk import log_caution, log_cautions

CHOICES_C2 = np.array([[1.0, 0.0], [1.0, -0.5], [1.0, -1.0], [0.5, 0.0], [0.5, -0.25], [0.5, -0.5], [0.0, 0.0]])
"""Choices: the factor of the differences between log speeds, and that of :func:`paceline.solver.risk.log_caution`.

A choice trusts all, half or none of the differences (none is equal batches), and spares noisy workers not at all,
by half or fully."""

CHOICES: list[list[float]] = CHOICES_C2.tolist()

FADING = 0.98
"""Factor by which the cost of past iterations fades in each: about 50 count."""

LARGEST = 3.0
"""The most that one iteration counts for, in log time: a single stall says nothing about the next choice."""

FIRST_C = (1e-9 * np.arange(len(CHOICES_C2))).tolist()
"""Of choices that cost the same, the first is taken: the forecast itself before any other."""

FEW = 16
"""Fleets of at most this many workers are judged in plain floats: see :mod:`paceline.solver.decided`."""

Planned = Sequence[Sequence[float]] | Array
"""The log speeds that each choice plans with, ``[C, W]``, up to a constant."""


class Hedging:
    """Follows the choice whose sizes would have made the workers wait least, lately.

    A choice spares noisy workers by some caution, and shrinks what remains of the differences between workers: not at
    all, by half, or to equal batches. Every iteration tells what each would have cost, whichever was used: sizes in
    proportion to speeds ``p`` take ``max(p / v) * sum(v) / sum(p)`` times as long as the best split for the speeds
    ``v`` that were measured. So nothing has to be tried out, and forecasts that are only noise end in equal batches.
    This is the follow-the-leader rule over a few experts, with a fading memory.

    Parameters
    ----------
    horizon
        How many iterations ahead the forecasts are.

    Attributes
    ----------
    choice
        The choice that would have cost least; 0, the forecast itself, until something is known.

    Examples
    --------
    The second worker is often three times slower than forecast, so it is worth sparing it:

    >>> hedging = Hedging()
    >>> forecast = Forecast(speed=np.array([100.0, 100.0]), spread=np.array([0.01, 0.5]))
    >>> for k in range(20):
    ...     hedging.follow(np.array([100.0, 33.0 if k % 2 else 110.0]), forecast)
    >>> hedging.stretch(forecast).round(2)
    array([0.88, 1.16])
    """

    def __init__(self, horizon: int = 1) -> None:
        self.horizon = horizon
        self.choice = 0
        self._cost_C = [0.0] * len(CHOICES_C2)
        self._planned: list[Planned] = []

    def follow(self, speed_W: Array, forecast: Forecast) -> None:
        """Learn what each choice would have cost at the reported speeds (NaN without one); take the next forecast."""
        if len(self._planned) == self.horizon:
            planned_CW = self._planned.pop(0)
            if not all_finite(speed_W):
                known_W = np.isfinite(speed_W)
                speed_W, planned_CW = speed_W[known_W], np.array(planned_CW)[:, known_W].tolist()
            if len(speed_W) > 1:
                self._judge(planned_CW, speed_W)
        self._planned.append(_few_planned(forecast) if len(forecast.speed) <= FEW else _planned(forecast))

    def stretch(self, forecast: Forecast) -> Array:
        """Return how many times as long as forecast each worker is planned to take, ``[W]``.

        All together are planned to be as fast as forecast. It is the latest forecast that was followed.
        """
        planned_CW = self._planned[-1] if self._planned else _planned(forecast)
        planned_W = np.exp(planned_CW[self.choice])
        return np.asarray(forecast.speed / planned_W * (np.add.reduce(planned_W) / np.add.reduce(forecast.speed)))

    def start(self) -> None:
        """Drop the plans not yet judged, because the fleet has changed; the learnt costs stay."""
        self._planned = []

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return all that was followed."""
        return {"cost": np.array(self._cost_C), "choice": np.array(self.choice), "planned": np.array(self._planned)}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume; a state saved without hedging starts it afresh."""
        self._cost_C = np.array(state.get("cost", np.zeros(len(CHOICES_C2)))).tolist()
        self.choice = int(state.get("choice", 0))
        self._planned = np.array(state.get("planned", ())).tolist()

    def _judge(self, planned_CW: Planned, speed_W: Array) -> None:
        wait_C = _few_waits(planned_CW, speed_W) if len(speed_W) <= FEW else _waits(np.array(planned_CW), speed_W)
        least = inf
        for place, (wait, first) in enumerate(zip(wait_C, FIRST_C, strict=True)):
            self._cost_C[place] = cost = FADING * self._cost_C[place] + min(wait, LARGEST)
            if cost + first < least:
                least, self.choice = cost + first, place


def _waits(planned_CW: Array, speed_W: Array) -> list[float]:
    """Return the log of how many times as long as the best split each choice would have taken, ``[C]``."""
    late_C = np.maximum.reduce(planned_CW - np.log(speed_W), axis=1)
    wait_C = late_C + np.log(np.add.reduce(speed_W) / np.add.reduce(np.exp(planned_CW), axis=1))
    waits: list[float] = wait_C.tolist()
    return waits


def _few_waits(planned_CW: Planned, speed_W: Array) -> list[float]:
    speeds = speed_W.tolist()
    log_speeds, together = list(map(log, speeds)), sum(speeds)
    return [max(map(sub, row, log_speeds)) + log(together / sum(map(exp, row))) for row in planned_CW]


def _planned(forecast: Forecast) -> Array:
    """Return the log speeds that each choice plans with, ``[C, W]``, up to a constant."""
    return np.asarray(CHOICES_C2 @ np.array([np.log(forecast.speed), log_caution(forecast.spread)]))


def _few_planned(forecast: Forecast) -> list[list[float]]:
    cautions, planned = log_cautions(forecast.spread.tolist()), []
    log_speeds = list(map(log, forecast.speed.tolist()))
    for accepted, added in CHOICES:
        row = []
        for speed, caution in zip(log_speeds, cautions, strict=True):
            row.append(accepted * speed + added * caution)
        planned.append(row)
    return planned
