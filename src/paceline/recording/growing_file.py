"""A file of records that grows: whole lines of JSON after headers that explain them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from paceline._text import printable

Record = TypeVar("Record")

LARGEST = 10**300
"""Integers in JSON may have any number of digits; one beyond this was never measured and would not fit into a float."""

LONGEST = 1 << 22
"""Bytes of the longest line that is parsed: enough for 50,000 workers, and parsing takes at most 100 times as much."""


class GrowingFile(Generic[Record]):
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
    skipped
        Number of skipped lines.
    lost
        Number of records that the lines say could not be written.
    ended
        Whether the newest line says that the run has ended.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    """

    header: str
    """The key that tells a header, under which the schema's number stands."""
    schema: int
    """The newest schema that is known."""

    def __init__(self, path: str | Path, keep: int | None = None) -> None:
        self.path = Path(path)
        self.keep = keep
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no file {printable(str(self.path))}")
        self._restart()

    def poll(self) -> int:
        """Read the lines added since the last call, and return the number of new records.

        Raises
        ------
        ValueError
            If the file is not the record of a run, or has a later version.
        """
        before = self._count
        if self._is_another_file():
            self._restart()
            before = 0
        for text in self._new_lines():
            self._take(text)
        return self._count - before

    def read(self, noun: str) -> Self:
        """Read the whole file; raise ``ValueError`` where it holds no record, an "iteration" or a "round"."""
        if not self.poll():
            skipped = f"; {self.skipped} of its lines could not be read" if self.skipped else ""
            raise ValueError(f"{printable(str(self.path))} holds no {noun} yet{skipped}")
        return self

    def __len__(self) -> int:
        """Return the number of records read so far, kept or not."""
        return self._count

    def recent(self, last: int | None = None) -> list[Record]:
        """Return the records that are kept, or the last of them."""
        first = 0 if last is None else max(len(self._lines) - last, 0)
        return list(islice(self._lines, first, None))

    def begins(self, header: dict[str, Any], fleet: tuple[str, ...]) -> None:
        """Note a complete header."""

    def fits(self, header: dict[str, Any], line: dict[str, Any]) -> bool:
        """Return whether a line may be one of a header's; a line that names its run always is one of that run's."""
        return True

    def record(self, fleet: tuple[str, ...], line: dict[str, Any]) -> Record | None:
        """Return the record in a line; ``None`` if it lacks something."""
        raise TypeError(f"{type(self).__name__} must define record")

    def _restart(self) -> None:
        self._offset = self._count = self.skipped = self.lost = 0
        self._lines: deque[Record] = deque(maxlen=self.keep)
        self._begin = self._end = b""
        self._begun = self._in_long_line = self.ended = False
        self._fleet: tuple[str, ...] | None = None
        self._headers: dict[object, dict[str, Any] | None] = {}

    def _is_another_file(self) -> bool:
        """Return whether what was read first and last is not there any more: another run has taken the file's place."""
        with self.path.open("rb") as file:
            begin = file.read(len(self._begin))
            file.seek(self._offset - len(self._end))
            return (begin, file.read(len(self._end))) != (self._begin, self._end)

    def _new_lines(self) -> Iterator[bytes]:
        """Yield each whole line after the offset and move the offset behind it; of a line too long only its start."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            # Never the rest of the file at once: a file without a line break may be larger than the memory.
            while (text := file.readline(LONGEST)).endswith(b"\n") or len(text) == LONGEST:
                self._offset += len(text)
                # the first line names the workers, and the bytes before the place read tell whether
                # the file was replaced
                self._begin = self._begin or text[: 1 << 12]
                self._end = (self._end + text)[-(1 << 12) :]
                goes_on, self._in_long_line = self._in_long_line, not text.endswith(b"\n")
                if not goes_on:
                    yield b"..." if self._in_long_line else text

    def _take(self, text: bytes) -> None:
        line = parsed(text)
        is_header = self.header in line
        if is_header:
            self._fleet = self._fleet_of(line)
            self._headers[self._run_of(line)] = None if self._fleet is None else line
            self._begun = self._begun or self._fleet is not None
        if not self._begun:
            raise ValueError(
                f"{printable(str(self.path))} is not the record of a run: its first line must be a JSON object with "
                f"{self.header}, the schema's number, and workers, their names"
            )
        self.ended = not is_header and "ended" in line
        if self.ended:
            return
        header = None if is_header else self._headers.get(self._run_of(line))
        explained = header is not None and self.fits(header, line)
        record = self.record(tuple(header["workers"]), line) if header is not None and explained else None
        if record is not None:
            self._lines.append(record)
            self._count += 1
            self.lost += _lost_before(line)
        elif text.strip() and not (is_header and self._fleet is not None):
            self.skipped += 1

    def _run_of(self, line: dict[str, Any]) -> object:
        """Return the run that a line names; files of earlier versions name none, and their newest header counts."""
        run = line.get("run")
        return run if isinstance(run, str) else None

    def _fleet_of(self, header: dict[str, Any]) -> tuple[str, ...] | None:
        """Return the workers that a header names; ``None`` if it is broken, as it then explains no line."""
        schema, workers = header[self.header], header.get("workers")
        if isinstance(schema, int) and schema > self.schema:
            raise ValueError(
                f"{printable(str(self.path))} was written by paceline {printable(str(header.get('version')))}, whose "
                "format this version does not know; read it with that version or a later one"
            )
        if not isinstance(schema, int) or not isinstance(workers, list) or not workers:
            return None
        if not all(isinstance(worker, str) for worker in workers) or len(set(workers)) != len(workers):
            return None
        self.begins(header, tuple(workers))
        return tuple(workers)


def parsed(text: bytes) -> dict[str, Any]:
    """Return the JSON object in a line; an empty one if the line holds none."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return line if isinstance(line, dict) else {}


def _lost_before(line: dict[str, Any]) -> int:
    lost = line.get("lost_before", 0)  # runs of earlier versions do not have it
    return lost if isinstance(lost, int) and 0 <= lost < LARGEST else 0


def are_rows(rows: Iterable[Any], workers: int) -> bool:
    """Return whether all rows are lists of a number, or null, for each worker."""
    return all(isinstance(row, list) and len(row) == workers and all(map(is_number, row)) for row in rows)


def is_number(value: Any) -> bool:
    """Return whether a value is a number that fits into a float, or null, which means unknown."""
    if isinstance(value, int) and not isinstance(value, bool):
        return -LARGEST < value < LARGEST
    return value is None or isinstance(value, float)
