"""Count what a reader dropped or changed, and why, for the trace's ``meta``."""

from __future__ import annotations

from collections import Counter


class Tally:
    """Counts, by reason, of rows and single values that a reader dropped, and of rows that it changed.

    Examples
    --------
    >>> tally = Tally()
    >>> tally.read(10)
    >>> tally.rows("repeated rows", 2)
    >>> tally.cells("values of -1 or 101", 0)
    >>> tally.meta()
    {'rows_read': '10', 'rows_dropped': '2', 'dropped': '2 repeated rows'}
    """

    def __init__(self) -> None:
        self._read = 0
        self._restarts = 0
        self._rows: Counter[str] = Counter()
        self._cells: Counter[str] = Counter()
        self._notes: Counter[str] = Counter()

    def add(self, other: Tally) -> None:
        """Count what another file's tally counted."""
        self._read += other._read
        self._restarts += other._restarts
        for mine, its in ((self._rows, other._rows), (self._cells, other._cells), (self._notes, other._notes)):
            mine.update(its)

    def read(self, count: float) -> None:
        """Count rows of the file."""
        self._read += int(count)

    def rows(self, reason: str, count: float) -> None:
        """Count dropped rows."""
        self._rows[reason] += int(count)

    def cells(self, reason: str, count: float) -> None:
        """Count dropped single values; their rows stay, with NaN."""
        self._cells[reason] += int(count)

    def notes(self, what: str, count: float) -> None:
        """Count rows that were sorted or merged."""
        self._notes[what] += int(count)

    def restarts(self, count: float) -> None:
        """Count how often the job, or what recorded it, was started again."""
        self._restarts += int(count)

    def meta(self) -> dict[str, str]:
        """Return the entries for a trace's ``meta``, for everything read so far."""
        changed = _sentence(self._notes)
        return {
            "rows_read": str(self._read),
            "rows_dropped": str(sum(self._rows.values())),
            "dropped": _sentence(self._rows + self._cells) or "nothing",
            **({"changed": changed} if changed else {}),
            **({"restarts": str(self._restarts)} if self._restarts else {}),
        }

    def sentence(self) -> str:
        """Return what was dropped and changed, for a person who did not ask; empty if nothing was."""
        dropped, changed = _sentence(self._rows + self._cells), _sentence(self._notes)
        again = f"the job was started again {self._restarts} times" if self._restarts else ""
        return "; ".join(text for text in (dropped and f"dropped: {dropped}", changed, again) if text)


def _sentence(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts.items() if count)
