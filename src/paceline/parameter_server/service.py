"""The server for many threads: a lock, waiting where a scheme makes workers wait, and checkpoints."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Lock
from typing import TypeVar

import numpy as np

from paceline._files import atomic_write
from paceline._text import count, join_names
from paceline.coordinator.asynchronous.epoch_sampler import EMPTY_BATCH
from paceline.coordinator.asynchronous.optimizer import Vector
from paceline.coordinator.asynchronous.server import WASTED_OUTCOMES, Outcome, Pulled, Server, Verdict
from paceline.coordinator.asynchronous.stragglers import StalenessReport
from paceline.coordinator.asynchronous.workers import StepToken
from paceline.recording.records import Round

logger = logging.getLogger("paceline.asynchronous")

EventT = TypeVar("EventT")


def notify(listeners: list[Callable[[EventT], None]], event: EventT, list_name: str) -> None:
    """Call every listener; one that raises is logged under the list's name, and taken from the list."""
    for listener in list(listeners):
        try:
            listener(event)
        except Exception:
            listeners.remove(listener)
            logger.exception("a listener of %s raised an error, and is not called again", list_name)


@dataclass(frozen=True, eq=False)
class WorkItem(Pulled):
    """A step for a worker, with its own copy of the parameters; no samples when the training has ended."""

    waited_seconds: float
    """How long the pull waited for others, in seconds."""

    @property
    def ended(self) -> bool:
        """True if there are no samples left to compute on."""
        return not len(self.assigned)


def finished_work(parameters: Vector, waited_seconds: float = 0.0) -> WorkItem:
    """Return the work item that ends a worker's loop: no samples, and the final parameters, ``[P]``."""
    return WorkItem(StepToken(-1, -1), parameters, EMPTY_BATCH, waited_seconds)


@dataclass(eq=False)
class Service:
    """A server under a lock.

    Parameters
    ----------
    server
        Touched by nobody else from now on.
    patience
        Seconds after which a worker that holds the last samples is given up, when others have nothing to do; twice as
        many each time that this has happened.
    checkpoint, checkpoint_every
        File to write the state to, and after how many applied samples; it is also written when the training has ended.
        Where one cannot be written, that is logged once, and tried again after the next interval and at the end.
    on_verdict
        Called with every verdict, under the lock: be quick. One that raises is logged, and not called again.

    Once an update has failed, as where a schedule of the user's raises, `join`, `pull` and `push` raise a RuntimeError.
    """

    server: Server
    patience: float = 60.0
    checkpoint: Path | None = None
    checkpoint_every: int = 0
    on_verdict: list[Callable[[Verdict], None]] = field(default_factory=list)
    waited_seconds: dict[str, float] = field(default_factory=dict, init=False)
    """Seconds that each worker has waited for others so far."""

    def __post_init__(self) -> None:
        if not self.patience > 0:
            raise ValueError(f"patience must be above 0 seconds, got {self.patience}")
        if self.checkpoint_every < 0 or (self.checkpoint_every and self.checkpoint is None):
            raise ValueError(
                "checkpoint_every must be 0 or more samples between checkpoints, and needs checkpoint= if it is above "
                f"0, got {self.checkpoint_every}"
            )
        self._change_condition = Condition()
        self._write_lock = Lock()
        self._failure: Exception | None = None
        self._saved_at = self.server.sampler.applied
        self._has_write_failed = False
        self._patience = self.patience
        self._events = 0

    def join(self, worker: str) -> None:
        """Register a worker, or restart it."""
        with self._change_condition:
            self._raise_if_failed()
            with self._update_and_notify():  # what it held goes back, and an update may have waited for that
                self.server.join(worker)

    def leave(self, worker: str) -> None:
        """Remove a worker, if it takes part; the samples that it held go to others."""
        with self._change_condition:
            # After a failure it would be the last that a dying thread does: nothing is to hide the first error.
            if self._failure is not None or worker not in self.server.workers:
                return
            with self._update_and_notify():
                self.server.leave(worker)
            if not self.server.is_finished:
                remaining = len(self.server.fleet)
                logger.warning("%s has left; its samples go to the remaining %d workers", worker, remaining)

    def pull(self, worker: str, out: Vector | None = None) -> WorkItem:
        """Return the next step of a worker, after waiting where its scheme says so.

        The parameters go into the array ``out``, ``[P]``, or a new one, whose fresh memory costs more than the copy.
        """
        row = np.empty_like(self.server.store.parameters) if out is None else out
        work = self._pull(worker, row)
        if work.ended:  # where the last update came of a worker that left, no push has seen it
            self._save_if_due()
        return work

    def push(
        self,
        worker: str,
        stamp: StepToken,
        gradient: Vector,
        samples: int | None = None,
        *,
        seconds: float = float("nan"),
        comm_seconds: float = 0.0,
    ) -> Verdict:
        """Take a gradient; see :meth:`paceline.coordinator.asynchronous.Server.push`."""
        with self._change_condition:
            self._raise_if_failed()
            with self._update_and_notify():
                verdict = self.server.push(
                    worker, stamp, gradient, samples, seconds=seconds, comm_seconds=comm_seconds, now=time.monotonic()
                )
            notify(self.on_verdict, verdict, "on_verdict")
        if verdict.outcome in WASTED_OUTCOMES:
            level = logging.WARNING if verdict.outcome is Outcome.REFUSED else logging.INFO
            logger.log(level, "%s", verdict.why)
        self._save_if_due()
        return verdict

    def is_abandoned(self, worker: str, stamp: StepToken) -> bool:
        """Return whether a step was given up."""
        with self._change_condition:
            return self.server.is_abandoned(worker, stamp)

    @property
    def patience_now(self) -> float:
        """Seconds to wait for silent workers at the end: longer than the longest step of any worker."""
        with self._change_condition:
            pushed = [member.push_times for member in self.server.fleet if len(member.push_times) > 1]
        # A step may take this many times as long as the one before it, and its worker still be at work.
        return max([self._patience, *(3.0 * (last - before) for before, last in pushed)])

    @property
    def parameters(self) -> Vector:
        """The newest parameters, ``[P]``: a copy."""
        with self._change_condition:
            return self.server.parameters

    def staleness_reports(self) -> list[StalenessReport]:
        """Return who is a straggler, and why, worker by worker."""
        with self._change_condition:
            return self.server.staleness_reports()

    def save(self) -> None:
        """Write a checkpoint now; raise an OSError if it cannot be written, as on a full disk."""
        if self.checkpoint is None:
            raise ValueError("a checkpoint needs a file: set checkpoint to its path")
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        with self._write_lock:  # one after the other: an older state must not replace a newer one
            with self._change_condition:
                state = self.server.state_dict()
            # Written without the server's lock, so that only the worker that pushed waits for the disk.
            with atomic_write(self.checkpoint) as temporary:
                try:
                    save_file(state, temporary)
                except SafetensorError as error:  # its error for a full disk is no OSError
                    raise OSError(str(error)) from error

    def resume(self) -> bool:
        """Continue from the checkpoint, if there is one; return whether there was."""
        if self.checkpoint is None or not self.checkpoint.is_file():
            return False
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        with self._change_condition:
            try:
                self.server.load_state_dict(load_file(self.checkpoint))
            except (ValueError, SafetensorError) as error:
                raise ValueError(f"{self.checkpoint} cannot be resumed: {error}") from error
            self._saved_at = self.server.sampler.applied
        return True

    def _pull(self, worker: str, row: Vector) -> WorkItem:
        began, waited_before = time.monotonic(), False
        with self._change_condition:
            while True:
                self._raise_if_failed()
                pulled = None if self.server.is_finished else self.server.pull(worker)
                if pulled is not None or self.server.is_finished:
                    np.copyto(row, self.server.store.parameters)  # under the lock: the next push changes them
                if pulled is not None:
                    waited = time.monotonic() - began if waited_before else 0.0
                    self.waited_seconds[worker] = self.waited_seconds.get(worker, 0.0) + waited
                    self._events += 1
                    return WorkItem(pulled.stamp, row, pulled.assigned, waited)
                if self.server.is_finished:
                    return finished_work(row, time.monotonic() - began)
                waited_before, events = True, self._events
                # Whoever began a step meanwhile, perhaps with what another thread has just taken back, gets its time.
                woken = self._change_condition.wait(self._patience)
                if woken or events != self._events or not self.server.sampler.is_exhausted:
                    continue
                # No samples are left but those that steps under way hold.
                for member in [one for one in self.server.fleet if one.step is not None]:
                    logger.warning("gave up on %s: it has held the last samples for too long", member.name)
                    with self._update_and_notify():
                        self.server.abandon(member.name)
                # Where steps simply take longer, each worker would otherwise give up the others' forever.
                self._patience *= 2

    def _save_if_due(self) -> None:
        """Write a checkpoint; a disk that is full must not end a training that goes well."""
        with self._change_condition:
            since = self.server.sampler.applied - self._saved_at
            due = self.server.is_finished or (self.checkpoint_every and since >= self.checkpoint_every)
            if self.checkpoint is None or not since or not due:
                return
            self._saved_at += since
        try:
            self.save()
        except OSError as error:
            if not self._has_write_failed:
                message = "could not write a checkpoint to %s, which is tried again later: %s"
                logger.error(message, self.checkpoint, error)
            self._has_write_failed = True
            return
        if self._has_write_failed:
            logger.warning("checkpoints are written to %s again", self.checkpoint)
        self._has_write_failed = False

    @contextmanager
    def _update_and_notify(self) -> Iterator[None]:
        """Run a block that may end in an update, then wake all waiting workers, with its failure if it failed."""
        try:
            yield
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._events += 1
            self._change_condition.notify_all()

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise RuntimeError(
                f"the server has failed: {self._failure!r}; fix that error and start the job again; with checkpoint= "
                "it resumes from the last checkpoint"
            ) from self._failure


MAX_LISTED = 3
"""Most sentences of one kind in a round's reason; the others are counted."""


class ServerSnapshot:
    """Snapshot of a server after a round, to compare with the round before."""

    def __init__(self, server: Server) -> None:
        seen, accounts = server.staleness_reports(), server.ledger.accounts.values()
        self.sizes = {one.worker: one.size for one in seen}
        self.stragglers = {one.worker: one.why for one in seen if one.is_straggler}
        self.wasted = {outcome: sum(one.samples[outcome] for one in accounts) for outcome in WASTED_OUTCOMES}


class RoundRecorder:
    """Listens to a service's verdicts, and calls sinks with every round; one that raises is not called again.

    Records are made under the service's lock. Rounds shorter than ``min_seconds`` are recorded together.
    """

    def __init__(
        self, service: Service, on_round: Sequence[Callable[[Round], None]], *, min_seconds: float = 0.1
    ) -> None:
        self.service, self.on_round, self.min_seconds = service, list(on_round), min_seconds
        self._index = 0
        self._round_began = time.monotonic()
        self._verdicts: list[Verdict] = []
        self._before = ServerSnapshot(service.server)
        service.on_verdict.append(self)

    def __call__(self, verdict: Verdict) -> None:
        """Take note of a verdict; at the end of a round, make its record."""
        self._verdicts.append(verdict)
        server, now = self.service.server, time.monotonic()
        complete = len(self._verdicts) >= len(server.fleet) and now - self._round_began >= self.min_seconds
        if not (complete or server.is_finished):
            return
        ledger, workers = server.ledger, server.workers
        accounts = [ledger.accounts[worker] for worker in workers]
        staleness = [
            [one.staleness for one in self._verdicts if one.worker == worker and one.staleness >= 0]
            for worker in workers
        ]
        before, self._before = self._before, ServerSnapshot(server)
        reason = _describe_round(before, self._before, self._verdicts)
        record = Round(
            index=self._index,
            time=time.time(),
            scheme=server.scheme.name,
            bound=server.scheme.bound,
            batch=server.batch,
            workers=workers,
            version=server.version,
            applied=server.sampler.applied,
            sizes=server.sizes,
            staleness=np.array([sum(each) / len(each) if each else np.nan for each in staleness]),
            expected=server.expected_staleness,
            done=np.array([account.applied for account in accounts]),
            wasted=np.array([account.wasted for account in accounts]),
            waited=np.array([self.service.waited_seconds.get(worker, 0.0) for worker in workers]),
            dropped=self._before.wasted[Outcome.DROPPED],
            abandoned=self._before.wasted[Outcome.ABANDONED],
            refused=self._before.wasted[Outcome.REFUSED],
            wasted_share=ledger.wasted_share,
            largest=ledger.largest_staleness,
            stragglers=tuple(self._before.stragglers),
            acted=bool(reason),
            why=reason or f"Nothing changed; of {count(len(self._verdicts), 'step')} none was wasted.",
        )
        self._verdicts, self._round_began, self._index = [], now, self._index + 1
        notify(self.on_round, record, "on_round")


def _describe_round(before: ServerSnapshot, snapshot: ServerSnapshot, verdicts: Sequence[Verdict]) -> str:
    """Return what happened in a round and why; an empty text if nothing did."""
    returned = snapshot.wasted[Outcome.ABANDONED] - before.wasted[Outcome.ABANDONED]
    given_up = [worker for one in verdicts for worker in one.abandoned_workers]
    freed = [worker for worker in before.stragglers if worker in snapshot.sizes and worker not in snapshot.stragglers]
    stayed = [worker for worker in snapshot.sizes if worker in before.sizes]
    changed = [f"{w} {before.sizes[w]} to {snapshot.sizes[w]}" for w in stayed if before.sizes[w] != snapshot.sizes[w]]
    parts = [
        *_list_names("Joined", [worker for worker in snapshot.sizes if worker not in before.sizes]),
        *_list_names("Left", [worker for worker in before.sizes if worker not in snapshot.sizes]),
        *_first_sentences([why for worker, why in snapshot.stragglers.items() if worker not in before.stragglers]),
        *_first_sentences([one.why for one in verdicts if one.outcome in WASTED_OUTCOMES]),
        *_list_names("Steps given up at the bound", given_up),
        *([f"{count(returned, 'sample')} of steps that were given up went back"] if returned else []),
        *_list_names("No straggler any more", freed),
        *_list_names("Samples", changed),
    ]
    return ". ".join(parts) + "." if parts else ""


def _list_names(verb: str, worker_names: Sequence[str]) -> list[str]:
    return [f"{verb}: {join_names(worker_names)}"] if worker_names else []


def _first_sentences(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - MAX_LISTED
    return [*sentences[:MAX_LISTED], *([f"The same of {more} more"] if more > 0 else [])]
