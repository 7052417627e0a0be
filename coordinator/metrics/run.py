"""A run read back from its JSON lines, while it grows or when it is over. Axes: T iterations, W workers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline.coordinator.metrics.json_lines import SCHEMA
from paceline.datasets import Trace

Array = NDArray[np.float64]

OF_WORKERS = ("sizes", "seconds", "forecast_seconds", "comm_seconds", "planned")
OF_FLEET = ("index", "time", "wall_seconds", "equal_seconds", "overhead_seconds", "gain")


@dataclass(frozen=True, eq=False)
class Run:
    """What was recorded of a run. NaN where nothing is known, or a worker was not in the fleet.

    Parameters
    ----------
    name
        Where it was read from.
    workers
        All that ever took part, in the order in which they came.
    of_workers
        ``[T, W]``, by the names in ``OF_WORKERS``.
    of_fleet
        ``[T]``, by the names in ``OF_FLEET``.
    agreed, acted
        Whether all workers had the same plan, and whether the next sizes differ, ``[T]`` of bool.
    why
        The balancer's reason, T sentences.
    """

    name: str
    workers: tuple[str, ...]
    of_workers: Mapping[str, Array]
    of_fleet: Mapping[str, Array]
    agreed: NDArray[np.bool_]
    acted: NDArray[np.bool_]
    why: tuple[str, ...]

    @classmethod
    def of_lines(cls, name: str, lines: list[tuple[tuple[str, ...], dict[str, Any]]]) -> Self:
        """Make a run of pairs of a fleet and the line of an iteration."""
        workers = tuple(dict.fromkeys(worker for fleet, _ in lines for worker in fleet))
        of_workers = {key: np.full((len(lines), len(workers)), np.nan) for key in OF_WORKERS}
        for t, (fleet, line) in enumerate(lines):
            columns = [workers.index(worker) for worker in fleet]
            for key in OF_WORKERS:
                of_workers[key][t, columns] = line[key]
        of_fleet = {key: np.array([line[key] for _, line in lines], dtype=np.float64) for key in OF_FLEET}
        agreed, acted = (np.array([line[key] for _, line in lines], dtype=bool) for key in ("agreed", "acted"))
        return cls(name, workers, of_workers, of_fleet, agreed, acted, tuple(line["why"] for _, line in lines))

    def __len__(self) -> int:
        """Return the number of iterations."""
        return len(self.why)

    @property
    def sizes(self) -> Array:
        """Samples processed, ``[T, W]``."""
        return self.of_workers["sizes"]

    @property
    def seconds(self) -> Array:
        """Own compute time, ``[T, W]``, in seconds."""
        return self.of_workers["seconds"]

    @property
    def forecast_seconds(self) -> Array:
        """The time that was expected, ``[T, W]``, in seconds."""
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
    def forecast_error(self) -> Array:
        """How far the forecast was off, relative to the time measured, ``[T, W]``; above 0 it expected too much."""
        with np.errstate(divide="ignore", invalid="ignore"):
            error = self.forecast_seconds / self.seconds - 1.0
        return np.where(np.isfinite(error), error, np.nan)

    @property
    def saved(self) -> float:
        """Share of the time saved against equal batches, an estimate over the whole run; NaN if nothing is known."""
        equal, made = self.of_fleet["equal_seconds"], self.makespan
        known = np.isfinite(equal) & np.isfinite(made)
        return float(1.0 - made[known].sum() / equal[known].sum()) if known.any() else float("nan")

    def trace(self) -> Trace:
        """Return the run as a trace, to be replayed, fitted to, or scored like any other."""
        comm, start = self.of_workers["comm_seconds"], np.repeat(self.of_fleet["time"][:, None], len(self.workers), 1)
        return Trace(
            self.sizes,
            self.seconds,
            comm_seconds=None if np.isnan(comm).all() else comm,
            wait_seconds=self.wait_seconds,
            start=start,
            workers=self.workers,
            meta={"job": Path(self.name).stem, "source": "live run"},
        )


class RunReader:
    """Reads a file of JSON lines as it grows.

    A line that is cut short is left for later if it is the last one, and passed over if it is not: there the process
    was killed and the run resumed.

    Parameters
    ----------
    path
        A file that :class:`JsonLines` writes.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no file {self.path}")
        self.header: dict[str, Any] = {}
        self._restart()

    def poll(self) -> int:
        """Read what was added, and return the number of new iterations.

        Raises
        ------
        ValueError
            If the file is not the record of a run, or that of a later version.
        """
        before = len(self._lines)
        if self.path.stat().st_size < self._offset:  # written anew
            self._restart()
            before = 0
        with self.path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        for text in whole.splitlines():
            self._take(text)
        return len(self._lines) - before

    def run(self, last: int | None = None) -> Run:
        """Return the run so far, or its last iterations."""
        return Run.of_lines(str(self.path), self._lines if last is None else self._lines[-last:])

    def __len__(self) -> int:
        """Return the number of iterations read so far."""
        return len(self._lines)

    def _restart(self) -> None:
        self._offset = 0
        self._lines: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def _take(self, text: bytes) -> None:
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if isinstance(line, dict) and "paceline_run" in line:
            if line["paceline_run"] > SCHEMA:
                raise ValueError(
                    f"{self.path} was written by paceline {line.get('version')}, whose lines this version does not "
                    "know; read it with that version or a later one"
                )
            self.header = line
        elif not self.header:
            raise ValueError(
                f"{self.path} is not the record of a run: its first line must be a JSON object with paceline_run"
            )
        elif isinstance(line, dict) and "seconds" in line:
            self._lines.append((tuple(self.header["workers"]), line))


def read_run(path: str | Path) -> Run:
    """Read a file of JSON lines.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not the record of a run, holds no iteration, or is that of a later version.
    """
    reader = RunReader(path)
    if not reader.poll():
        raise ValueError(f"{path} holds no iteration yet")
    return reader.run()


def newest(path: str | Path) -> Path:
    """Return the file itself, or the one of a folder's ``.jsonl`` files that was written to last.

    Raises
    ------
    FileNotFoundError
        If there is no such file or folder, or the folder holds none.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    files = sorted(path.glob("*.jsonl"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise FileNotFoundError(f"there is no .jsonl file in the folder {path}")
    return files[-1]
