"""The recorder: one worker's iterations, appended to a file while it trains.

A file is JSON lines: a header that explains the columns, then one list of numbers per iteration. The recorder only
appends, one whole line at a time and without a buffer, so a process killed at any moment loses no written iteration.
Once the file is open, nothing that goes wrong while writing ends the training: iterations that do not fit on the disk
are missing from the file, counted, and reported in the log.
:mod:`paceline.recording.merging` turns all workers' files into one trace.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from paceline._files import LineWriter
from paceline.datasets.frame import COLUMN_UNITS, MEASURED_COLUMNS
from paceline.recording.covariates import Covariate

SCHEMA_VERSION = 1

logger = logging.getLogger("paceline.recording")


class Recorder:
    """Records the iterations of one worker.

    Parameters
    ----------
    path
        The file to append to, one for each worker; ``FileExistsError`` on entering if it exists.
    worker
        The worker's name, such as its rank.
    covariates
        The covariates to sample at the boundary before each iteration. Those that measure a change since the last
        boundary are NaN before the first iteration, unless they were sampled earlier.
    meta
        Facts about the job.

    Attributes
    ----------
    next_iteration
        Number of the next iteration: set it first for a worker that joins a running job.
    phases
        Names of the timed parts of an iteration, each a column of the file. Like ``meta`` they are part of the file's
        header, which is written with the first iteration: set them before.
    wait_in_comm
        Whether ``comm_seconds`` include waiting, which :func:`paceline.recording.merge` then separates.
    lost_iterations
        Number of iterations that could not be written, as on a full disk; the file lacks their numbers.

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
    <Trace 'trace': 3 iterations x 1 workers; no covariates>
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | Path,
        worker: str,
        covariates: Sequence[Covariate] = (),
        meta: Mapping[str, str] | None = None,
    ) -> None:
        self.path = Path(path)
        self.worker = worker
        self.covariates = tuple(covariates)
        self.meta = dict(meta or {})
        self.next_iteration = 0
        self.phases: tuple[str, ...] = ()
        self.wait_in_comm = False
        self._lines: LineWriter | None = None
        self._header_written = False
        self.lost_iterations = 0

    def __enter__(self) -> Self:
        try:
            self._lines = LineWriter(self.path, logger, must_be_new=True)
        except FileExistsError:
            raise FileExistsError(
                f"{self.path} already exists, and a record is never overwritten: choose another path, or move the old "
                "file"
            ) from None
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Write anything that is still pending and close the file; closing again does nothing."""
        if self._lines is not None:
            self._write_header(self._lines)
            self._lines.close()
            self._lines = None

    @contextmanager
    def iteration(self, samples: float, work: float = math.nan) -> Iterator[Step]:
        """Time the block as one iteration of so many samples; a block that raises is not recorded.

        ``work`` is what they cost, in any unit that is the same for all workers, such as tokens; NaN if unknown.
        """
        step = self.begin()
        begin = time.perf_counter()
        yield step
        # perf_counter, not time(): the wall clock may be set back during the iteration.
        step.seconds = time.perf_counter() - begin - step.wait_seconds - step.comm_seconds
        self.write(step, samples, work)

    def begin(self) -> Step:
        """Sample the covariates and return the iteration that begins now, for loops that no ``with`` block can enclose.

        Set the times of the step yourself; :meth:`write` records it, now or some iterations later.
        """
        return Step(tuple(covariate.sample() for covariate in self.covariates), start=time.time())

    def write(self, step: Step, samples: float, work: float = math.nan) -> None:
        """Record an iteration of this many samples, and this work, whose times are known."""
        if self._lines is None:
            raise RuntimeError(f"{self.path} is not open: use the recorder inside `with Recorder(...) as recorder:`")
        measured = (samples, step.seconds, step.comm_seconds, step.wait_seconds, step.start, work)
        phases = (step.phases.get(name, math.nan) for name in self.phases)
        # JSON has no NaN: an unmeasured value is null.
        row = [float(one) if math.isfinite(one) else None for one in (*measured, *phases, *step.covariates)]
        # A row means nothing without the header, so it is lost with it.
        written = self._write_header(self._lines) and self._lines.append(json.dumps([self.next_iteration, *row]))
        self.lost_iterations += not written
        self.next_iteration += 1  # of a lost iteration too: the gap in the numbers shows it

    def _write_header(self, lines: LineWriter) -> bool:
        if not self._header_written:
            units = {covariate.name: covariate.unit for covariate in self.covariates}
            names = [covariate.name for covariate in self.covariates]
            header = {
                "schema_version": SCHEMA_VERSION,
                "worker": self.worker,
                "columns": ["iteration", *MEASURED_COLUMNS, *self.phases, *names],
                "units": COLUMN_UNITS | dict.fromkeys(self.phases, "s") | units,
                "phases": self.phases,
                "covariates": names,
                "wait_in_comm": self.wait_in_comm,
                "meta": self.meta,
            }
            self._header_written = lines.append(json.dumps(header))
        return self._header_written


class Step:
    """The iteration under way: the covariates sampled before it, its times, and those that its seconds leave out."""

    def __init__(self, covariates: tuple[float, ...], start: float) -> None:
        self.covariates = covariates
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
