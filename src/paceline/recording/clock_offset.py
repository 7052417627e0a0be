"""The offset between the clocks of two hosts, from round trips as in NTP."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import NamedTuple


class ClockOffset(NamedTuple):
    """Lead of this host's clock over the other's; the true offset is within the error on either side."""

    offset_seconds: float
    error_seconds: float


def clock_offset(ask: Callable[[], float], *, rounds: int = 8, clock: Callable[[], float] = time.time) -> ClockOffset:
    """Estimate how far this host's clock is ahead of another's.

    The other host's answer was its time at some moment between the question and the answer. The middle of that interval
    is at most half a round trip off, so the result comes from the fastest of several round trips.

    Parameters
    ----------
    ask
        Returns the other host's time, in seconds since 1970.
    rounds
        Number of round trips.
    clock
        Returns this host's time, in seconds since 1970.

    Raises
    ------
    ValueError
        If rounds is below 1.

    Examples
    --------
    The other clock is 5 s behind; the question takes 0.2 s and the answer 0.4 s:

    >>> now = iter([100.0, 100.6])
    >>> clock_offset(lambda: 100.2 - 5, rounds=1, clock=lambda: next(now))
    ClockOffset(offset_seconds=5.1, error_seconds=0.3)
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    best = ClockOffset(0.0, float("inf"))
    for _ in range(rounds):
        sent = clock()
        other = ask()
        heard = clock()
        # The fastest round trip leaves the least room for an unequal way there and back.
        if (heard - sent) / 2 < best.error_seconds:
            best = ClockOffset(round((sent + heard) / 2 - other, 9), round((heard - sent) / 2, 9))
    return best


def offset_from_rank_zero() -> dict[str, object]:
    """Return how far this host's clock is ahead of rank 0's; all ranks must call this together.

    Workers on one host share its clock: if all are on one host, nothing is measured and the offset is 0.

    Returns
    -------
    dict
        ``host``, ``offset_seconds`` and ``error_seconds``, for :attr:`Recorder.clock`; empty without a process group.
    """
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return {}
    measured = ClockOffset(0.0, 0.0)
    if os.environ.get("LOCAL_WORLD_SIZE") != str(distributed.get_world_size()):
        measured = measure_offset(8)
    return {"host": socket.gethostname(), **measured._asdict()}


def measure_offset(rounds: int, clock: Callable[[], float] = time.time) -> ClockOffset:
    """Ask rank 0 for its time, one rank after the other, and return how far this rank's clock is ahead."""
    import torch
    from torch import distributed

    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    cell = torch.zeros(1, dtype=torch.float64, device=device)

    def ask() -> float:
        distributed.send(cell, 0)
        distributed.recv(cell, 0)
        return float(cell.item())

    measured = ClockOffset(0.0, 0.0)
    for rank in range(1, distributed.get_world_size()):
        if distributed.get_rank() == rank:
            measured = clock_offset(ask, rounds=rounds, clock=clock)
        elif distributed.get_rank() == 0:
            for _ in range(rounds):
                distributed.recv(cell, rank)
                cell.item()  # NCCL's recv returns before the question has come, and the clock would be read too early
                cell.fill_(clock())
                distributed.send(cell, rank)
    return measured
