"""The exchange of reports between ranks: gathered while the iteration still runs, on a group of its own.

Axes: W ranks, F numbers in a rank's report.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

Array = NDArray[np.float64]


class LostRankError(RuntimeError):
    """A rank died, or did not answer within the timeout: the job cannot go on without it."""


class Exchange:
    """Gathers one row of numbers from every rank without making anybody wait.

    Parameters
    ----------
    group
        The process group that trains together.
    width
        Numbers in a report, F.
    timeout
        Seconds to wait for a rank that does not answer; None is the process group's own timeout.
    """

    def __init__(self, group: dist.ProcessGroup, width: int, timeout: float | None) -> None:
        ranks = dist.get_process_group_ranks(group)
        limit = None if timeout is None else timedelta(seconds=timeout)
        # gloo, whatever the gradients use: reports lie in main memory, and must not queue behind gradients.
        made = dist.new_group(ranks, backend="gloo", timeout=limit, use_local_synchronization=True)
        assert isinstance(made, dist.ProcessGroup), "this rank is one of the group"
        self.group = made
        self.rank = dist.get_rank(self.group)
        self.world_size = len(ranks)
        self.timeout = timeout
        self._first = ranks[0]
        self._own = torch.zeros(width, dtype=torch.float64)
        self._all = torch.zeros(self.world_size, width, dtype=torch.float64)
        self._rows = list(self._all)
        self._work: dist.Work | None = None

    def send(self, report_F: Sequence[float]) -> None:
        """Start to gather; returns at once."""
        self._own.numpy()[:] = report_F
        self._work = self.group.allgather([self._rows], [self._own])  # dist.all_gather, without its checks

    def receive(self) -> Array:
        """Return the reports of all ranks, ``[W, F]``, as soon as the last is there.

        Raises
        ------
        LostRankError
            If a rank has died or does not answer in time.
        """
        work, self._work = self._work, None
        assert work is not None, "receive follows send"
        try:
            work.wait()
        except RuntimeError as error:
            raise self.lost(error) from error
        return self._all.numpy().copy()

    def gather(self, thing: object) -> list[Any]:
        """Return what every rank gave, in the order of ranks; waits for all."""
        things: list[Any] = [None] * self.world_size
        try:
            dist.all_gather_object(things, thing, group=self.group)
        except RuntimeError as error:
            raise self.lost(error) from error
        return things

    def from_first(self, thing: object) -> Any:
        """Return what the first rank gave; waits for it."""
        things = [thing]
        try:
            dist.broadcast_object_list(things, src=self._first, group=self.group)
        except RuntimeError as error:
            raise self.lost(error) from error
        return things[0]

    def lost(self, error: BaseException) -> LostRankError:
        """Return what to tell the user when a rank is gone."""
        limit = "the process group's timeout" if self.timeout is None else f"{self.timeout:g} s"
        return LostRankError(
            f"rank {self.rank} of {self.world_size} lost contact with the others: a rank has died, or has not answered "
            f"within {limit} (the timeout given to attach). See the logs of the other ranks; resume from the last "
            f"checkpoint. The network said: {error}"
        )
