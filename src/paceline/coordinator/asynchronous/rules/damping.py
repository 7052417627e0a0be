"""Damping: how much a gradient counts, by its staleness tau. Each rule is a formula with its source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class Damping(Protocol):
    """Rule for the factor that multiplies the learning rate for one push."""

    def factor(self, staleness: int, workers: int) -> float:
        """Return the factor, in (0, 1], for a push of this staleness in a fleet of this size."""
        ...


@dataclass(frozen=True)
class Undamped:
    """Every gradient counts in full, as in asynchronous SGD without a bound (ASP; Recht et al., NIPS 2011).

    >>> Undamped().factor(staleness=9, workers=4)
    1.0
    """

    def factor(self, staleness: int, workers: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Inverse:
    """1 / tau, and 1 for a fresh gradient (staleness-aware ASGD; Zhang et al., IJCAI 2016, section 3).

    >>> [Inverse().factor(staleness, workers=4) for staleness in (0, 1, 4)]
    [1.0, 1.0, 0.25]
    """

    def factor(self, staleness: int, workers: int) -> float:
        """Return 1 / max(tau, 1)."""
        return 1.0 / max(staleness, 1)


@dataclass(frozen=True)
class InverseNext:
    """1 / (tau + 1) (DynSGD; Jiang et al., SIGMOD 2017, section 5).

    >>> [InverseNext().factor(staleness, workers=4) for staleness in (0, 1, 4)]
    [1.0, 0.5, 0.2]
    """

    def factor(self, staleness: int, workers: int) -> float:
        """Return 1 / (tau + 1)."""
        return 1.0 / (staleness + 1)


@dataclass(frozen=True)
class Share:
    """1 / W of a fleet of W workers, whatever the staleness (ConSGD; Jiang et al., SIGMOD 2017, section 4).

    >>> Share().factor(staleness=9, workers=4)
    0.25
    """

    def factor(self, staleness: int, workers: int) -> float:
        """Return 1 / W."""
        return 1.0 / max(workers, 1)


@dataclass(frozen=True)
class Polynomial:
    """(1 + tau) ** -power (FedAsync; Xie et al., 2019, section 5.2; FedBuff takes the power 0.5).

    >>> [Polynomial(0.5).factor(staleness, workers=4) for staleness in (0, 3)]
    [1.0, 0.5]
    """

    power: float = 0.5

    def __post_init__(self) -> None:
        if not self.power >= 0:
            raise ValueError(f"power must be 0 or more, got {self.power}")

    def factor(self, staleness: int, workers: int) -> float:
        """Return (1 + tau) ** -power."""
        return float((1 + staleness) ** -self.power)


@dataclass(frozen=True)
class Exponential:
    """exp(-decay tau): ours, beside the polynomial; it forgets old gradients sooner.

    >>> round(Exponential(0.1).factor(staleness=10, workers=4), 3)
    0.368
    """

    decay: float = 0.1

    def __post_init__(self) -> None:
        if not self.decay >= 0:
            raise ValueError(f"decay must be 0 or more, got {self.decay}")

    def factor(self, staleness: int, workers: int) -> float:
        """Return exp(-decay tau)."""
        return math.exp(-self.decay * staleness)


@dataclass(frozen=True)
class Beyond:
    """W / (tau + 1) for what is staler than a fleet of W equal workers makes it, and 1 otherwise: ours.

    Among W workers of one pace the staleness is W - 1. A rule that damps this too only rescales the learning rate of
    everybody; this one leaves the usual push alone and damps stragglers.

    >>> [Beyond().factor(staleness, workers=4) for staleness in (0, 3, 7)]
    [1.0, 1.0, 0.5]
    """

    def factor(self, staleness: int, workers: int) -> float:
        """Return min(1, W / (tau + 1))."""
        return min(1.0, workers / (staleness + 1))
