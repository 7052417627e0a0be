"""The server for many threads: a lock, waiting where a scheme makes workers wait, and checkpoints.

Engines hold one of these and add nothing but a way to send and receive.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Lock

import numpy as np

from paceline._whole import remove_leftovers, written_whole
from paceline.coordinator.asynchronous.epoch_sampler import Drawn
from paceline.coordinator.asynchronous.foresight.staleness import StalenessReport
from paceline.coordinator.asynchronous.ledger import WASTED, Outcome
from paceline.coordinator.asynchronous.optimizer import Vector
from paceline.coordinator.asynchronous.server import Server
from paceline.coordinator.asynchronous.verdict import Verdict
from paceline.coordinator.asynchronous.workers import Stamp
from paceline.parameter_server.listeners import tell

logger = logging.getLogger("paceline.asynchronous")

NO_STAMP = Stamp(-1, -1)

LONG = 3.0
"""A step may take this many times as long as the one before it, and its worker still be at work."""


@dataclass(frozen=True, eq=False)
class Work:
    """A step to do, as a copy that is the caller's own; no samples where the training has ended.

    Parameters
    ----------
    stamp
        To be handed back with the push.
    parameters
        The parameters, ``[P]``; the final ones where the training has ended.
    hand
        The samples.
    waited
        How long the pull waited for others, in seconds.
    """

    stamp: Stamp
    parameters: Vector
    drawn: Drawn
    waited: float

    @property
    def ended(self) -> bool:
        """True if there are no samples left to compute on."""
        return not len(self.drawn)


def nothing_to_do(parameters: Vector, waited: float = 0.0) -> Work:
    """Return the work of a worker when the training has ended: no samples, and the final parameters, ``[P]``."""
    none = np.empty(0, np.int64)
    return Work(NO_STAMP, parameters, Drawn(none, none), waited)


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
        A crash loses no update beyond that interval, and those that are applied while a file is being written. Where
        one cannot be written, that is logged once, and tried again after the next interval and at the end.
    on_verdict
        Called with every verdict, under the lock: be quick. One that raises is logged, and not called again.

    Raises
    ------
    RuntimeError
        From ``join``, ``pull`` and ``push``, once an update has failed, as where a schedule of the user's raises:
        parameters and books may no longer agree then, and nobody is to wait for more.
    """

    server: Server
    patience: float = 60.0
    checkpoint: Path | None = None
    checkpoint_every: int = 0
    on_verdict: list[Callable[[Verdict], None]] = field(default_factory=list)
    waited: dict[str, float] = field(default_factory=dict, init=False)
    """Seconds that each worker has waited for others so far."""
    _asked: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.patience > 0:
            raise ValueError(f"patience must be above 0 seconds, got {self.patience}")
        if self.checkpoint_every < 0 or (self.checkpoint_every and self.checkpoint is None):
            raise ValueError(
                f"checkpoint_every must be samples between checkpoints, and needs a file; got {self.checkpoint_every}"
            )
        self._changed = Condition()
        self._writing = Lock()
        self._failure: Exception | None = None
        self._asked = self.server.sampler.applied
        self._is_unwritten = False
        self._patience = self.patience
        self._events = 0

    def join(self, worker: str) -> None:
        """Let a worker take part, or begin anew."""
        with self._changed:
            self._require_sound()
            with self._updating():  # what it held goes back, and an update may have waited for that
                self.server.join(worker)

    def leave(self, worker: str) -> None:
        """Remove a worker, if it takes part; the samples that it held go to others."""
        with self._changed:
            # After a failure it would be the last that a dying thread does: nothing is to hide the first error.
            if self._failure is not None or worker not in self.server.workers:
                return
            with self._updating():
                self.server.leave(worker)
            if not self.server.finished:
                others = len(self.server.fleet)
                logger.warning("%s has left; what it held goes to others, of whom there are %d", worker, others)

    def pull(self, worker: str, into: Vector | None = None) -> Work:
        """Return the next step of a worker, after waiting where its scheme says so.

        Parameters
        ----------
        worker
            Who asks.
        into
            Where to put the parameters, ``[P]``; a new array by default. Fresh pages for a large model cost more than
            the copy.
        """
        work = self._pull(worker, into)
        if work.ended and self._is_due():  # where the last update came of a worker that left, no push has seen it
            self._save_if_possible()
        return work

    def push(
        self,
        worker: str,
        stamp: Stamp,
        gradient: Vector,
        samples: int | None = None,
        *,
        seconds: float = float("nan"),
        comm_seconds: float = 0.0,
    ) -> Verdict:
        """Take a gradient; see :meth:`paceline.coordinator.asynchronous.Server.push`."""
        with self._changed:
            self._require_sound()
            with self._updating():
                verdict = self.server.push(
                    worker, stamp, gradient, samples, seconds=seconds, comm_seconds=comm_seconds, now=time.monotonic()
                )
            tell(self.on_verdict, verdict, "on_verdict")
        if verdict.outcome in WASTED:
            level = logging.WARNING if verdict.outcome is Outcome.REFUSED else logging.INFO
            logger.log(level, "%s", verdict.why)
        if self._is_due():
            self._save_if_possible()
        return verdict

    def is_given_up(self, worker: str, stamp: Stamp) -> bool:
        """Say whether a step was given up."""
        with self._changed:
            return self.server.is_given_up(worker, stamp)

    @property
    def patience_now(self) -> float:
        """Seconds to wait for silent workers at the end: longer than the longest step of any worker."""
        with self._changed:
            pushed = [member.pushed for member in self.server.fleet if len(member.pushed) > 1]
        return max([self._patience, *(LONG * (last - before) for before, last in pushed)])

    @property
    def parameters(self) -> Vector:
        """The newest parameters, ``[P]``: a copy."""
        with self._changed:
            return self.server.parameters

    def staleness_reports(self) -> list[StalenessReport]:
        """Return who is a straggler, and why, worker by worker."""
        with self._changed:
            return self.server.staleness_reports()

    def save(self) -> None:
        """Write a checkpoint now.

        Raises
        ------
        ValueError
            If no file was given.
        OSError
            If it cannot be written, as on a full disk.
        """
        if self.checkpoint is None:
            raise ValueError("no checkpoint can be written: give checkpoint= the path of a file")
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        with self._writing:  # one after the other: an older state must not replace a newer one
            with self._changed:
                state = self.server.state_dict()
            # Written without the server's lock, so that only the worker that pushed waits for the disk.
            with written_whole(self.checkpoint) as temporary:
                try:
                    save_file(state, temporary)
                except SafetensorError as error:  # what it says of a full disk is no OSError
                    raise OSError(str(error)) from error

    def resume(self) -> bool:
        """Continue from the checkpoint, if there is one; return whether there was."""
        if self.checkpoint is not None:
            remove_leftovers(self.checkpoint)
        if self.checkpoint is None or not self.checkpoint.is_file():
            return False
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        with self._changed:
            try:
                self.server.load_state_dict(load_file(self.checkpoint))
            except (ValueError, SafetensorError) as error:
                raise ValueError(f"{self.checkpoint} cannot be resumed: {error}") from error
            self._asked = self.server.sampler.applied
        return True

    def _pull(self, worker: str, into: Vector | None) -> Work:
        began, asked = time.monotonic(), False
        with self._changed:
            while True:
                self._require_sound()
                pulled = None if self.server.finished else self.server.pull(worker)
                # Copied under the lock: the next push changes what was pulled.
                if pulled is not None:
                    waited = time.monotonic() - began if asked else 0.0
                    self.waited[worker] = self.waited.get(worker, 0.0) + waited
                    self._events += 1
                    return Work(pulled.stamp, _copied(pulled.parameters, into), pulled.drawn, waited)
                if self.server.finished:
                    return nothing_to_do(_copied(self.server.parameters, into), time.monotonic() - began)
                asked, events = True, self._events
                # Whoever began a step meanwhile, perhaps with what another thread has just taken back, gets its time.
                if not self._changed.wait(self._patience) and events == self._events:
                    self._give_up_last()

    def _is_due(self) -> bool:
        with self._changed:
            applied = self.server.sampler.applied
            if self.checkpoint is None or applied == self._asked:
                return False
            due = self.server.finished or (
                bool(self.checkpoint_every) and applied - self._asked >= self.checkpoint_every
            )
            self._asked = applied if due else self._asked
            return due

    def _save_if_possible(self) -> None:
        """Write a checkpoint; a disk that is full must not end a training that goes well."""
        try:
            self.save()
        except OSError as error:
            if not self._is_unwritten:
                said = "no checkpoint could be written to %s; the log says when one is written again: %s"
                logger.error(said, self.checkpoint, error)
            self._is_unwritten = True
            return
        if self._is_unwritten:
            logger.warning("a checkpoint is written to %s again", self.checkpoint)
        self._is_unwritten = False

    @contextmanager
    def _updating(self) -> Iterator[None]:
        """Run a block that may end in an update, then wake all waiting workers, with its failure if it failed."""
        try:
            yield
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._events += 1
            self._changed.notify_all()

    def _require_sound(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"the server has failed: {self._failure!r}") from self._failure

    def _give_up_last(self) -> None:
        """Give up the steps under way, if no samples are left but those that they hold."""
        if not self.server.sampler.empty:
            return
        for member in [one for one in self.server.fleet if one.step is not None]:
            logger.warning("%s was given up: the last samples have been with it for too long", member.name)
            with self._updating():
                self.server.abandon(member.name)
        # Where steps simply take longer, each worker would otherwise give up the others' for ever.
        self._patience *= 2


def _copied(row: Vector, into: Vector | None) -> Vector:
    if into is None:
        return row.copy()
    np.copyto(into, row)
    return into
