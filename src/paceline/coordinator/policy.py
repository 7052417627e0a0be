"""Settings of when to change sizes, and the bounds of sizes, with those of memory. Axis: W workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np

from paceline._arrays import Array, Mask, Sizes
from paceline._curves import Curves
from paceline.predictors.protocol import Forecast, Report
from paceline.solver.split import Split, split


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Rules for when a load balancer changes sizes, and the bounds of sizes.

    Sizes are changed once the time that keeping them is expected to have cost, summed since they were chosen, exceeds
    what a change costs. So a large gain is taken at once, a small one that lasts a little later, and one that comes
    and goes seldom.

    Parameters
    ----------
    warmup
        Iterations of equal batches at the start, in which the predictor learns the workers; 5 as in LB-BSP.
    change_cost
        Time that a change of sizes costs, in iterations; 0 follows every forecast. The default is for jobs that run
        batches of any size equally well. Where each new size is compiled, or kernels are chosen for it again,
        divide that time by the time of an iteration, such as 10.
    batch_multiple
        Every size is a multiple of this many samples.
    lower, upper
        Fewest and most samples: one number for all workers, or a mapping by name. A worker that is not named has a
        lower bound of 1 and no upper bound. Memory limits that a predictor learns come with its forecast.
    risk
        How much to spare workers with noisy forecasts, 0 to 2: see :func:`paceline.solver.safety_factor`. With
        ``"auto"`` it is chosen online, from what each choice would lately have cost, and so is whether to trust all of
        the forecast differences between workers, half of them, or none.

    Examples
    --------
    >>> Policy(batch_multiple=8, upper={"gpu1": 128}).change_cost
    0.05
    """

    warmup: int = 5
    change_cost: float = 0.05
    batch_multiple: int = 1
    lower: int | Mapping[str, int] = 1
    upper: int | Mapping[str, int] | None = None
    risk: float | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        _require("warmup", self.warmup, self.warmup >= 0, "be 0 or more")
        _require("change_cost", self.change_cost, 0 <= self.change_cost < math.inf, "be 0 iterations or more")
        _require("batch_multiple", self.batch_multiple, self.batch_multiple >= 1, "be at least 1 sample")
        known = self.risk == "auto" if isinstance(self.risk, str) else 0 <= self.risk <= 2
        _require("risk", self.risk, known, "lie in [0, 2], or be 'auto'")
        for name in ("lower", "upper"):
            bounds = getattr(self, name)
            each = bounds.values() if isinstance(bounds, Mapping) else () if bounds is None else (bounds,)
            _require(name, bounds, all(bound >= 0 for bound in each), "be 0 samples or more")


def _require(name: str, value: object, holds: bool, requirement: str) -> None:
    if not holds:
        raise ValueError(f"{name} must {requirement}, got {value}")


def default_batch_multiple(global_batch: int, workers: int) -> int:
    """Return the largest power of two that divides the batch and fits 30 times into a worker's share of it.

    >>> [default_batch_multiple(batch, workers=2) for batch in (896, 1000, 30)]
    [8, 8, 1]
    """
    # rounding then moves a size by at most a thirtieth
    largest = max(global_batch // (30 * workers), 1)
    return math.gcd(global_batch, 1 << (largest.bit_length() - 1))


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
            max_change = np.floor(max_deviation / step) * step
            low, high = np.maximum(low, self.equal_sizes - max_change), np.minimum(high, self.equal_sizes + max_change)
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
