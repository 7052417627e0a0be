"""Makes a record of every round for sinks: staleness forecast and seen, stragglers, what was wasted, and why.

Axis: W workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline._wording import count, listed
from paceline.coordinator.asynchronous.ledger import WASTED, Account, Outcome
from paceline.coordinator.asynchronous.server import Server
from paceline.coordinator.asynchronous.verdict import Verdict
from paceline.parameter_server.listeners import tell
from paceline.parameter_server.service import Service
from paceline.recording.round import Round

LEAST_SECONDS = 0.1
"""Shorter rounds are recorded together, as short iterations are on the synchronous side."""

NAMED = 3
"""Most sentences of one kind in a round's reason, and most names in one; the others are counted."""


@dataclass(frozen=True, eq=False)
class Standing:
    """State after a round, to compare with the round before: next sizes, stragglers, and samples wasted so far.

    Parameters
    ----------
    sizes
        Samples of the next step, by worker.
    stragglers
        Reason for each straggler, by worker.
    wasted
        Samples so far of steps with each outcome, over all workers.
    """

    sizes: dict[str, int]
    stragglers: dict[str, str]
    wasted: dict[Outcome, int]

    @classmethod
    def of(cls, server: Server) -> Standing:
        """Return the present state of a server."""
        seen, accounts = server.staleness_reports(), server.ledger.accounts.values()
        return cls(
            sizes={one.worker: one.size for one in seen},
            stragglers={one.worker: one.why for one in seen if one.is_straggler},
            wasted={outcome: sum(one.samples.get(outcome, 0) for one in accounts) for outcome in WASTED},
        )


class Rounds:
    """Listens to a service's verdicts, and calls sinks with every round.

    Parameters
    ----------
    service
        Its verdicts are listened to from now on; records are made under its lock.
    on_round
        Called with each record. One that raises is logged, and not called again.
    least_seconds
        Time that a round lasts at least.

    Examples
    --------
    >>> from paceline.coordinator.asynchronous import SGD, EpochSampler, Server, scheme
    >>> sampler = EpochSampler(8, epochs=1)
    >>> server = Server(np.zeros(1), SGD(0.1), scheme("asp", 2), sampler, batch=4, workers=["a", "b"])
    >>> service, seen = Service(server), []
    >>> _ = Rounds(service, [seen.append])
    >>> works = {worker: service.pull(worker) for worker in "ab"}
    >>> _ = [service.push(worker, work.stamp, np.ones(1)) for worker, work in works.items()]
    >>> seen[0].staleness, seen[0].why
    (array([0., 1.]), 'Nothing changed; of 2 steps none was wasted.')
    """

    def __init__(
        self, service: Service, on_round: Sequence[Callable[[Round], None]], *, least_seconds: float = LEAST_SECONDS
    ) -> None:
        self.service, self.on_round, self.least_seconds = service, list(on_round), least_seconds
        self._index = 0
        self._began = time.monotonic()
        self._verdicts: list[Verdict] = []
        self._before = Standing.of(service.server)
        service.on_verdict.append(self)

    def __call__(self, verdict: Verdict) -> None:
        """Take note of a verdict; at the end of a round, make its record."""
        self._verdicts.append(verdict)
        server, now = self.service.server, time.monotonic()
        whole = len(self._verdicts) >= len(server.fleet) and now - self._began >= self.least_seconds
        if not (whole or server.finished):
            return
        record = self._record()
        self._verdicts, self._began, self._index = [], now, self._index + 1
        tell(self.on_round, record, "on_round")

    def _record(self) -> Round:
        server, ledger, seen = self.service.server, self.service.server.ledger, self.service.server.calibration
        workers = server.workers
        accounts = [ledger.accounts.get(worker, Account()) for worker in workers]
        before, self._before = self._before, Standing.of(server)
        reason = _why(before, self._before, self._verdicts)
        return Round(
            index=self._index,
            time=time.time(),
            scheme=server.scheme.name,
            bound=server.scheme.bound,
            batch=server.batch,
            workers=workers,
            version=server.version,
            applied=server.sampler.applied,
            sizes=server.sizes,
            pushes=np.array([sum(one.worker == worker for one in self._verdicts) for worker in workers]),
            staleness=np.array([self._staleness(worker) for worker in workers]),
            expected=server.expected_staleness,
            done=np.array([account.applied for account in accounts]),
            wasted=np.array([account.wasted for account in accounts]),
            waited=np.array([self.service.waited.get(worker, 0.0) for worker in workers]),
            dropped=self._before.wasted[Outcome.DROPPED],
            abandoned=self._before.wasted[Outcome.ABANDONED],
            refused=self._before.wasted[Outcome.REFUSED],
            wasted_share=ledger.wasted_share,
            forecast=seen.forecast if seen.pushes else float("nan"),
            actual=seen.actual if seen.pushes else float("nan"),
            covered=seen.covered if seen.pushes else float("nan"),
            largest=ledger.largest_staleness,
            stragglers=tuple(self._before.stragglers),
            acted=bool(reason),
            why=reason or f"Nothing changed; of {count(len(self._verdicts), 'step')} none was wasted.",
        )

    def _staleness(self, worker: str) -> float:
        seen = [one.staleness for one in self._verdicts if one.worker == worker and one.staleness >= 0]
        return sum(seen) / len(seen) if seen else float("nan")


def _why(before: Standing, now: Standing, verdicts: Sequence[Verdict]) -> str:
    """Return what happened in a round and why; an empty text if nothing did."""
    returned = now.wasted[Outcome.ABANDONED] - before.wasted[Outcome.ABANDONED]
    given_up = [worker for one in verdicts for worker in one.given_up]
    freed = [worker for worker in before.stragglers if worker in now.sizes and worker not in now.stragglers]
    kept = [worker for worker in now.sizes if worker in before.sizes]
    changed = [f"{w} {before.sizes[w]} to {now.sizes[w]}" for w in kept if before.sizes[w] != now.sizes[w]]
    parts = [
        *_named("Joined", [worker for worker in now.sizes if worker not in before.sizes]),
        *_named("Left", [worker for worker in before.sizes if worker not in now.sizes]),
        *_few([reason for worker, reason in now.stragglers.items() if worker not in before.stragglers]),
        *_few([one.why for one in verdicts if one.outcome in WASTED]),
        *_named("Steps given up at the bound", given_up),
        *([f"{count(returned, 'sample')} of steps that were given up went back"] if returned else []),
        *_named("No straggler any more", freed),
        *_named("Samples", changed),
    ]
    return ". ".join(parts) + "." if parts else ""


def _named(what: str, names: Sequence[str]) -> list[str]:
    return [f"{what}: {listed(names[:NAMED], max(len(names) - NAMED, 0))}"] if names else []


def _few(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - NAMED
    return [*sentences[:NAMED], *([f"The same of {more} more"] if more > 0 else [])]
