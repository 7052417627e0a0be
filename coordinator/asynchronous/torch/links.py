"""How a worker reaches the server: over gloo, or in the same process; and the server's end of it."""

from __future__ import annotations

import logging
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist

from paceline.coordinator.asynchronous.deck import Hand
from paceline.coordinator.asynchronous.fleet import Stamp
from paceline.coordinator.asynchronous.ledger import Outcome
from paceline.coordinator.asynchronous.service import Service, Work
from paceline.coordinator.asynchronous.torch.wire import (
    NANO,
    WIRES,
    Ask,
    Head,
    deal_received,
    deal_sent,
    received,
    sent,
)

logger = logging.getLogger("paceline.asynchronous")

SERVER = 0
"""The rank whose process holds the server."""

OUTCOMES = tuple(Outcome)
NOTHING_PUSHED = -1
LARGEST_EXCESS = 4
"""A push may announce this many times the model's numbers and is refused; one that announces more is cut off."""


class LostServerError(RuntimeError):
    """The process that holds the server does not answer."""


class Link(Protocol):
    """A worker's way to the server."""

    def pull(self) -> Work:
        """Start a step."""
        ...

    def push(self, stamp: Stamp, gradient: torch.Tensor, samples: int, seconds: float, comm_seconds: float) -> None:
        """Hand in a gradient; what became of it is known after the next pull."""
        ...

    def is_given_up(self, stamp: Stamp) -> bool:
        """Ask whether a step was given up."""
        ...

    def leave(self) -> None:
        """Say goodbye."""
        ...

    @property
    def outcome(self) -> Outcome | None:
        """What became of the push before the last pull; ``None`` if there was none."""
        ...


class LocalLink:
    """The way to a server in the same process; parameters are put into ``row``, ``[P]``."""

    def __init__(self, service: Service, worker: str, row: torch.Tensor) -> None:
        self.service, self.worker, self._row = service, worker, row.numpy()
        self.outcome: Outcome | None = None
        self._pushed: Outcome | None = None

    def pull(self) -> Work:
        """Start a step."""
        self.outcome, self._pushed = self._pushed, None
        return self.service.pull(self.worker, into=self._row)

    def push(self, stamp: Stamp, gradient: torch.Tensor, samples: int, seconds: float, comm_seconds: float) -> None:
        """Hand in a gradient."""
        row = gradient.float().numpy()
        verdict = self.service.push(self.worker, stamp, row, samples, seconds=seconds, comm_seconds=comm_seconds)
        self._pushed = verdict.outcome

    def is_given_up(self, stamp: Stamp) -> bool:
        """Ask whether a step was given up."""
        return self.service.is_given_up(self.worker, stamp)

    def leave(self) -> None:
        """Say goodbye."""
        self.service.leave(self.worker)


class GlooLink:
    """The way to a server in another process.

    Parameters
    ----------
    group
        The server and this worker alone: if one worker is lost, the groups of the others still work.
    row
        Where parameters are received, ``[P]``: the model's own, so that nothing is copied.
    """

    def __init__(self, group: dist.ProcessGroup, row: torch.Tensor) -> None:
        self.group, self.numbers = group, row.numel()
        self.outcome: Outcome | None = None
        self._row = row
        self._answer_comes = False

    def pull(self) -> Work:
        """Start a step; its parameters are overwritten by the next pull."""
        try:
            if not self._answer_comes:
                sent(Head(Ask.PULL).tensor(), SERVER, self.group)
            self._answer_comes = False
            head, rows = deal_received(SERVER, self.group)
            # Straight into the model: fresh pages for a large one take longer than the way over loopback.
            parameters = received(head.numbers, torch.float32, SERVER, self.group, self._row).numpy()
        except RuntimeError as error:
            raise _lost(error) from error
        self._require_same_model(head.numbers)  # when all has come: the server would go on sending
        self.outcome = None if head.kind == NOTHING_PUSHED else OUTCOMES[head.kind]
        hand = Hand(rows, np.zeros(len(rows), np.int64))
        return Work(Stamp(head.version, head.ticket), parameters, hand, head.seconds / NANO)

    def push(self, stamp: Stamp, gradient: torch.Tensor, samples: int, seconds: float, comm_seconds: float) -> None:
        """Hand in a gradient. The server answers with the next step at once: a pull must follow."""
        wire = list(WIRES.values()).index(gradient.dtype)
        times = round(seconds * NANO), round(comm_seconds * NANO)
        head = Head(Ask.PUSH, *stamp, samples, gradient.numel(), wire, *times)
        try:
            sent(head.tensor(), SERVER, self.group)
            sent(gradient, SERVER, self.group)
            self._answer_comes = True
        except RuntimeError as error:
            raise _lost(error) from error

    def is_given_up(self, stamp: Stamp) -> bool:
        """Ask whether a step was given up."""
        try:
            sent(Head(Ask.POLL, *stamp).tensor(), SERVER, self.group)
            return bool(Head.received(SERVER, self.group).samples)
        except RuntimeError as error:
            raise _lost(error) from error

    def leave(self) -> None:
        """Say goodbye."""
        # The server may be sending a step: as long as nobody takes it, it would not hear the goodbye.
        if self._answer_comes and self.pull().ended:
            return
        try:
            sent(Head(Ask.LEAVE).tensor(), SERVER, self.group)
        except RuntimeError as error:
            raise _lost(error) from error

    def _require_same_model(self, numbers: int) -> None:
        if numbers != self.numbers:
            raise ValueError(
                f"the model of this rank has {self.numbers} parameters and that of rank {SERVER} {numbers}: build the "
                "same model on every rank"
            )


def serve(service: Service, worker: str, rank: int, group: dist.ProcessGroup, numbers: int) -> None:
    """Answer one worker until it leaves, is lost, or sends nonsense: then what it held goes to others."""
    last, rooms, out = (
        NOTHING_PUSHED,
        {wire: torch.empty(0, dtype=wire) for wire in WIRES.values()},
        torch.empty(numbers),
    )
    try:
        while True:
            head = Head.received(rank, group)
            if head.kind == Ask.PUSH:
                last = OUTCOMES.index(_take(service, worker, head, rank, group, rooms, numbers))
            if head.kind in (Ask.PULL, Ask.PUSH):
                if _answer(service.pull(worker, into=out.numpy()), last, rank, group):
                    return
                last = NOTHING_PUSHED
            elif head.kind == Ask.POLL:
                given_up = service.is_given_up(worker, Stamp(head.version, head.ticket))
                sent(Head(Ask.POLL, samples=int(given_up)).tensor(), rank, group)
            else:
                return
    except Exception as error:  # of any kind: a thread that dies in silence would keep what its worker holds
        logger.warning("%s is lost: %s", worker, next(iter(str(error).splitlines()), type(error).__name__))
    finally:
        service.leave(worker)


def _take(
    service: Service,
    worker: str,
    head: Head,
    rank: int,
    group: dist.ProcessGroup,
    rooms: dict[torch.dtype, torch.Tensor],
    numbers: int,
) -> Outcome:
    """Receive a gradient and hand it in; ``rooms`` keeps what it is received into, by the type on the wire."""
    if not 0 <= head.numbers <= LARGEST_EXCESS * numbers or not 0 <= head.wire < len(WIRES):
        raise ValueError(f"it announces {head.numbers} numbers of type {head.wire}, and the model has {numbers}")
    wire = list(WIRES.values())[head.wire]
    rooms[wire] = received(head.numbers, wire, rank, group, rooms[wire])
    if wire is not torch.float32:
        wide = rooms[torch.float32]
        rooms[torch.float32] = wide = wide if wide.numel() == head.numbers else torch.empty(head.numbers)
        wide.copy_(rooms[wire])
    gradient = rooms[torch.float32].numpy()
    stamp, times = Stamp(head.version, head.ticket), (head.seconds / NANO, head.comm_seconds / NANO)
    return service.push(worker, stamp, gradient, head.samples, seconds=times[0], comm_seconds=times[1]).outcome


def _answer(work: Work, last: int, rank: int, group: dist.ProcessGroup) -> bool:
    head = Head(last, *work.stamp, len(work.hand), len(work.parameters), seconds=round(work.waited * NANO))
    deal_sent(head, work.hand.rows, rank, group)
    sent(torch.from_numpy(work.parameters), rank, group)
    return work.ended


def _lost(error: RuntimeError) -> LostServerError:
    return LostServerError(
        f"the server, rank {SERVER}, does not answer ({str(error).splitlines()[0]}); start the job again: with "
        "checkpoint= it goes on from the last one"
    )
