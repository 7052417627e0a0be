"""Gates: whether a worker may start its next step, or has to wait for others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from paceline.coordinator.asynchronous.workers import Member, Workers


class Gate(Protocol):
    """Decides whether a worker may start a step; asked again after every push until it may."""

    def pushed(self, member: Member, fleet: Workers) -> None:
        """Note that a worker pushed."""
        ...

    def may_start(self, member: Member, fleet: Workers) -> bool:
        """Return whether a worker may start its next step now."""
        ...


@dataclass(frozen=True)
class Open:
    """Nobody waits."""

    def pushed(self, member: Member, fleet: Workers) -> None:
        """Do nothing."""

    def may_start(self, member: Member, fleet: Workers) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True)
class Fresh:
    """Nobody starts twice from the same version: the barrier of BSP, and of K-sync."""

    def pushed(self, member: Member, fleet: Workers) -> None:
        """Do nothing."""

    def may_start(self, member: Member, fleet: Workers) -> bool:
        """Return whether there is a version that the worker has not worked on."""
        return member.worked_on < fleet.version


@dataclass(frozen=True)
class Bounded:
    """At clock c a worker may start while c <= min c + slack (SSP; Ho et al., NIPS 2013, section 2).

    >>> fleet = Workers(members={"fast": Member("fast", clock=3), "slow": Member("slow", clock=1)})
    >>> [Bounded(slack).may_start(fleet.members["fast"], fleet) for slack in (1, 2)]
    [False, True]
    """

    slack: int = 3

    def __post_init__(self) -> None:
        if self.slack < 0:
            raise ValueError(f"slack must be 0 steps or more, got {self.slack}")

    def pushed(self, member: Member, fleet: Workers) -> None:
        """Do nothing."""

    def may_start(self, member: Member, fleet: Workers) -> bool:
        """Return whether the worker is at most ``slack`` steps ahead of the slowest."""
        return member.clock <= fleet.slowest.clock + self.slack


@dataclass(frozen=True)
class Ranged:
    """A slack between two bounds, chosen so that the fastest waits least (DSSP; Zhao et al., ICDCS 2019, algorithm 2).

    A worker that passes the lower bound as the fastest gets the number of extra steps after which, by the last two
    push times of it and of the slowest, it would wait least for the slowest's next push.

    Parameters
    ----------
    low, high
        The bounds, in steps.

    Examples
    --------
    The fast worker pushes every second, the slow one every 4 s, next at 8 s: after three more steps, at 8 s, the
    fast worker does not wait at all.

    >>> fast, slow = Member("fast", clock=5, pushed=(4.0, 5.0)), Member("slow", clock=1, pushed=(0.0, 4.0))
    >>> rule = Ranged(low=3, high=9)
    >>> rule.pushed(fast, Workers(members={"fast": fast, "slow": slow}))
    >>> fast.extra
    3
    """

    low: int = 3
    high: int = 15

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ValueError(f"low and high must be 0 or more and in this order, got {self.low} and {self.high}")

    def pushed(self, member: Member, fleet: Workers) -> None:
        """Count an extra step, or grant some to the fastest when it passes the lower bound."""
        slowest = fleet.slowest
        if member.extra:
            member.extra -= 1
        elif member.clock == slowest.clock + self.low + 1 and member.clock == max(other.clock for other in fleet):
            # Granted once, when the bound is passed: whoever has used its steps up waits for the slowest.
            member.extra = self._extra(member, slowest)

    def may_start(self, member: Member, fleet: Workers) -> bool:
        """Return whether the worker is within the lower bound, or has extra steps left."""
        return member.extra > 0 or member.clock <= fleet.slowest.clock + self.low

    def _extra(self, fast: Member, slow: Member) -> int:
        """Return after how many extra steps the wait for the slowest's next push is shortest, by straight lines."""
        if len(fast.pushed) < 2 or len(slow.pushed) < 2:
            return 0
        pace, slow_pace = fast.pushed[1] - fast.pushed[0], slow.pushed[1] - slow.pushed[0]
        if not (pace > 0 and slow_pace > 0):  # no times were given
            return 0

        def wait(extra: int) -> float:
            ready = fast.pushed[1] + extra * pace
            pushes = max(math.ceil((ready - slow.pushed[1]) / slow_pace - 1e-9), 1)
            return slow.pushed[1] + pushes * slow_pace - ready

        return min(range(self.high - self.low + 1), key=wait)
