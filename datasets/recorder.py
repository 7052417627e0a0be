"""The recorder: one worker's iterations, appended to a file while it trains; and the merge of all workers' files.

A file is JSON lines: a header that explains the columns, then one list of numbers an iteration. It is only ever
appended to and flushed about every second, so a process killed at any moment leaves all iterations up to then.
Axes: T iterations, W workers, D drivers.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline.datasets.drivers import Driver
from paceline.datasets.trace import COLUMNS, UNITS, Trace

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
        What to sample at the boundary before each iteration. Those that tell a change since the last boundary are
        NaN before the first iteration, unless they were sampled earlier.
    meta
        What is known about the job.
    flush_seconds
        At most so much of the past is lost when the process is killed (besides the iteration under way).
    first_iteration
        The number of the first iteration: not 0 for a worker that joins a running job.

    Raises
    ------
    FileExistsError
        On entering, if the file exists: a record is never overwritten.

    Examples
    --------
    >>> import tempfile
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
        flush_seconds: float = 1.0,
        first_iteration: int = 0,
    ) -> None:
        self.path = Path(path)
        self.worker = worker
        self.drivers = tuple(drivers)
        self.meta = dict(meta or {})
        self.flush_seconds = flush_seconds
        self.next_iteration = first_iteration
        self._file: TextIOWrapper | None = None
        self._flushed = 0.0

    def __enter__(self) -> Self:
        try:
            self._file = self.path.open("x", encoding="utf-8")
        except FileExistsError:
            raise FileExistsError(
                f"{self.path} exists, and a record is never overwritten: give a new path, or move the old file away"
            ) from None
        self._append(self._header())
        self._flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @contextmanager
    def iteration(self, samples: float) -> Iterator[Step]:
        """Time the block as one iteration of so many samples; one that raises is not recorded."""
        drivers = self._sample()
        step = Step(drivers, start=time.time())
        begin = time.perf_counter()
        yield step
        step.seconds = time.perf_counter() - begin - step.wait_seconds - step.comm_seconds
        measured = (samples, step.seconds, step.comm_seconds, step.wait_seconds, step.start)
        self._append([self.next_iteration, *map(_number, (*measured, *drivers))])
        self.next_iteration += 1
        if time.monotonic() - self._flushed >= self.flush_seconds:
            self._flush()

    def _sample(self) -> tuple[float, ...]:
        return tuple(driver.sample() for driver in self.drivers)

    def _header(self) -> dict[str, object]:
        return {
            "schema_version": SCHEMA_VERSION,
            "worker": self.worker,
            "columns": ["iteration", *COLUMNS, *(driver.name for driver in self.drivers)],
            "units": UNITS | {driver.name: driver.unit for driver in self.drivers},
            "drivers": [driver.name for driver in self.drivers],
            "meta": self.meta,
        }

    def _append(self, line: object) -> None:
        self._opened().write(json.dumps(line, allow_nan=False) + "\n")

    def _flush(self) -> None:
        self._opened().flush()
        self._flushed = time.monotonic()

    def _opened(self) -> TextIOWrapper:
        if self._file is None:
            raise RuntimeError(f"{self.path} is not open: use the recorder inside `with Recorder(...) as recorder:`")
        return self._file


class Step:
    """The iteration under way: the drivers sampled before it, and the clocks that are taken out of its seconds."""

    def __init__(self, drivers: tuple[float, ...], start: float) -> None:
        self.drivers = drivers
        self.start = start
        self.seconds = math.nan
        self.wait_seconds = 0.0
        self.comm_seconds = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time the block as waiting for other workers."""
        begin = time.perf_counter()
        yield
        self.wait_seconds += time.perf_counter() - begin

    @contextmanager
    def communicating(self) -> Iterator[None]:
        """Time the block as communication; it must not lie inside ``waiting``."""
        begin = time.perf_counter()
        yield
        self.comm_seconds += time.perf_counter() - begin


def merge(paths: Iterable[str | Path]) -> Trace:
    """Merge the files of all workers into one trace, aligned by iteration; what a worker lacks is NaN.

    Parameters
    ----------
    paths
        The workers' files, in the order the workers shall have.

    Raises
    ------
    ValueError
        If a line other than the last is broken (the sentence names file and line), the files have different
        columns, or none holds an iteration.
    """
    paths = list(paths)
    files = [_read(Path(path)) for path in paths]
    if not any(len(rows) for _, rows in files):
        raise ValueError(f"none of the {len(files)} files holds an iteration; nothing to merge")
    columns = files[0][0]["columns"]
    for path, (header, _) in zip(paths, files, strict=True):
        if header["columns"] != columns:
            raise ValueError(f"{path} has the columns {header['columns']}, but {paths[0]} has {columns}")
    iterations = np.unique(np.concatenate([rows[:, 0] for _, rows in files]))
    panel = np.full((len(iterations), len(files), len(columns)), np.nan)
    for w, (_, rows) in enumerate(files):
        panel[np.searchsorted(iterations, rows[:, 0]), w] = rows
    driver_names = files[0][0]["drivers"]
    return Trace(
        **{name: panel[:, :, d] for d, name in enumerate(columns) if name in COLUMNS},
        drivers=panel[:, :, -len(driver_names) :] if driver_names else None,
        driver_names=driver_names,
        workers=[header["worker"] for header, _ in files],
        meta={key: value for header, _ in reversed(files) for key, value in header["meta"].items()},
    )


def _read(path: Path) -> tuple[dict[str, Any], NDArray[np.float64]]:
    # The header and the rows [T, columns] of one file. What follows the last line break is a torn line: it was
    # being written when the process was killed, and is left out.
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    if not lines:
        raise ValueError(f"{path} holds no header: nothing was recorded in it")
    header = _parse(path, 1, lines[0])
    if not isinstance(header, dict) or header.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"{path}, line 1: expected the header of a record with schema version {SCHEMA_VERSION}")
    width = len(header["columns"])
    rows = [_row(path, at, line, width) for at, line in enumerate(lines[1:], start=2)]
    panel = np.array(rows, dtype=np.float64).reshape(len(rows), width)
    if len(np.unique(panel[:, 0])) != len(panel):
        raise ValueError(f"{path}: an iteration stands in it twice")
    return header, panel


def _row(path: Path, at: int, line: str, width: int) -> list[float]:
    row = _parse(path, at, line)
    if not isinstance(row, list) or len(row) != width:
        raise ValueError(f"{path}, line {at}: expected a list of {width} numbers, got {line[:80]!r}")
    return row


def _parse(path: Path, at: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {at}: not a whole line of a record ({error}): {line[:80]!r}") from error


def _number(value: float) -> float | None:
    # JSON has no NaN: what was not measured is null.
    return value if math.isfinite(value) else None
