"""A load balancer that searches without a model while its batch time curves are wrong. Axis: W workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline._arrays import Array
from paceline.coordinator import why
from paceline.coordinator.balancer import LoadBalancer
from paceline.coordinator.plan import Plan
from paceline.coordinator.search import LeaderSearch
from paceline.predictors.report import Report
from paceline.solver.split import evaluate

SMOOTHING = 0.2
"""Weight of the newest error in the running typical error."""

LONGEST_STAY = 16
"""A search that is needed again and again lasts up to this many times the patience."""

WORSE = 0.05
"""Noise alone is no reason to search: iterations must also take this share longer than with equal batches."""

LARGEST_ERROR = 10.0
"""Log errors above this cannot be real and are cut to it."""


class SearchFallback:
    """A load balancer with a safety net: while its forecasts are far off, it searches for sizes without a model.

    After each iteration it compares the forecast time of the batches with the time they took. If a worker's typical
    error stays large, and the sizes do worse than equal ones would at the measured speeds, :class:`LeaderSearch` takes
    over, starting from the sizes in use, and the balancer continues to learn. Once its forecasts have been right for a
    while, its plans are used again. Each further failure of the curves doubles the length of the search.

    Parameters
    ----------
    balancer
        The load balancer, not yet stepped.
    tolerance
        The curves count as wrong while some worker's times are typically off by more than this share, and as right
        again once all are within half of it.
    patience
        Iterations that an error must last before a search starts, and the fewest iterations of a search.

    Attributes
    ----------
    plan
        The latest plan, of the load balancer or of the search; ``plan.why`` says so if it is the search's.
    searching
        Whether the search is in use.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> from paceline.predictors import LastValue
    >>> balancer = SearchFallback(LoadBalancer(LastValue(), workers=["gpu0", "gpu1"], global_batch=128))
    >>> plan = balancer.step(Report(samples=balancer.plan.sizes, seconds=[0.5, 0.9]))
    >>> balancer.searching
    False
    """

    def __init__(self, balancer: LoadBalancer, *, tolerance: float = 0.5, patience: int = 10) -> None:
        if not (tolerance > 0 and patience >= 1):
            raise ValueError(
                f"tolerance must be above 0 and patience at least 1 iteration, got {tolerance} and {patience}"
            )
        self.balancer = balancer
        self.tolerance = tolerance
        self.patience = patience
        self.plan = balancer.plan
        self.searching = False
        self._search = self._fresh_search()
        self._error: Array = np.zeros(len(balancer.workers))
        self._loss, self._lasted, self._stay = 0.0, 0, patience

    @property
    def workers(self) -> tuple[str, ...]:
        """The fleet, in the order of every array."""
        return self.balancer.workers

    def step(self, report: Report, drivers_now: ArrayLike | None = None) -> Plan:
        """Learn from the iteration just finished, and plan a coming one: see :meth:`LoadBalancer.step`."""
        # Judge first: `balancer.step` replaces the plan whose forecast is judged.
        self._judge(report)
        before = self.plan
        # The balancer learns during a search too, as only then can its curves become right again.
        planned = self.balancer.step(report, drivers_now)
        if self.searching:
            planned = self._searched(self._search.step(report))
        self.plan = replace(planned, acted=not np.array_equal(before.sizes, planned.sizes))
        self._change_over()
        return self.plan

    def join(self, worker: object) -> Plan:
        """Add a worker at the end of the fleet, and split the batch again; a search ends."""
        return self._begin_anew(self.balancer.join(worker))

    def leave(self, worker: object) -> Plan:
        """Remove a worker, and split the batch again; a search ends."""
        return self._begin_anew(self.balancer.leave(worker))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the states of balancer and search, and which one is in use; loading them resumes exactly."""
        parts = {"balancer": self.balancer.state_dict(), "search": self._search.state_dict()}
        states = {f"{part}/{name}": value for part, state in parts.items() for name, value in state.items()}
        numbers = np.array([self._lasted, self._stay, self.searching], dtype=np.int64)
        errors = {"error": self._error.copy(), "loss": np.array(self._loss)}
        return {**states, **errors, "fallback": numbers, "sizes": self.plan.sizes.copy()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned; the fleet becomes the saved one."""
        for part, planner in (("balancer/", self.balancer), ("search/", self._search)):
            planner.load_state_dict({n.removeprefix(part): v for n, v in state.items() if n.startswith(part)})
        self._error, self._loss = np.array(state["error"]), float(state["loss"])
        self._lasted, self._stay, searching = (int(number) for number in state["fallback"])
        self.searching = bool(searching)
        plan = self.balancer.plan
        self.plan = replace(plan, split=evaluate(plan.forecast.curves, np.array(state["sizes"])))

    # -- which of the two ----------------------------------------------------------------------------------------

    def _judge(self, report: Report) -> None:
        """Compare the forecast time of the batches just run with the time they took."""
        if self.balancer.plan.iteration < self.balancer.policy.warmup:
            return
        samples = np.asarray(report.samples, dtype=np.float64)
        forecast_W = self.balancer.plan.forecast.curves.busy_seconds(samples)
        with np.errstate(all="ignore"):
            error_W = np.abs(np.log(samples / report.speed / forecast_W))
        error_W = np.where(np.isfinite(error_W), np.minimum(error_W, LARGEST_ERROR), self._error)
        self._error = self._error + SMOOTHING * (error_W - self._error)
        self._loss += SMOOTHING * (_loss_to_equal(samples, report.speed) - self._loss)
        worst = float(self._error.max())
        if self.searching:
            crossed = worst < np.log1p(self.tolerance / 2)
        else:
            crossed = worst > np.log1p(self.tolerance) and self._loss > np.log1p(WORSE)
        self._lasted = self._lasted + 1 if crossed else 0

    def _change_over(self) -> None:
        """Start or end a search, from the next iteration on."""
        worst = int(np.argmax(self._error))
        off = f"the times of {self.workers[worst]} are typically {why.percent(float(np.expm1(self._error[worst])))} off"
        if not self.searching and self._lasted >= self.patience:
            self._search.begin(self.plan.sizes)
            self.searching, self._lasted = True, 0
            event = f"The curves do not hold: {off}. From now on sizes are searched for."
            self.plan = replace(self.plan, why=f"{self.plan.why} {event}")
        elif self.searching and self._lasted >= self._stay:
            self.searching, self._lasted = False, 0
            self._stay = min(2 * self._stay, LONGEST_STAY * self.patience)
            event = f"The curves hold again: at worst, {off}. The search ends."
            self.plan = replace(self.plan, why=f"{self.plan.why} {event}")

    def _searched(self, plan: Plan) -> Plan:
        reason = f"Searching, as the curves do not hold. {plan.why}"
        return replace(plan, iteration=self.balancer.plan.iteration, why=reason)

    def _begin_anew(self, plan: Plan) -> Plan:
        self._search = self._fresh_search()
        self.searching, self._lasted = False, 0
        self._error, self._loss = np.zeros(len(plan.workers)), 0.0
        self.plan = plan
        return plan

    def _fresh_search(self) -> LeaderSearch:
        lb = self.balancer
        return LeaderSearch(workers=lb.workers, global_batch=lb.global_batch, policy=lb.policy)


def _loss_to_equal(samples_W: Array, speed_W: Array) -> float:
    """Return the log of the iteration's time over that of equal batches at these speeds."""
    known = np.isfinite(speed_W)
    if not known.any():
        return 0.0
    loss = np.log((samples_W[known] / speed_W[known]).max() * speed_W[known].min() / samples_W[known].mean())
    return float(np.clip(loss, -LARGEST_ERROR, LARGEST_ERROR))
