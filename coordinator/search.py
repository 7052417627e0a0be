"""A model-free search for sizes: move some samples from the straggler to the leader, and measure again.

Axis: W workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline._arrays import Array, Sizes
from paceline._curves import Curves
from paceline.coordinator import why
from paceline.coordinator.limits import Limits, require_fleet
from paceline.coordinator.plan import Plan
from paceline.coordinator.policy import Policy, gain_of
from paceline.predictors.forecast import Forecast
from paceline.predictors.report import Report
from paceline.solver.split import evaluate

NOBODY = -1

LONGEST = 1e12
"""Times above this many seconds cannot be real and are cut to it."""


class LeaderSearch:
    """The model-free search of LB-BSP for accelerators: a substitute for the load balancer where no curve fits.

    It measures each worker's mean time over a window of iterations. Then the straggler hands a step of samples to the
    leader, the fastest worker that has room. If the worker that took then becomes the straggler, or the one that gave
    becomes the leader, sizes oscillate: the step is halved and the window doubled. If a worker gives, or takes, twice
    in a row, step and window return towards their first values.

    Parameters
    ----------
    workers
        Names or ranks of the workers, in the order of every array.
    global_batch
        Samples of all workers together in one iteration.
    policy
        Only its ``quantum``, ``lower`` and ``upper`` are used.
    step
        First step, as a share of the equal batch.
    window
        First number of iterations over which times are averaged.
    tolerance
        Sizes are kept while the leader's mean time is within this share of the straggler's.

    Attributes
    ----------
    plan
        The latest plan; equal batches before the first report. Its forecast is the last measured speed.

    Raises
    ------
    ValueError
        If an argument is out of range, or no split of the global batch satisfies the policy's bounds.

    Notes
    -----
    Chen et al., SoCC 2020, describe the moves, the shrinking step and the widening window. The numbers, the tolerance
    and the regrowth are this library's own.

    Examples
    --------
    >>> from paceline.predictors import Report
    >>> search = LeaderSearch(workers=["gpu0", "gpu1"], global_batch=128, window=1)
    >>> plan = search.step(Report(samples=[64, 64], seconds=[0.5, 0.9]))
    >>> plan.sizes
    array([72, 56])
    >>> print(plan.why)
    Moved 8 samples from gpu1 (44 % slower than gpu0) to gpu0: they took 900 ms and 500 ms over 1 iteration.
    """

    workers: tuple[str, ...]
    _limits: Limits

    def __init__(
        self,
        *,
        workers: Sequence[object],
        global_batch: int,
        policy: Policy | None = None,
        step: float = 0.125,
        window: int = 5,
        tolerance: float = 0.05,
    ) -> None:
        if not (0 < step < 1 and 0 <= tolerance < 1 and window >= 1):
            raise ValueError(
                "step must lie in (0, 1), tolerance in [0, 1) and window be at least 1 iteration, "
                f"got step={step}, tolerance={tolerance}, window={window}"
            )
        self.global_batch = global_batch
        self.policy = policy or Policy()
        self.first_step = step
        self.first_window = window
        self.tolerance = tolerance
        self._iterations = 0
        self._start([str(worker) for worker in workers])
        self.plan = self._planned(self._sizes, "Equal batches: no iteration has been reported yet")

    def step(self, report: Report, drivers_now: ArrayLike | None = None) -> Plan:
        """Measure the iteration just finished, and plan the next; drivers are not used.

        Raises
        ------
        ValueError
            If the report does not have the size of this fleet.
        """
        require_fleet(report, len(self.workers))
        self._iterations += 1
        self._limits = self._limits.after(report, self._sizes)
        self._measure(report)
        low, high, _ = self._limits.bounds()
        if (self._sizes > high).any():
            reason = why.broken_bounds(self.workers, self._sizes, high)
            sizes = self._limits.split(Curves.from_speed(self._speed()), low, high).sizes
            self.plan = self._planned(sizes, f"{self._moved(sizes)}: {reason}")
            self._begin_window()
        elif self._seen < self._window:
            window = why.count(self._window, "iteration")
            self.plan = self._planned(self._sizes, f"Kept the sizes: {self._seen} of {window} of the window measured")
        else:
            self.plan = self._planned(*self._moved_on(low, high))
        return self.plan

    def begin(self, sizes: Sizes) -> None:
        """Start a search from these sizes, ``[W]``, which sum to the global batch, with the first window and step."""
        self._sizes = np.array(sizes)
        self._step, self._window = self._initial_step(), self.first_window
        self._gave = self._took = NOBODY
        self._begin_window()

    def join(self, worker: object) -> Plan:
        """Add a worker at the end of the fleet, and restart the search from sizes that suit the measured speeds."""
        name = str(worker)
        if name in self.workers:
            raise ValueError(f"worker {name!r} is already in the fleet")
        speed_W = self._speed()
        self._start([*self.workers, name], np.append(self._limits.memory, np.inf))
        return self._resplit(np.append(speed_W, np.median(speed_W)), f"{name} joined")

    def leave(self, worker: object) -> Plan:
        """Remove a worker, and restart the search from sizes that suit the measured speeds."""
        name = str(worker)
        stays = np.array([other != name for other in self.workers])
        if stays.all() or not stays.any():
            raise ValueError(f"worker {name!r} cannot leave the fleet {list(self.workers)}")
        speed_W = self._speed()[stays]
        self._start([other for other in self.workers if other != name], self._limits.memory[stays])
        return self._resplit(speed_W, f"{name} left")

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything measured and decided; a search that loads it resumes exactly."""
        numbers = [self.global_batch, self._iterations, self._step, self._window, self._seen, self._gave, self._took]
        return {
            "workers": np.array(self.workers, dtype=np.str_),
            "numbers": np.array(numbers),
            "sizes": self._sizes.copy(),
            "totals": self._totals.copy(),
            "speed": self._last_speed.copy(),
            "memory_limits": self._limits.memory.copy(),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned; the fleet becomes the saved one."""
        global_batch, *numbers = (int(number) for number in state["numbers"])
        if global_batch != self.global_batch:
            raise ValueError(
                f"the state was saved with a global batch of {global_batch}, but this search has {self.global_batch}: "
                f"make it with global_batch={global_batch}"
            )
        self._start([str(worker) for worker in state["workers"]], np.array(state["memory_limits"]))
        self._iterations, self._step, self._window, self._seen, self._gave, self._took = numbers
        self._sizes, self._totals = np.array(state["sizes"]), np.array(state["totals"])
        self._last_speed = np.array(state["speed"])
        self.plan = self._planned(self._sizes, "Resumed with the saved sizes")

    # -- the search ----------------------------------------------------------------------------------------------

    def _moved_on(self, low: Array, high: Array) -> tuple[Sizes, str]:
        """Return the next sizes and the reason, and begin a new window."""
        seconds_W, over = self._mean_seconds(), why.count(self._seen, "iteration")
        self._begin_window()
        if np.isnan(seconds_W).all():
            return self._sizes, f"Kept the sizes: no worker reported a usable time over {over}"
        straggler = int(np.nanargmax(seconds_W))
        has_room = ~np.isnan(seconds_W) & (self._sizes + self.policy.quantum <= high)
        has_room[straggler] = False
        if not has_room.any() or self._sizes[straggler] - self.policy.quantum < low[straggler]:
            name = self.workers[straggler]
            return self._sizes, f"Kept the sizes: {name} is the straggler, but there is no room to move its samples"
        leader = int(np.argmin(np.where(has_room, seconds_W, np.inf)))
        gap = 1 - seconds_W[leader] / seconds_W[straggler]
        if gap < self.tolerance:
            return self._sizes, (
                f"Kept the sizes: the leader {self.workers[leader]} is {why.percent(gap)} ahead of the straggler "
                f"{self.workers[straggler]}, less than the tolerance of {why.percent(self.tolerance)}"
            )
        remark = self._adapted(straggler, leader)
        amount = min(self._step, high[leader] - self._sizes[leader], self._sizes[straggler] - low[straggler])
        sizes = self._sizes.copy()
        sizes[straggler] -= int(amount)
        sizes[leader] += int(amount)
        took = f"they took {why.duration(seconds_W[straggler])} and {why.duration(seconds_W[leader])} over {over}"
        return sizes, f"{self._moved(sizes)}: {took}{remark}"

    def _adapted(self, straggler: int, leader: int) -> str:
        """Shrink the step and widen the window if sizes oscillate; do the reverse if they keep moving one way."""
        remark = ""
        if straggler == self._took or leader == self._gave:
            self._step, self._window = self._whole(self._step / 2), min(2 * self._window, 16 * self.first_window)
            remark = (
                f"; sizes oscillate, so the step is now {why.count(self._step, 'sample')} "
                f"and the window {why.count(self._window, 'iteration')}"
            )
        elif straggler == self._gave or leader == self._took:
            self._step = min(2 * self._step, self._initial_step())
            self._window = max(self._window // 2, self.first_window)
        self._gave, self._took = straggler, leader
        return remark

    def _initial_step(self) -> int:
        return self._whole(self.first_step * self.global_batch / len(self.workers))

    def _whole(self, samples: float) -> int:
        quantum = self.policy.quantum
        return max(int(samples // quantum) * quantum, quantum)

    # -- what it measures ----------------------------------------------------------------------------------------

    def _measure(self, report: Report) -> None:
        usable = np.isfinite(report.speed)
        self._last_speed = np.where(usable, report.speed, self._last_speed)
        seconds = np.minimum(np.asarray(report.seconds, dtype=np.float64), LONGEST)
        self._totals = self._totals + np.where(usable, np.stack([seconds, usable]), 0.0)
        self._seen += 1

    def _mean_seconds(self) -> Array:
        """Return each worker's mean time over the window, ``[W]``, in seconds; NaN if it never reported."""
        seconds, reports = self._totals
        return np.where(reports > 0, seconds / np.maximum(reports, 1), np.nan)

    def _speed(self) -> Array:
        """Return the last speed of each worker, ``[W]``, in samples/s; the median for one that never reported."""
        known = np.isfinite(self._last_speed)
        median = np.median(self._last_speed[known]) if known.any() else 1.0
        return np.where(known, self._last_speed, median)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _start(self, workers: Sequence[str], memory: Array | None = None) -> None:
        self._limits = Limits.of(self.policy, workers, self.global_batch, memory)
        self.workers = tuple(workers)
        self._sizes = self._limits.equal()
        self._last_speed = np.full(len(workers), np.nan)
        self._step, self._window = self._initial_step(), self.first_window
        self._gave = self._took = NOBODY
        self._begin_window()

    def _begin_window(self) -> None:
        self._totals = np.zeros((2, len(self.workers)))
        self._seen = 0

    def _resplit(self, speed_W: Array, event: str) -> Plan:
        low, high, _ = self._limits.bounds()
        sizes = self._limits.split(Curves.from_speed(speed_W), low, high).sizes
        self._last_speed = speed_W
        samples, fleet = why.count(self.global_batch, "sample"), why.count(len(self.workers), "worker")
        self.plan = self._planned(sizes, f"{event}: {samples} split again over {fleet}")
        return self.plan

    def _moved(self, sizes: Sizes) -> str:
        return why.moved(self.workers, self._sizes, sizes, self._speed())

    def _planned(self, sizes: Sizes, reason: str) -> Plan:
        forecast = Forecast(self._speed(), spread=np.full(len(sizes), np.inf))
        made, kept = evaluate(forecast.curves, sizes), evaluate(forecast.curves, self._sizes)
        gain = gain_of(kept.makespan, made.makespan)
        acted = hasattr(self, "plan") and not np.array_equal(sizes, self.plan.sizes)
        self._sizes = sizes
        return Plan(self.workers, made, forecast, gain, acted, f"{reason}.", self._iterations)
