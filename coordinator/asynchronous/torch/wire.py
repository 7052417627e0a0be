"""What goes over the wire: heads of whole numbers, then rows of numbers. Nothing is ever unpickled.

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

WIRES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""How gradients may travel. Parameters always travel as float32."""

NANO = 10**9

HEAD, FIRST = 8, 56
"""Numbers of a head, and how many rows of samples travel with it: usually all, and each message saved is time."""


class Ask(IntEnum):
    """What a worker wants; who pushes wants the next step too, and saves a message."""

    PULL = 0
    PUSH = 1
    POLL = 2
    LEAVE = 3


@dataclass(frozen=True)
class Head:
    """The first message of each exchange, either way: eight whole numbers.

    Parameters
    ----------
    kind
        What a worker asks for; the number of its last push's outcome in an answer.
    version, ticket
        The stamp.
    samples
        Samples of a push, or dealt.
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

    def tensor(self) -> torch.Tensor:
        """Return the head as it is sent."""
        return torch.tensor(astuple(self), dtype=torch.int64)

    @classmethod
    def received(cls, peer: int, group: dist.ProcessGroup) -> Self:
        """Return the next head from a peer."""
        return cls(*received(HEAD, torch.int64, peer, group).tolist())


def sent(tensor: torch.Tensor, peer: int, group: dist.ProcessGroup) -> None:
    """Send a tensor, and return when it is on its way; gloo sends nothing for an empty one, and nor is it received."""
    if tensor.numel():
        dist.send(tensor, peer, group=group)


def received(
    numbers: int, dtype: torch.dtype, peer: int, group: dist.ProcessGroup, into: torch.Tensor | None = None
) -> torch.Tensor:
    """Receive a tensor of this many numbers, into one that has the room and the type if it is given."""
    fits = into is not None and into.numel() == numbers and into.dtype == dtype
    tensor = into if into is not None and fits else torch.empty(numbers, dtype=dtype)
    if numbers:
        dist.recv(tensor, peer, group=group)
    return tensor


def deal_sent(head: Head, rows: Sizes, peer: int, group: dist.ProcessGroup) -> None:
    """Send a head with the rows of the samples dealt, ``[n]``: the first ones in the same message."""
    message = torch.zeros(HEAD + FIRST, dtype=torch.int64)
    message[:HEAD] = head.tensor()
    row = torch.from_numpy(np.ascontiguousarray(rows))
    message[HEAD : HEAD + len(row[:FIRST])] = row[:FIRST]
    sent(message, peer, group)
    sent(row[FIRST:], peer, group)


def deal_received(peer: int, group: dist.ProcessGroup) -> tuple[Head, Sizes]:
    """Receive a head and the rows of the samples dealt, ``[n]``."""
    message = received(HEAD + FIRST, torch.int64, peer, group)
    head = Head(*message[:HEAD].tolist())
    more = received(max(head.samples - FIRST, 0), torch.int64, peer, group)
    return head, torch.cat([message[HEAD : HEAD + min(head.samples, FIRST)], more]).numpy()
