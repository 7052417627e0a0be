"""When to exchange reports and when to plan: planning must cost clearly less than the waiting it can save."""

from __future__ import annotations

import math

from paceline._arrays import Array

GAIN = 0.3
"""About what a plan gains that changes sizes, until the first have shown it. Exchanges T seconds apart cost
``cost / T`` of the time, and let a change that comes every ``quiet`` seconds stand for T / 2: with
``T = sqrt(2 cost quiet / gain)`` both together cost the least. The next change is expected as far ahead as the last one
is behind: right after one, every iteration has an exchange."""

LATEST = 0.3
"""Weight of the newest plan in what plans gain."""

EXCHANGE_SECONDS = 0.0005
"""About what an exchange costs every rank, until the first have shown it."""

LEAST_GAIN = 0.02
"""Plans that gain less, such as excitations, count as if they gained this much."""

RAREST = 0.5
"""Most seconds between two exchanges, except that every iteration longer than this has one: what turns slow does not
stay unseen for longer."""

WORTH = 10.0
"""Plan once waiting since the last plan has cost this many times what a plan costs. It is the ski-rental rule, with
more patience because a plan does not remove all waiting: planning costs at most a tenth of the waiting it fights. The
straggler pays for its plans with the time it lacks; a rank that turns slow is still answered within an iteration or
two, as it costs the others tens of milliseconds in each."""

MOST_PATIENT = 4.0
"""Upper bound of the patience. A plan that changed nothing shows that planning does not help against this waiting, so
the patience with it doubles, and halves with a plan that did change sizes. At most planning then costs a fortieth of
the waiting, which is little enough: a higher bound let a disturbance's last tenth of waiting stand for seconds."""

NEWS = 2.0
"""Waiting counts in full, whatever the patience, from this many times the share at which plans changed nothing."""

ALERT = 0.5
"""Share of that cost from which a plan counts as near, and its other inputs (the drivers) are worth sampling."""

WARM_UP = 6
"""Number of first reports that are each followed by a plan: the first ones teach the most."""

FACTOR = 1.1
"""By which every plan or exchange moves what one costs as a rule, up or down."""

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
        self._waiting = self._lost = self._quiet_seconds = 0.0
        self._patience, self._futile = 1.0, 0.0
        self._gain = GAIN
        self.alert = True

    def wants_plan(
        self, seconds_W: Array, steps_W: Array, plan_seconds: float, exchange_seconds: float = EXCHANGE_SECONDS
    ) -> bool:
        """Return whether to plan now.

        Parameters
        ----------
        seconds_W, steps_W
            Own seconds of each worker since the last exchange, and the number of iterations, ``[W]``; NaN where not
            known.
        plan_seconds
            Seconds that a plan takes on the rank where it takes longest.
        exchange_seconds
            Seconds that an exchange takes on the rank that waits for no other in it, plans left out.
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
        passed = max(steps for _, steps in own)
        self._lost += waited * passed / patience
        if self._reports > WARM_UP:
            self._quiet_seconds += slowest * passed
            interval = math.sqrt(2 * exchange_seconds * self._quiet_seconds / self._gain)
            most = max(int(RAREST / self._step_seconds), 1)
            self.every = min(max(round(interval / self._step_seconds), 1), most)
            price = WORTH * plan_seconds
            self.alert = self._lost > ALERT * price
            if self._lost < price:
                return False
        self._lost = 0.0
        return True

    def planned(self, *, acted: bool, gain: float = 0.0) -> None:
        """Note whether the last plan changed anything, and the share of the time that it is expected to save."""
        if acted:
            self._gain += LATEST * (max(gain, LEAST_GAIN) - self._gain)
            self._patience, self._quiet_seconds = max(self._patience / 2, 1.0), 0.0
        else:
            self._patience = min(2 * self._patience, MOST_PATIENT)
            self._futile = self._waiting


def usual(before: float, newest: float) -> float:
    """Return what something costs as a rule, after a newest case: a running median.

    One that met a busy machine, or work that is done once, moves it no further than any other.

    >>> round(usual(0.001, 0.5), 4), round(usual(0.001, 0.0001), 5)
    (0.0011, 0.00091)
    """
    return before * FACTOR if newest > before else before / FACTOR
