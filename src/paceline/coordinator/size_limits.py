"""Bounds of sizes, with those learned when a worker ran out of memory. Axis: W workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from paceline._arrays import Array, Mask, Sizes
from paceline._curves import Curves
from paceline.coordinator.policy import Policy
from paceline.predictors.protocol import Forecast, Report
from paceline.solver.split import Split, split


@dataclass(frozen=True, eq=False)
class Bounds:
    """Fewest and most samples of each worker, ``[W]``, multiples of ``batch_multiple``."""

    low: Array
    high: Array
    global_batch: int
    batch_multiple: int
    is_feasible: bool
    """True if the memory limits leave room for the batch. If not, they are ignored, because the job must go on."""
    is_limited: Mask
    """Mask of the workers whose memory limit is below the policy's upper bound, ``[W]``."""

    def are_violated_by(self, sizes: Sizes) -> bool:
        """Return whether a size lies outside the bounds, or is not a multiple of ``batch_multiple``."""
        return bool(((sizes < self.low) | (sizes > self.high) | (sizes % self.batch_multiple != 0)).any())

    @cached_property
    def equal_sizes(self) -> Sizes:
        """Sizes as equal as these bounds allow, ``[W]``."""
        return self.split(Curves.from_speed(np.ones(len(self.low)))).sizes

    def split(self, curves: Curves, max_deviation: float = np.inf) -> Split:
        """Return the best split whose sizes are at most this many samples away from equal ones."""
        low, high, step = self.low, self.high, self.batch_multiple
        if max_deviation < np.inf:
            whole = np.floor(max_deviation / step) * step
            low, high = np.maximum(low, self.equal_sizes - whole), np.minimum(high, self.equal_sizes + whole)
        return split(curves, self.global_batch, lower=low, upper=high, batch_multiple=step)


@dataclass(frozen=True, eq=False)
class Limits:
    """Bounds of one fleet, in samples, ``[W]``; ``memory`` is infinite for a worker that never ran out of memory."""

    global_batch: int
    batch_multiple: int
    lower: Array
    upper: Array
    memory: Array

    @classmethod
    def from_policy(
        cls, policy: Policy, workers: Sequence[str], global_batch: int, memory: Array | None = None
    ) -> Self:
        """Return the policy's bounds for this fleet; a ValueError says if no split satisfies them."""
        lower = _bound_per_worker(policy.lower, workers, unnamed=1)
        upper = _bound_per_worker(policy.upper, workers, unnamed=np.inf)
        alike, step = Curves.from_speed(np.ones(len(workers))), policy.batch_multiple
        # Solved only for its checks: they name the bound that makes every split impossible.
        split(alike, global_batch, lower=lower, upper=upper, batch_multiple=step)
        low, high = np.ceil(lower / step) * step, np.floor(np.minimum(upper, global_batch) / step) * step
        return cls(global_batch, step, low, high, np.full(len(workers), np.inf) if memory is None else memory)

    def after_report(self, report: Report, sizes: Sizes, forecast: Forecast) -> Self:
        """Return the bounds after a report: workers out of memory get less, unless their curves limit them already."""
        ran_out = np.asarray(report.out_of_memory) == 1
        if not ran_out.any():
            return self
        samples = np.asarray(report.samples, dtype=np.float64)
        held = np.where(np.isfinite(samples) & (samples > 0), samples, sizes)
        # A predictor of curves may learn the limit from the same report; shrinking twice would waste memory.
        shrinks = ran_out & ~(forecast.curves.limit < held)
        # A worker that ran out of memory gets at most this share of the batch that was too large.
        return replace(self, memory=np.where(shrinks, np.minimum(self.memory, 0.8 * held), self.memory))

    def bounds(self, forecast: Forecast) -> Bounds:
        """Return the bounds of sizes, with the memory limits of the forecast's curves if it has any."""
        if forecast.batch_time is None or np.minimum.reduce(forecast.batch_time.limit) == np.inf:
            return self.policy_bounds
        return self._bounds_within(forecast.batch_time.limit)

    @cached_property
    def policy_bounds(self) -> Bounds:
        """The policy's bounds, without the memory limits of any forecast."""
        return self._bounds_within(np.inf)

    def _bounds_within(self, limit: Array | float) -> Bounds:
        fits = np.floor(np.minimum(self.memory, limit) / self.batch_multiple) * self.batch_multiple
        high = np.maximum(np.minimum(self.upper, fits), self.lower)
        is_feasible = bool(high.sum() >= self.global_batch)
        high = high if is_feasible else self.upper
        return Bounds(self.lower, high, self.global_batch, self.batch_multiple, is_feasible, high < self.upper)


def _bound_per_worker(bound: int | Mapping[str, int] | None, workers: Sequence[str], unnamed: float) -> Array:
    if isinstance(bound, Mapping):
        return np.array([bound.get(worker, unnamed) for worker in workers], dtype=np.float64)
    return np.full(len(workers), unnamed if bound is None else bound, dtype=np.float64)
