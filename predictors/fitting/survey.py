"""What traces hold, learnt in one pass without keeping them: drivers and their scale, workers, counts.

Axes: T iterations, W workers, D drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from paceline._arrays import Array

if TYPE_CHECKING:
    from paceline.datasets import Trace


@dataclass(frozen=True)
class Spread:
    """Count, mean and sum of squared deviations of some numbers; two add up to that of all numbers.

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
        return cls(known.size, mean, float(np.square(known - mean).sum()))

    def __add__(self, other: Spread) -> Spread:
        count = self.count + other.count
        if not self.count or not other.count:
            return self if self.count else other
        apart = other.mean - self.mean
        mean = self.mean + apart * other.count / count
        return Spread(count, mean, self.squares + other.squares + apart**2 * self.count * other.count / count)

    @property
    def deviation(self) -> float:
        """The standard deviation; 1 if no value is known, or none differs."""
        deviation = (self.squares / max(self.count, 1)) ** 0.5
        return deviation if deviation > 1e-12 else 1.0


@dataclass(frozen=True)
class Survey:
    """What some traces hold.

    Parameters
    ----------
    lengths
        Iterations of each trace.
    speeds
        Number of measured speeds, over all traces.
    workers
        The different names of workers, in order of appearance.
    drivers
        Every driver of any trace with its spread over the workers that are fitted.
    shared
        The drivers that all traces have.
    """

    lengths: tuple[int, ...]
    speeds: int
    workers: tuple[str, ...]
    drivers: dict[str, Spread]
    shared: tuple[str, ...]

    @classmethod
    def of(cls, traces: Iterable[Trace], held_out: Callable[[str], bool] = lambda worker: False) -> Self:
        """Pass over the traces once; the spread of drivers leaves out the workers for which ``held_out`` is true.

        Examples
        --------
        >>> from paceline.datasets import Trace
        >>> one = Trace([[8, 8]], [[1, 2]], drivers=[[[0.5], [1.0]]], driver_names=["cpu_share"])
        >>> survey = Survey.of([one, one])
        >>> survey.shared, survey.drivers["cpu_share"].mean, survey.speeds
        (('cpu_share',), 0.75, 4)
        """
        lengths: list[int] = []
        workers: dict[str, None] = {}
        drivers: dict[str, Spread] = {}
        shared: list[str] | None = None
        speeds = 0
        for trace in traces:
            lengths.append(len(trace))
            workers |= dict.fromkeys(trace.workers)
            speeds += int(np.isfinite(trace.speed).sum())
            shared = [n for n in (trace.driver_names if shared is None else shared) if n in trace.driver_names]
            fitted_W = np.array([not held_out(worker) for worker in trace.workers])
            for d, name in enumerate(trace.driver_names):
                assert trace.drivers is not None, "a trace with names of drivers has drivers"
                drivers[name] = drivers.get(name, Spread()) + Spread.of(trace.drivers[:, fitted_W, d])
        if not lengths:
            raise ValueError("traces must hold at least one trace to fit, got none")
        return cls(tuple(lengths), speeds, tuple(workers), drivers, tuple(shared or ()))

    def shared_drivers(self, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the wanted drivers, or all that the traces share if ``wanted`` is None.

        Raises
        ------
        ValueError
            If a wanted driver is not in every trace; the message lists those that are.
        """
        missing = [name for name in wanted or () if name not in self.shared]
        if missing:
            raise ValueError(f"drivers {missing} are not in every trace to fit; those that are: {list(self.shared)}")
        return self.shared if wanted is None else wanted

    def any_drivers(self, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the wanted drivers, or all that any of the traces has if ``wanted`` is None.

        Raises
        ------
        ValueError
            If a wanted driver is in none of the traces; the message lists those that are.
        """
        missing = [name for name in wanted or () if name not in self.drivers]
        if missing:
            raise ValueError(
                f"drivers {missing} are in none of the traces to fit; those that are: {list(self.drivers)}"
            )
        return tuple(self.drivers) if wanted is None else wanted

    def mean_and_scale(self, names: tuple[str, ...]) -> tuple[Array, Array]:
        """Return mean and deviation of each driver, ``[D]``; deviation 1 if it is never known or never changes."""
        spreads = [self.drivers.get(name, Spread()) for name in names]
        return np.array([s.mean for s in spreads], dtype=float), np.array([s.deviation for s in spreads], dtype=float)
