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

from paceline._arrays import Sizes, substate
from paceline._curves import Curves, scale_curves
from paceline._text import count
from paceline.coordinator import reasons as why
from paceline.coordinator.hedging import Hedging
from paceline.coordinator.plan import Plan
from paceline.coordinator.policy import Bounds, Limits, Policy
from paceline.predictors.fixed_part import FixedTimePredictor
from paceline.predictors.fleet import require_int
from paceline.predictors.named import named
from paceline.predictors.protocol import Forecast, Predictor, Report, require_predictor
from paceline.solver.split import Split, evaluate, safety_factor

EXTREME_DEVIATION, MIN_EXTREME_GAIN = 0.75, 0.01
"""Sizes that deviate from equal ones by more than this share are extreme: they must save this share of an iteration's
time, or less extreme ones are taken. They cost memory on one worker and steady kernels on another."""


@dataclass(eq=False, slots=True)
class _DecisionInputs:
    """Inputs of a decision: the forecast, its curves, the curves to compare sizes with, and bounds."""

    forecast: Forecast
    curves: Curves
    comparison_curves: Curves
    bounds: Bounds

    @property
    def is_hedged(self) -> bool:
        return self.comparison_curves is not self.curves

    def with_forecast_times(self, best: Split) -> Split:
        """Return the split with the times that the forecast itself gives."""
        if not self.is_hedged:
            return best
        return replace(evaluate(self.curves, best.sizes), status=best.status)


def _curves_without_limits(forecast: Forecast) -> Curves:
    """Return the curves of a forecast without their memory limits, which are part of the bounds."""
    return replace(forecast.curves, limit=np.full(len(forecast.speed), np.inf))


def _makespan_lower_bound(curves: Curves, global_batch: int) -> float:
    """Return a time, in seconds, before which no split ends; 0 if there is no easy bound.

    It is when all would end together on their lines, with fractions of samples and without floors or bounds.
    """
    with np.errstate(all="ignore"):
        rate_W = 1.0 / curves.slope
        together = float((global_batch + (curves.intercept * rate_W).sum()) / rate_W.sum())
    return together if together >= curves.intercept.max() else 0.0  # level lines give NaN here


def relative_gain(current: float, proposed_seconds: float) -> float:
    """Return the share of the time that a proposal saves; of no time nothing can be saved."""
    return 1.0 - proposed_seconds / current if current > 0 else 0.0


class LoadBalancer:
    """Chooses the next batch sizes from what the workers report: load-balanced bulk-synchronous parallel (LB-BSP).

    Parameters
    ----------
    predictor
        Any predictor, fitted if it needs fitting, or the name of one such as ``"auto"``. The balancer resets it with
        this fleet and owns it from then on. How much of a worker's time does not follow its batch is learned in front
        of it (:class:`paceline.predictors.fixed_part.FixedTimePredictor`).
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
        If the predictor is not a predictor, or workers have no order.

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

    _limits: Limits
    _sizes: Sizes
    _missing_reports: Sizes
    _has_silent_workers: bool
    _bounds_in_use: Bounds | None

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
        limits = Limits.from_policy(self.policy, names, global_batch)
        predictor.reset(names)
        # The predictor, wrapped in one that learns the fixed part of times unless it does so itself.
        self._forecaster: Predictor = predictor
        if not getattr(predictor, "reads_sizes", False) and predictor.predict().batch_time is None:
            self._forecaster = FixedTimePredictor(predictor)
            self._forecaster.reset(names)
        self._owner = object()
        with suppress(AttributeError, TypeError):  # one's own class may have no room for it
            predictor._paceline_owner = self._owner  # type: ignore[attr-defined]
        self._iterations, self._since_last_plan = 0, 1
        self._hedging = Hedging(global_batch, horizon)
        forecast = self._reset_fleet(limits)
        self.plan = self._plan_given_sizes(forecast, "Equal batches: no iteration has been reported yet")

    def __repr__(self) -> str:
        return f"LoadBalancer({self.predictor!r}, workers={len(self.workers)}, global_batch={self.global_batch})"

    @property
    def workers(self) -> tuple[str, ...]:
        """The fleet, in the order of every array."""
        return self.predictor.workers

    def step(self, report: Report, covariates_now: ArrayLike | None = None, *, iterations: int = 1) -> Plan:
        """Learn from the iteration just finished, and plan a coming one.

        Parameters
        ----------
        report
            What the workers measured; NaN, or any invalid number, for a worker without a usable report.
        covariates_now
            The covariates sampled now, at the boundary, ``[W, D]``, in the order of the predictor's
            ``covariate_names``.
        iterations
            How many iterations the report is the mean of, where not every one is planned.

        Raises
        ------
        ValueError
            If the report or the covariates do not have the size of this fleet, or ``iterations`` is no whole number
            above 0. Nothing is learned then.
        """
        # Everything is checked before anything is learned, so that a refused report changes nothing.
        require_int("iterations", iterations, minimum=1)
        _check_covariates_shape("covariates_now", covariates_now, self.predictor)
        self.observe(report)
        self._iterations += iterations
        self._since_last_plan = iterations
        forecast = self._forecaster.predict(covariates=covariates_now, horizon=self.horizon)
        if self.policy.risk == "auto":
            self._hedging.update(report, forecast)
        if report.out_of_memory is not None:
            self._limits = self._limits.after_report(report, self._sizes, forecast)
        self.plan = self._plan_next(forecast)
        return self.plan

    def observe(self, report: Report) -> None:
        """Learn from an iteration without planning the next; raises as `step`."""
        _require_report_length(report, len(self._sizes))
        if getattr(self.predictor, "_paceline_owner", self._owner) is not self._owner:
            raise ValueError(
                "this balancer's predictor has since been passed to another LoadBalancer, which has reset it: pass "
                "each balancer a predictor of its own, such as copy.deepcopy(predictor)"
            )
        _check_covariates_shape("the report's covariates", report.covariates, self.predictor)
        speed_W = report.speed
        self._forecaster.observe(report)
        silent = not report.complete and math.isnan(np.add.reduce(speed_W))
        if silent or self._has_silent_workers:
            self._missing_reports = np.where(np.isfinite(speed_W), 0, self._missing_reports + 1)
        self._has_silent_workers = silent

    def forget(self) -> None:
        """Forget all reports, because samples are counted in another unit from now on; sizes in use stay."""
        self._forecaster.reset(self.workers)
        self._hedging.clear_plans()

    def join(self, worker: object) -> Plan:
        """Add a worker at the end of the fleet, and split the batch again.

        A ValueError is raised if its name is taken, or the policy's bounds do not suit the larger fleet.
        """
        # Limits are checked before the predictor changes, so that a refused worker leaves no trace.
        name = str(worker)
        memory = np.append(self._limits.memory, np.inf)
        limits = Limits.from_policy(self.policy, (*self.workers, name), self.global_batch, memory)
        self._forecaster.join(name)
        return self._resplit(limits, f"{name} joined")

    def leave(self, worker: object) -> Plan:
        """Remove a worker, and split the batch again.

        A ValueError is raised if there is none of this name, it is the last, or the others' bounds are too tight.
        """
        name = str(worker)
        stays = np.array([other != name for other in self.workers])
        if not stays.any():
            raise ValueError(f"worker {name!r} cannot leave: it is the only one")
        rest = [other for other in self.workers if other != name]
        limits = Limits.from_policy(self.policy, rest, self.global_batch, self._limits.memory[stays])
        self._forecaster.leave(name)
        return self._resplit(limits, f"{name} left")

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return all that was learned and decided, with the predictor's state; loading it resumes exactly."""
        return {
            "workers": np.array(self.workers, dtype=np.str_),
            "global_batch": np.array(self.global_batch),
            "iterations": np.array(self._iterations),
            "sizes": self._sizes.copy(),
            "missed": self._missing_reports.copy(),
            "speed_before": why.known_speed(self._forecast_in_use),
            "memory_limits": self._limits.memory.copy(),
            "regret": self._regret.copy(),
            **{f"hedging/{name}": value for name, value in self._hedging.state_dict().items()},
            **{f"predictor/{name}": value for name, value in self._forecaster.state_dict().items()},
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned; the fleet becomes the saved one.

        A ValueError is raised if the state is of another global batch, or the policy's bounds do not suit its fleet.
        """
        if int(state["global_batch"]) != self.global_batch:
            raise ValueError(
                f"the state was saved with a global batch of {int(state['global_batch'])}, but this balancer has "
                f"{self.global_batch}: create it with global_batch={int(state['global_batch'])}"
            )
        workers = [str(worker) for worker in state["workers"]]
        limits = Limits.from_policy(self.policy, workers, self.global_batch, np.array(state["memory_limits"]))
        before = self._forecaster.state_dict()
        try:
            self._forecaster.load_state_dict(substate(state, "predictor"))
        except BaseException:
            self._forecaster.load_state_dict(before)  # a refused state must change nothing
            raise
        self._limits = limits
        self._regret = np.array(state["regret"])
        self._hedging.load_state_dict(substate(state, "hedging"))
        self._iterations = int(state["iterations"])
        self._sizes = np.array(state["sizes"])
        self._missing_reports = np.array(state["missed"])
        self._has_silent_workers = bool(self._missing_reports.any())
        known = np.array(state["speed_before"])
        self._forecast_in_use = Forecast(known, spread=np.zeros(len(known)))
        forecast = self._forecaster.predict(horizon=self.horizon)
        self.plan = self._plan_given_sizes(forecast, f"Resumed after {count(self._iterations, 'iteration')}")

    def _plan_next(self, forecast: Forecast) -> Plan:
        """Choose the sizes, and plan them."""
        curves, bounds = _curves_without_limits(forecast), self._limits.bounds(forecast)
        chosen, gain, reasons = self._choose_split(forecast, curves, bounds)
        if not bounds.is_feasible:
            reasons.append("; the memory limits leave no room for the global batch and are ignored")
        before, self._sizes = self._sizes, chosen.sizes
        if chosen.sizes is not before:
            self._forecast_in_use = forecast
            self._regret = np.zeros(2)
        self._bounds_in_use = bounds
        if self._has_silent_workers:
            reasons.append((why.describe_missing_reports, (self.workers, self._missing_reports)))
        acted = not np.array_equal(chosen.sizes, self.plan.sizes)
        return self._make_plan(chosen, forecast, reasons, acted=acted, gain=gain)

    def _choose_split(
        self, forecast: Forecast, curves: Curves, bounds: Bounds
    ) -> tuple[Split, float, list[why.Reason]]:
        """Return the split to use, its gain, and the reasons."""
        policy = self.policy
        current = evaluate(curves, self._sizes)
        if self._iterations < policy.warmup:
            equal = bounds.equal_sizes
            chosen = current if np.array_equal(equal, self._sizes) else evaluate(curves, equal)
            reason = f"Equal batches: {self._iterations} of {count(policy.warmup, 'warm-up iteration')} done"
            return chosen, relative_gain(current.makespan, chosen.makespan), [reason]
        now = _DecisionInputs(forecast, curves, self._comparison_curves(curves, forecast), bounds)
        if bounds is not self._bounds_in_use and bounds.are_violated_by(self._sizes):
            best = now.with_forecast_times(self._best_split(now))
            broken = (why.describe_violated_bounds, (self.workers, self._sizes, bounds.high))
            reasons = [self._describe_move(best.sizes, forecast), broken]
            return best, relative_gain(current.makespan, best.makespan), reasons
        chosen, gain, reasons = self._compare_with_current(now, current)
        if bounds.is_limited.any():
            # Workers that memory keeps from taking more while they wait: they end 2% or more before the last one.
            held_W = bounds.is_limited & (chosen.sizes + policy.batch_multiple > bounds.high)
            held_W &= chosen.seconds < 0.98 * chosen.makespan
            reasons.append((why.describe_memory_limits, (self.workers, held_W)))
        return chosen, gain, reasons

    def _compare_with_current(self, inputs: _DecisionInputs, current: Split) -> tuple[Split, float, list[why.Reason]]:
        """Compare the best split with the sizes in use: a change must be worth it."""
        cost, regret = self.policy.change_cost, self._regret
        in_use = evaluate(inputs.comparison_curves, self._sizes) if inputs.is_hedged else current
        makespan = in_use.makespan
        checks_extremes = self._iterations % 16 < self._since_last_plan  # rarely, because it takes time
        if checks_extremes and (nearer := self._find_more_equal_split(inputs, in_use)) is not None:
            moved = self._describe_move(nearer.sizes, inputs.forecast)
            return inputs.with_forecast_times(nearer), 0.0, [moved, ": sizes so unequal no longer save any time"]
        # A cheap upper bound comes first: in a steady job it usually makes the solver's run unnecessary.
        lower_bound = _makespan_lower_bound(inputs.comparison_curves, self.global_batch)
        upper_gain = relative_gain(makespan, lower_bound)
        if upper_gain <= 0:
            return current, 0.0, [why.NOTHING_TO_GAIN]
        regret[1] += self._since_last_plan * upper_gain
        if (total := float(regret[0] + regret[1])) <= cost:
            return current, 0.0, [(why.describe_small_gain, ("at most ", upper_gain, total, cost))]
        step = self.policy.batch_multiple
        best = self._best_split(inputs)
        gain = max(relative_gain(makespan, best.makespan), 0.0)
        # Where only bounds are known, the gain is taken to have been as large a share of them as it is now.
        regret[:] = regret[0] + regret[1] * gain / upper_gain, 0.0
        if gain == 0:
            return current, 0.0, [why.NOTHING_TO_GAIN]
        if regret[0] <= cost:
            return current, 0.0, [(why.describe_small_gain, ("", gain, float(regret[0]), cost))]
        expected = (why.describe_saving, (best.makespan, makespan, self.horizon, inputs.is_hedged))
        rounding = (why.describe_rounding, (step, best.makespan, lower_bound))
        moved = self._describe_move(best.sizes, inputs.forecast)
        return inputs.with_forecast_times(best), gain, [moved, expected, rounding]

    def _best_split(self, inputs: _DecisionInputs) -> Split:
        """Return the split that ends soonest, or a less extreme one that takes at most 1% longer."""
        best = inputs.bounds.split(inputs.comparison_curves)
        extreme = EXTREME_DEVIATION * self.global_batch / len(self._sizes)
        while (distance := float(np.abs(best.sizes - inputs.bounds.equal_sizes).max())) > extreme:
            nearer = inputs.bounds.split(inputs.comparison_curves, max_deviation=distance / 2)
            if nearer.makespan > (1 + MIN_EXTREME_GAIN) * best.makespan:
                break
            best = nearer
        return best

    def _find_more_equal_split(self, inputs: _DecisionInputs, current: Split) -> Split | None:
        """Return equal sizes, or less extreme ones, if those in use gain nothing over them."""
        equal_sizes, mean = inputs.bounds.equal_sizes, self.global_batch / len(self._sizes)
        distance = float(np.abs(self._sizes - equal_sizes).max())
        if distance <= 0.1 * mean:
            return None
        equal = evaluate(inputs.comparison_curves, equal_sizes)
        if equal.makespan <= 1.002 * current.makespan:
            return equal
        if distance <= EXTREME_DEVIATION * mean:
            return None
        nearer = inputs.bounds.split(inputs.comparison_curves, max_deviation=distance / 2)
        return nearer if nearer.makespan <= (1 + MIN_EXTREME_GAIN) * current.makespan else None

    def _describe_move(self, sizes: Sizes, forecast: Forecast) -> why.Reason:
        return why.describe_move, (self.workers, self._sizes, sizes, forecast.speed, self._forecast_in_use)

    def _comparison_curves(self, curves: Curves, forecast: Forecast) -> Curves:
        """Return the curves with which sizes are compared: slower than forecast for noisy workers."""
        risk = self.policy.risk
        if isinstance(risk, str):
            return scale_curves(curves, self._hedging.slowdown_factors(forecast)) if self._hedging.choice else curves
        return scale_curves(curves, safety_factor(forecast.spread, risk)) if risk else curves

    def _reset_fleet(self, limits: Limits) -> Forecast:
        """Reset to equal sizes, and forget all earlier changes."""
        self._limits = limits
        # Time that keeping the sizes is expected to have cost since they were chosen, in iterations: gains that the
        # solver found, and upper bounds of gains since it was last called.
        self._regret = np.zeros(2)
        self._hedging.clear_plans()
        self._sizes = limits.policy_bounds.equal_sizes
        self._missing_reports, self._has_silent_workers = np.zeros(len(self._sizes), dtype=np.int64), False
        self._bounds_in_use = None
        self._forecast_in_use = self._forecaster.predict(horizon=self.horizon)
        return self._forecast_in_use

    def _resplit(self, limits: Limits, event: str) -> Plan:
        forecast = self._reset_fleet(limits)
        if self._iterations >= self.policy.warmup:
            curves = self._comparison_curves(_curves_without_limits(forecast), forecast)
            self._sizes = limits.bounds(forecast).split(curves).sizes
        facts = (event, self.workers, self._sizes, why.known_speed(forecast))
        self.plan = self._plan_given_sizes(forecast, (why.describe_resplit, facts), acted=True)
        return self.plan

    def _plan_given_sizes(self, forecast: Forecast, reason: why.Reason, *, acted: bool = False) -> Plan:
        """Return a plan with the sizes in use, without deciding on them."""
        in_use = evaluate(_curves_without_limits(forecast), self._sizes)
        return self._make_plan(in_use, forecast, [reason], acted=acted)

    def _make_plan(
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
        return Plan(
            **vars(split),
            workers=self.predictor.workers,
            forecast=forecast,
            gain=gain,
            acted=acted,
            reasons=tuple(reasons),
            iteration=self._iterations,
        )


def _check_covariates_shape(name: str, covariates: ArrayLike | None, predictor: Predictor) -> None:
    """Refuse covariates that are not one number for each worker and each covariate that the predictor reads."""
    names = predictor.covariate_names
    expected = (len(predictor.workers), len(names))
    if covariates is not None and names and np.asarray(covariates, dtype=np.float64).shape != expected:
        raise ValueError(
            f"{name} must have the shape [workers, covariates] {expected}, in the order {list(names)}, "
            f"got {np.shape(covariates)}"
        )


def _require_report_length(report: Report, num_workers: int) -> None:
    """Refuse a report that does not have one number for each worker."""
    for name in ("samples", "seconds", "comm_seconds", "out_of_memory"):
        values = getattr(report, name)
        if values is not None and np.shape(values) != (num_workers,):
            raise ValueError(
                f"the report's {name} must hold one value for each of the {num_workers} workers, got the shape "
                f"{np.shape(values)}; call join or leave when the fleet changes"
            )
