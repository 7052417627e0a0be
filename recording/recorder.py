"""The recorder: one worker's iterations, appended to a file while it trains.

A file is JSON lines: a header that explains the columns, then one list of numbers per iteration. The recorder only
appends, one whole line at a time and without a buffer, so a process killed at any moment loses no written iteration.
:mod:`paceline.recording.merging` turns all workers' files into one trace.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from paceline.datasets.columns import COLUMNS, UNITS
from paceline.recording.drivers import Driver

SCHEMA_VERSION = 1


class Recorder:
    """Records the iterations of one worker.

    Parameters
    ----------
    path
        The file to append to, one for each worker; it must not exist yet.
    worker
        The worker's name, such as its rank.
    drivers
        The driving factors to sample at the boundary before each iteration. Those that measure a change since the last
        boundary are NaN before the first iteration, unless they were sampled earlier.
    meta
        Facts about the job.
    first_iteration
        The number of the first iteration: not 0 for a worker that joins a running job.

    Attributes
    ----------
    phases
        Names of the timed parts of an iteration, each a column of the file. Like ``meta`` and ``clock`` they are part
        of the file's header, which is written with the first iteration: set them before.
    wait_in_comm
        Whether ``comm_seconds`` include waiting, which :func:`paceline.recording.merge` then separates.
    clock
        How far this host's clock is ahead of the first worker's, if it was measured.

    Raises
    ------
    FileExistsError
        On entering, if the file exists: a record is never overwritten.

    Examples
    --------
    >>> import tempfile
    >>> from paceline.recording import merge
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Recorder(f"{folder.name}/rank0.jsonl", worker="0") as recorder:
    ...     for _ in range(3):
    ...         with recorder.iteration(samples=64) as step:
    ...             _ = sum(range(1000))  # forward and backward
    ...             with step.waiting():
    ...                 pass  # a barrier
    ...             with step.communicating():
    ...                 pass  # an all-reduce
    >>> merge([f"{folder.name}/rank0.jsonl"])
    <Trace 'trace': 3 iterations x 1 workers; no drivers>
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | Path,
        worker: str,
        drivers: Sequence[Driver] = (),
        meta: Mapping[str, str] | None = None,
        first_iteration: int = 0,
    ) -> None:
        self.path = Path(path)
        self.worker = worker
        self.drivers = tuple(drivers)
        self.meta = dict(meta or {})
        self.next_iteration = first_iteration
        self.phases: tuple[str, ...] = ()
        self.wait_in_comm = False
        self.clock: dict[str, object] = {}
        self._file: FileIO | None = None
        self._explained = False

    def __enter__(self) -> Self:
        try:
            # "x" refuses an existing file; without a buffer, every line reaches the operating system at once.
            self._file = self.path.open("xb", buffering=0)
        except FileExistsError:
            raise FileExistsError(
                f"{self.path} exists, and a record is never overwritten: choose a new path, or move the old file away"
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write anything that is still pending and close the file; closing again does nothing."""
        if self._file is not None:
            self._explain()
            self._file.close()
            self._file = None

    @contextmanager
    def iteration(self, samples: float) -> Iterator[Step]:
        """Time the block as one iteration of this many samples; a block that raises is not recorded."""
        step = self.begin()
        begin = time.perf_counter()
        yield step
        # perf_counter, not time(): the wall clock may be set back during the iteration.
        step.seconds = time.perf_counter() - begin - step.wait_seconds - step.comm_seconds
        self.write(step, samples)

    def begin(self) -> Step:
        """Sample the drivers and return the iteration that begins now, for loops that no ``with`` block can enclose.

        Set the times of the step yourself; :meth:`write` records it, now or some iterations later.
        """
        return Step(tuple(driver.sample() for driver in self.drivers), start=time.time())

    def write(self, step: Step, samples: float) -> None:
        """Record an iteration of this many samples whose times are known."""
        self._explain()
        measured = (samples, step.seconds, step.comm_seconds, step.wait_seconds, step.start)
        phases = (step.phases.get(name, math.nan) for name in self.phases)
        self._append(f"[{self.next_iteration}, {', '.join(map(_number, (*measured, *phases, *step.drivers)))}]")
        self.next_iteration += 1

    def _explain(self) -> None:
        if not self._explained:
            self._append(json.dumps(self._header()))
            self._explained = True

    def _header(self) -> dict[str, object]:
        return {
            "schema_version": SCHEMA_VERSION,
            "worker": self.worker,
            "columns": ["iteration", *COLUMNS, *self.phases, *(driver.name for driver in self.drivers)],
            "units": UNITS | dict.fromkeys(self.phases, "s") | {driver.name: driver.unit for driver in self.drivers},
            "phases": self.phases,
            "drivers": [driver.name for driver in self.drivers],
            "wait_in_comm": self.wait_in_comm,
            "clock": self.clock,
            "meta": self.meta,
        }

    def _append(self, line: str) -> None:
        if self._file is None:
            raise RuntimeError(f"{self.path} is not open: use the recorder inside `with Recorder(...) as recorder:`")
        self._file.write(f"{line}\n".encode())


class Step:
    """The iteration under way: the drivers sampled before it, its times, and the times that its seconds leave out."""

    def __init__(self, drivers: tuple[float, ...], start: float) -> None:
        self.drivers = drivers
        self.start = start
        self.seconds = math.nan
        self.wait_seconds = 0.0
        self.comm_seconds = 0.0
        self.phases: dict[str, float] = {}

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time the block as waiting for other workers."""
        begin = time.perf_counter()
        yield
        self.wait_seconds += time.perf_counter() - begin

    @contextmanager
    def communicating(self) -> Iterator[None]:
        """Time the block as communication; it must not be inside a ``waiting`` block."""
        begin = time.perf_counter()
        yield
        self.comm_seconds += time.perf_counter() - begin


def _number(value: float) -> str:
    # JSON has no NaN: an unmeasured value is null.
    return repr(float(value)) if math.isfinite(value) else "null"
