"""Read a run from its JSON lines, while it grows or after its end."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from paceline._printable import printable
from paceline.coordinator.metrics.json_lines import SCHEMA
from paceline.coordinator.metrics.run import OF_FLEET, OF_WORKERS, TRUTHS, WORK, Line, Run

ALWAYS_KNOWN = ("index", "time")
LARGEST = 10**300
"""Integers in JSON may have any number of digits; one beyond this was never measured and would not fit into a float."""

LONGEST = 1 << 22
"""Bytes of the longest line that is parsed: enough for 50,000 workers, and parsing takes at most 100 times as much."""


class RunReader:
    """Reads a file of JSON lines as it grows.

    An incomplete last line is left for later. Any other line that cannot be read is skipped and counted: one cut short
    where the process was killed and the run resumed, one that lacks a number, one longer than 4 MB, or one that does
    not match the fleet named last.

    Parameters
    ----------
    path
        A file that :class:`JsonLines` writes.
    keep
        How many iterations to keep in memory, the last ones; all by default.

    Attributes
    ----------
    skipped
        Number of skipped lines.
    lost
        Number of iterations that the lines say could not be written.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    """

    def __init__(self, path: str | Path, keep: int | None = None) -> None:
        self.path = Path(path)
        self.keep = keep
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no file {printable(str(self.path))}")
        self._restart()

    def poll(self) -> int:
        """Read the lines added since the last call, and return the number of new iterations.

        Raises
        ------
        ValueError
            If the file is not the record of a run, or has a later version.
        """
        before = self._count
        if self.path.stat().st_size < self._offset:  # shorter than before: another run overwrote the file
            self._restart()
            before = 0
        for text in self._new_lines():
            self._take(text)
        return self._count - before

    def run(self, last: int | None = None) -> Run:
        """Return the run so far, or its last iterations; only those that are kept."""
        first = 0 if last is None else max(len(self._lines) - last, 0)
        return Run.of_lines(str(self.path), list(islice(self._lines, first, None)), self.skipped, self.lost)

    def __len__(self) -> int:
        """Return the number of iterations read so far, kept or not."""
        return self._count

    def _restart(self) -> None:
        self._offset = self._count = self.skipped = self.lost = 0
        self._lines: deque[Line] = deque(maxlen=self.keep)
        self._begun = self._in_long_line = False
        self._fleet: tuple[str, ...] | None = None

    def _new_lines(self) -> Iterator[bytes]:
        """Yield each whole line after the offset and move the offset behind it; of a line too long only its start."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            # Never the rest of the file at once: a file without a line break may be larger than the memory.
            while (text := file.readline(LONGEST)).endswith(b"\n") or len(text) == LONGEST:
                self._offset += len(text)
                goes_on, self._in_long_line = self._in_long_line, not text.endswith(b"\n")
                if not goes_on:
                    yield b"..." if self._in_long_line else text

    def _take(self, text: bytes) -> None:
        line = _parsed(text)
        is_header = "paceline_run" in line
        if is_header:
            self._fleet = self._fleet_of(line)
            self._begun = self._begun or self._fleet is not None
        if not self._begun:
            raise ValueError(
                f"{printable(str(self.path))} is not the record of a run: its first line must be a JSON object with "
                "paceline_run, the schema's number, and workers, their names"
            )
        if not is_header and self._fleet is not None and _is_iteration(line, len(self._fleet)):
            self._lines.append(Line(self._fleet, line))
            self._count += 1
            self.lost += _lost_before(line)
        elif text.strip() and not (is_header and self._fleet is not None):
            self.skipped += 1

    def _fleet_of(self, header: dict[str, Any]) -> tuple[str, ...] | None:
        """Return the workers that a header names; ``None`` if it is broken, as it then explains no line."""
        schema, workers = header["paceline_run"], header.get("workers")
        if isinstance(schema, int) and schema > SCHEMA:
            raise ValueError(
                f"{printable(str(self.path))} was written by paceline {printable(str(header.get('version')))}, whose "
                "format this version does not know; read it with that version or a later one"
            )
        if not isinstance(schema, int) or not isinstance(workers, list) or not workers:
            return None
        named = all(isinstance(worker, str) for worker in workers) and len(set(workers)) == len(workers)
        return tuple(workers) if named else None


def read_run(path: str | Path) -> Run:
    """Read a file of JSON lines.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not the record of a run, holds no iteration, or has a later version.
    """
    reader = RunReader(path)
    if not reader.poll():
        skipped = f"; {reader.skipped} of its lines could not be read" if reader.skipped else ""
        raise ValueError(f"{printable(str(path))} holds no iteration yet{skipped}")
    return reader.run()


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


def _parsed(text: bytes) -> dict[str, Any]:
    """Return the JSON object in a line; an empty one if the line holds none."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return line if isinstance(line, dict) else {}


def _is_iteration(line: dict[str, Any], workers: int) -> bool:
    """Return whether a line holds all fields of an iteration, for this many workers."""
    if not line.keys() >= {*OF_WORKERS, *OF_FLEET, *TRUTHS, "why"}:
        return False
    rows = [line[key] for key in (*OF_WORKERS, WORK) if key in OF_WORKERS or line.get(key) is not None]
    return (
        all(isinstance(row, list) and len(row) == workers and all(map(_is_number, row)) for row in rows)
        and all(_is_number(line[key]) for key in OF_FLEET)
        and all(line[key] is not None and math.isfinite(line[key]) for key in ALWAYS_KNOWN)
        and all(isinstance(line[key], bool) for key in TRUTHS)
        and isinstance(line["why"], str)
    )


def _lost_before(line: dict[str, Any]) -> int:
    lost = line.get("lost_before", 0)  # runs of earlier versions do not have it
    return lost if isinstance(lost, int) and 0 <= lost < LARGEST else 0


def _is_number(value: Any) -> bool:
    """Return whether a value is a number that fits into a float, or null, which means unknown."""
    if isinstance(value, int) and not isinstance(value, bool):
        return -LARGEST < value < LARGEST
    return value is None or isinstance(value, float)
