"""Bounds on each worker's samples: those of the policy, and those learnt when it ran out of memory.

Axis: W workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array, Mask, Sizes
from paceline._curves import Curves
from paceline.coordinator.balanced.policy import Policy
from paceline.predictors.forecast import Forecast
from paceline.predictors.protocol import Predictor
from paceline.predictors.report import Report
from paceline.solver.split import split

SHRINK = 0.8
"""A worker that ran out of memory gets at most this share of the batch that was too large."""


class Bounds(NamedTuple):
    """Fewest and most samples of each worker, ``[W]``, multiples of ``batch_multiple``."""

    low: Array
    high: Array
    enough: bool
    """True if the memory limits leave room for the batch. If not, they are ignored, because the job must go on."""
    limited: Mask
    """Mask of the workers whose memory limit is below the policy's upper bound, ``[W]``."""
    any_limited: bool

    def broken_by(self, sizes: Sizes, batch_multiple: int) -> bool:
        """Return whether a size lies outside the bounds, or is not a multiple of ``batch_multiple``."""
        return bool(((sizes < self.low) | (sizes > self.high) | (sizes % batch_multiple != 0)).any())


@dataclass(frozen=True, eq=False)
class Limits:
    """Bounds of one fleet, in samples, ``[W]``; ``memory`` is infinite for a worker that never ran out of memory."""

    global_batch: int
    batch_multiple: int
    lower: Array
    upper: Array
    memory: Array

    @classmethod
    def of(cls, policy: Policy, workers: Sequence[str], global_batch: int, memory: Array | None = None) -> Self:
        """Return the policy's bounds for this fleet.

        Raises
        ------
        ValueError
            If no split of the global batch satisfies the bounds.
        """
        lower = _by_worker(policy.lower, workers, unnamed=1)
        upper = _by_worker(policy.upper, workers, unnamed=np.inf)
        # Solved only for its checks: they name the bound that makes every split impossible.
        split(
            Curves.from_speed(np.ones(len(workers))),
            global_batch,
            lower=lower,
            upper=upper,
            batch_multiple=policy.batch_multiple,
        )
        step = policy.batch_multiple
        low, high = np.ceil(lower / step) * step, np.floor(np.minimum(upper, global_batch) / step) * step
        return cls(global_batch, step, low, high, np.full(len(workers), np.inf) if memory is None else memory)

    def after(self, report: Report, sizes: Sizes, forecast: Forecast) -> Self:
        """Return the bounds after a report: workers out of memory get less, unless their curves limit them already."""
        ran_out = _flags(report.out_of_memory, len(sizes))
        if not ran_out.any():
            return self
        samples = np.asarray(report.samples, dtype=np.float64)
        held = np.where(np.isfinite(samples) & (samples > 0), samples, sizes)
        # A predictor of curves may learn the limit from the same report; shrinking twice would waste memory.
        shrinks = ran_out & ~(forecast.curves.limit < held)
        return replace(self, memory=np.where(shrinks, np.minimum(self.memory, SHRINK * held), self.memory))

    def bounds(self, forecast: Forecast) -> Bounds:
        """Return the bounds of sizes, with the memory limits of the forecast's curves if it has any."""
        if forecast.batch_time is None or np.minimum.reduce(forecast.batch_time.limit) == np.inf:
            return self.own
        return self._bounds(forecast.batch_time.limit)

    @cached_property
    def own(self) -> Bounds:
        """The bounds without those of any forecast: computed once, as they change seldom."""
        return self._bounds(np.inf)

    @cached_property
    def equal(self) -> Sizes:
        """Sizes as equal as these bounds allow, ``[W]``."""
        return self.equal_within(self.own)

    def equal_within(self, bounds: Bounds) -> Sizes:
        """Return sizes as equal as the bounds allow, ``[W]``."""
        alike = Curves.from_speed(np.ones(len(bounds.low)))
        return split(
            alike, self.global_batch, lower=bounds.low, upper=bounds.high, batch_multiple=self.batch_multiple
        ).sizes

    def _bounds(self, limit: Array | float) -> Bounds:
        fits = np.floor(np.minimum(self.memory, limit) / self.batch_multiple) * self.batch_multiple
        high = np.maximum(np.minimum(self.upper, fits), self.lower)
        enough = bool(high.sum() >= self.global_batch)
        high = high if enough else self.upper
        limited = high < self.upper
        return Bounds(self.lower, high, enough, limited, bool(limited.any()))


def require_covariates(name: str, covariates: ArrayLike | None, predictor: Predictor) -> None:
    """Refuse covariates that are not one number for each worker and each covariate that the predictor reads."""
    names = predictor.covariate_names
    if covariates is None or not names:
        return
    expected = (len(predictor.workers), len(names))
    if np.asarray(covariates, dtype=np.float64).shape != expected:
        raise ValueError(
            f"{name} must have the shape [workers, covariates] {expected}, in the order {list(names)}, "
            f"got {np.shape(covariates)}"
        )


def require_fleet(report: Report, count: int) -> None:
    """Refuse a report that does not have one number for each worker."""
    shapes = np.asarray(report.samples).shape, np.asarray(report.seconds).shape
    if shapes != ((count,), (count,)):
        raise ValueError(
            f"the report must hold samples and seconds for each of the {count} workers, got the shapes {shapes[0]} and "
            f"{shapes[1]}; call join or leave when the fleet changes"
        )
    if report.comm_seconds is not None and np.asarray(report.comm_seconds, dtype=np.float64).shape != (count,):
        raise ValueError(
            f"comm_seconds must hold one number for each of the {count} workers, got the shape "
            f"{np.shape(report.comm_seconds)}"
        )
    if report.out_of_memory is not None:
        _flags(report.out_of_memory, count)


def _flags(out_of_memory: object, count: int) -> Mask:
    flags = np.asarray(out_of_memory)
    if flags.shape != (count,):
        raise ValueError(
            f"out_of_memory must hold one flag for each of the {count} workers, got the shape {flags.shape}"
        )
    ran_out: Mask = flags == 1
    return ran_out


def _by_worker(bound: int | Mapping[str, int] | None, workers: Sequence[str], unnamed: float) -> Array:
    if isinstance(bound, Mapping):
        return np.array([bound.get(worker, unnamed) for worker in workers], dtype=np.float64)
    return np.full(len(workers), unnamed if bound is None else bound, dtype=np.float64)
