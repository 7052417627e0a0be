"""Makes a record of every round for sinks: staleness forecast and seen, stragglers, what was in vain, and why.

Axis: W workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from paceline.coordinator import why
from paceline.coordinator.asynchronous.ledger import IN_VAIN, Account, Outcome
from paceline.coordinator.asynchronous.service import Service
from paceline.coordinator.asynchronous.verdict import Verdict
from paceline.coordinator.round import Round

LEAST_SECONDS = 0.1
"""Shorter rounds are recorded together, as short iterations are on the synchronous side."""

NAMED = 3
"""Most sentences of one kind in a round's reason; the others are counted."""


class Rounds:
    """Listens to a service's verdicts, and calls sinks with every round.

    Parameters
    ----------
    service
        Its verdicts are listened to from now on; records are made under its lock.
    on_round
        Called with each record.
    least_seconds
        Time that a round lasts at least.

    Examples
    --------
    >>> from paceline.coordinator.asynchronous import SGD, Deck, Server, scheme
    >>> deck = Deck(8, epochs=1)
    >>> server = Server(np.zeros(1), SGD(0.1), scheme("asp", 2), deck, batch=4, workers=["a", "b"])
    >>> service, seen = Service(server), []
    >>> _ = Rounds(service, [seen.append])
    >>> works = {worker: service.pull(worker) for worker in "ab"}
    >>> _ = [service.push(worker, work.stamp, np.ones(1)) for worker, work in works.items()]
    >>> seen[0].staleness, seen[0].why
    (array([0., 1.]), 'Nothing changed; of 2 steps none was in vain.')
    """

    def __init__(
        self, service: Service, on_round: Sequence[Callable[[Round], None]], *, least_seconds: float = LEAST_SECONDS
    ) -> None:
        self.service, self.on_round, self.least_seconds = service, list(on_round), least_seconds
        self._index = 0
        self._began = time.monotonic()
        self._verdicts: list[Verdict] = []
        self._before = self._state()
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
        for sink in self.on_round:
            sink(record)

    def _record(self) -> Round:
        server, ledger, seen = self.service.server, self.service.server.ledger, self.service.server.calibration
        workers = server.workers
        accounts = [ledger.accounts.get(worker, Account()) for worker in workers]
        lost = {outcome: sum(one.samples.get(outcome, 0) for one in ledger.accounts.values()) for outcome in IN_VAIN}
        before, self._before = self._before, self._state()
        reason = self._why(*before)
        return Round(
            index=self._index,
            time=time.time(),
            scheme=server.scheme.name,
            bound=server.scheme.bound,
            batch=server.batch,
            workers=workers,
            version=server.version,
            applied=server.deck.applied,
            sizes=server.sizes,
            pushes=np.array([sum(one.worker == worker for one in self._verdicts) for worker in workers]),
            staleness=np.array([self._staleness(worker) for worker in workers]),
            expected=server.expected_staleness,
            done=np.array([account.applied for account in accounts]),
            in_vain=np.array([account.in_vain for account in accounts]),
            waited=np.array([self.service.waited.get(worker, 0.0) for worker in workers]),
            dropped=lost[Outcome.DROPPED],
            abandoned=lost[Outcome.ABANDONED],
            refused=lost[Outcome.REFUSED],
            forecast=seen.forecast if seen.pushes else float("nan"),
            actual=seen.actual if seen.pushes else float("nan"),
            covered=seen.covered if seen.pushes else float("nan"),
            largest=ledger.largest_staleness,
            stragglers=self._before[1],
            acted=bool(reason),
            why=reason or f"Nothing changed; of {why.count(len(self._verdicts), 'step')} none was in vain.",
        )

    def _staleness(self, worker: str) -> float:
        seen = [one.staleness for one in self._verdicts if one.worker == worker and one.staleness >= 0]
        return sum(seen) / len(seen) if seen else float("nan")

    def _state(self) -> tuple[dict[str, int], tuple[str, ...]]:
        """Return what is compared with the round before: the sizes, and who is a straggler."""
        seen = self.service.server.watch()
        return {one.worker: one.size for one in seen}, tuple(one.worker for one in seen if one.is_straggler)

    def _why(self, sizes: dict[str, int], stragglers: tuple[str, ...]) -> str:
        """Return what happened in the round and why; an empty text if nothing did."""
        vain = [one.why for one in self._verdicts if one.outcome in IN_VAIN]
        given_up = [worker for one in self._verdicts for worker in one.given_up]
        told = [one.why for one in self.service.server.watch() if one.is_straggler and one.worker not in stragglers]
        freed = [worker for worker in stragglers if worker in sizes and worker not in self._before[1]]
        changed = [f"{w} {sizes[w]} to {now}" for w, now in self._before[0].items() if sizes.get(w, now) != now]
        parts = [*_few(told), *_few(vain)]
        if given_up:
            parts.append(f"Steps given up at the bound: {why.listed(given_up[:NAMED], max(len(given_up) - NAMED, 0))}")
        if freed:
            parts.append(f"No straggler any more: {why.listed(freed[:NAMED], max(len(freed) - NAMED, 0))}")
        if changed:
            parts.append(f"Samples: {why.listed(changed[:NAMED], max(len(changed) - NAMED, 0))}")
        return ". ".join(parts) + "." if parts else ""


def _few(sentences: list[str]) -> list[str]:
    more = len(sentences) - NAMED
    return sentences[:NAMED] + ([f"The same of {more} more"] if more > 0 else [])
