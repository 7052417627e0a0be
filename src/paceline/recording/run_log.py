"""Read the record of a run, while it grows or afterwards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline._text import printable
from paceline.datasets import Trace
from paceline.datasets.waiting_time import Waiting, waiting
from paceline.recording.growing_file import GrowingFile, are_rows, is_number
from paceline.recording.json_lines import SCHEMA

OF_WORKERS = ("sizes", "seconds", "forecast_seconds", "comm_seconds", "planned")
WORK = "work"
"""Known of workers too where samples have costs; lines of other jobs, and of earlier versions, lack it."""

OF_FLEET = ("index", "time", "wall_seconds", "equal_seconds", "overhead_seconds", "gain")
TRUTHS = ("agreed", "acted")


class RecordLine:
    """One iteration as it is kept while a file is read: packed, because files hold millions of them.

    Parameters
    ----------
    fleet
        The workers of this iteration.
    fields
        The checked fields of the file's line.
    """

    __slots__ = ("fleet", "truths", "values", "why")

    def __init__(self, fleet: tuple[str, ...], fields: Mapping[str, Any]) -> None:
        self.fleet = fleet
        values = [fields[key] for key in OF_FLEET]
        for key in OF_WORKERS:
            values += fields[key]
        values += fields.get(WORK) or [math.nan] * len(fleet)
        self.values: Array = np.array(values, dtype=np.float64)  # first the fleet's, then the workers', key by key
        self.truths = tuple(fields[key] for key in TRUTHS)
        self.why: str = fields["why"]


@dataclass(frozen=True, eq=False)
class Run:
    """The record of a run. NaN where a value is unknown, or a worker was not in the fleet.

    Parameters
    ----------
    name
        The file it was read from.
    workers
        All workers that ever took part, in the order in which they appeared.
    of_workers
        Arrays ``[T, W]`` under the names in ``OF_WORKERS``, and ``work``.
    of_fleet
        Arrays ``[T]`` under the names in ``OF_FLEET``.
    agreed, acted
        Whether all workers had the same plan, and whether the next sizes differ, ``[T]`` of bool.
    why
        The balancer's reason, T sentences.
    skipped
        Number of lines of the file that could not be read; their iterations are missing here.
    lost
        Number of iterations that could not be written, as on a full disk; they are missing here too.
    """

    name: str
    workers: tuple[str, ...]
    of_workers: Mapping[str, Array]
    of_fleet: Mapping[str, Array]
    agreed: NDArray[np.bool_]
    acted: NDArray[np.bool_]
    why: tuple[str, ...]
    skipped: int = 0
    lost: int = 0

    @classmethod
    def of_lines(cls, name: str, lines: Sequence[RecordLine], skipped: int = 0, lost: int = 0) -> Self:
        """Make a run from its iterations."""
        place = {worker: w for w, worker in enumerate(dict.fromkeys(w for line in lines for w in line.fleet))}
        names, fleet = (*OF_WORKERS, WORK), OF_FLEET
        of_workers = {key: np.full((len(lines), len(place)), np.nan) for key in names}
        of_fleet = np.empty((len(fleet), len(lines)))
        for t, line in enumerate(lines):
            of_fleet[:, t] = line.values[: len(fleet)]
            columns, rows = [place[worker] for worker in line.fleet], line.values[len(fleet) :]
            for key, row in zip(names, rows.reshape(len(names), -1), strict=True):
                of_workers[key][t, columns] = row
        agreed, acted = (np.array([line.truths[k] for line in lines], dtype=bool) for k in range(len(TRUTHS)))
        named: dict[str, Array] = dict(zip(fleet, of_fleet, strict=True))
        why = tuple(line.why for line in lines)
        return cls(name, tuple(place), of_workers, named, agreed, acted, why, skipped, lost)

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
        work_TW = self.of_workers[WORK]
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
    def silent_workers(self) -> NDArray[np.int64]:
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
    def saved(self) -> float:
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


class RunReader(GrowingFile[RecordLine]):
    """Reads the file of a synchronous run as it grows; see :class:`GrowingFile`."""

    header, schema = "paceline_run", SCHEMA

    def run(self, last: int | None = None) -> Run:
        """Return the run so far, or its last iterations; only those that are kept."""
        return Run.of_lines(str(self.path), self.recent(last), self.skipped, self.lost)

    def fits(self, header: dict[str, Any], line: dict[str, Any]) -> bool:
        """Return whether a line's plan divides the header's batch: two jobs may have written to one file."""
        planned, batch = line.get("planned"), header.get("global_batch")
        if "run" in line or not isinstance(planned, list) or not isinstance(batch, int):
            return True
        return not all(isinstance(size, int) for size in planned) or sum(planned) == batch

    def record(self, fleet: tuple[str, ...], line: dict[str, Any]) -> RecordLine | None:
        """Return the iteration in a line; ``None`` if it lacks something."""
        return RecordLine(fleet, line) if _is_iteration(line, len(fleet)) else None


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
        raise FileNotFoundError(f"there is no .jsonl file in the folder {printable(str(path))}")
    return files[-1]


def _is_iteration(line: dict[str, Any], workers: int) -> bool:
    """Return whether a line holds all fields of an iteration, for this many workers."""
    if not line.keys() >= {*OF_WORKERS, *OF_FLEET, *TRUTHS, "why"}:
        return False
    rows = [line[key] for key in (*OF_WORKERS, WORK) if key in OF_WORKERS or line.get(key) is not None]
    return (
        are_rows(rows, workers)
        and all(is_number(line.get(key)) for key in OF_FLEET)
        and all(line[key] is not None and math.isfinite(line[key]) for key in ("index", "time"))
        and all(isinstance(line[key], bool) for key in TRUTHS)
        and isinstance(line["why"], str)
    )
