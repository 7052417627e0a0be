"""The ledger: what became of every step, and how much computing was wasted, in samples and in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum


class Outcome(Enum):
    """Outcome of a step; the values are its wording in a sentence."""

    APPLIED = "applied"
    DAMPED = "applied, damped"
    GATHERED = "gathered, to be applied with others"
    DROPPED = "dropped"
    ABANDONED = "abandoned"
    REFUSED = "refused"


WASTED = (Outcome.DROPPED, Outcome.ABANDONED, Outcome.REFUSED)
"""The outcomes whose computing was for nothing; their samples go back into the sampler."""


@dataclass
class Account:
    """One worker's steps.

    A step that was given up counts with all its samples, as nobody knows how far it was, and with the seconds that its
    worker says it took, once it says so.
    """

    steps: dict[Outcome, int] = field(default_factory=dict)
    samples: dict[Outcome, int] = field(default_factory=dict)
    seconds: dict[Outcome, float] = field(default_factory=dict)
    largest_staleness: int = 0
    """Of what was applied."""

    def took(self, outcome: Outcome, seconds: float) -> None:
        """Book the computing time of a step; one that is not known counts nothing."""
        if 0 < seconds < math.inf:
            self.seconds[outcome] = self.seconds.get(outcome, 0.0) + seconds

    def note(self, outcome: Outcome, samples: int, staleness: int) -> None:
        """Book a step that has come to its end."""
        self.steps[outcome] = self.steps.get(outcome, 0) + 1
        self.samples[outcome] = self.samples.get(outcome, 0) + samples
        if outcome not in WASTED:
            self.largest_staleness = max(self.largest_staleness, staleness)

    @property
    def applied(self) -> int:
        """Samples applied, damped ones included."""
        return sum(self.samples.get(outcome, 0) for outcome in (Outcome.APPLIED, Outcome.DAMPED))

    @property
    def wasted(self) -> int:
        """Samples computed for nothing."""
        return sum(self.samples.get(outcome, 0) for outcome in WASTED)


class Ledger:
    """The accounts of all workers that ever took part.

    Examples
    --------
    >>> ledger = Ledger()
    >>> ledger.note("a", Outcome.APPLIED, samples=90, staleness=2, seconds=6.0)
    >>> ledger.note("b", Outcome.DROPPED, samples=10, staleness=9, seconds=2.0)
    >>> ledger.wasted_share, ledger.wasted_seconds_share, ledger.largest_staleness, ledger.steps(Outcome.DROPPED)
    (0.1, 0.25, 2, 1)
    """

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}

    def note(
        self, worker: str, outcome: Outcome, *, samples: int, staleness: int = 0, seconds: float = math.nan
    ) -> None:
        """Book a step of a worker that has come to its end."""
        account = self.accounts.setdefault(worker, Account())
        account.note(outcome, samples, staleness)
        account.took(outcome, seconds)

    def took(self, worker: str, outcome: Outcome, seconds: float) -> None:
        """Book the computing time of a step that was booked without."""
        self.accounts.setdefault(worker, Account()).took(outcome, seconds)

    def steps(self, *outcomes: Outcome) -> int:
        """Return how many steps ended with any of these outcomes."""
        return sum(account.steps.get(outcome, 0) for account in self._all for outcome in outcomes)

    @property
    def wasted_share(self) -> float:
        """Share of the samples computed that was for nothing."""
        wasted, applied = sum(one.wasted for one in self._all), sum(one.applied for one in self._all)
        return wasted / (wasted + applied) if wasted else 0.0

    @property
    def wasted_seconds_share(self) -> float:
        """Share of the computing time that was for nothing, of all whose time is known."""
        everything = sum(sum(one.seconds.values()) for one in self._all)
        wasted = sum(one.seconds.get(outcome, 0.0) for one in self._all for outcome in WASTED)
        return wasted / everything if wasted else 0.0

    @property
    def largest_staleness(self) -> int:
        """The largest staleness ever applied."""
        return max((account.largest_staleness for account in self._all), default=0)

    @property
    def _all(self) -> Iterable[Account]:
        return self.accounts.values()
