"""Contention beside the workers of a command that knows nothing of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.datasets.collect.contention import Competitor, plan
from paceline.datasets.collect.jobs import USAGE
from paceline.datasets.collect.limits import PERIOD_SECONDS, Place, places
from paceline.datasets.collect.process import Process
from paceline.datasets.collect.usage import Usage

LONGEST_COMMAND = 4 * 3600.0  # seconds: contention is planned for so long a command


@dataclass(frozen=True, kw_only=True)
class Contention:
    """Who competes with the workers of a command, and when.

    Parameters
    ----------
    workers
        How many workers the command starts on this machine; the worker of local rank ``r`` has the r-th place.
    pattern
        One of those of :class:`Job`.
    competitors, kind, quota, seed
        As those of :class:`Job`.
    usage
        How busy real hosts were, for the pattern ``usage``.

    Examples
    --------
    >>> contention = Contention(workers=2, pattern="steady", competitors=3)
    >>> len(contention.planned())
    3
    """

    workers: int
    pattern: str
    competitors: int = 1
    kind: str = "cpu"
    quota: float = 0.4
    seed: int = 0
    usage: Usage | None = None

    def planned(self) -> list[Competitor]:
        """Return who competes with which worker, and when, from the command's start.

        Raises
        ------
        ValueError
            If the pattern and the usage do not go together, or there is no such pattern.
        """
        if (self.pattern == USAGE) != (self.usage is not None):
            raise ValueError(f"usage must be given for the pattern {USAGE!r} and for no other, got {self.usage}")
        if self.usage is not None:
            return self.usage.plan(self.workers, self.competitors, LONGEST_COMMAND, self.seed)
        return plan(self.pattern, self.workers, self.competitors, LONGEST_COMMAND, self.seed)

    def meta(self, place: Place) -> dict[str, str]:
        """Describe it for the trace."""
        return {
            "pattern": self.pattern,
            "competitors": f"{self.competitors} ({self.kind})" if self.pattern != "none" else "0",
            "isolation": place.isolation(self.quota),
            "quota": f"{self.quota:g} cores",
            "period": f"{PERIOD_SECONDS * 1000:g} ms",
            "seed": str(self.seed),
            **({} if self.usage is None else {"usage": str(self.usage)}),
        }


@contextmanager
def beside(contention: Contention) -> Iterator[Sequence[Place]]:
    """Make a place for each worker, and have the competitors of each begin there; all ends with the block."""
    planned = contention.planned()
    with ExitStack() as running:
        where = running.enter_context(places(contention.workers, contention.quota))
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="paceline-")))
        for number, one in enumerate(planned):
            told = {"place": asdict(where[one.worker]), "spans": one.spans, "kind": contention.kind}
            competitor = Process("paceline.datasets.collect.competitor", number, folder, told)
            running.callback(competitor.end)
            competitor.tell("begin")
        yield where
