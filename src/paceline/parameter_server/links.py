"""Links between a worker and the server, over gloo or in the same process; and the server's end of them."""

from __future__ import annotations

import logging
from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import Self

import numpy as np
import torch
import torch.distributed as dist

from paceline.coordinator.asynchronous.epoch_sampler import SampleBatch
from paceline.coordinator.asynchronous.server import Outcome
from paceline.coordinator.asynchronous.workers import Stamp
from paceline.parameter_server.service import Service, Work
from paceline.parameter_server.torch_optimizer import FRONT

WIRES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""Number types that gradients may travel in. Parameters always travel as float32."""

NANO = 10**9

HEAD, FIRST = 8, FRONT // 2 - 8
"""Numbers of a head, and how many rows of samples fit behind it into the front of a message: usually all."""


class Ask(IntEnum):
    """Request of a worker; a push asks for the next step too, which saves a message."""

    PULL = 0
    PUSH = 1
    POLL = 2
    LEAVE = 3
    PUSH_SEPARATE = 4
    """A push whose gradient comes in a message of its own: of another type or length than the model's row."""


@dataclass(frozen=True)
class Head:
    """Head of each message in either direction: eight whole numbers."""

    kind: int
    """The worker's request; in an answer, the number of its last push's outcome."""
    version: int = -1
    ticket: int = -1
    samples: int = 0
    """Samples of a push, or samples assigned in an answer."""
    numbers: int = 0
    """How many numbers follow."""
    wire: int = 0
    """The place of their type in ``WIRES``."""
    seconds: int = 0
    """Own computing time, in nanoseconds; in an answer the time that the pull waited."""
    comm_seconds: int = 0

    def write(self, message: torch.Tensor) -> None:
        """Write the head into the front of a message."""
        _front(message)[:HEAD] = torch.tensor(astuple(self), dtype=torch.int64)

    @classmethod
    def read(cls, message: torch.Tensor) -> Self:
        """Return the head in the front of a message."""
        return cls(*_front(message)[:HEAD].tolist())


def sent(tensor: torch.Tensor, peer: int, group: dist.ProcessGroup) -> None:
    """Send a tensor, and return when it is on its way; gloo skips empty tensors, and so does `received`."""
    if tensor.numel():
        dist.send(tensor, peer, group=group)


def received(numbers: int, dtype: torch.dtype, peer: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Receive a tensor of this many numbers."""
    tensor = torch.empty(numbers, dtype=dtype)
    if numbers:
        dist.recv(tensor, peer, group=group)
    return tensor


def _front(message: torch.Tensor) -> torch.Tensor:
    return message[:FRONT].view(torch.int64)


logger = logging.getLogger("paceline.asynchronous")

SERVER = 0
"""The rank whose process holds the server."""

OUTCOMES = tuple(Outcome)
NOTHING_PUSHED = -1


class LostServerError(RuntimeError):
    """The process that holds the server does not answer."""


class LocalLink:
    """A worker's link to a server in the same process; parameters are put into ``row``, ``[P]``."""

    def __init__(self, service: Service, worker: str, row: torch.Tensor) -> None:
        self.service, self.worker, self._row = service, worker, row.numpy()
        self.outcome: Outcome | None = None
        """That of the push before the last pull, if there was one."""
        self._pushed: Outcome | None = None

    def pull(self) -> Work:
        """Start a step, and return it."""
        self.outcome, self._pushed = self._pushed, None
        return self.service.pull(self.worker, into=self._row)

    def push(self, stamp: Stamp, gradient: torch.Tensor, samples: int, seconds: float, comm_seconds: float) -> None:
        """Send a gradient; its outcome is known after the next pull."""
        row = gradient.float().numpy()
        verdict = self.service.push(self.worker, stamp, row, samples, seconds=seconds, comm_seconds=comm_seconds)
        self._pushed = verdict.outcome

    def is_given_up(self, stamp: Stamp) -> bool:
        """Return whether the server has given up a step."""
        return self.service.is_given_up(self.worker, stamp)

    def leave(self) -> None:
        """Leave the job: the server gives this worker's samples to others."""
        self.service.leave(self.worker)


class GlooLink:
    """A link to a server in another process, with the methods of :class:`LocalLink`.

    Parameters
    ----------
    group
        The server and this worker alone: if one worker is lost, the groups of the others still work.
    down, up
        Messages from and to the server, ``[FRONT + P]``: rows of the model itself, so that nothing is copied, with room
        for a head in front.
    """

    def __init__(self, group: dist.ProcessGroup, down: torch.Tensor, up: torch.Tensor) -> None:
        self.group, self.numbers = group, down.numel() - FRONT
        self.outcome: Outcome | None = None
        self._down, self.up = down, up
        self._answer_comes = False

    def pull(self) -> Work:
        try:
            if not self._answer_comes:
                self._send_head(Head(Ask.PULL, numbers=self.numbers))
            self._answer_comes = False
            dist.recv(self._down, SERVER, group=self.group)
            head = Head.read(self._down)
            if head.numbers != self.numbers:
                raise ValueError(
                    f"the model of this rank has {self.numbers} parameters and that of rank {SERVER} {head.numbers}: "
                    "build the same model on every rank"
                )
            more = received(max(head.samples - FIRST, 0), torch.int64, SERVER, self.group)
        except RuntimeError as error:
            raise _lost(error) from error
        self.outcome = None if head.kind == NOTHING_PUSHED else OUTCOMES[head.kind]
        first = _front(self._down)[HEAD : HEAD + min(head.samples, FIRST)]
        rows = torch.cat([first, more]).numpy()
        assigned = SampleBatch(rows, np.zeros(len(rows), np.int64))
        return Work(Stamp(head.version, head.ticket), self._down[FRONT:].numpy(), assigned, head.seconds / NANO)

    def push(self, stamp: Stamp, gradient: torch.Tensor, samples: int, seconds: float, comm_seconds: float) -> None:
        wire = list(WIRES.values()).index(gradient.dtype)
        times = round(seconds * NANO), round(comm_seconds * NANO)
        is_row = gradient.data_ptr() == self.up[FRONT:].data_ptr() and gradient.numel() == self.numbers
        head = Head(Ask.PUSH if is_row else Ask.PUSH_SEPARATE, *stamp, samples, gradient.numel(), wire, *times)
        try:
            if is_row:
                head.write(self.up)
                sent(self.up, SERVER, self.group)
            else:
                self._send_head(head)
                sent(gradient, SERVER, self.group)
            self._answer_comes = True
        except RuntimeError as error:
            raise _lost(error) from error

    def is_given_up(self, stamp: Stamp) -> bool:
        try:
            self._send_head(Head(Ask.POLL, *stamp))
            answer = received(FRONT, torch.float32, SERVER, self.group)
            return bool(Head.read(answer).samples)
        except RuntimeError as error:
            raise _lost(error) from error

    def leave(self) -> None:
        # The server may be sending a step: as long as nobody takes it, it would not hear of it.
        if self._answer_comes and self.pull().ended:
            return
        try:
            self._send_head(Head(Ask.LEAVE))
        except RuntimeError as error:
            raise _lost(error) from error

    def _send_head(self, head: Head) -> None:
        _send(head, torch.zeros(FRONT), SERVER, self.group)


Link = LocalLink | GlooLink


def serve(service: Service, worker: str, rank: int, group: dist.ProcessGroup, numbers: int) -> None:
    """Answer one worker until it leaves, is lost, or sends nonsense; the samples that it held then go to others."""
    last, room, out = NOTHING_PUSHED, torch.zeros(FRONT + numbers), torch.zeros(FRONT + numbers)
    try:
        while True:
            dist.recv(room, rank, group=group)  # a head alone leaves the rest of the room as it is
            head = Head.read(room)
            if head.kind == Ask.PULL and head.numbers != numbers:
                _send(Head(last, numbers=numbers), out[:FRONT], rank, group)  # its room may be too small for more
                raise ValueError(f"its model has {head.numbers} parameters, and that of rank {SERVER} {numbers}")
            gradient = room[FRONT:]
            if head.kind == Ask.PUSH_SEPARATE:
                # one of the wrong length is refused; one that announces over four times the model is cut off
                if not 0 <= head.numbers <= 4 * numbers or not 0 <= head.wire < len(WIRES):
                    raise ValueError(
                        f"it announces {head.numbers} numbers of type {head.wire}, and the model has {numbers}"
                    )
                gradient = received(head.numbers, list(WIRES.values())[head.wire], rank, group).float()
            stamp = Stamp(head.version, head.ticket)
            if head.kind in (Ask.PUSH, Ask.PUSH_SEPARATE):
                times = {"seconds": head.seconds / NANO, "comm_seconds": head.comm_seconds / NANO}
                verdict = service.push(worker, stamp, gradient.numpy(), head.samples, **times)
                last = OUTCOMES.index(verdict.outcome)
            if head.kind in (Ask.PULL, Ask.PUSH, Ask.PUSH_SEPARATE):
                work = service.pull(worker, into=out[FRONT:].numpy())
                rows = torch.from_numpy(np.ascontiguousarray(work.assigned.rows))
                _front(out)[HEAD : HEAD + len(rows[:FIRST])] = rows[:FIRST]
                waited = round(work.waited * NANO)
                _send(Head(last, *work.stamp, len(rows), numbers, seconds=waited), out, rank, group)
                sent(rows[FIRST:], rank, group)
                if work.ended:
                    return
                last = NOTHING_PUSHED
            elif head.kind == Ask.POLL:
                given_up = service.is_given_up(worker, stamp)
                _send(Head(Ask.POLL, samples=int(given_up)), torch.zeros(FRONT), rank, group)
            else:
                return
    except Exception as error:  # of any kind: a thread that dies in silence would keep what its worker holds
        logger.warning("%s is lost: %s", worker, next(iter(str(error).splitlines()), type(error).__name__))
    finally:
        service.leave(worker)


def _send(head: Head, message: torch.Tensor, rank: int, group: dist.ProcessGroup) -> None:
    head.write(message)
    sent(message, rank, group)


def _lost(error: RuntimeError) -> LostServerError:
    return LostServerError(
        f"the server, rank {SERVER}, does not answer ({str(error).splitlines()[0]}); start the job again: with "
        "checkpoint= it goes on from the last one"
    )
