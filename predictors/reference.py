"""What a predictor was fitted on: how much speeds changed, and the range of each covariate.

Axes: T iterations, W workers, D covariates, R rows: the changes of speed, and each covariate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from paceline._arrays import Array, Mask

FAR = 5.0
"""Deviations from the fitted mean beyond which a value counts as unknown.

Whatever their distribution, at most 1 in 25 of the fitted values themselves lie so far out (Chebyshev's inequality):
fewer than the 5% from which on values count as drift.
"""


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
class Reference:
    """The spread of what a predictor was fitted on, as large for a million workers as for one.

    Parameters
    ----------
    change
        Of the changes of log speed from one iteration to the next. Speeds themselves differ between machines and jobs,
        and most predictors are indifferent to their level.
    covariates
        Of each covariate that the predictor reads, in its order.

    Examples
    --------
    >>> quiet = np.exp(np.random.default_rng(0).normal(0, 0.01, (1000, 4)))
    >>> reference = Reference(Spread.of(changes(quiet)), ())
    >>> float(reference.unknown_changes(changes(quiet)).mean()), reference.unknown_changes(np.array([0.5]))
    (0.0, array([ True]))
    """

    change: Spread
    covariates: tuple[Spread, ...]

    @classmethod
    def of_array(cls, rows: Array) -> Self:
        """Return the reference that :meth:`array` stored.

        Raises
        ------
        ValueError
            If the array is not that of a reference.
        """
        stored = np.asarray(rows, dtype=np.float64)
        if stored.ndim != 2 or stored.shape[1:] != (3,) or not len(stored) or not np.isfinite(stored).all():
            raise ValueError(f"a reference must hold finite rows of count, mean and squares, got {stored.shape}")
        change, *covariates = (Spread(int(count), float(mean), float(squares)) for count, mean, squares in stored)
        return cls(change, tuple(covariates))

    def array(self) -> Array:
        """Return the spreads as an array ``[R, 3]`` of count, mean and sum of squared deviations."""
        return np.array(
            [(one.count, one.mean, one.squares) for one in (self.change, *self.covariates)], dtype=np.float64
        )

    def __add__(self, other: Reference) -> Reference:
        """Return the reference of a predictor that was fitted to both."""
        covariates = tuple(mine + theirs for mine, theirs in zip(self.covariates, other.covariates, strict=True))
        return Reference(self.change + other.change, covariates)

    def unknown_changes(self, change: Array) -> Mask:
        """Return which changes of log speed are far from the fitted ones; False where one is NaN."""
        return np.asarray(np.abs(change - self.change.mean) > FAR * self.change.deviation)

    def unknown_covariates(self, covariates: Array) -> Mask:
        """Return which covariates, ``[..., D]``, lie far from the fitted ones; False where one is NaN."""
        mean_D, deviation_D = (np.array([getattr(one, of) for one in self.covariates]) for of in ("mean", "deviation"))
        return np.asarray(np.abs(covariates - mean_D) > FAR * deviation_D)


def changes(speed_TW: Array) -> Array:
    """Return the changes of log speed from one iteration to the next, ``[T - 1, W]``; NaN beside a missing one."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_TW = np.log(speed_TW)
        change_TW: Array = log_TW[1:] - log_TW[:-1]
    return np.where(np.isfinite(change_TW), change_TW, np.nan)
