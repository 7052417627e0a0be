"""How often to plan: planning takes some of every rank's time, which short iterations would feel."""

from __future__ import annotations

import math

PLAN_SECONDS = 0.1
"""A plan a tenth of a second is soon enough: who competes for a machine stays for longer."""

WARM_UP = 5
"""The first reports, after each of which there is a plan: what comes first is learnt soonest."""

SMOOTHING = 0.1


class Pace:
    """How many iterations pass from one plan to the next: as many as fit in a tenth of a second, or as told.

    It follows from what all ranks reported, so all plan at the same time.

    Parameters
    ----------
    every
        Iterations from one plan to the next; None chooses.

    Raises
    ------
    ValueError
        If ``every`` is less than 1.

    Examples
    --------
    >>> pace = Pace()
    >>> for _ in range(6):
    ...     pace.learn(0.03)
    >>> pace.every
    3
    """

    def __init__(self, every: int | None = None) -> None:
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1 iteration, got {every}")
        self.every = every or 1
        self._chooses = every is None
        self._reports = 0
        self._seconds = math.nan

    def learn(self, seconds: float) -> None:
        """Take in how long the slowest rank computed; NaN if nobody said."""
        if not self._chooses or not (0 < seconds < math.inf):
            return
        self._reports += 1
        first = self._reports == 1
        self._seconds = seconds if first else self._seconds + SMOOTHING * (seconds - self._seconds)
        if self._reports > WARM_UP:
            self.every = max(int(PLAN_SECONDS / self._seconds), 1)
