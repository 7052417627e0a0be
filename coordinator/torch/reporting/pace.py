"""When to exchange reports and when to plan: planning must cost clearly less than the waiting it can save."""

from __future__ import annotations

import math

from paceline._arrays import Array

EXCHANGE_SECONDS, QUIET_SECONDS = 0.05, 0.2
"""Seconds between exchanges of reports while ranks wait for each other, and while they hardly do; longer iterations
exchange once each. An exchange costs every rank about half a millisecond: one per cent of the time while there is
something to gain, a quarter of that otherwise."""

QUIET = 0.1
"""Ranks hardly wait if they spend less than this share of the time waiting: noise alone causes a few per cent."""

WORTH = 10.0
"""Plan once waiting since the last plan has cost this many times what a plan costs. It is the ski-rental rule, with
more patience because a plan does not remove all waiting: planning costs at most a tenth of the waiting it fights. The
straggler pays for its plans with the time it lacks; a rank that turns slow is still answered within an iteration or
two, as it costs the others tens of milliseconds in each."""

MOST_PATIENT = 16.0
"""Upper bound of the patience. A plan that changed nothing shows that planning does not help against this waiting, so
the patience with it doubles. Exchanges become rarer by the same factor, so that a machine's own noise does not cause
one per iteration."""

NEWS = 2.0
"""Waiting counts in full, whatever the patience, from this many times the share at which plans changed nothing."""

ALERT = 0.5
"""Share of that cost from which a plan counts as near, and its other inputs (the drivers) are worth sampling."""

WARM_UP = 6
"""Number of first reports that are each followed by a plan: the first ones teach the most."""

SMOOTHING = 0.1
"""Weight of the newest iteration in the running length of an iteration and share of waiting."""


class Pace:
    """Decides when exchanges and plans are worth their time, from all ranks' reports and so equally on all ranks.

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
    Balanced workers cause no plan, and a slow one causes a plan at once:

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
        self._patience, self._futile = 1.0, 0.0
        self.alert = True

    def wants_plan(self, seconds_W: Array, steps_W: Array, plan_seconds: float) -> bool:
        """Return whether to plan now.

        Parameters
        ----------
        seconds_W, steps_W
            Own seconds of each worker since the last exchange, and the number of iterations, ``[W]``; NaN where not
            known.
        plan_seconds
            Seconds that a plan takes on the rank where it takes longest.
        """
        if not self._chooses:
            return True
        # Plain numbers: this runs after every exchange, and a call of numpy costs more than a loop over a fleet.
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
        weight = SMOOTHING if self._step_seconds else 1.0  # the first report sets the length of an iteration
        self._step_seconds += weight * (slowest - self._step_seconds)
        waited = slowest - sum(known) / len(known)
        share = waited / slowest
        self._waiting += SMOOTHING * (share - self._waiting)
        patience = 1.0 if share > NEWS * self._futile else self._patience
        self._lost += waited * max(steps for _, steps in own) / patience
        if self._reports > WARM_UP:
            # The newest share counts at once if it is high, so that a straggler ends the quiet without delay.
            quiet = max(self._waiting, share) < QUIET
            interval = QUIET_SECONDS if quiet else min(EXCHANGE_SECONDS * patience, QUIET_SECONDS)
            self.every = max(int(interval / self._step_seconds), 1)
            price = WORTH * plan_seconds
            self.alert = self._lost > ALERT * price
            if self._lost < price:
                return False
        self._lost = 0.0
        return True

    def planned(self, *, acted: bool) -> None:
        """Note whether the last plan changed anything."""
        self._patience = 1.0 if acted else min(2 * self._patience, MOST_PATIENT)
        self._futile = 0.0 if acted else self._waiting
