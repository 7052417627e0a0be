"""Read a run from its JSON lines, while it grows or after its end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from paceline._printable import printable
from paceline.recording.growing import GrowingFile, is_number
from paceline.recording.json_lines import SCHEMA
from paceline.recording.run import DRIFT, OF_FLEET, OF_WORKERS, TRUTHS, WORK, RecordLine, Run

ALWAYS_KNOWN = ("index", "time")


class RunReader(GrowingFile[RecordLine]):
    """Reads the file of a synchronous run as it grows; see :class:`GrowingFile`."""

    header, schema = "paceline_run", SCHEMA

    def run(self, last: int | None = None) -> Run:
        """Return the run so far, or its last iterations; only those that are kept."""
        return Run.of_lines(str(self.path), self.kept(last), self.skipped, self.lost)

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


def _is_iteration(line: dict[str, Any], workers: int) -> bool:
    """Return whether a line holds all fields of an iteration, for this many workers."""
    if not line.keys() >= {*OF_WORKERS, *OF_FLEET, *TRUTHS, "why"}:
        return False
    rows = [line[key] for key in (*OF_WORKERS, WORK) if key in OF_WORKERS or line.get(key) is not None]
    return (
        all(isinstance(row, list) and len(row) == workers and all(map(is_number, row)) for row in rows)
        and all(is_number(line.get(key)) for key in (*OF_FLEET, DRIFT))
        and all(line[key] is not None and math.isfinite(line[key]) for key in ALWAYS_KNOWN)
        and all(isinstance(line[key], bool) for key in TRUTHS)
        and isinstance(line["why"], str)
    )
