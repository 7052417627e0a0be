"""Gathering: how many pushes make one update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from paceline.coordinator.asynchronous.workers import Workers


class Gathering(Protocol):
    """Decides when the pushes gathered so far become an update."""

    @property
    def mean(self) -> bool:
        """True if the update is the mean of the pushes, weighted by samples; False if it is their sum."""
        ...

    def ready(self, pushes: int, fleet: Workers, bound: int | None) -> bool:
        """Return whether the gathered pushes, at least one, are to be applied now."""
        ...


@dataclass(frozen=True)
class Each:
    """Every push is an update."""

    mean: bool = False

    def ready(self, pushes: int, fleet: Workers, bound: int | None) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True)
class Mean:
    """The mean of a number of pushes is an update.

    Parameters
    ----------
    pushes
        How many; 0 or less counts from the fleet's size: 0 is everybody (BSP), -2 all but two (two backup workers).
        Never more than there are workers: those that are left when others have gone would wait for ever.

    Examples
    --------
    >>> from paceline.coordinator.asynchronous.workers import Member
    >>> fleet = Workers(members={name: Member(name) for name in "abcd"})
    >>> [Mean(count).ready(3, fleet, bound=None) for count in (3, 0, -1, 9)]
    [True, False, True, False]
    """

    pushes: int
    mean: bool = True

    def ready(self, pushes: int, fleet: Workers, bound: int | None) -> bool:
        """Return whether enough pushes are gathered."""
        wanted = self.pushes if self.pushes > 0 else len(fleet) + self.pushes
        return pushes >= max(min(wanted, len(fleet)), 1)


@dataclass(frozen=True)
class Paced:
    """Every push is an update, unless that would carry a step under way past the bound: then it is gathered. Ours.

    A version is admitted only while no worker at a step would become staler than the bound. Until it has pushed, the
    others go on without waiting, and what they push makes one update together (a sum: each push moves the parameters as
    far as it would have alone). If as many pushes are gathered as ``patience`` says, the straggler's step is given up.

    Parameters
    ----------
    patience
        How many pushes to gather at most, in pushes of the whole fleet; above 0.
    """

    patience: float = 1.0
    mean: bool = False

    def __post_init__(self) -> None:
        if not self.patience > 0:
            raise ValueError(f"patience must be above 0, got {self.patience}")

    def ready(self, pushes: int, fleet: Workers, bound: int | None) -> bool:
        """Return whether an update leaves all workers within the bound, or patience is at an end."""
        if bound is None or pushes >= self.patience * len(fleet):
            return True
        oldest = fleet.version - bound
        return all(member.step is None or member.step.stamp.version > oldest for member in fleet)
