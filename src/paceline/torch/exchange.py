"""The exchange of reports between ranks: gathered while the iteration still runs, on its own process group.

Ranks send each other only numbers and JSON: nothing that comes from another process is unpickled.

Axes: W ranks, F numbers in a rank's report.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from inspect import unwrap
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline._runtime import wait_at_exit
from paceline.recording.torch.waits import without_listeners


class LostRankError(RuntimeError):
    """A rank died, or did not answer within the timeout; the job cannot continue without it."""


class Exchange:
    """Gathers rows of numbers from all ranks of a group while they compute; ``timeout`` in seconds, or the group's."""

    def __init__(self, group: dist.ProcessGroup, timeout: float | None = None) -> None:
        ranks = dist.get_process_group_ranks(group)
        limit = None if timeout is None else timedelta(seconds=timeout)
        # Always gloo: reports are in main memory, and must not queue behind gradients on the GPU's backend.
        # Local synchronization only if part of the world trains together, as the other ranks make no such call: with
        # it, torch may give a group the name of one that was destroyed, whose addresses a rank would then find.
        part = len(ranks) < dist.get_world_size()
        made = dist.new_group(ranks, backend="gloo", timeout=limit, use_local_synchronization=part)
        assert isinstance(made, dist.ProcessGroup), "this rank is one of the group"
        self.group = made
        wait_at_exit()
        self.name = str(made.group_name)  # the same on all its ranks
        self.rank, self.world_size = dist.get_rank(made), len(ranks)
        self.ranks = ranks  # by their numbers in the whole job
        self.timeout = timeout
        # Buffers are made by the first row of a length and reused: an exchange runs in every iteration.
        self._buffers: dict[int, tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], Array, Array]] = {}
        self._work: dist.Work | None = None
        self.under_way = False
        """Whether a row was sent and the others' have not been received yet."""
        # torch's own, without its Python checks, and without those who listen for waits and gathered rows.
        self._all_gather, self._wait = unwrap(dist.ProcessGroup.allgather), unwrap(dist.Work.wait)

    def send(self, row_F: Sequence[float]) -> None:
        """Start to gather rows, which are of one length on all ranks, and return at once."""
        buffers = self._buffers.get(len(row_F))
        if buffers is None:
            row = torch.zeros(len(row_F), dtype=torch.float64)
            of_all = torch.zeros(self.world_size, len(row_F), dtype=torch.float64)
            buffers = self._buffers[len(row_F)] = row, of_all, list(of_all), row.numpy(), of_all.numpy()
        row, _, rows, local_F, self._row_WF = buffers
        local_F[:] = row_F
        self._work, self.under_way = self._all_gather(self.group, [rows], [row]), True

    def receive(self) -> Array:
        """Return the rows of all ranks, ``[W, F]``, as soon as the last has arrived."""
        work, self._work, self.under_way = self._work, None, False
        assert work is not None, "receive follows send"
        try:
            self._wait(work)
        except RuntimeError as error:
            raise self.lost_rank_error(error) from error
        return self._row_WF.copy()  # the next exchange overwrites the buffer

    def gather(self, value: object) -> list[Any]:
        """Return every rank's JSON value, in the order of ranks; waits for all."""
        # Lengths first: all_gather needs tensors of equal length. dist.all_gather_object would unpickle.
        payload = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        with self._guard_collectives():
            dist.all_gather(lengths, torch.tensor([len(payload)]), group=self.group)
            longest = int(max(lengths))
            texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world_size)]
            dist.all_gather(texts, torch.nn.functional.pad(payload, (0, longest - len(payload))), group=self.group)
        pairs = zip(texts, lengths, strict=True)
        return [json.loads(text[: int(length)].numpy().tobytes()) for text, length in pairs]

    def broadcast_from_first(self, state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the arrays of the first rank, on every rank; waits for it."""
        written = io.BytesIO()
        np.savez(written, **state)  # type: ignore[arg-type]
        payload = torch.frombuffer(bytearray(written.getvalue()), dtype=torch.uint8)
        length = torch.tensor([len(payload)])
        with self._guard_collectives():
            dist.broadcast(length, src=self.ranks[0], group=self.group)
            sent = payload if self.rank == 0 else torch.zeros(int(length), dtype=torch.uint8)
            dist.broadcast(sent, src=self.ranks[0], group=self.group)
        # Explicit, although it is numpy's default: what another process sent is never unpickled.
        with np.load(io.BytesIO(sent.numpy().tobytes()), allow_pickle=False) as arrays:
            return dict(arrays)

    def close(self) -> None:
        """Release the group's connections and threads. Reports under way are dropped."""
        self._work, self.under_way = None, False
        with suppress(ValueError, RuntimeError, AssertionError):  # torch may have been shut down before
            dist.destroy_process_group(self.group)
        # torch closes sockets and ends threads with the last reference, and this exchange may be part of a cycle.
        vars(self).pop("group", None)

    @contextmanager
    def _guard_collectives(self) -> Iterator[None]:
        try:
            with without_listeners():
                yield
        except RuntimeError as error:
            raise self.lost_rank_error(error) from error

    def lost_rank_error(self, error: BaseException) -> LostRankError:
        """Return the error to raise when a rank is gone."""
        limit = "the process group's timeout" if self.timeout is None else f"{self.timeout:g} s (timeout= of attach)"
        return LostRankError(
            f"rank {self.rank} of {self.world_size} lost contact with the others: a rank has died, or has not answered "
            f"within {limit}. See the logs of the other ranks; resume from the last checkpoint. The network reported: "
            f"{error}"
        )


class SingleProcessExchange(Exchange):
    """The exchange of a process that trains alone, in no process group."""

    name, rank, world_size, ranks = "alone", 0, 1, [0]

    def __init__(self) -> None:
        self.under_way = False

    def send(self, row_F: Sequence[float]) -> None:
        """Keep the row until it is received."""
        self._row_WF, self.under_way = np.array([row_F], dtype=np.float64), True

    def receive(self) -> Array:
        """Return the row, ``[1, F]``."""
        self.under_way = False
        return self._row_WF

    def gather(self, value: object) -> list[Any]:
        """Return the value alone."""
        return [value]

    def close(self) -> None:
        """Drop a row that nobody received."""
        self.under_way = False


def open_exchange(group: dist.ProcessGroup | None, timeout: float | None = None) -> Exchange:
    """Return the exchange of a group's ranks; without a group, that of this process alone."""
    return SingleProcessExchange() if group is None else Exchange(group, timeout)
