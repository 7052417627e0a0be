"""Progress lines of long commands in a log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

INTERVAL = 10.0
"""Seconds between two lines; shorter commands write none."""


class Heartbeat:
    """Writes a progress line every ten seconds, from a background thread.

    Parameters
    ----------
    write
        Called with the line.
    doing
        What is being done, until :meth:`update` changes it.

    Examples
    --------
    >>> with Heartbeat(print, "scoring") as heartbeat:
    ...     heartbeat.update("scoring, 3 of 9")
    """

    def __init__(self, write: Callable[[str], None], doing: str) -> None:
        self._write = write
        self._doing = doing
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="paceline-heartbeat", daemon=True)

    def update(self, doing: str) -> None:
        """Set the words of the next line."""
        self._doing = doing

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(INTERVAL):
            self._write(f"{self._doing} ({time.monotonic() - self._began:,.0f} s so far)")
