"""Read the record of a run, while it grows or afterwards."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline._text import to_printable
from paceline.datasets import Trace
from paceline.datasets.waiting_time import Waiting, waiting

MAX_INTEGER = 10**300
"""Integers in JSON may have any number of digits; one beyond this was never measured and would not fit into a float."""

MAX_LINE_BYTES = 1 << 22
"""Bytes of the longest line that is parsed: enough for 50,000 workers, and parsing takes at most 100 times as much."""

RUN_SCHEMA_VERSION = ROUND_SCHEMA_VERSION = 1
"""The versions of the formats; a reader refuses later versions."""

WORKER_KEYS = ("sizes", "seconds", "forecast_seconds", "comm_seconds", "planned")
WORK_KEY = "work"
"""Known of workers too where samples have costs; lines of other jobs lack it."""

FLEET_KEYS = ("index", "time", "wall_seconds", "equal_seconds", "overhead_seconds", "gain")

ROUND_WORKER_KEYS = ("sizes", "pushes", "staleness", "expected", "done", "wasted", "waited")
ROUND_FLEET_KEYS = (
    "index",
    "time",
    "version",
    "applied",
    "dropped",
    "abandoned",
    "refused",
    "wasted_share",
    "forecast",
    "actual",
    "covered",
    "largest",
)


class PackedRecord(NamedTuple):
    """One iteration or round in memory: packed, because files hold millions of them."""

    fleet: tuple[str, ...]
    values: Array
    """The fleet's numbers, then the workers', key by key."""
    others: tuple[Any, ...]


class GrowingFileReader:
    """Reads a file of JSON lines as it grows; what a line means is up to classes that inherit from this.

    An incomplete last line is left for later. Any other line that cannot be read is skipped and counted: one cut short
    where the process was killed and the run resumed, one that lacks a number, one longer than 4 MB, or one that does
    not match the fleet named last.

    Parameters
    ----------
    path
        A file that :class:`JsonLines` writes.
    keep
        How many records to keep in memory, the last ones; all by default.

    Attributes
    ----------
    skipped, lost
        Number of skipped lines, and of records that the lines say could not be written.
    ended
        Whether the newest line says that the run has ended.
    """

    header_key: str  # the key that marks a header; its value is the schema version
    schema_version: int  # the newest that can be read
    fleet_keys: tuple[str, ...]  # keys of the fleet's numbers in a line
    worker_keys: tuple[str, ...]  # keys of the workers' numbers
    optional_worker_keys: tuple[str, ...] = ()  # keys of further numbers of the workers, which a line may lack
    nullable_keys: tuple[str, ...]  # those of the fleet's numbers that may be null
    other_types: ClassVar[dict[str, type]]  # further keys of a line, and their types

    def __init__(self, path: str | Path, keep: int | None = None) -> None:
        self.path = Path(path)
        self.keep = keep
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no file {to_printable(str(self.path))}")
        self._restart()

    def poll(self) -> int:
        """Read the lines added since the last call, and return the number of new records.

        It raises ``ValueError`` if the file is not the record of a run, or has a later version.
        """
        before = self._count
        if self._is_another_file():
            self._restart()
            before = 0
        for text in self._new_lines():
            self._process_line(text)
        return self._count - before

    def read(self, noun: str) -> Self:
        """Read the whole file; raise ``ValueError`` where it holds no record, an "iteration" or a "round"."""
        if not self.poll():
            skipped = f"; {self.skipped} of its lines could not be read" if self.skipped else ""
            raise ValueError(f"{to_printable(str(self.path))} holds no {noun} yet{skipped}")
        return self

    def __len__(self) -> int:
        """Return the number of records read so far, kept or not."""
        return self._count

    def parse_record(self, fleet: tuple[str, ...], line: dict[str, Any]) -> PackedRecord | None:
        """Return the record in a line; ``None`` if it lacks something."""
        if not line.keys() >= {*self.worker_keys, *self.fleet_keys, *self.other_types}:
            return None
        numbers = [line[key] for key in self.fleet_keys]
        rows = [line[key] for key in self.worker_keys]
        rows += [[None] * len(fleet) if line.get(key) is None else line[key] for key in self.optional_worker_keys]
        known = [number for key, number in zip(self.fleet_keys, numbers, strict=True) if key not in self.nullable_keys]
        sound = (
            all(isinstance(row, list) and len(row) == len(fleet) for row in rows)
            and all(map(is_number_or_null, chain.from_iterable(rows)))
            and all(map(is_number_or_null, numbers))
            and all(number is not None and math.isfinite(number) for number in known)
            and all(isinstance(line[key], kind) for key, kind in self.other_types.items())
        )
        if not sound:
            return None
        values = np.array([*numbers, *chain.from_iterable(rows)], dtype=np.float64)
        return PackedRecord(fleet, values, tuple(line[key] for key in self.other_types))

    def stack_columns(self) -> tuple[tuple[str, ...], dict[str, Array], dict[str, Array]]:
        """Return all workers, in the order in which they appeared, and their numbers, ``[T, W]``, and the fleet's."""
        place = {worker: w for w, worker in enumerate(dict.fromkeys(w for line in self.lines for w in line.fleet))}
        names, count = (*self.worker_keys, *self.optional_worker_keys), len(self.fleet_keys)
        of_workers = {name: np.full((len(self.lines), len(place)), np.nan) for name in names}
        of_fleet = np.empty((count, len(self.lines)))
        for t, line in enumerate(self.lines):
            of_fleet[:, t] = line.values[:count]
            columns = [place[worker] for worker in line.fleet]
            for name, row in zip(names, line.values[count:].reshape(len(names), -1), strict=True):
                of_workers[name][t, columns] = row
        return tuple(place), of_workers, dict(zip(self.fleet_keys, of_fleet, strict=True))

    def _restart(self) -> None:
        self._offset = self._count = self.skipped = self.lost = 0
        self.lines: deque[PackedRecord] = deque(maxlen=self.keep)
        self._first_bytes = self._last_bytes = b""
        self._in_long_line = self.ended = False
        self._fleet: tuple[str, ...] | None = None
        self._headers: dict[str, dict[str, Any] | None] = {}
        self.header: dict[str, Any] = {}  # the newest

    def _is_another_file(self) -> bool:
        """Return whether what was read first and last is not there any more: another run has taken the file's place."""
        with self.path.open("rb") as file:
            begin = file.read(len(self._first_bytes))
            file.seek(self._offset - len(self._last_bytes))
            return (begin, file.read(len(self._last_bytes))) != (self._first_bytes, self._last_bytes)

    def _new_lines(self) -> Iterator[bytes]:
        """Yield each whole line after the offset and move the offset behind it; of a line too long only its start."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            # Never the rest of the file at once: a file without a line break may be larger than the memory.
            while (text := file.readline(MAX_LINE_BYTES)).endswith(b"\n") or len(text) == MAX_LINE_BYTES:
                self._offset += len(text)
                # the first line names the workers, and the bytes before the place read tell whether
                # the file was replaced
                self._first_bytes = self._first_bytes or text[: 1 << 12]
                self._last_bytes = (self._last_bytes + text)[-(1 << 12) :]
                goes_on, self._in_long_line = self._in_long_line, not text.endswith(b"\n")
                if not goes_on:
                    yield b"..." if self._in_long_line else text

    def _process_line(self, text: bytes) -> None:
        line = parse_object(text)
        is_header = self.header_key in line
        if is_header:
            self._fleet = self._parse_fleet(line)
            self._headers[str(line.get("run"))] = None if self._fleet is None else line
        if not self.header:
            raise ValueError(
                f"{to_printable(str(self.path))} is not the record of a run: its first line must be a JSON object with "
                f"{self.header_key}, the schema's number, and workers, their names"
            )
        self.ended = not is_header and "ended" in line
        if self.ended:
            return
        header = None if is_header else self._headers.get(str(line.get("run")))
        record = None if header is None else self.parse_record(tuple(header["workers"]), line)
        if record is not None:
            self.lines.append(record)
            self._count += 1
            lost = line.get("lost_before", 0)
            self.lost += lost if isinstance(lost, int) and 0 <= lost < MAX_INTEGER else 0
        elif text.strip() and not (is_header and self._fleet is not None):
            self.skipped += 1

    def _parse_fleet(self, header: dict[str, Any]) -> tuple[str, ...] | None:
        """Return the workers that a header names; ``None`` if it is broken, as it then explains no line."""
        schema, workers = header[self.header_key], header.get("workers")
        if isinstance(schema, int) and schema > self.schema_version:
            raise ValueError(
                f"{to_printable(str(self.path))} was written by paceline "
                f"{to_printable(str(header.get('version')))}, whose format this version does not know; "
                "read it with that version or a later one"
            )
        if not isinstance(schema, int) or not isinstance(workers, list) or not workers:
            return None
        if not all(isinstance(worker, str) for worker in workers) or len(set(workers)) != len(workers):
            return None
        self.header = header
        return tuple(workers)


def parse_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object in a line; an empty one if the line holds none."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return line if isinstance(line, dict) else {}


def is_number_or_null(value: Any) -> bool:
    """Return whether a value is a number that fits into a float, or null, which means unknown."""
    if isinstance(value, int) and not isinstance(value, bool):
        return -MAX_INTEGER < value < MAX_INTEGER
    return value is None or isinstance(value, float)


@dataclass(frozen=True, eq=False)
class Run:
    """The record of a run. NaN where a value is unknown, or a worker was not in the fleet.

    Its numbers are those of :class:`paceline.recording.Iteration`, T times.
    """

    name: str  # the file it was read from
    workers: tuple[str, ...]  # all that ever took part, in the order in which they appeared
    of_workers: Mapping[str, Array]  # [T, W], under the names in WORKER_KEYS, and work
    of_fleet: Mapping[str, Array]  # [T], under the names in FLEET_KEYS
    agreed: NDArray[np.bool_]  # all workers had the same plan, [T]
    acted: NDArray[np.bool_]  # the next sizes differ, [T]
    why: tuple[str, ...]  # the balancer's reasons
    skipped: int = 0  # lines that could not be read; their iterations are missing here
    lost: int = 0  # iterations that could not be written, as on a full disk; they are missing here too

    def __len__(self) -> int:
        """Return the number of iterations."""
        return len(self.why)

    @property
    def sizes(self) -> Array:
        """Samples processed, ``[T, W]``."""
        return self.of_workers["sizes"]

    @property
    def work(self) -> Array | None:
        """Cost of the samples, ``[T, W]``, in average samples; None if no line says so."""
        work_TW = self.of_workers[WORK_KEY]
        return work_TW if np.isfinite(work_TW).any() else None

    @property
    def seconds(self) -> Array:
        """Own compute time, ``[T, W]``, in seconds."""
        return self.of_workers["seconds"]

    @property
    def forecast_seconds(self) -> Array:
        """The forecast compute time, ``[T, W]``, in seconds."""
        return self.of_workers["forecast_seconds"]

    @cached_property
    def makespan(self) -> Array:
        """The slowest worker's time, ``[T]``, in seconds."""
        return np.asarray(np.fmax.reduce(self.seconds, axis=1))

    @cached_property
    def wait_seconds(self) -> Array:
        """Time each worker waited for the slowest, ``[T, W]``, in seconds."""
        return self.makespan[:, None] - self.seconds

    @cached_property
    def waiting_share(self) -> Array:
        """Share of the workers' time that was spent waiting, ``[T]``."""
        known = np.isfinite(self.seconds)
        waited = np.where(known, self.wait_seconds, 0.0).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(waited / (known.sum(axis=1) * self.makespan))

    @cached_property
    def slowest(self) -> NDArray[np.int64]:
        """Column of the worker that the others waited for, ``[T]``; -1 without any report."""
        known_TW = np.isfinite(self.seconds)
        column_T = np.argmax(np.where(known_TW, self.seconds, -np.inf), axis=1)
        return np.where(known_TW.any(axis=1), column_T, -1)

    @property
    def silent_iterations(self) -> NDArray[np.int64]:
        """Iterations, up to the last, for which each worker has been in the fleet without a report, ``[W]``."""
        # Seen backwards, a worker's silence ends where it reported, or was not in the fleet.
        ended_TW = np.isfinite(self.seconds[::-1]) | np.isnan(self.sizes[::-1])
        return np.where(ended_TW.any(axis=0), np.argmax(ended_TW, axis=0), len(self))

    @cached_property
    def forecast_error(self) -> Array:
        """Relative error of the forecast, ``[T, W]``; above 0 the forecast time was too long."""
        with np.errstate(divide="ignore", invalid="ignore"):
            error = self.forecast_seconds / self.seconds - 1.0
        return np.where(np.isfinite(error), error, np.nan)

    @property
    def saved_share(self) -> float:
        """Share of the time saved over equal batches, an estimate for the whole run; NaN if nothing is known."""
        equal, made = self.of_fleet["equal_seconds"], self.makespan
        known = np.isfinite(equal) & np.isfinite(made)
        return float(1.0 - made[known].sum() / equal[known].sum()) if known.any() else float("nan")

    def waiting(self, last: int | None = None) -> Waiting:
        """Return where waiting comes from, in the whole run or its last iterations."""
        recent = slice(None) if last is None else slice(-last, None)
        return waiting(self.seconds[recent], None if self.work is None else self.work[recent])

    def trace(self) -> Trace:
        """Return the run as a trace, to replay it, fit predictors to it, or score them on it."""
        comm, start = self.of_workers["comm_seconds"], np.repeat(self.of_fleet["time"][:, None], len(self.workers), 1)
        return Trace(
            self.sizes,
            self.seconds,
            comm_seconds=None if np.isnan(comm).all() else comm,
            wait_seconds=self.wait_seconds,
            start=start,
            work=self.work,
            workers=self.workers,
            meta={"job": Path(self.name).stem, "source": "live run"},
        )


class RunReader(GrowingFileReader):
    """Reads the file of a synchronous run as it grows; see :class:`GrowingFileReader`."""

    header_key, schema_version = "paceline_run", RUN_SCHEMA_VERSION
    fleet_keys, worker_keys, optional_worker_keys = FLEET_KEYS, WORKER_KEYS, (WORK_KEY,)
    nullable_keys = ("wall_seconds", "equal_seconds", "overhead_seconds", "gain")
    other_types: ClassVar[dict[str, type]] = {"agreed": bool, "acted": bool, "why": str}

    def run(self) -> Run:
        """Return the run so far; only the iterations that are kept."""
        workers, of_workers, of_fleet = self.stack_columns()
        agreed, acted, why = zip(*(line.others for line in self.lines), strict=True) if self.lines else ((), (), ())
        truths = np.array(agreed, dtype=bool), np.array(acted, dtype=bool)
        return Run(str(self.path), workers, of_workers, of_fleet, *truths, why, self.skipped, self.lost)


def read_run(path: str | Path) -> Run:
    """Read a file of JSON lines.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not the record of a run, holds no iteration, or has a later version.
    """
    return RunReader(path).read("iteration").run()


def newest(path: str | Path) -> Path:
    """Return the file itself, or a folder's ``.jsonl`` file that was written to last.

    Raises
    ------
    FileNotFoundError
        If the folder holds no ``.jsonl`` file.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    files = sorted(path.glob("*.jsonl"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise FileNotFoundError(f"there is no .jsonl file in the folder {to_printable(str(path))}")
    return files[-1]


@dataclass(frozen=True, eq=False)
class AsyncRun:
    """The record of an asynchronous run. NaN where a value is unknown, or a worker was not in the fleet.

    Its numbers are those of :class:`paceline.recording.Round`, R times.
    """

    name: str  # the file it was read from
    scheme: str
    bound: int | None
    batch: int
    workers: tuple[str, ...]  # all that ever took part, in the order in which they appeared
    of_workers: Mapping[str, Array]  # [R, W], under the names in ROUND_WORKER_KEYS
    of_fleet: Mapping[str, Array]  # [R], under the names in ROUND_FLEET_KEYS
    stragglers: tuple[tuple[str, ...], ...]
    acted: tuple[bool, ...]
    why: tuple[str, ...]
    skipped: int = 0  # lines that could not be read; their rounds are missing here
    lost: int = 0  # rounds that could not be written; they are missing here

    def __len__(self) -> int:
        """Return the number of rounds."""
        return len(self.why)

    @property
    def wasted_share(self) -> Array:
        """Share of the samples computed since the server started that was for nothing, up to each round, ``[R]``."""
        return self.of_fleet["wasted_share"]

    @property
    def seconds(self) -> Array:
        """Time at which each round ended, ``[R]``, in seconds after the first one."""
        return np.asarray(self.of_fleet["time"] - self.of_fleet["time"][0])

    @property
    def samples_per_second(self) -> float:
        """Samples applied a second, from round to round; NaN for one round."""
        applied_R, seconds_R = np.diff(self.of_fleet["applied"]), np.diff(self.of_fleet["time"])
        forward_R = (applied_R >= 0) & (seconds_R > 0)  # a restart goes back to the last checkpoint
        return float(applied_R[forward_R].sum() / seconds_R[forward_R].sum()) if forward_R.any() else float("nan")


class AsyncRunReader(GrowingFileReader):
    """Reads the file of an asynchronous run as it grows; see :class:`GrowingFileReader`."""

    header_key, schema_version = "paceline_async_run", ROUND_SCHEMA_VERSION
    fleet_keys, worker_keys = ROUND_FLEET_KEYS, ROUND_WORKER_KEYS
    nullable_keys = ("forecast", "actual", "covered")
    other_types: ClassVar[dict[str, type]] = {"stragglers": list, "acted": bool, "why": str}

    def run(self) -> AsyncRun:
        """Return the run so far; only the rounds that are kept."""
        bound, batch = self.header.get("bound"), self.header.get("batch")
        workers, of_workers, of_fleet = self.stack_columns()
        return AsyncRun(
            name=str(self.path),
            scheme=str(self.header.get("scheme")),
            bound=bound if isinstance(bound, int) else None,
            batch=batch if isinstance(batch, int) else 0,
            workers=workers,
            of_workers=of_workers,
            of_fleet=of_fleet,
            stragglers=tuple(tuple(line.others[0]) for line in self.lines),
            acted=tuple(line.others[1] for line in self.lines),
            why=tuple(line.others[2] for line in self.lines),
            skipped=self.skipped,
            lost=self.lost,
        )

    def parse_record(self, fleet: tuple[str, ...], line: dict[str, Any]) -> PackedRecord | None:
        """Return the record in a line; ``None`` if it lacks something, or its stragglers are no names."""
        found = super().parse_record(fleet, line)
        return found if found is not None and all(isinstance(name, str) for name in found.others[0]) else None


def is_asynchronous(path: str | Path) -> bool:
    """Return whether a file is the record of an asynchronous run, by its first line."""
    with Path(path).open("rb") as file:
        return AsyncRunReader.header_key in parse_object(file.readline(MAX_LINE_BYTES))


def read_async_run(path: str | Path) -> AsyncRun:
    """Read the record of an asynchronous run.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not the record of an asynchronous run, holds no round, or has a later version.
    """
    return AsyncRunReader(path).read("round").run()
