"""Links between a worker and the server, over gloo or in the same process; and the server's end of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import Self

import numpy as np
import torch
import torch.distributed as dist

from paceline.coordinator.asynchronous.epoch_sampler import SampleBatch
from paceline.coordinator.asynchronous.optimizer import Vector
from paceline.coordinator.asynchronous.server import Outcome
from paceline.coordinator.asynchronous.workers import StepToken
from paceline.parameter_server.service import Service, WorkItem
from paceline.parameter_server.torch_optimizer import HEADER_FLOATS

WIRE_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""Number types that gradients may travel in. Parameters always travel as float32."""

NANOS_PER_SECOND = 10**9

HEADER_FIELDS, ROWS_IN_HEADER = 8, HEADER_FLOATS // 2 - 8
"""Integers of a header, and how many sample rows fit behind it into the front of a message: usually all."""


class Request(IntEnum):
    """Kind of a worker's request; a push also asks for the next step, which saves a message."""

    PULL = 0
    PUSH = 1
    POLL = 2
    LEAVE = 3
    PUSH_SEPARATE = 4
    """A push whose gradient comes in a message of its own: of another type or length than the model's row."""


@dataclass(frozen=True)
class MessageHeader:
    """Header of every message in either direction: eight integers."""

    code: int
    """The worker's request; in an answer, the number of its last push's outcome."""
    version: int = -1
    step_id: int = -1
    samples: int = 0
    """Samples of a push, or samples assigned in an answer."""
    num_values: int = 0
    """How many numbers follow."""
    wire_dtype_index: int = 0
    """The place of their type in ``WIRE_DTYPES``."""
    seconds: int = 0
    """Own computing time, in nanoseconds; in an answer the time that the pull waited."""
    comm_seconds: int = 0

    @classmethod
    def read(cls, message: torch.Tensor) -> Self:
        return cls(*_header_view(message)[:HEADER_FIELDS].tolist())


def send_tensor(tensor: torch.Tensor, peer: int, group: dist.ProcessGroup) -> None:
    """Send a tensor, and return when it is on its way; gloo skips empty tensors, and so does `receive_tensor`."""
    if tensor.numel():
        dist.send(tensor, peer, group=group)


def receive_tensor(num_values: int, dtype: torch.dtype, peer: int, group: dist.ProcessGroup) -> torch.Tensor:
    """Receive a tensor of this many numbers."""
    tensor = torch.empty(num_values, dtype=dtype)
    if num_values:
        dist.recv(tensor, peer, group=group)
    return tensor


def _header_view(message: torch.Tensor) -> torch.Tensor:
    return message[:HEADER_FLOATS].view(torch.int64)


logger = logging.getLogger("paceline.asynchronous")

SERVER_RANK = 0
"""The rank whose process holds the server."""

OUTCOMES = tuple(Outcome)
NO_OUTCOME = -1


class LostServerError(RuntimeError):
    """The process that holds the server does not answer."""


class LocalLink:
    """A worker's link to a server in the same process; parameters are put into ``parameter_row``, ``[P]``."""

    def __init__(self, service: Service, worker: str, parameter_row: Vector) -> None:
        self.service, self.worker, self._parameter_row = service, worker, parameter_row
        self.outcome: Outcome | None = None
        """That of the push before the last pull, if there was one."""
        self._last_outcome: Outcome | None = None

    def pull(self) -> WorkItem:
        self.outcome, self._last_outcome = self._last_outcome, None
        return self.service.pull(self.worker, out=self._parameter_row)

    def push(self, stamp: StepToken, gradient: torch.Tensor, samples: int, seconds: float, comm_seconds: float) -> None:
        """Send a gradient; its outcome is known after the next pull."""
        row = gradient.float().numpy()
        verdict = self.service.push(self.worker, stamp, row, samples, seconds=seconds, comm_seconds=comm_seconds)
        self._last_outcome = verdict.outcome

    def is_abandoned(self, stamp: StepToken) -> bool:
        return self.service.is_abandoned(self.worker, stamp)

    def leave(self) -> None:
        """Leave the job: the server gives this worker's samples to others."""
        self.service.leave(self.worker)


class GlooLink:
    """A link to a server in another process, with the methods of :class:`LocalLink`.

    The group is the server and this worker alone: if one worker is lost, the groups of the others still work. The
    buffers are the model's own rows with space for a header in front, ``[HEADER_FLOATS + P]``: nothing is copied.
    """

    def __init__(self, group: dist.ProcessGroup, receive_buffer: torch.Tensor, send_buffer: torch.Tensor) -> None:
        self.group, self.num_values = group, receive_buffer.numel() - HEADER_FLOATS
        self.outcome: Outcome | None = None
        self._receive_buffer, self.send_buffer = receive_buffer, send_buffer
        self._is_answer_pending = False

    def pull(self) -> WorkItem:
        with _raise_if_server_lost():
            if not self._is_answer_pending:
                _send_message(MessageHeader(Request.PULL, num_values=self.num_values), SERVER_RANK, self.group)
            self._is_answer_pending = False
            dist.recv(self._receive_buffer, SERVER_RANK, group=self.group)
            header = MessageHeader.read(self._receive_buffer)
            if header.num_values != self.num_values:
                raise ValueError(
                    f"the model of this rank has {self.num_values} parameters and that of rank {SERVER_RANK} "
                    f"{header.num_values}: build the same model on every rank"
                )
            more = receive_tensor(max(header.samples - ROWS_IN_HEADER, 0), torch.int64, SERVER_RANK, self.group)
        self.outcome = None if header.code == NO_OUTCOME else OUTCOMES[header.code]
        first = _header_view(self._receive_buffer)[HEADER_FIELDS : HEADER_FIELDS + min(header.samples, ROWS_IN_HEADER)]
        rows = torch.cat([first, more]).numpy()
        return WorkItem(
            StepToken(header.version, header.step_id),
            self._receive_buffer[HEADER_FLOATS:].numpy(),
            SampleBatch(rows, np.zeros(len(rows), np.int64)),
            header.seconds / NANOS_PER_SECOND,
        )

    def push(self, stamp: StepToken, gradient: torch.Tensor, samples: int, seconds: float, comm_seconds: float) -> None:
        wire_dtype_index = list(WIRE_DTYPES.values()).index(gradient.dtype)
        times = round(seconds * NANOS_PER_SECOND), round(comm_seconds * NANOS_PER_SECOND)
        is_row = (
            gradient.data_ptr() == self.send_buffer[HEADER_FLOATS:].data_ptr() and gradient.numel() == self.num_values
        )
        request = Request.PUSH if is_row else Request.PUSH_SEPARATE
        header = MessageHeader(request, *stamp, samples, gradient.numel(), wire_dtype_index, *times)
        with _raise_if_server_lost():
            _send_message(header, SERVER_RANK, self.group, self.send_buffer if is_row else None)
            if not is_row:
                send_tensor(gradient, SERVER_RANK, self.group)
            self._is_answer_pending = True

    def is_abandoned(self, stamp: StepToken) -> bool:
        with _raise_if_server_lost():
            _send_message(MessageHeader(Request.POLL, *stamp), SERVER_RANK, self.group)
            answer = receive_tensor(HEADER_FLOATS, torch.float32, SERVER_RANK, self.group)
            return bool(MessageHeader.read(answer).samples)

    def leave(self) -> None:
        # The server may be sending a step: as long as nobody takes it, it would not hear of it.
        if self._is_answer_pending and self.pull().ended:
            return
        with _raise_if_server_lost():
            _send_message(MessageHeader(Request.LEAVE), SERVER_RANK, self.group)


Link = LocalLink | GlooLink


def serve(service: Service, worker: str, rank: int, group: dist.ProcessGroup, num_values: int) -> None:
    """Serve one worker until it leaves, is lost, or sends an invalid message; others then get its samples."""
    last, buffer, out = NO_OUTCOME, torch.zeros(HEADER_FLOATS + num_values), torch.zeros(HEADER_FLOATS + num_values)
    try:
        while True:
            dist.recv(buffer, rank, group=group)  # a header alone leaves the rest of the buffer as it is
            header = MessageHeader.read(buffer)
            stamp = StepToken(header.version, header.step_id)
            if header.code == Request.POLL:
                given_up = service.is_abandoned(worker, stamp)
                _send_message(MessageHeader(Request.POLL, samples=int(given_up)), rank, group)
                continue
            if header.code not in (Request.PULL, Request.PUSH, Request.PUSH_SEPARATE):
                return
            if header.code == Request.PULL and header.num_values != num_values:
                # the header alone: its buffer may be too small for more
                _send_message(MessageHeader(last, num_values=num_values), rank, group)
                raise ValueError(
                    f"its model has {header.num_values} parameters, and that of rank {SERVER_RANK} {num_values}"
                )
            gradient = buffer[HEADER_FLOATS:]
            if header.code == Request.PUSH_SEPARATE:
                # one of the wrong length is refused; one that announces over four times the model is cut off
                if not 0 <= header.num_values <= 4 * num_values or not 0 <= header.wire_dtype_index < len(WIRE_DTYPES):
                    raise ValueError(
                        f"it announced a gradient of {header.num_values} numbers of type {header.wire_dtype_index}, "
                        f"but the model has {num_values} parameters"
                    )
                dtype = list(WIRE_DTYPES.values())[header.wire_dtype_index]
                gradient = receive_tensor(header.num_values, dtype, rank, group).float()
            if header.code != Request.PULL:
                seconds, comm_seconds = header.seconds / NANOS_PER_SECOND, header.comm_seconds / NANOS_PER_SECOND
                verdict = service.push(
                    worker, stamp, gradient.numpy(), header.samples, seconds=seconds, comm_seconds=comm_seconds
                )
                last = OUTCOMES.index(verdict.outcome)
            work = service.pull(worker, out=out[HEADER_FLOATS:].numpy())
            rows = torch.from_numpy(np.ascontiguousarray(work.assigned.indices))
            _header_view(out)[HEADER_FIELDS : HEADER_FIELDS + len(rows[:ROWS_IN_HEADER])] = rows[:ROWS_IN_HEADER]
            waited = round(work.waited_seconds * NANOS_PER_SECOND)
            _send_message(MessageHeader(last, *work.stamp, len(rows), num_values, seconds=waited), rank, group, out)
            send_tensor(rows[ROWS_IN_HEADER:], rank, group)
            if work.ended:
                return
            last = NO_OUTCOME
    except Exception as error:  # of any kind: a thread that dies in silence would keep what its worker holds
        logger.warning("%s is lost: %s", worker, next(iter(str(error).splitlines()), type(error).__name__))
    finally:
        service.leave(worker)


def _send_message(
    header: MessageHeader, rank: int, group: dist.ProcessGroup, message: torch.Tensor | None = None
) -> None:
    """Send a header alone, or in front of a message that has space for it."""
    message = torch.zeros(HEADER_FLOATS) if message is None else message
    _header_view(message)[:HEADER_FIELDS] = torch.tensor(astuple(header), dtype=torch.int64)
    send_tensor(message, rank, group)


@contextmanager
def _raise_if_server_lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise LostServerError(
            f"the server on rank {SERVER_RANK} does not answer ({str(error).splitlines()[0]}): start the job again; "
            "with checkpoint= it resumes from the last checkpoint"
        ) from error
