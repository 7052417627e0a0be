"""The load balancer: reports in, plans out. No threads, files, clock or random state. Axes: W workers, D covariates.

Every rank that gets the same reports makes the same plan, bit for bit, so no coordinator process is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline._arrays import Array, Sizes
from paceline._curves import Curves
from paceline.coordinator import reasons as why
from paceline.coordinator.hedging import Hedging
from paceline.coordinator.plan import Plan
from paceline.coordinator.policy import Bounds, Limits, Policy, check_covariates_shape, require_fleet
from paceline.predictors.fixed_part import FixedPart
from paceline.predictors.named import named
from paceline.predictors.protocol import Forecast, Predictor, Report, require_predictor
from paceline.solver.split import Split, caution, evaluate, split

EXTREME, MIN_EXTREME_GAIN = 0.75, 0.01
"""Sizes that deviate from equal ones by more than this share are extreme: they must save this share of an iteration's
time, or less extreme ones are taken. They cost memory on one worker and steady kernels on another."""


@dataclass(eq=False, slots=True)
class _Now:
    """Inputs of a decision: the forecast, its curves, those to compare sizes under, bounds, and equal sizes."""

    forecast: Forecast
    curves: Curves
    compared: Curves
    bounds: Bounds
    equal: Sizes

    @property
    def is_hedged(self) -> bool:
        return self.compared is not self.curves

    def expected(self, best: Split) -> Split:
        """Return a split with the times that the forecast itself expects."""
        if not self.is_hedged:
            return best
        expected = evaluate(self.curves, best.sizes)
        return Split(best.sizes, expected.seconds, expected.makespan, best.status)


def _unlimited(forecast: Forecast) -> Curves:
    """Return the curves of a forecast without their memory limits, which are part of the bounds."""
    return replace(forecast.curves, limit=np.full(len(forecast.speed), np.inf))


def _stretched(curves: Curves, factor_W: Array) -> Curves:
    return Curves(curves.floor * factor_W, curves.slope * factor_W, curves.intercept * factor_W, curves.limit)


def _makespan_lower_bound(curves: Curves, global_batch: int) -> float:
    """Return a time, in seconds, before which no split ends; 0 if there is no easy bound.

    Nothing ends sooner than if all workers ended together on their lines, with fractions of samples and without
    floors or bounds.
    """
    with np.errstate(all="ignore"):
        rate_W = 1.0 / curves.slope
        together = float((global_batch + (curves.intercept * rate_W).sum()) / rate_W.sum())
    return together if together >= curves.intercept.max() else 0.0  # level lines give NaN here


def gain_of(current: float, proposed: float) -> float:
    """Return the share of the time that a proposal saves, given the makespans of keeping and of changing.

    Of no time nothing can be saved:

    >>> gain_of(0.5, 0.375), gain_of(0.0, 0.0)
    (0.25, 0.0)
    """
    return 1.0 - proposed / current if current > 0 else 0.0


class LoadBalancer:
    """Chooses the next batch sizes from what the workers report: load-balanced bulk-synchronous parallel (LB-BSP).

    Parameters
    ----------
    predictor
        Any predictor, fitted if it needs fitting, or the name of one such as ``"auto"``. The balancer resets it with
        this fleet and owns it from then on. It needs to know nothing of batch sizes: how much of a worker's time does
        not follow its batch is learned in front of it (:class:`paceline.predictors.fixed_part.FixedPart`).
    workers
        Names or ranks of the workers, in the order of every array: a list, a tuple or ``range(4)``.
    global_batch
        Samples of all workers together in one iteration; a multiple of the policy's batch multiple.
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
    TypeError
        If the predictor is none, or workers have no order.

    Examples
    --------
    The third worker is half as fast; after the warm-up it gets fewer samples, as part of its time may be fixed:

    >>> from paceline.predictors import LastValue, Report
    >>> fleet = ["gpu0", "gpu1", "gpu2"]
    >>> balancer = LoadBalancer(LastValue(), workers=fleet, global_batch=120, policy=Policy(warmup=1))
    >>> plan = balancer.step(Report(samples=balancer.plan.sizes, seconds=[0.04, 0.04, 0.08]))
    >>> plan.sizes
    array([50, 50, 20])
    >>> print(plan.why)
    Moved 20 samples from gpu2 (50% slower than the median) to gpu0 and gpu1: the next iteration is expected to take
    48.1 ms instead of 80 ms.
    """

    # Time that keeping the sizes is expected to have cost since they were chosen, in iterations: gains that the solver
    # found, and upper bounds of gains since it was last called.
    _regret: Array
    # The one owner of the decided sizes; plans and loaders hold copies. Only this attribute is ever changed.
    _sizes: Sizes
    _limits: Limits
    _missed: Sizes
    _silent: bool
    _known_before: Forecast
    _fits_in: Bounds | None

    def __init__(
        self,
        predictor: Predictor | str,
        *,
        workers: Sequence[object],
        global_batch: int,
        policy: Policy | None = None,
        horizon: int = 1,
    ) -> None:
        if horizon < 1:
            raise ValueError(f"horizon must be at least 1 iteration, got {horizon}")
        predictor = named(predictor) if isinstance(predictor, str) else predictor
        if isinstance(predictor, type) or not hasattr(predictor, "predict"):
            require_predictor(predictor)
        if isinstance(workers, str | bytes | int | Set | Mapping) or not isinstance(workers, Iterable):
            what = "a set, whose order differs between processes" if isinstance(workers, Set) else repr(workers)
            raise TypeError(
                "workers must be the workers' names or ranks in order, such as ['gpu0', 'gpu1'] or range(2), got "
                f"{what}"
            )
        self.predictor = predictor
        self.global_batch = global_batch
        self.policy = policy or Policy()
        self.horizon = horizon
        names = [str(worker) for worker in workers]
        limits = Limits.of(self.policy, names, global_batch)
        predictor.reset(names)
        self._served: Predictor = predictor  # behind one that learns the fixed part of times, unless it does so itself
        if not getattr(predictor, "reads_sizes", False) and predictor.predict().batch_time is None:
            self._served = FixedPart(predictor)
            self._served.reset(names)
        self._owner = object()
        with suppress(AttributeError, TypeError):  # one's own class may have no room for it
            predictor._paceline_owner = self._owner  # type: ignore[attr-defined]
        self._iterations = 0
        self._regret = np.zeros(2)
        self._hedging = Hedging(global_batch, horizon)
        forecast = self._start(limits)
        self.plan = self._plan_of(self._sizes, forecast, "Equal batches: no iteration has been reported yet")

    def __repr__(self) -> str:
        return f"LoadBalancer({self.predictor!r}, workers={len(self.workers)}, global_batch={self.global_batch})"

    @property
    def workers(self) -> tuple[str, ...]:
        """The fleet, in the order of every array."""
        return self.predictor.workers

    def step(self, report: Report, covariates_now: ArrayLike | None = None) -> Plan:
        """Learn from the iteration just finished, and plan a coming one.

        Parameters
        ----------
        report
            What the workers measured; NaN, or any invalid number, for a worker without a usable report.
        covariates_now
            The covariates sampled now, at the boundary, ``[W, D]``, in the order of the predictor's
            ``covariate_names``.

        Raises
        ------
        ValueError
            If the report or the covariates do not have the size of this fleet. Nothing is learned then.
        """
        # Everything is checked before anything is learned, so that a refused report changes nothing.
        if covariates_now is not None:
            check_covariates_shape("covariates_now", covariates_now, self.predictor)
        self.observe(report)
        self._iterations += 1
        forecast = self._served.predict(covariates=covariates_now, horizon=self.horizon)
        if self.policy.risk == "auto":
            self._hedging.follow(report, forecast)
        if report.out_of_memory is not None:
            self._limits = self._limits.after(report, self._sizes, forecast)
        self.plan = self._next(forecast)
        return self.plan

    def observe(self, report: Report) -> None:
        """Learn from an iteration without planning the next.

        Raises
        ------
        ValueError
            If the report does not have the size of this fleet. Nothing is learned then.
        """
        require_fleet(report, len(self._sizes))
        if getattr(self.predictor, "_paceline_owner", self._owner) is not self._owner:
            raise ValueError(
                "this balancer's predictor was given to another LoadBalancer since, which has reset it: give each "
                "balancer a predictor of its own, such as copy.deepcopy(predictor)"
            )
        if report.covariates is not None:
            check_covariates_shape("the report's covariates", report.covariates, self.predictor)
        speed_W = report.speed
        self._served.observe(report)
        silent = not report.complete and math.isnan(np.add.reduce(speed_W))
        if silent or self._silent:
            self._missed = np.where(np.isfinite(speed_W), 0, self._missed + 1)
        self._silent = silent

    def forget(self) -> None:
        """Forget all reports, because samples are counted in another unit from now on; sizes in use stay."""
        self._served.reset(self.workers)
        self._hedging.start()

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
        self._served.join(name)
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
            raise ValueError(f"worker {name!r} cannot leave: it is the only one")
        rest = [other for other in self.workers if other != name]
        limits = Limits.of(self.policy, rest, self.global_batch, self._limits.memory[stays])
        self._served.leave(name)
        return self._resplit(limits, f"{name} left")

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return all that was learned and decided, with the predictor's state; loading it resumes exactly."""
        predictor = {f"predictor/{name}": value for name, value in self._served.state_dict().items()}
        return {
            "workers": np.array(self.workers, dtype=np.str_),
            "global_batch": np.array(self.global_batch),
            "iterations": np.array(self._iterations),
            "sizes": self._sizes.copy(),
            "missed": self._missed.copy(),
            "speed_before": why.known_speed(self._known_before),
            "memory_limits": self._limits.memory.copy(),
            "regret": self._regret.copy(),
            **{f"hedging/{name}": value for name, value in self._hedging.state_dict().items()},
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
        before = self._served.state_dict()
        try:
            self._served.load_state_dict({name[10:]: v for name, v in state.items() if name.startswith("predictor/")})
        except BaseException:
            self._served.load_state_dict(before)  # a refused state must change nothing
            raise
        self._limits = limits
        self._regret = np.array(state["regret"])
        self._hedging.load_state_dict({name[8:]: v for name, v in state.items() if name.startswith("hedging/")})
        self._iterations = int(state["iterations"])
        self._sizes = np.array(state["sizes"])
        self._missed = np.array(state["missed"])
        self._silent = bool(self._missed.any())
        known = np.array(state["speed_before"])
        self._known_before = Forecast(known, spread=np.zeros(len(known)))
        self.plan = self._plan_of(
            self._sizes, self._served.predict(horizon=self.horizon), (why.resumed, (self._iterations,))
        )

    # -- parts ---------------------------------------------------------------------------------------------------

    def _next(self, forecast: Forecast) -> Plan:
        """Choose the sizes, and plan them."""
        curves, bounds = _unlimited(forecast), self._limits.bounds(forecast)
        chosen, gain, reasons = self._chosen(forecast, curves, bounds)
        if not bounds.enough:
            reasons.append("; the memory limits leave no room for the global batch and are ignored")
        before, self._sizes = self._sizes, chosen.sizes
        if chosen.sizes is not before:
            self._known_before = forecast
            self._regret = np.zeros(2)
        self._fits_in = bounds
        if self._silent:
            reasons.append((why.silent, (self.workers, self._missed)))
        acted = _differ(chosen.sizes, self.plan.split.sizes)
        return self._planned(chosen, forecast, reasons, acted=acted, gain=gain)

    def _chosen(self, forecast: Forecast, curves: Curves, bounds: Bounds) -> tuple[Split, float, list[why.Reason]]:
        """Return the split to use, its gain, and the reasons."""
        policy, limits = self.policy, self._limits
        current = evaluate(curves, self._sizes)
        equal = limits.equal if bounds is limits.unlimited else limits.equal_within(bounds)
        if self._iterations < policy.warmup:
            chosen = evaluate(curves, equal) if _differ(equal, self._sizes) else current
            reason = (why.equal_batches, (self._iterations, policy.warmup))
            return chosen, gain_of(current.makespan, chosen.makespan), [reason]
        now = _Now(forecast, curves, self._hedged(curves, forecast), bounds, equal)
        if bounds is not self._fits_in and bounds.broken_by(self._sizes, policy.batch_multiple):
            best = now.expected(self._best(now))
            broken = (why.broken_bounds, (self.workers, self._sizes, bounds.high))
            return best, gain_of(current.makespan, best.makespan), [self._moved(best.sizes, forecast), broken]
        chosen, gain, reasons = self._weighed(now, current)
        if bounds.any_limited:
            # Workers that memory keeps from taking more while they wait: they end 2% or more before the last one.
            full_W = bounds.limited & (chosen.sizes + policy.batch_multiple > bounds.high)
            reasons.append((why.held_back, (self.workers, full_W & (chosen.seconds < 0.98 * chosen.makespan))))
        return chosen, gain, reasons

    def _weighed(self, now: _Now, current: Split) -> tuple[Split, float, list[why.Reason]]:
        """Compare the best split with the sizes in use: a change must be worth it."""
        cost, regret = self.policy.change_cost, self._regret
        in_use = evaluate(now.compared, self._sizes) if now.is_hedged else current
        makespan = in_use.makespan
        if self._iterations % 16 == 0 and (nearer := self._nearer(now, in_use)) is not None:  # seldom, as it takes time
            return (
                now.expected(nearer),
                0.0,
                [self._moved(nearer.sizes, now.forecast), ": sizes so unequal no longer save any time"],
            )
        # A cheap upper bound comes first: in a steady job it usually makes the solver's run unnecessary.
        lower_bound = _makespan_lower_bound(now.compared, self.global_batch)
        upper_gain = gain_of(makespan, lower_bound)
        if upper_gain <= 0:
            return current, 0.0, [why.NOTHING_TO_GAIN]
        regret[1] += upper_gain
        if regret[0] + regret[1] <= cost:
            return current, 0.0, [(why.too_little, ("at most ", upper_gain, float(regret[0] + regret[1]), cost))]
        step = self.policy.batch_multiple
        best = self._best(now)
        gain = max(gain_of(makespan, best.makespan), 0.0)
        # Where only bounds are known, the gain is taken to have been as large a share of them as it is now.
        regret[:] = regret[0] + regret[1] * gain / upper_gain, 0.0
        if gain == 0:
            return current, 0.0, [why.NOTHING_TO_GAIN]
        if regret[0] <= cost:
            return current, 0.0, [(why.too_little, ("", gain, float(regret[0]), cost))]
        expected = (why.expected, (best.makespan, makespan, self.horizon, now.is_hedged))
        rounding = (why.rounded, (step, best.makespan, lower_bound))
        return now.expected(best), gain, [self._moved(best.sizes, now.forecast), expected, rounding]

    def _best(self, now: _Now) -> Split:
        """Return the split that ends soonest, or a less extreme one that takes at most 1% longer."""
        best, extreme = self._within(now, np.inf), EXTREME * self.global_batch / len(self._sizes)
        while (distance := float(np.abs(best.sizes - now.equal).max())) > extreme:
            nearer = self._within(now, distance / 2)
            if nearer.makespan > (1 + MIN_EXTREME_GAIN) * best.makespan:
                break
            best = nearer
        return best

    def _nearer(self, now: _Now, in_use: Split) -> Split | None:
        """Return equal sizes, or less extreme ones, if those in use gain nothing over them."""
        distance, mean = float(np.abs(self._sizes - now.equal).max()), self.global_batch / len(self._sizes)
        if distance <= 0.1 * mean:
            return None
        equal = evaluate(now.compared, now.equal)
        if equal.makespan <= 1.002 * in_use.makespan:
            return equal
        if distance <= EXTREME * mean:
            return None
        nearer = self._within(now, distance / 2)
        return nearer if nearer.makespan <= (1 + MIN_EXTREME_GAIN) * in_use.makespan else None

    def _within(self, now: _Now, distance: float) -> Split:
        """Return the best split whose sizes are at most this many samples away from equal ones."""
        step = self.policy.batch_multiple
        distance = np.floor(distance / step) * step
        low, high = np.maximum(now.bounds.low, now.equal - distance), np.minimum(now.bounds.high, now.equal + distance)
        return split(now.compared, self.global_batch, lower=low, upper=high, batch_multiple=step)

    def _moved(self, sizes: Sizes, forecast: Forecast) -> why.Reason:
        return why.moved, (self.workers, self._sizes, sizes, forecast.speed, self._known_before)

    def _hedged(self, curves: Curves, forecast: Forecast) -> Curves:
        """Return the curves to compare sizes under."""
        risk = self.policy.risk
        if isinstance(risk, str):
            return _stretched(curves, self._hedging.stretch(forecast)) if self._hedging.choice else curves
        return _stretched(curves, caution(forecast.spread, risk)) if risk else curves

    def _start(self, limits: Limits) -> Forecast:
        """Start with equal sizes and no memory of any change."""
        self._limits = limits
        self._regret = np.zeros(2)
        self._hedging.start()
        self._sizes = limits.equal
        self._missed, self._silent = np.zeros(len(self._sizes), dtype=np.int64), False
        self._fits_in = None
        self._known_before = self._served.predict(horizon=self.horizon)
        return self._known_before

    def _resplit(self, limits: Limits, event: str) -> Plan:
        forecast = self._start(limits)
        if self._iterations >= self.policy.warmup:
            bounds, step = limits.bounds(forecast), self.policy.batch_multiple
            curves = self._hedged(_unlimited(forecast), forecast)
            best = split(curves, self.global_batch, lower=bounds.low, upper=bounds.high, batch_multiple=step)
            self._sizes = best.sizes
        facts = (event, self.workers, self._sizes, why.known_speed(forecast))
        self.plan = self._plan_of(self._sizes, forecast, (why.split_again, facts), acted=True)
        return self.plan

    def _plan_of(self, sizes: Sizes, forecast: Forecast, reason: why.Reason, *, acted: bool = False) -> Plan:
        """Return a plan with sizes that are given, not decided on."""
        return self._planned(evaluate(_unlimited(forecast), sizes), forecast, [reason], acted=acted)

    def _planned(
        self,
        split: Split,
        forecast: Forecast,
        reasons: list[why.Reason],
        *,
        acted: bool,
        gain: float = 0.0,
    ) -> Plan:
        for values in (split.sizes, split.seconds):
            values.flags.writeable = False  # a caller's change would be one of the balancer's own state
        return Plan(self.predictor.workers, split, forecast, gain, acted, tuple(reasons), self._iterations)


def _differ(one: Sizes, other: Sizes) -> bool:
    """Return whether sizes differ; one call of C, as a step asks at every iteration."""
    return one.tobytes() != other.tobytes()
