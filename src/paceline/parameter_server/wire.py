"""Format of messages: heads of whole numbers in front of rows of numbers. Nothing is ever unpickled.

Axes: P parameters, n samples.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import Self

import numpy as np
import torch
import torch.distributed as dist

from paceline._arrays import Sizes
from paceline.parameter_server.flat import FRONT

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
    PUSH_APART = 4
    """A push whose gradient comes in a message of its own: of another type or length than the model's row."""


@dataclass(frozen=True)
class Head:
    """Head of each message in either direction: eight whole numbers.

    Parameters
    ----------
    kind
        The worker's request; in an answer, the number of its last push's outcome.
    version, ticket
        The stamp.
    samples
        Samples of a push, or samples assigned in an answer.
    numbers
        How many numbers follow.
    wire
        The place of their type in ``WIRES``.
    seconds, comm_seconds
        Own computing time, and time on the wire, in nanoseconds; in an answer the time that the pull waited.
    """

    kind: int
    version: int = -1
    ticket: int = -1
    samples: int = 0
    numbers: int = 0
    wire: int = 0
    seconds: int = 0
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


def rows_written(rows: Sizes, message: torch.Tensor) -> torch.Tensor:
    """Write the rows of the assigned samples, ``[n]``, behind a head; return those for which there is no room."""
    row = torch.from_numpy(np.ascontiguousarray(rows))
    _front(message)[HEAD : HEAD + len(row[:FIRST])] = row[:FIRST]
    return row[FIRST:]


def rows_read(samples: int, message: torch.Tensor) -> torch.Tensor:
    """Return the rows behind a head, ``[n]``: as many of the samples assigned as there is room for."""
    return _front(message)[HEAD : HEAD + min(samples, FIRST)].clone()


def _front(message: torch.Tensor) -> torch.Tensor:
    return message[:FRONT].view(torch.int64)
