"""The server for many threads: a lock, waiting where a scheme makes workers wait, and checkpoints.

Engines hold one of these and add nothing but a way to send and receive.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition

import numpy as np

from paceline._whole import written_whole
from paceline.coordinator.asynchronous.deck import Hand
from paceline.coordinator.asynchronous.fleet import Stamp
from paceline.coordinator.asynchronous.ledger import IN_VAIN, Outcome
from paceline.coordinator.asynchronous.optimiser import Vector
from paceline.coordinator.asynchronous.server import Server
from paceline.coordinator.asynchronous.staleness import Sighting
from paceline.coordinator.asynchronous.verdict import Verdict

logger = logging.getLogger("paceline.asynchronous")

NO_STAMP = Stamp(-1, -1)


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
    hand: Hand
    waited: float

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to do."""
        return not len(self.hand)


@dataclass(eq=False)
class Service:
    """A server under a lock.

    Parameters
    ----------
    server
        Touched by nobody else from now on.
    patience
        Seconds after which a worker that holds the last samples is given up, when others have nothing to do.
    checkpoint, every
        File to write the state to, and after how many applied samples; a crash loses no update beyond that.
    on_verdict
        Called with every verdict, under the lock: be quick.
    """

    server: Server
    patience: float = 60.0
    checkpoint: Path | None = None
    every: int = 0
    on_verdict: list[Callable[[Verdict], None]] = field(default_factory=list)
    _saved: int = 0

    def __post_init__(self) -> None:
        if not self.patience > 0:
            raise ValueError(f"patience must be above 0 seconds, got {self.patience}")
        if self.every < 0 or (self.every and self.checkpoint is None):
            raise ValueError(f"every must be samples between checkpoints, and needs a file; got {self.every}")
        self._changed = Condition()
        self._saved = self.server.deck.applied

    def join(self, worker: str) -> None:
        """Let a worker take part, or begin anew."""
        with self._changed:
            self.server.join(worker)
            self._changed.notify_all()

    def leave(self, worker: str) -> None:
        """Let a worker go, if it is there; what it held goes to others."""
        with self._changed:
            if worker in self.server.workers:
                self.server.leave(worker)
                if not self.server.finished:
                    others = len(self.server.fleet)
                    logger.warning("%s has left; what it held goes to others, of whom there are %d", worker, others)
            self._changed.notify_all()

    def pull(self, worker: str) -> Work:
        """Return the next step of a worker, after waiting where its scheme says so."""
        began = time.monotonic()
        with self._changed:
            while True:
                pulled = None if self.server.finished else self.server.pull(worker)
                # Copied under the lock: the next push changes what was pulled.
                if pulled is not None:
                    waited = time.monotonic() - began
                    return Work(pulled.stamp, pulled.parameters.copy(), pulled.hand, waited)
                if self.server.finished:
                    none = np.empty(0, np.int64)
                    return Work(NO_STAMP, self.server.parameters, Hand(none, none), time.monotonic() - began)
                if not self._changed.wait(self.patience):
                    self._give_up_last()

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
            verdict = self.server.push(
                worker, stamp, gradient, samples, seconds=seconds, comm_seconds=comm_seconds, now=time.monotonic()
            )
            for listener in self.on_verdict:
                listener(verdict)
            state = self._due_state()
            self._changed.notify_all()
        if verdict.outcome in IN_VAIN:
            level = logging.WARNING if verdict.outcome is Outcome.REFUSED else logging.INFO
            logger.log(level, "%s", verdict.why)
        if state is not None:  # written without the lock, so that nobody waits for the disk
            self._write(state)
        return verdict

    def is_given_up(self, worker: str, stamp: Stamp) -> bool:
        """Say whether a step was given up."""
        with self._changed:
            return self.server.is_given_up(worker, stamp)

    @property
    def parameters(self) -> Vector:
        """The newest parameters, ``[P]``: a copy."""
        with self._changed:
            return self.server.parameters

    def watch(self) -> list[Sighting]:
        """Return who is a straggler, and why, worker by worker."""
        with self._changed:
            return self.server.watch()

    def save(self) -> None:
        """Write a checkpoint now.

        Raises
        ------
        ValueError
            If no file was given.
        """
        if self.checkpoint is None:
            raise ValueError("no checkpoint can be written: give checkpoint= the path of a file")
        with self._changed:
            state = self.server.state_dict()
        self._write(state)

    def resume(self) -> bool:
        """Go on from the checkpoint, if there is one; return whether there was."""
        if self.checkpoint is None or not self.checkpoint.is_file():
            return False
        from safetensors.numpy import load_file

        with self._changed:
            self.server.load_state_dict(load_file(self.checkpoint))
            self._saved = self.server.deck.applied
        return True

    def _due_state(self) -> dict[str, Vector] | None:
        if not self.every or self.server.deck.applied - self._saved < self.every:
            return None
        self._saved = self.server.deck.applied
        return self.server.state_dict()

    def _write(self, state: dict[str, Vector]) -> None:
        from safetensors.numpy import save_file

        assert self.checkpoint is not None
        with written_whole(self.checkpoint) as temporary:
            save_file(state, temporary)

    def _give_up_last(self) -> None:
        """Give up the steps of those at work, if all that is left to do is in their hands."""
        if not self.server.deck.empty:
            return
        for member in list(self.server.fleet):
            if member.step is not None:
                logger.warning("%s was given up: the last samples have been with it for too long", member.name)
                self.server.abandon(member.name)
