"""Fits of predictors: a summary of the traces, made in one pass without keeping them, and the options of a fit.

Axes: T iterations, W workers, D covariates.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from paceline._arrays import Array, Mask
from paceline.predictors.fleet import FleetPredictor

if TYPE_CHECKING:
    import pandas as pd

    from paceline.datasets import Trace


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of some numbers; the sum of two moments covers all numbers.

    Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.
    """

    count: int = 0
    mean: float = 0.0
    squared_deviations: float = 0.0

    @classmethod
    def from_values(cls, values: Array) -> Self:
        """Return the moments of the finite ones of these values."""
        known = values[np.isfinite(values)]
        return cls(known.size, float(known.mean()), float(known.var()) * known.size) if known.size else cls()

    def __add__(self, other: Moments) -> Moments:
        count, shift = self.count + other.count, other.mean - self.mean
        share = other.count / max(count, 1)
        squares = self.squared_deviations + other.squared_deviations + shift**2 * self.count * share
        return Moments(count, self.mean + shift * share, squares)

    @property
    def deviation(self) -> float:
        """The standard deviation; 0 if no value is known, or none differs by more than rounding, whatever the unit."""
        deviation = float((self.squared_deviations / max(self.count, 1)) ** 0.5)
        return deviation if deviation > 1e-12 * abs(self.mean) else 0.0


@dataclass(frozen=True)
class TraceSummary:
    """Summary of some traces: iterations of each, the number of speeds, and the names of workers, as they appear.

    ``covariates`` holds every covariate of any trace with its spread over the workers that are fitted;
    ``shared_covariates`` those that all traces have.
    """

    num_iterations: tuple[int, ...]
    num_speeds: int
    workers: tuple[str, ...]
    covariates: dict[str, Moments]
    shared_covariates: tuple[str, ...]

    @classmethod
    def from_traces(cls, traces: Iterable[Trace], held_out: Callable[[str], bool] = lambda worker: False) -> Self:
        """Pass over the traces once; the spread of covariates leaves out the workers for which ``held_out`` is true."""
        lengths: list[int] = []
        speeds, workers, covariates, times_seen = 0, dict[str, None](), dict[str, Moments](), Counter[str]()
        for trace in traces:
            lengths.append(len(trace))
            speeds += int(np.isfinite(trace.speed).sum())
            workers |= dict.fromkeys(trace.workers)
            times_seen.update(trace.covariate_names)
            fitted_W = np.array([not held_out(worker) for worker in trace.workers])
            for name in trace.covariate_names:
                values = np.asarray(trace.covariates_named([name]))
                covariates[name] = covariates.get(name, Moments()) + Moments.from_values(values[:, fitted_W, 0])
        if not lengths:
            raise ValueError("traces must hold at least one trace to fit, got none")
        shared = tuple(name for name in covariates if times_seen[name] == len(lengths))
        return cls(tuple(lengths), speeds, tuple(workers), covariates, shared)

    def select_covariates(self, requested: tuple[str, ...] | None, shared_only: bool) -> tuple[str, ...]:
        """Return the requested covariates; if None, all that the traces share, or that any of them has.

        Raise for those without any value, warn of those that never change.
        """
        where = "not in every trace" if shared_only else "in none of the traces"
        names = self.shared_covariates if shared_only else tuple(self.covariates)
        if missing := [name for name in requested or () if name not in names]:
            raise ValueError(f"covariates {missing} are {where} to fit; those that are: {list(names)}")
        names = names if requested is None else requested
        unknown = [name for name in names if not self.covariates[name].count]
        if unknown and requested is not None:
            raise ValueError(f"covariates {unknown} have no value in the traces to fit, only NaN: leave them out")
        if unknown:
            warnings.warn(f"covariates {unknown} are left out: they are NaN throughout the traces to fit", stacklevel=3)
        if constant := [name for name in names if name not in unknown and not self.covariates[name].deviation]:
            warnings.warn(
                f"covariates {constant} never change in the traces to fit, so nothing is learned from them",
                stacklevel=3,
            )
        return tuple(name for name in names if name not in unknown)

    def mean_and_scale(self, covariate_names: tuple[str, ...]) -> tuple[Array, Array]:
        """Return mean and deviation of each covariate, ``[D]``; deviation 1 if it is never known or never changes."""
        moments = [self.covariates.get(name, Moments()) for name in covariate_names]
        return np.array([m.mean for m in moments]), np.array([m.deviation or 1.0 for m in moments])


def as_traces(traces: Trace | Iterable[Trace]) -> list[Trace]:
    """Return traces as a list: one trace, several, or a tidy DataFrame of one job."""
    from paceline.datasets import Trace

    if isinstance(traces, Trace):
        return [traces]
    if hasattr(traces, "columns"):
        return [Trace.from_frame(cast("pd.DataFrame", traces))]
    found = list(traces) if isinstance(traces, Iterable) and not isinstance(traces, str) else [traces]
    for one in found:
        if not isinstance(one, Trace):
            raise TypeError(
                f"traces must be a Trace, several, or a tidy DataFrame, got {type(one).__name__} {one!r:.60}"
            )
    return found


@dataclass(frozen=True)
class FitProgress:
    """Progress of a fit. Training may end before the total, when the loss on held-out windows stops falling."""

    stage: str  # what is being done: "read", "windows" or "training"
    done: int  # traces or windows
    total: int
    rate: float = float("nan")  # traces or windows per second; NaN until known
    loss: float = float("nan")  # of the newest batch; NaN before the first
    held_out_loss: float = float("nan")  # the least on held-out windows; NaN before the first

    @property
    def seconds_left(self) -> float:
        """Seconds until the end at this rate, at most; NaN while the rate is not known."""
        return (self.total - self.done) / self.rate if self.rate > 0 else float("nan")


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options of a fit, as :func:`paceline.training.fit` takes them.

    ``summary`` is what the traces hold, if that is known already; it saves a pass over them. ``warm_start`` starts from
    what the predictor has learned before. ``held_out`` names the workers that are never fitted and only decide when to
    stop; ``None`` holds out the end of every trace instead.
    """

    summary: TraceSummary | None = None
    warm_start: bool = False
    held_out: frozenset[str] | None = None
    device: str = "cpu"
    distributed: bool = False
    progress: Callable[[FitProgress], None] = field(default=lambda _: None)

    def summarize(self, traces: Iterable[Trace]) -> TraceSummary:
        """Return the summary of the traces."""
        return self.summary or TraceSummary.from_traces(traces, held_out=(self.held_out or frozenset()).__contains__)

    def window_roles(self, trace: Trace, validation: float) -> Iterator[tuple[Mask, bool]]:
        """Yield for each iteration which workers' windows are used, ``[W]``, and whether they validate.

        The last share of every trace validates. With held-out workers only theirs do, and their earlier windows are not
        used: what decides when to stop comes neither from a worker nor from a time that was fitted.
        """
        held_W = None if self.held_out is None else np.array([name in self.held_out for name in trace.workers])
        everyone_W = np.ones(len(trace.workers), dtype=bool)
        for k in range(len(trace)):
            validates = k >= (1.0 - validation) * len(trace)
            yield (everyone_W if held_W is None else held_W == validates), validates

    def drop_held_out(self, traces: Iterable[Trace]) -> Iterator[Trace]:
        """Yield the traces without their held-out workers; one that has no others is left out."""
        for trace in traces:
            if names := [name for name in trace.workers if name not in (self.held_out or ())]:
                yield trace if len(names) == len(trace.workers) else trace.select(workers=names)


def fit_with(predictor: Any, traces: Iterable[Trace], fit_options: FitOptions) -> None:
    """Fit a predictor in place, streamed where it can; any other gets a list, without the held-out workers."""
    if can_fit_streamed(predictor):
        predictor.fit_streamed(traces, fit_options)
    else:
        if fit_options.warm_start and type(predictor).fit is not FleetPredictor.fit:
            raise ValueError(
                f"{type(predictor).__name__} implements only fit(), which trains from scratch: implement "
                "fit_streamed() to continue from an earlier model"
            )
        predictor.fit(list(fit_options.drop_held_out(traces)))


def can_fit_streamed(predictor: object) -> bool:
    """Return whether a predictor can be fitted to a stream; one that overrides ``fit`` alone cannot."""
    of_fit = [vars(kind) for kind in type(predictor).__mro__ if vars(kind).keys() & {"fit", "fit_streamed"}]
    return bool(of_fit) and "fit_streamed" in of_fit[0]
