"""State of each worker at the server: its present step, its clock, and its staleness so far."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from paceline._arrays import Array, Sizes
from paceline.coordinator.asynchronous.epoch_sampler import SampleBatch


class StepToken(NamedTuple):
    """Version and step that a pull returns and the push must repeat.

    The version alone does not tell two steps apart: a worker whose gradient is gathered may pull the same one twice.
    """

    version: int
    step_id: int


@dataclass(frozen=True, eq=False)
class WorkerStep:
    """One piece of work under way: what a worker pulled, and the samples that it holds."""

    stamp: StepToken
    assigned: SampleBatch
    pushes_at_pull: int = 0
    """Pushes of the whole fleet when it was pulled."""


@dataclass(eq=False)
class WorkerState:
    """One worker."""

    name: str
    clock: int = 0
    """Steps that it has pushed."""
    step: WorkerStep | None = None
    last_version: int = -1
    """The version that it pulled last, -1 before the first pull."""
    abandoned_step: WorkerStep | None = None
    """The last step that the server gave up while the worker was at it."""
    staleness: float = math.nan
    """Smoothed, in versions; NaN before the first push."""
    push_times: tuple[float, ...] = ()
    """When it pushed, the last two times, in the caller's seconds."""
    extra_steps: int = 0
    """Steps that it may take beyond the lower bound of DSSP."""
    size: int = 0
    """Samples of its next step."""
    overhead_seconds: float = 0.0
    """Time of a step besides computing, smoothed."""
    has_reports: bool = False
    """Whether its forecast rests on a report."""
    round_samples: int = 0
    """Samples whose time it reported in the round under way."""
    round_seconds: float = 0.0

    def record(self, staleness: int, now: float) -> None:
        known = not math.isnan(self.staleness)
        # Weight of the newest staleness in a worker's average: about the last ten pushes count.
        self.staleness = self.staleness + 0.2 * (staleness - self.staleness) if known else float(staleness)
        self.clock += 1
        self.push_times = (*self.push_times[-1:], now)


@dataclass(eq=False)
class Workers:
    """All workers, in the order in which they came, and the version of the parameters."""

    version: int = 0
    """Updates applied."""
    pushes: int = 0
    """Pushes taken, of all workers."""
    lost_steps: float = 0.0
    """Steps of usual length that could have been done in the time of those that were given up."""
    members: dict[str, WorkerState] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[WorkerState]:
        return iter(self.members.values())

    @property
    def sizes(self) -> Sizes:
        """Samples of each worker's next step, ``[W]``."""
        return np.array([member.size for member in self], dtype=np.int64)

    @property
    def staleness(self) -> Array:
        """Each worker's smoothed staleness, ``[W]``, in versions; NaN before its first push."""
        return np.array([member.staleness for member in self])

    @property
    def slowest(self) -> WorkerState:
        """The worker with the fewest pushes."""
        return min(self, key=lambda member: member.clock)
