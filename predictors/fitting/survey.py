"""Survey of traces, in one pass without keeping them: covariates and their scale, workers, counts.

Axes: T iterations, W workers, D covariates.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np

from paceline._arrays import Array

if TYPE_CHECKING:
    from paceline.datasets import Trace


S = TypeVar("S", bound="Survey")


@dataclass(frozen=True)
class Spread:
    """Count, mean and sum of squared deviations of some numbers; the sum of two spreads covers all numbers.

    Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: Array) -> Self:
        """Return the spread of the finite ones of these values."""
        known = values[np.isfinite(values)]
        if not known.size:
            return cls()
        mean = float(known.mean())
        known -= mean  # a copy, as it was chosen by a mask
        return cls(known.size, mean, float(np.square(known, out=known).sum()))

    def __add__(self, other: Spread) -> Spread:
        count = self.count + other.count
        if not self.count or not other.count:
            return self if self.count else other
        shift = other.mean - self.mean
        mean = self.mean + shift * other.count / count
        return Spread(count, mean, self.squares + other.squares + shift**2 * self.count * other.count / count)

    @property
    def constant(self) -> bool:
        """True if no value is known, or none differs by more than rounding, whatever the unit."""
        return bool((self.squares / max(self.count, 1)) ** 0.5 <= 1e-12 * abs(self.mean))

    @property
    def deviation(self) -> float:
        """The standard deviation; 1 if no value is known, or none differs."""
        deviation = (self.squares / max(self.count, 1)) ** 0.5
        return 1.0 if self.constant else deviation


@dataclass(frozen=True)
class Survey:
    """Summary of some traces.

    Parameters
    ----------
    lengths
        Iterations of each trace.
    speeds
        Number of measured speeds, over all traces.
    workers
        The different names of workers, in order of appearance.
    covariates
        Every covariate of any trace with its spread over the workers that are fitted.
    shared
        The covariates that all traces have.
    """

    lengths: tuple[int, ...]
    speeds: int
    workers: tuple[str, ...]
    covariates: dict[str, Spread]
    shared: tuple[str, ...]

    @classmethod
    def of(cls, traces: Iterable[Trace], held_out: Callable[[str], bool] = lambda worker: False) -> Self:
        """Pass over the traces once; the spread of covariates leaves out the workers for which ``held_out`` is true.

        Examples
        --------
        >>> from paceline.datasets import Trace
        >>> one = Trace([[8, 8]], [[1, 2]], covariates=[[[0.5], [1.0]]], covariate_names=["cpu_share"])
        >>> survey = Survey.of([one, one])
        >>> survey.shared, survey.covariates["cpu_share"].mean, survey.speeds
        (('cpu_share',), 0.75, 4)
        """
        surveying = Surveying(held_out)
        for trace in traces:
            surveying.add(trace)
        return surveying.survey(cls)

    def shared_covariates(self, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the wanted covariates, or all that the traces share if ``wanted`` is None.

        Raises
        ------
        ValueError
            If a wanted covariate is not in every trace; the message lists those that are.
        """
        missing = [name for name in wanted or () if name not in self.shared]
        if missing:
            raise ValueError(f"covariates {missing} are not in every trace to fit; those that are: {list(self.shared)}")
        return self._informative(self.shared if wanted is None else wanted, wanted)

    def any_covariates(self, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the wanted covariates, or all that any of the traces has if ``wanted`` is None.

        Raises
        ------
        ValueError
            If a wanted covariate is in none of the traces; the message lists those that are.
        """
        missing = [name for name in wanted or () if name not in self.covariates]
        if missing:
            raise ValueError(
                f"covariates {missing} are in none of the traces to fit; those that are: {list(self.covariates)}"
            )
        return self._informative(tuple(self.covariates) if wanted is None else wanted, wanted)

    def _informative(self, names: tuple[str, ...], wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the names; raise for covariates without any value, warn of those that never change."""
        unknown = [name for name in names if not self.covariates[name].count]
        if unknown and wanted is not None:
            raise ValueError(f"covariates {unknown} have no value in the traces to fit, only NaN: leave them out")
        if unknown:
            warnings.warn(f"covariates {unknown} are left out: they are NaN throughout the traces to fit", stacklevel=4)
        constant = [name for name in names if self.covariates[name].count and self.covariates[name].constant]
        if constant:
            warnings.warn(
                f"covariates {constant} never change in the traces to fit, so nothing is learned from them",
                stacklevel=4,
            )
        return tuple(name for name in names if name not in unknown)

    def mean_and_scale(self, names: tuple[str, ...]) -> tuple[Array, Array]:
        """Return mean and deviation of each covariate, ``[D]``; deviation 1 if it is never known or never changes."""
        spreads = [self.covariates.get(name, Spread()) for name in names]
        return np.array([s.mean for s in spreads], dtype=float), np.array([s.deviation for s in spreads], dtype=float)


class Surveying:
    """A survey that is being made, trace by trace.

    Parameters
    ----------
    held_out
        Returns whether a worker of this name is left out of the spreads.
    """

    def __init__(self, held_out: Callable[[str], bool]) -> None:
        self._held_out = held_out
        self._lengths: list[int] = []
        self._workers: dict[str, None] = {}
        self._covariates: dict[str, Spread] = {}
        self._shared: list[str] | None = None
        self._speeds = 0

    def add(self, trace: Trace) -> None:
        """Survey one more trace."""
        self._lengths.append(len(trace))
        self._workers |= dict.fromkeys(trace.workers)
        self._speeds += int(np.isfinite(trace.speed).sum())
        before = trace.covariate_names if self._shared is None else self._shared
        self._shared = [name for name in before if name in trace.covariate_names]
        fitted_W = np.array([not self._held_out(worker) for worker in trace.workers])
        for d, name in enumerate(trace.covariate_names):
            assert trace.covariates is not None, "a trace with names of covariates has covariates"
            self._covariates[name] = self._covariates.get(name, Spread()) + Spread.of(trace.covariates[:, fitted_W, d])

    def survey(self, kind: type[S]) -> S:
        """Return the survey of the traces so far.

        Raises
        ------
        ValueError
            If there was no trace.
        """
        if not self._lengths:
            raise ValueError("traces must hold at least one trace to fit, got none")
        return kind(
            tuple(self._lengths),
            self._speeds,
            tuple(self._workers),
            dict(self._covariates),
            tuple(self._shared or ()),
        )
