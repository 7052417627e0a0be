"""Synchronisation schemes to replay: each chooses the next batch sizes. Axes: W workers, D covariates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array, Sizes
from paceline.coordinator.balanced.load_balancer import LoadBalancer
from paceline.coordinator.balanced.policy import Policy
from paceline.datasets import Trace
from paceline.eval.contract import require_forecasts
from paceline.predictors import Curves, Forecast, Predictor, Report
from paceline.solver import split


class SizeScheme(Protocol):
    """Chooses batch sizes at every barrier, from past measurements.

    In each iteration, ``sizes`` is called first, with the covariates sampled at the boundary, and ``observe``
    afterwards.
    """

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """The covariates it reads."""
        ...

    def reset(self, workers: Sequence[str], global_batch: int) -> None:
        """Start a job with these workers and this global batch; nothing is carried over."""
        ...

    def sizes(self, iteration: int, covariates: Array | None) -> Sizes:
        """Choose the sizes of this iteration, ``[W]``: at least one sample each, summing to the global batch."""
        ...

    def observe(self, sizes: Sizes, seconds: Array, covariates: Array | None) -> None:
        """Learn the workers' times in the iteration just finished, ``[W]``, in seconds."""
        ...


class EqualBatches:
    """Bulk-synchronous parallel (BSP): all workers get the same, up to one sample."""

    covariate_names: tuple[str, ...] = ()

    def reset(self, workers: Sequence[str], global_batch: int) -> None:
        """Start a job with these workers and this global batch; nothing is carried over."""
        self._sizes = split(Curves.from_speed(np.ones(len(workers))), global_batch, lower=1).sizes

    def sizes(self, iteration: int, covariates: Array | None) -> Sizes:
        """Return the same sizes every time."""
        return self._sizes

    def observe(self, sizes: Sizes, seconds: Array, covariates: Array | None) -> None:
        """Learn nothing."""


class Balanced:
    """Load-balanced BSP (LB-BSP) as a job runs it: the sizes that a load balancer plans with this predictor.

    Parameters
    ----------
    predictor
        Any predictor, fitted if it needs fitting.
    policy
        When the balancer changes sizes; by default as in a job.
    """

    def __init__(self, predictor: Predictor, policy: Policy | None = None) -> None:
        self.predictor = predictor
        self.policy = policy

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """The covariates that its predictor reads."""
        return self.predictor.covariate_names

    def reset(self, workers: Sequence[str], global_batch: int) -> None:
        """Start a job with these workers and this global batch; nothing is carried over."""
        self._checked = _Checked(self.predictor, tuple(workers))
        self.balancer = LoadBalancer(self._checked, workers=workers, global_batch=global_batch, policy=self.policy)
        self._report: Report | None = None

    def sizes(self, iteration: int, covariates: Array | None) -> Sizes:
        """Return the sizes that the balancer plans from the last report."""
        if self._report is not None:
            self._checked.iteration = iteration
            self.balancer.step(self._report, covariates)
        return self.balancer.plan.sizes

    def observe(self, sizes: Sizes, seconds: Array, covariates: Array | None) -> None:
        """Report the measured times."""
        self._report = Report(samples=sizes, seconds=seconds, covariates=covariates)


class _Checked:
    """A predictor whose forecasts are checked against the contract before any decision uses them."""

    iteration = 0

    def __init__(self, predictor: Predictor, workers: tuple[str, ...]) -> None:
        self._predictor, self._fleet = predictor, workers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._predictor, name)

    def predict(self, *, covariates: ArrayLike | None = None, horizon: int = 1) -> Forecast:
        """Return the predictor's forecast."""
        ahead = self._predictor.predict(covariates=covariates, horizon=horizon)
        require_forecasts(self._predictor, ahead.speed[None], ahead.spread[None], self._fleet, self.iteration)
        return ahead


class BareSplit:
    """The exact split of every forecast, at least one sample each: a balancer without any policy.

    Parameters
    ----------
    predictor
        Any predictor, fitted if it needs fitting.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """The covariates that its predictor reads."""
        return self.predictor.covariate_names

    def reset(self, workers: Sequence[str], global_batch: int) -> None:
        """Start a job with these workers and this global batch; nothing is carried over."""
        self.predictor.reset(workers)
        self._workers, self._global_batch = tuple(workers), global_batch

    def sizes(self, iteration: int, covariates: Array | None) -> Sizes:
        """Solve the split of the forecast curves."""
        forecast = self.predictor.predict(covariates=covariates)
        require_forecasts(self.predictor, forecast.speed[None], forecast.spread[None], self._workers, iteration)
        return split(forecast.curves, self._global_batch, lower=1).sizes

    def observe(self, sizes: Sizes, seconds: Array, covariates: Array | None) -> None:
        """Pass the measured times to the predictor."""
        self.predictor.observe(Report(samples=sizes, seconds=seconds, covariates=covariates))


def balanced(models: Mapping[str, Predictor]) -> dict[str, SizeScheme]:
    """Return, for predictors by their names, what a job runs and what the bare split of each forecast would do.

    >>> from paceline.predictors import EWMA
    >>> list(balanced({"ewma": EWMA()}))
    ['ewma', 'ewma, bare split']
    """
    schemes: dict[str, SizeScheme] = {}
    for name, model in models.items():
        schemes |= {name: Balanced(model), f"{name}, bare split": BareSplit(model)}
    return schemes


def curves_at(trace: Trace, fixed_seconds: Array, iteration: int) -> Curves:
    """Return the time of any batch in a recorded iteration of which these seconds are fixed, ``[T, W]``."""
    fixed_W = fixed_seconds[iteration]
    slope_W = (trace.seconds[iteration] - fixed_W) / trace.samples[iteration]
    return Curves(np.zeros_like(fixed_W), slope_W, fixed_W, np.full_like(fixed_W, np.inf))


class Oracle:
    """The best possible sizing: sizes solved from the speeds of the iteration to come.

    Parameters
    ----------
    speed
        The whole job's recorded speeds, ``[T, W]``, in samples/s, such as ``trace.speed``.
    curves
        Batch time curves of the workers, if the speeds are relative to these.
    """

    covariate_names: tuple[str, ...] = ()

    def __init__(self, speed: Array, curves: Curves | None = None) -> None:
        self.speed = speed
        self.curves = curves
        self._curves_at: Callable[[int], Curves] = self._by_speed

    @classmethod
    def of_fixed(cls, trace: Trace, fixed_seconds: Array) -> Oracle:
        """Return the oracle of a job of whose times these seconds do not follow the batch, ``[T, W]``."""
        oracle = cls(trace.speed)
        oracle._curves_at = partial(curves_at, trace, fixed_seconds)
        return oracle

    def reset(self, workers: Sequence[str], global_batch: int) -> None:
        """Start a job with these workers and this global batch; nothing is carried over."""
        self._global_batch = global_batch

    def sizes(self, iteration: int, covariates: Array | None) -> Sizes:
        """Solve the split of the true speeds."""
        return split(self._curves_at(iteration), self._global_batch, lower=1).sizes

    def _by_speed(self, iteration: int) -> Curves:
        speed_W, usual = self.speed[iteration], self.curves
        if usual is None:
            return Curves.from_speed(speed_W)
        return Curves(usual.floor / speed_W, usual.slope / speed_W, usual.intercept / speed_W, usual.limit)

    def observe(self, sizes: Sizes, seconds: Array, covariates: Array | None) -> None:
        """Learn nothing."""
