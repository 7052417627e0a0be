"""A recorded asynchronous run: staleness, stragglers, and what was wasted. Axes: R rounds, W workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline._arrays import Array
from paceline.recording.growing_file import LONGEST, GrowingFile, are_rows, is_number, parsed
from paceline.recording.json_lines import OF_FLEET, OF_WORKERS, ROUND_SCHEMA


@dataclass(frozen=True, eq=False)
class RoundLine:
    """One round as it is kept while a file is read."""

    fleet: tuple[str, ...]
    of_workers: Mapping[str, Array]
    of_fleet: Mapping[str, float]
    stragglers: tuple[str, ...]
    acted: bool
    why: str


@dataclass(frozen=True, eq=False)
class AsyncRun:
    """The record of an asynchronous run. NaN where a value is unknown, or a worker was not in the fleet.

    Parameters
    ----------
    name
        The file it was read from.
    scheme, bound, batch
        The scheme's name, its bound in versions (``None`` for none), and the samples of a full batch.
    workers
        All workers that ever took part, in the order in which they appeared.
    of_workers
        Arrays ``[R, W]``: sizes, pushes, staleness, expected, done, wasted, waited, as in
        :class:`paceline.recording.records.Round`.
    of_fleet
        Arrays ``[R]`` of the numbers of the whole fleet.
    stragglers
        Names of the stragglers of each round, R times.
    acted, why
        Whether something happened, and what, R times.
    skipped, lost
        Lines that could not be read, and rounds that could not be written; they are missing here.
    """

    name: str
    scheme: str
    bound: int | None
    batch: int
    workers: tuple[str, ...]
    of_workers: Mapping[str, Array]
    of_fleet: Mapping[str, Array]
    stragglers: tuple[tuple[str, ...], ...]
    acted: tuple[bool, ...]
    why: tuple[str, ...]
    skipped: int = 0
    lost: int = 0

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


class AsyncRunReader(GrowingFile[RoundLine]):
    """Reads the file of an asynchronous run as it grows; see :class:`GrowingFile`."""

    header, schema = "paceline_async_run", ROUND_SCHEMA

    def begins(self, header: dict[str, Any], fleet: tuple[str, ...]) -> None:
        """Keep the header's facts about the scheme."""
        bound, batch = header.get("bound"), header.get("batch")
        self._scheme = str(header.get("scheme", "not known"))
        self._bound = bound if isinstance(bound, int) else None
        self._batch = batch if isinstance(batch, int) else 0

    def run(self, last: int | None = None) -> AsyncRun:
        """Return the run so far, or its last rounds; only those that are kept."""
        lines = self.recent(last)
        place = {worker: w for w, worker in enumerate(dict.fromkeys(w for line in lines for w in line.fleet))}
        return AsyncRun(
            name=str(self.path),
            scheme=self._scheme,
            bound=self._bound,
            batch=self._batch,
            workers=tuple(place),
            of_workers={name: _placed(lines, name, place) for name in OF_WORKERS},
            of_fleet={name: np.array([line.of_fleet[name] for line in lines]) for name in OF_FLEET},
            stragglers=tuple(line.stragglers for line in lines),
            acted=tuple(line.acted for line in lines),
            why=tuple(line.why for line in lines),
            skipped=self.skipped,
            lost=self.lost,
        )

    def record(self, fleet: tuple[str, ...], line: dict[str, Any]) -> RoundLine | None:
        """Return the round in a line; ``None`` if it lacks something."""
        if not _is_round(line, len(fleet)):
            return None
        rows = {name: np.array(line[name], dtype=np.float64) for name in OF_WORKERS}
        numbers = {name: float("nan") if line[name] is None else float(line[name]) for name in OF_FLEET}
        return RoundLine(fleet, rows, numbers, tuple(line["stragglers"]), line["acted"], line["why"])


def is_asynchronous(path: str | Path) -> bool:
    """Return whether a file is the record of an asynchronous run, by its first line."""
    with Path(path).open("rb") as file:
        return AsyncRunReader.header in parsed(file.readline(LONGEST))


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


def _placed(lines: Sequence[RoundLine], name: str, place: Mapping[str, int]) -> Array:
    rows_RW = np.full((len(lines), len(place)), np.nan)
    for row_W, line in zip(rows_RW, lines, strict=True):
        row_W[[place[worker] for worker in line.fleet]] = line.of_workers[name]
    return rows_RW


def _is_round(line: dict[str, Any], workers: int) -> bool:
    """Return whether a line holds all fields of a round, for this many workers."""
    if not line.keys() >= {*OF_WORKERS, *OF_FLEET, "stragglers", "acted", "why"}:
        return False
    rows, names = [line[name] for name in OF_WORKERS], line["stragglers"]
    return (
        are_rows(rows, workers)
        and all(is_number(line[name]) for name in OF_FLEET)
        and all(
            line[name] is not None and math.isfinite(line[name])
            for name in OF_FLEET
            if name not in ("forecast", "actual", "covered")
        )
        and isinstance(names, list)
        and all(isinstance(name, str) for name in names)
        and isinstance(line["acted"], bool)
        and isinstance(line["why"], str)
    )
