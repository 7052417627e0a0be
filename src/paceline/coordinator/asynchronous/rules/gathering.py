"""Gathering: how many pushes make one update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from paceline.coordinator.asynchronous.workers import Workers

LOST = 0.025
"""Nothing more is given up while this share of all steps has been lost like that."""


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
    far as it would have alone, up to one push of each worker). Once the whole fleet could have pushed, the straggler's
    step is given up, unless too much has been lost like that: then it is the samples, and not the worker, that take
    long, and whoever drew them next would be given up as well.
    """

    mean: bool = False

    def ready(self, pushes: int, fleet: Workers, bound: int | None) -> bool:
        """Return whether an update leaves all workers within the bound, or those beyond are to be given up."""
        if bound is None or (pushes >= len(fleet) and fleet.lost <= LOST * fleet.pushes):
            return True
        oldest = fleet.version - bound
        return all(member.step is None or member.step.stamp.version > oldest for member in fleet)
