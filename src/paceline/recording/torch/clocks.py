"""The offset between the clocks of a job's hosts, measured over the job's own connection."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from paceline.recording.clock_offset import ClockOffset, clock_offset

ROUNDS = 8


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
        measured = measure_offset(ROUNDS)
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
