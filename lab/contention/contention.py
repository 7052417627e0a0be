"""Contention: what competes with the workers of this machine, for which resource, and when.

The plan is made from a seed before anything runs, so that a recording can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.lab.contention.competitor import KINDS
from paceline.lab.contention.patterns import PATTERNS, Competitor, plan
from paceline.lab.contention.stress import STRESSORS
from paceline.lab.contention.usage import Usage
from paceline.lab.processes.places import PERIOD_SECONDS
from paceline.recording.place import Place

USAGE = "usage"
"""The pattern that follows a usage trace."""


@dataclass(frozen=True, kw_only=True)
class Contention:
    """Contention for a job's workers: the competing processes, their kind and their times.

    Parameters
    ----------
    workers
        Number of workers on this machine; the worker of local rank ``r`` has the r-th place.
    pattern
        When competitors are busy: ``none``, ``steady``, ``bursty``, ``moving``, or ``usage``, which follows a usage
        trace.
    competitors
        Competing processes beside each contended worker; for ``moving`` the number that move around, for ``usage`` the
        number beside the worker of a fully busy host.
    kind
        What competitors do: ``cpu`` counts, ``memory`` copies memory, ``disk`` writes and reads a file;
        ``stress-ng-cpu``, ``-memory`` and ``-disk`` use stress-ng for the same, if it is installed.
    quota
        Cores that a worker and its competitors may use together.
    seed
        Makes the plan repeatable.
    usage
        How busy real hosts were, for the pattern ``usage``.

    Raises
    ------
    ValueError
        If there is no such pattern or kind, or a usage trace is missing or not needed.

    Examples
    --------
    >>> contention = Contention(workers=2, pattern="steady", competitors=3)
    >>> len(contention.planned(seconds=60.0))
    3
    """

    workers: int
    pattern: str
    competitors: int = 1
    kind: str = "cpu"
    quota: float = 0.4
    seed: int = 0
    usage: Usage | None = None

    def __post_init__(self) -> None:
        require_known(self.pattern, self.kind)
        if (self.pattern == USAGE) != (self.usage is not None):
            raise ValueError(f"usage must be given for the pattern {USAGE!r} and for no other, got {self.usage}")

    def planned(self, seconds: float) -> list[Competitor]:
        """Return the competitors of each worker, and when they are busy, for a job of at most this length."""
        if self.usage is not None:
            return self.usage.plan(self.workers, self.competitors, seconds, self.seed)
        return plan(self.pattern, self.workers, self.competitors, seconds, self.seed)

    def meta(self, place: Place) -> dict[str, str]:
        """Return a description of the contention, for the ``meta`` of a trace."""
        return {
            "pattern": self.pattern,
            "competitors": f"{self.competitors} ({self.kind})" if self.pattern != "none" else "0",
            "isolation": place.isolation(self.quota),
            "quota": f"{self.quota:g} cores",
            "period": f"{PERIOD_SECONDS * 1000:g} ms",
            "seed": str(self.seed),
            **({} if self.usage is None else {"usage": str(self.usage)}),
        }


def require_known(pattern: str, kind: str) -> None:
    """Refuse an unknown pattern or kind of competitor."""
    for name, value, known in (("pattern", pattern, {*PATTERNS, USAGE}), ("kind", kind, {*KINDS, *STRESSORS})):
        if value not in known:
            raise ValueError(f"{name} must be one of {sorted(known)}, got {value!r}")
