"""Lines that a long command writes to a log, so that it is never silent for minutes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

EVERY = 10.0
"""Seconds between two lines; what takes less writes none."""


class Heartbeat:
    """Says every ten seconds how far something is, from a thread of its own.

    Parameters
    ----------
    say
        Called with the line.
    doing
        The first words of the lines, until :meth:`tell` gives others.

    Examples
    --------
    >>> with Heartbeat(print, "scoring") as heartbeat:
    ...     heartbeat.tell("scoring, 3 of 9")
    """

    def __init__(self, say: Callable[[str], None], doing: str) -> None:
        self._say = say
        self._doing = doing
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="paceline-heartbeat", daemon=True)

    def tell(self, doing: str) -> None:
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
        while not self._over.wait(EVERY):
            self._say(f"{self._doing} ({time.monotonic() - self._began:,.0f} s so far)")
