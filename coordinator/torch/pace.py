"""When to exchange reports and when to plan: waiting is bought off only where it costs more than planning."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

EXCHANGE_SECONDS = 0.05
"""Reports are exchanged this often, or once an iteration where iterations are longer: an exchange takes some 0.1 ms of
every rank, so that it stays well below one percent."""

WORTH = 10.0
"""Plan when waiting since the last plan has cost this many times what planning costs. The rule of a ski rental, made
ten times more patient since a plan does not take all waiting away: planning takes at most a tenth of what it fights."""

WARM_UP = 6
"""The first reports, each of which is planned with: what comes first teaches most."""

SMOOTHING = 0.1
"""Weight of the newest iteration in the usual length of one."""


class Pace:
    """Decides, from what all ranks reported and thus alike on all, what is worth its time.

    Parameters
    ----------
    every
        Iterations from one exchange to the next, with a plan at each; None chooses both.

    Raises
    ------
    ValueError
        If ``every`` is less than 1.

    Examples
    --------
    Balanced workers are left alone, and a slow one is answered at once:

    >>> pace = Pace()
    >>> plans = [pace.wants_plan(np.array([0.1, 0.1001]), steps=1, plan_seconds=0.001) for _ in range(20)]
    >>> plans.count(True), pace.wants_plan(np.array([0.1, 0.2]), steps=1, plan_seconds=0.001)
    (6, True)
    """

    def __init__(self, every: int | None = None) -> None:
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1 iteration, got {every}")
        self.every = every or 1
        self._chooses = every is None
        self._reports = 0
        self._step_seconds = 0.0
        self._lost = 0.0

    def wants_plan(self, seconds_W: Array, *, steps: float, plan_seconds: float) -> bool:
        """Return whether to plan now.

        Parameters
        ----------
        seconds_W
            Own seconds of an iteration of each worker since the last exchange, ``[W]``; NaN where not known.
        steps
            Iterations since then.
        plan_seconds
            What a plan costs the rank that takes longest for it.
        """
        if not self._chooses:
            return True
        known = seconds_W[np.isfinite(seconds_W) & (seconds_W > 0)]
        if not len(known):
            return False
        self._reports += 1
        slowest = float(known.max())
        weight = SMOOTHING if self._step_seconds else 1.0
        self._step_seconds += weight * (slowest - self._step_seconds)
        self._lost += (slowest - float(known.mean())) * steps
        if self._reports > WARM_UP:
            self.every = max(int(EXCHANGE_SECONDS / self._step_seconds), 1)
            if self._lost < WORTH * plan_seconds:
                return False
        self._lost = 0.0
        return True
