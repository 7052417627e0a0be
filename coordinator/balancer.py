"""The load balancer: reports in, plans out. No threads, files, clock or random state. Axes: W workers, D drivers.

Every rank that gets the same reports makes the same plan, bit for bit, so no coordinator process is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline._arrays import Array, Sizes
from paceline.coordinator import why
from paceline.coordinator.chosen_risk import ChosenRisk
from paceline.coordinator.decision import Situation, decide
from paceline.coordinator.drift import Drift
from paceline.coordinator.limits import Limits, require_drivers, require_fleet
from paceline.coordinator.plan import Plan
from paceline.coordinator.policy import Policy, excited, gain_of
from paceline.coordinator.trust import Trust
from paceline.predictors.forecast import Forecast
from paceline.predictors.protocol import Predictor, WantsExcitation
from paceline.predictors.report import Report
from paceline.solver.split import Split, evaluate

NEVER = -(2**40)
"""The iteration of the last change, for a worker whose size never changed: long before any cool-down."""


class LoadBalancer:
    """Chooses the next batch sizes from what the workers report: load-balanced bulk-synchronous parallel (LB-BSP).

    Parameters
    ----------
    predictor
        Any predictor, fitted if it needs fitting. The balancer resets it with this fleet and owns it from then on.
    workers
        Names or ranks of the workers, in the order of every array.
    global_batch
        Samples of all workers together in one iteration; a multiple of the policy's quantum.
    policy
        When to change sizes, and by how much at once.
    horizon
        How many iterations after the report a plan is used: 1 for the next barrier, 2 if reports are gathered while
        the next iteration already runs.

    Attributes
    ----------
    plan
        The latest plan; equal batches before the first report.

    Raises
    ------
    ValueError
        If no split of the global batch satisfies the policy's bounds, or an argument is out of range.

    Examples
    --------
    The third worker is half as fast; after the warm-up it gets half as many samples:

    >>> from paceline.predictors import LastValue, Report
    >>> fleet = ["gpu0", "gpu1", "gpu2"]
    >>> balancer = LoadBalancer(LastValue(), workers=fleet, global_batch=120, policy=Policy(warmup=1))
    >>> plan = balancer.step(Report(samples=balancer.plan.sizes, seconds=[0.04, 0.04, 0.08]))
    >>> plan.sizes
    array([48, 48, 24])
    >>> print(plan.why)
    Moved 16 samples from gpu2 (50 % slower than the median) to gpu0 and gpu1: the next iteration is expected to take
    48 ms instead of 80 ms.
    """

    _limits: Limits
    # The one owner of the decided sizes. The plan's sizes differ from them during an excitation, and a loader holds a
    # copy of the plan's. Only this attribute is ever changed.
    _sizes: Sizes
    _missed: Sizes
    _speed_before: Array

    def __init__(
        self,
        predictor: Predictor,
        *,
        workers: Sequence[object],
        global_batch: int,
        policy: Policy | None = None,
        horizon: int = 1,
    ) -> None:
        if horizon < 1:
            raise ValueError(f"horizon must be at least 1 iteration, got {horizon}")
        self.predictor = predictor
        self.global_batch = global_batch
        self.policy = policy or Policy()
        self.horizon = horizon
        names = [str(worker) for worker in workers]
        limits = Limits.of(self.policy, names, global_batch)
        predictor.reset(names)
        # Asked once: to look for the optional part of a protocol takes longer than a forecast.
        self._curious = predictor if isinstance(predictor, WantsExcitation) else None
        self._iterations = 0
        self._trust = Trust()
        self._chosen_risk = ChosenRisk()
        self._drift = Drift(predictor)
        now = self._start(limits)
        reason = "Equal batches: no iteration has been reported yet."
        self.plan = self._planned(evaluate(now.curves, self._sizes), now, reason, acted=False)

    @property
    def workers(self) -> tuple[str, ...]:
        """The fleet, in the order of every array."""
        return self.predictor.workers

    def step(self, report: Report, drivers_now: ArrayLike | None = None) -> Plan:
        """Learn from the iteration just finished, and plan a coming one.

        Parameters
        ----------
        report
            What the workers measured; NaN, or any invalid number, for a worker without a usable report.
        drivers_now
            The driving factors sampled now, at the boundary, ``[W, D]``, in the order of the predictor's
            ``driver_names``.

        Raises
        ------
        ValueError
            If the report or the drivers do not have the size of this fleet. Nothing is learnt then.
        """
        # Everything is checked before anything is learnt, so that a refused report changes nothing.
        require_drivers("drivers_now", drivers_now, self.predictor)
        self.observe(report)
        # `self.plan` is still the plan that sized the batches just run.
        if self.policy.risk == "auto":
            self._chosen_risk.judge(self.plan.forecast, report.speed)
        self._trust.judge(report, self._limits.equal(), self.plan.forecast.curves)
        self._iterations += 1
        forecast = self._forecast(drivers_now)
        self._trust.follow(report.speed, forecast.speed)
        self._limits = self._limits.after(report, self._sizes, forecast)
        self.plan = self._next(self._situation(forecast))
        return self.plan

    def observe(self, report: Report) -> None:
        """Learn from an iteration without planning the next.

        Raises
        ------
        ValueError
            If the report does not have the size of this fleet. Nothing is learnt then.
        """
        require_fleet(report, len(self.workers))
        require_drivers("the report's drivers", report.drivers, self.predictor)
        self.predictor.observe(report)
        self._drift.follow(report)
        self._missed = np.where(np.isfinite(report.speed), 0, self._missed + 1)

    def join(self, worker: object) -> Plan:
        """Add a worker at the end of the fleet, and split the batch again.

        Raises
        ------
        ValueError
            If the fleet has a worker of this name, or the policy's bounds do not suit the larger fleet.
        """
        # Limits are checked before the predictor changes, so that a refused worker leaves no trace.
        name = str(worker)
        memory = np.append(self._limits.memory, np.inf)
        limits = Limits.of(self.policy, (*self.workers, name), self.global_batch, memory)
        self.predictor.join(name)
        return self._resplit(limits, f"{name} joined")

    def leave(self, worker: object) -> Plan:
        """Remove a worker, and split the batch again.

        Raises
        ------
        ValueError
            If there is no such worker, it is the last one, or the others' bounds do not allow the whole batch.
        """
        name = str(worker)
        stays = np.array([other != name for other in self.workers])
        if not stays.any():
            raise ValueError(f"worker {name!r} is the last of the fleet and cannot leave")
        rest = [other for other in self.workers if other != name]
        limits = Limits.of(self.policy, rest, self.global_batch, self._limits.memory[stays])
        self.predictor.leave(name)
        return self._resplit(limits, f"{name} left")

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return all that was learnt and decided, with the predictor's state; loading it resumes exactly."""
        predictor = {f"predictor/{name}": value for name, value in self.predictor.state_dict().items()}
        return {
            "workers": np.array(self.workers, dtype=np.str_),
            "global_batch": np.array(self.global_batch),
            "iterations": np.array(self._iterations),
            "sizes": self._sizes.copy(),
            "planned": self.plan.sizes.copy(),
            "direction": self._direction.copy(),
            "changed_at": self._changed_at.copy(),
            "missed": self._missed.copy(),
            "speed_before": self._speed_before.copy(),
            "memory_limits": self._limits.memory.copy(),
            "cost_of_risks": self._chosen_risk.cost_R.copy(),
            **{f"trust/{name}": value for name, value in self._trust.state_dict().items()},
            **{f"drift/{name}": value for name, value in self._drift.state_dict().items()},
            **predictor,
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned; the fleet becomes the saved one.

        Raises
        ------
        ValueError
            If the state belongs to another global batch, or the policy's bounds do not suit the saved fleet.
        """
        if int(state["global_batch"]) != self.global_batch:
            raise ValueError(
                f"the state was saved with a global batch of {int(state['global_batch'])}, but this balancer has "
                f"{self.global_batch}: make it with global_batch={int(state['global_batch'])}"
            )
        workers = [str(worker) for worker in state["workers"]]
        limits = Limits.of(self.policy, workers, self.global_batch, np.array(state["memory_limits"]))
        before = self.predictor.state_dict()
        try:
            self.predictor.load_state_dict({name[10:]: v for name, v in state.items() if name.startswith("predictor/")})
        except BaseException:
            self.predictor.load_state_dict(before)  # a refused state must change nothing
            raise
        # `get` with defaults below: states saved by older versions lack these entries.
        self._limits = limits
        self._trust.load_state_dict({name[6:]: v for name, v in state.items() if name.startswith("trust/")})
        self._drift = Drift(self.predictor)  # what it was fitted on came with its state
        self._drift.load_state_dict({name[6:]: v for name, v in state.items() if name.startswith("drift/")})
        self._chosen_risk.cost_R = np.array(state.get("cost_of_risks", self._chosen_risk.cost_R))
        self._iterations = int(state["iterations"])
        self._sizes = np.array(state["sizes"])
        self._direction = np.array(state["direction"])
        self._changed_at = np.array(state["changed_at"])
        self._missed = np.array(state["missed"])
        self._speed_before = np.array(state["speed_before"])
        after = why.count(self._iterations, "iteration")
        now = self._situation(self._forecast())
        self.plan = self._planned(
            evaluate(now.curves, np.array(state["planned"])), now, f"Resumed after {after}.", acted=False
        )

    # -- parts ---------------------------------------------------------------------------------------------------

    def _next(self, now: Situation) -> Plan:
        """Choose the sizes, remember the change, and plan them with any excitation the predictor wants."""
        if self._iterations < self.policy.warmup:
            chosen = evaluate(now.curves, self._limits.equal(now.curves.limit))
            of = why.count(self.policy.warmup, "warm-up iteration")
            reason = f"Equal batches: {self._iterations} of {of} done"
        elif self._trust.has_lost and self.policy.dead_band:
            chosen, reason = self._given_up(now)
        else:
            chosen, reason = decide(now)
        before = why.moved_samples(self._sizes, self.plan.sizes)
        gain = self._change(chosen.sizes, now)
        tried = self._tried(now)
        if tried is not self._sizes:
            chosen = evaluate(now.curves, tried)
        reason = why.with_excitation(reason, before, why.moved_samples(self._sizes, tried))
        if not now.bounds[2]:
            reason += "; the memory limits leave no room for the global batch and are ignored"
        drift = self._drift.news()
        reason += why.silent(self.workers, self._missed) + drift
        acted = not np.array_equal(tried, self.plan.sizes)
        return self._planned(chosen, now, f"{reason}.", acted=acted, gain=gain, drifts=bool(drift))

    def _given_up(self, now: Situation) -> tuple[Split, str]:
        """Return equal sizes, because they would have been faster lately."""
        equal = evaluate(now.curves, self._limits.equal(now.curves.limit))
        lost = why.percent(self._trust.lost)
        self._trust.begin_anew()
        return equal, f"Back to equal batches, which would lately have been {lost} faster"

    def _change(self, sizes: Sizes, now: Situation) -> float:
        """Adopt these sizes, remember the direction of every change, and return the gain."""
        change = sizes - self._sizes
        if not change.any():
            return 0.0
        self._direction = np.where(change != 0, np.sign(change), self._direction)
        self._changed_at = np.where(change != 0, self._iterations, self._changed_at)
        self._speed_before = _known_speed(now.forecast)
        kept, made = (float(now.curves.busy_seconds(x).max()) for x in (self._sizes, sizes))
        self._sizes = sizes
        return gain_of(kept, made)

    def _tried(self, now: Situation) -> Sizes:
        """Return the sizes, with an excitation of workers whose curves the predictor does not know."""
        # No excitation right after a change: the change itself shows how time depends on the batch.
        wanted = None if self._curious is None else self._curious.wants_excitation
        policy = self.policy
        silent = wanted is None or not np.any(wanted) or not policy.excitation
        if silent or self._iterations < policy.warmup or self._iterations == self._changed_at.max():
            return self._sizes
        low, high, _ = now.bounds
        seed = (policy.seed, self._iterations)
        quantum, amount = policy.quantum, policy.excitation
        return excited(self._sizes, np.asarray(wanted), low, high, amount=amount, quantum=quantum, seed=seed)

    def _forecast(self, drivers_now: ArrayLike | None = None) -> Forecast:
        return self.predictor.predict(drivers_now, horizon=self.horizon)

    def _situation(self, forecast: Forecast) -> Situation:
        return Situation(
            policy=self.policy,
            limits=self._limits,
            workers=self.workers,
            horizon=self.horizon,
            forecast=forecast,
            sizes=self._sizes,
            direction=self._direction,
            changed_ago=self._iterations - self._changed_at,
            chance=self._trust.least_gain,
            speed_before=self._speed_before,
            risk=self._chosen_risk.risk if isinstance(self.policy.risk, str) else self.policy.risk,
        )

    def _start(self, limits: Limits) -> Situation:
        """Start with equal sizes and no memory of any change."""
        self._limits = limits
        self._trust.begin_anew()
        self._drift.start()
        self._sizes = limits.equal()
        self._direction = np.zeros(len(self._sizes), dtype=np.int64)
        self._changed_at = np.full(len(self._sizes), NEVER)
        self._missed = np.zeros(len(self._sizes), dtype=np.int64)
        forecast = self._forecast()
        self._speed_before = _known_speed(forecast)
        return self._situation(forecast)

    def _resplit(self, limits: Limits, event: str) -> Plan:
        now = self._start(limits)
        if self._iterations >= self.policy.warmup:
            low, high, _ = now.bounds
            self._sizes = now.best(low, high).sizes
        unknown = [name for name, speed in zip(self.workers, self._speed_before, strict=True) if not speed > 0]
        reason = why.split_again(event, self._sizes, unknown)
        self.plan = self._planned(evaluate(now.curves, self._sizes), now, f"{reason}.", acted=True)
        return self.plan

    def _planned(
        self, split: Split, now: Situation, reason: str, *, acted: bool, gain: float = 0.0, drifts: bool = False
    ) -> Plan:
        drift = self._drift.share
        return Plan(self.workers, split, now.forecast, gain, acted, reason, self._iterations, drift, drifts)


def _known_speed(forecast: Forecast) -> Array:
    """Return the speeds that rest on reports, ``[W]``; NaN for those that are only a prior."""
    return np.where(np.isfinite(forecast.spread), forecast.speed, np.nan)
