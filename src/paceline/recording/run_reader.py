"""Read the record of a run, while it grows or afterwards."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline._text import count, to_printable
from paceline.datasets import Trace
from paceline.datasets.waiting_time import Waiting, waiting

SCHEMA_VERSION = 1
"""The version of both formats; a reader refuses later versions."""


@dataclass(frozen=True, kw_only=True)
class RecordKind:
    """Keys of the lines of one kind of run."""

    fleet_keys: tuple[str, ...]
    nullable_keys: tuple[str, ...] = ()  # those of the fleet's numbers that may be null
    worker_keys: tuple[str, ...]
    optional_worker_keys: tuple[str, ...] = ()  # a line may lack them
    other_types: dict[str, type]  # further keys of a line, and their types


ITERATIONS = RecordKind(
    fleet_keys=("index", "time", "wall_seconds", "equal_seconds", "overhead_seconds", "gain"),
    nullable_keys=("wall_seconds", "equal_seconds", "overhead_seconds", "gain"),
    worker_keys=("sizes", "seconds", "forecast_seconds", "comm_seconds", "planned"),
    optional_worker_keys=("work",),  # known where samples have costs
    other_types={"agreed": bool, "acted": bool, "why": str},
)
ROUNDS = RecordKind(
    fleet_keys=("index", "time", "version", "applied", "dropped", "abandoned", "refused", "wasted_share", "largest"),
    worker_keys=("sizes", "staleness", "expected", "done", "wasted", "waited"),
    other_types={"stragglers": list, "acted": bool, "why": str},
)
RECORD_KINDS = {"paceline_run": ITERATIONS, "paceline_async_run": ROUNDS}
"""Kinds of runs by the key that marks a header, whose value is the schema version."""


class PackedRecord(NamedTuple):
    """One iteration or round in memory: packed, because files hold millions of them."""

    workers: tuple[str, ...]
    values: Array  # the fleet's numbers, then the workers', key by key
    other_fields: tuple[Any, ...]


class RunReader:
    """Reads the file of a run as it grows, synchronous or asynchronous as its first line says.

    An incomplete last line is left for later. Any other line that cannot be read is skipped and counted: one that is
    cut short, lacks a number, or does not match the fleet of its header.

    ``path`` is a file that :class:`JsonLines` writes. ``keep`` limits the records in memory to the last ones.
    ``skipped_lines`` counts skipped lines, and ``lost_records`` records that the lines say could not be written;
    ``ended`` is whether the newest line says that the run has ended.
    """

    def __init__(self, path: str | Path, keep: int | None = None) -> None:
        self.path = Path(path)
        self.keep = keep
        self._first_bytes = b""
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no file {to_printable(str(self.path))}")
        self._restart()

    def poll(self) -> int:
        """Read the lines added since the last call, and return the number of new records.

        It raises ``ValueError`` if the file is not the record of a run, or has a later version.
        """
        before = self._count
        with self.path.open("rb") as file:
            if file.read(len(self._first_bytes)) != self._first_bytes:  # another run has taken the file's place
                self._restart()
                before = 0
            file.seek(self._offset)
            while (text := file.readline()).endswith(b"\n"):
                self._offset += len(text)
                self._first_bytes = self._first_bytes or text[: 1 << 12]
                self._process_line(text)
        return self._count - before

    def __len__(self) -> int:
        """Return the number of records read so far, kept or not."""
        return self._count

    def describe_missing_records(self) -> str:
        """Return a sentence about a file without a record."""
        skipped = f"; {count(self.skipped_lines, 'line')} could not be read" if self.skipped_lines else ""
        noun = "round" if self._kind is ROUNDS else "iteration"
        return f"{to_printable(str(self.path))} holds no {noun} yet{skipped}"

    def run(self) -> Run | AsyncRun:
        """Return the run so far; only the records that are kept."""
        kind = self._kind
        place = {worker: w for w, worker in enumerate(dict.fromkeys(w for line in self._lines for w in line.workers))}
        names = (*kind.worker_keys, *kind.optional_worker_keys)
        fleet = np.empty((len(kind.fleet_keys), len(self._lines)))
        of_workers = np.full((len(names), len(self._lines), len(place)), np.nan)
        for t, line in enumerate(self._lines):
            fleet[:, t] = line.values[: len(fleet)]
            of_workers[:, t, [place[worker] for worker in line.workers]] = line.values[len(fleet) :].reshape(
                len(names), -1
            )
        fields: dict[str, Any] = {
            "name": str(self.path),
            "workers": tuple(place),
            "worker_columns": dict(zip(names, of_workers, strict=True)),
            "fleet_columns": dict(zip(kind.fleet_keys, fleet, strict=True)),
            "skipped_lines": self.skipped_lines,
            "lost_records": self.lost_records,
        }
        fields |= {key: tuple(line.other_fields[k] for line in self._lines) for k, key in enumerate(kind.other_types)}
        fields["acted"] = np.array(fields["acted"], dtype=bool)
        if kind is ROUNDS:
            fields["stragglers"] = tuple(map(tuple, fields["stragglers"]))
            fields |= {name: self._header.get(name) for name in ("scheme", "bound", "batch")}
            return AsyncRun(**fields)
        fields["agreed"] = np.array(fields["agreed"], dtype=bool)
        return Run(**fields)

    def _restart(self) -> None:
        self._offset = self._count = self.skipped_lines = self.lost_records = 0
        self._lines: deque[PackedRecord] = deque(maxlen=self.keep)
        self._first_bytes, self.ended = b"", False
        self._headers: dict[str, dict[str, Any]] = {}  # by run: a broken header explains no line
        self._header: dict[str, Any] = {}  # the newest
        self._kind = ITERATIONS

    def _process_line(self, text: bytes) -> None:
        line = parse_json_object(text)
        key = next((key for key in RECORD_KINDS if key in line), None)
        if key is not None and not (self._header and self._kind is not RECORD_KINDS[key]):
            self._process_header(key, line)
        if not self._header:
            raise ValueError(
                f"{to_printable(str(self.path))} is not the record of a run: its first line must be a JSON object with "
                f"{' or '.join(RECORD_KINDS)}, the schema's number, and workers, their names"
            )
        self.ended = "ended" in line
        if self.ended or line is self._header:
            return
        header = None if key else self._headers.get(str(line.get("run")))
        record = None if header is None else self._parse_record(tuple(header["workers"]), line)
        if record is not None:
            self._lines.append(record)
            self._count += 1
            self.lost_records += line.get("lost_before", 0)
        elif text.strip():
            self.skipped_lines += 1

    def _process_header(self, key: str, line: dict[str, Any]) -> None:
        schema, workers = line[key], line.get("workers")
        if isinstance(schema, int) and schema > SCHEMA_VERSION:
            raise ValueError(
                f"{to_printable(str(self.path))} was written by paceline {to_printable(str(line.get('version')))}, "
                "whose format this version does not know; read it with that version or a later one"
            )
        names = isinstance(workers, list) and all(isinstance(worker, str) for worker in workers)
        if isinstance(schema, int) and names and workers and len(set(workers)) == len(workers):
            self._header, self._kind, self._headers[str(line.get("run"))] = line, RECORD_KINDS[key], line
        else:
            self._headers.pop(str(line.get("run")), None)

    def _parse_record(self, fleet: tuple[str, ...], line: dict[str, Any]) -> PackedRecord | None:
        """Return the record in a line; ``None`` if it lacks something."""
        kind = self._kind
        if not line.keys() >= {*kind.worker_keys, *kind.fleet_keys, *kind.other_types}:
            return None
        rows = [line[key] for key in kind.worker_keys]
        rows += [[None] * len(fleet) if line.get(key) is None else line[key] for key in kind.optional_worker_keys]
        if not all(isinstance(row, list) and len(row) == len(fleet) for row in rows):
            return None
        numbers = [*(line[key] for key in kind.fleet_keys), *chain.from_iterable(rows)]
        if not all(type(number) in (int, float, type(None)) for number in numbers) or not all(
            isinstance(line[key], of_type) for key, of_type in kind.other_types.items()
        ):
            return None
        try:
            values = np.array(numbers, dtype=np.float64)
        except OverflowError:  # a whole number beyond all bounds
            return None
        known = [key not in kind.nullable_keys for key in kind.fleet_keys]
        if not np.isfinite(values[: len(known)][known]).all():
            return None
        return PackedRecord(fleet, values, tuple(line[key] for key in kind.other_types))


def parse_json_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object in a line; an empty one if the line holds none."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return line if isinstance(line, dict) else {}


@dataclass(frozen=True, eq=False, kw_only=True)
class RecordedRun:
    """What the records of all kinds of runs hold. NaN where a value is unknown, or a worker was not in the fleet."""

    name: str  # the file it was read from
    workers: tuple[str, ...]  # all that ever took part, in the order in which they appeared
    worker_columns: Mapping[str, Array]  # [T, W], under the names of the worker keys of its RecordKind
    fleet_columns: Mapping[str, Array]  # [T], under the names of its fleet keys
    acted: NDArray[np.bool_]  # sizes changed, or something else happened, [T]
    why: tuple[str, ...]  # the reasons
    skipped_lines: int = 0  # lines that could not be read; their records are missing here
    lost_records: int = 0  # records that could not be written, as on a full disk; they are missing here too

    def __len__(self) -> int:
        """Return the number of iterations, or of rounds."""
        return len(self.why)


@dataclass(frozen=True, eq=False, kw_only=True)
class Run(RecordedRun):
    """The record of a synchronous run. Its numbers are those of :class:`paceline.recording.Iteration`, T times."""

    agreed: NDArray[np.bool_]  # all workers had the same plan, [T]

    @property
    def sizes(self) -> Array:
        """Samples processed, ``[T, W]``."""
        return self.worker_columns["sizes"]

    @property
    def work(self) -> Array | None:
        """Cost of the samples, ``[T, W]``, in average samples; None if no line says so."""
        work_TW = self.worker_columns["work"]
        return work_TW if np.isfinite(work_TW).any() else None

    @property
    def seconds(self) -> Array:
        """Own compute time, ``[T, W]``, in seconds."""
        return self.worker_columns["seconds"]

    @property
    def forecast_seconds(self) -> Array:
        """The forecast compute time, ``[T, W]``, in seconds."""
        return self.worker_columns["forecast_seconds"]

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
        equal, made = self.fleet_columns["equal_seconds"], self.makespan
        known = np.isfinite(equal) & np.isfinite(made)
        return float(1.0 - made[known].sum() / equal[known].sum()) if known.any() else float("nan")

    def waiting(self, last: int | None = None) -> Waiting:
        """Return where waiting comes from, in the whole run or its last iterations."""
        recent = slice(None) if last is None else slice(-last, None)
        return waiting(self.seconds[recent], None if self.work is None else self.work[recent])

    def trace(self) -> Trace:
        """Return the run as a trace, to replay it, fit predictors to it, or score them on it."""
        comm = self.worker_columns["comm_seconds"]
        return Trace(
            self.sizes,
            self.seconds,
            comm_seconds=None if np.isnan(comm).all() else comm,
            wait_seconds=self.wait_seconds,
            start=np.repeat(self.fleet_columns["time"][:, None], len(self.workers), 1),
            work=self.work,
            workers=self.workers,
            meta={"job": Path(self.name).stem, "source": "live run"},
        )


def read_run(path: str | Path) -> Run:
    """Read the record of a synchronous run.

    ``FileNotFoundError`` if there is no such file; ``ValueError`` if it is not the record of a synchronous run, holds
    no iteration, or has a later version.
    """
    run = _read(path)
    if not isinstance(run, Run):
        raise ValueError(
            f"{to_printable(run.name)} is the record of an asynchronous run: read it with read_async_run, or show it "
            "with paceline watch"
        )
    return run


def read_async_run(path: str | Path) -> AsyncRun:
    """Read the record of an asynchronous run; it raises as :func:`read_run` does."""
    run = _read(path)
    if not isinstance(run, AsyncRun):
        raise ValueError(f"{to_printable(run.name)} is the record of a synchronous run: read it with read_run")
    return run


def _read(path: str | Path) -> Run | AsyncRun:
    reader = RunReader(path)
    if not reader.poll():
        raise ValueError(reader.describe_missing_records())
    return reader.run()


def newest_run_file(path: str | Path) -> Path:
    """Return the file itself, or a folder's ``.jsonl`` file that was written to last (an error if it has none)."""
    path = Path(path)
    if not path.is_dir():
        return path
    files = sorted(path.glob("*.jsonl"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise FileNotFoundError(
            f"there is no .jsonl file in the folder {to_printable(str(path))}: pass the file or folder of metrics=..."
        )
    return files[-1]


@dataclass(frozen=True, eq=False, kw_only=True)
class AsyncRun(RecordedRun):
    """The record of an asynchronous run. Its numbers are those of :class:`paceline.recording.Round`, R times."""

    scheme: str
    bound: int | None
    batch: int
    stragglers: tuple[tuple[str, ...], ...]

    @property
    def seconds(self) -> Array:
        """Time at which each round ended, ``[R]``, in seconds after the first one."""
        return np.asarray(self.fleet_columns["time"] - self.fleet_columns["time"][0])

    @property
    def samples_per_second(self) -> float:
        """Samples applied a second, from round to round; NaN for one round."""
        applied_R, seconds_R = np.diff(self.fleet_columns["applied"]), np.diff(self.fleet_columns["time"])
        forward_R = (applied_R >= 0) & (seconds_R > 0)  # a restart goes back to the last checkpoint
        return float(applied_R[forward_R].sum() / seconds_R[forward_R].sum()) if forward_R.any() else float("nan")
