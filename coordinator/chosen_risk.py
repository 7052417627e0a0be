"""How much to spare noisy workers, chosen from what each choice would have cost. Axes: W workers, R risks."""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array
from paceline.predictors.forecast import Forecast
from paceline.solver.risk import caution

RISKS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The risks to choose from; see :func:`paceline.solver.caution`."""

FADING = 0.98
"""Factor by which the cost of past iterations fades in each: about 50 count."""

LARGEST = 3.0
"""The most that one iteration counts for, in log time: a single stall says nothing about the next choice."""


class ChosenRisk:
    """Follows the risk whose sizes would have made the workers wait least, lately.

    Every iteration tells what each risk would have cost, whichever was used: sizes in proportion to speeds ``p`` take
    ``max(p / v) * sum(v) / sum(p)`` times as long as the best split for the speeds ``v`` that were measured. So nothing
    has to be tried out. This is the follow-the-leader rule over five experts, with a fading memory.

    Examples
    --------
    The second worker is often three times slower than forecast, so it is worth sparing it:

    >>> chosen = ChosenRisk()
    >>> forecast = Forecast(speed=np.array([100.0, 100.0]), spread=np.array([0.01, 0.5]))
    >>> for k in range(20):
    ...     chosen.judge(forecast, np.array([100.0, 33.0 if k % 2 else 110.0]))
    >>> chosen.risk
    1.0
    """

    def __init__(self) -> None:
        self.cost_R = np.zeros(len(RISKS))

    @property
    def risk(self) -> float:
        """The risk that would have cost least; 0 until something is known."""
        return RISKS[int(np.argmin(self.cost_R))]

    def judge(self, forecast: Forecast, speed_W: Array) -> None:
        """Learn what each risk would have cost in the iteration that this forecast was made for."""
        known_W = np.isfinite(speed_W) & np.isfinite(forecast.spread)
        if known_W.sum() < 2:
            return
        speed_W, ahead_W, spread_W = speed_W[known_W], forecast.speed[known_W], forecast.spread[known_W]
        planned_RW = np.stack([ahead_W / caution(spread_W, risk) for risk in RISKS])
        wait_R = np.log((planned_RW / speed_W).max(axis=1) * speed_W.sum() / planned_RW.sum(axis=1))
        self.cost_R = FADING * self.cost_R + np.minimum(wait_R, LARGEST)
