"""When to exchange reports and when to plan: waiting is bought off only where it costs more than planning."""

from __future__ import annotations

import math

from paceline._arrays import Array

EXCHANGE_SECONDS, QUIET_SECONDS = 0.05, 0.2
"""Reports are exchanged this often while ranks wait for each other, and this often while they hardly do; once an
iteration where iterations are longer. An exchange takes about half a millisecond of every rank: one percent of an
iteration while there is something to gain, a quarter of that otherwise."""

QUIET = 0.1
"""Ranks hardly wait where they spend less than this share of the time waiting: noise alone makes some percent."""

WORTH = 5.0
"""Plan when waiting since the last plan has cost this many times what planning costs. The rule of a ski rental, made
more patient since a plan does not take all waiting away: planning takes at most a fifth of what it fights."""

MOST_PATIENT = 4.0
"""A plan that changed nothing has shown that planning does not help against this waiting: be twice as patient before
the next, up to this factor. With 2 ms a plan, that is 40 ms of waiting: a few iterations after a change. Reports are
exchanged less often by the same factor, so that a machine's own noise does not cost an exchange an iteration."""

ALERT = 0.2
"""From this share of that on a plan is near, and what it needs besides reports is worth sampling."""

WARM_UP = 6
"""The first reports, each of which is planned with: what comes first teaches most."""

SMOOTHING = 0.1
"""Weight of the newest iteration in the usual length of one."""


class Pace:
    """Decides, from what all ranks reported and thus alike on all, what is worth its time.

    Attributes
    ----------
    every
        Iterations from one exchange to the next.
    alert
        Whether a plan is near.

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

    >>> import numpy as np
    >>> pace, one = Pace(), np.ones(2)
    >>> plans = [pace.wants_plan(np.array([0.1, 0.1001]), one, plan_seconds=0.001) for _ in range(20)]
    >>> plans.count(True), pace.wants_plan(np.array([0.1, 0.2]), one, plan_seconds=0.001)
    (6, True)
    """

    def __init__(self, every: int | None = None) -> None:
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1 iteration, got {every}")
        self.every = every or 1
        self._chooses = every is None
        self._reports = 0
        self._step_seconds = 0.0
        self._waiting = self._lost = 0.0
        self._patience = 1.0
        self.alert = True

    def wants_plan(self, seconds_W: Array, steps_W: Array, plan_seconds: float) -> bool:
        """Return whether to plan now.

        Parameters
        ----------
        seconds_W, steps_W
            Own seconds of each worker since the last exchange, and for how many iterations, ``[W]``; NaN where they
            are not known.
        plan_seconds
            What a plan costs the rank that takes longest for it.
        """
        if not self._chooses:
            return True
        # Plain numbers: this runs after every exchange, and a call of numpy costs more than a fleet of them.
        own = [
            (seconds / steps, steps)
            for seconds, steps in zip(seconds_W.tolist(), steps_W.tolist(), strict=True)
            if seconds > 0
        ]
        known = [seconds for seconds, _ in own if seconds < math.inf]
        if not known:
            return False
        self._reports += 1
        slowest = max(known)
        weight = SMOOTHING if self._step_seconds else 1.0
        self._step_seconds += weight * (slowest - self._step_seconds)
        waited = slowest - sum(known) / len(known)
        self._waiting += SMOOTHING * (waited / slowest - self._waiting)
        self._lost += waited * max(steps for _, steps in own)
        if self._reports > WARM_UP:
            quiet = max(self._waiting, waited / slowest) < QUIET
            interval = QUIET_SECONDS if quiet else EXCHANGE_SECONDS * self._patience
            self.every = max(int(interval / self._step_seconds), 1)
            price = WORTH * self._patience * plan_seconds
            self.alert = self._lost > ALERT * price
            if self._lost < price:
                return False
        self._lost = 0.0
        return True

    def planned(self, *, acted: bool) -> None:
        """Take in whether a plan changed anything."""
        self._patience = 1.0 if acted else min(2 * self._patience, MOST_PATIENT)
