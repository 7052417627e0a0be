"""What a reader left out, and why: counted, and told in the trace's ``meta``."""

from __future__ import annotations

from collections import Counter


class Tally:
    """Counts of rows and of single values that a reader left out, by the reason.

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
        self._rows: Counter[str] = Counter()
        self._cells: Counter[str] = Counter()

    def read(self, count: int) -> None:
        """Count rows that the file holds."""
        self._read += int(count)

    def rows(self, reason: str, count: int) -> None:
        """Count rows that are left out."""
        self._rows[reason] += int(count)

    def cells(self, reason: str, count: int) -> None:
        """Count single values that are left out; their rows stay, with NaN."""
        self._cells[reason] += int(count)

    def meta(self) -> dict[str, str]:
        """Return what a trace's ``meta`` says about it."""
        told = [f"{count} {reason}" for reason, count in (*self._rows.items(), *self._cells.items()) if count]
        return {
            "rows_read": str(self._read),
            "rows_dropped": str(sum(self._rows.values())),
            "dropped": ", ".join(told) or "nothing",
        }
