"""Reading kernel files: small files that are read again and again, and counters that only grow."""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path

NAN = float("nan")


class Growth:
    """Growth of a counter, per second of wall time since it was last asked; NaN the first time."""

    def __init__(self) -> None:
        self._value, self._time = NAN, NAN

    def by(self, value: float) -> float:
        """Tell the counter's value now, and return its growth since the last value."""
        now = time.perf_counter()
        growth = (value - self._value) / (now - self._time)
        self._value, self._time = value, now
        return growth


class File:
    """A kernel file that is read repeatedly: opened once, and empty if it cannot be read."""

    def __init__(self, path: str | Path) -> None:
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._handle = -1
        else:
            weakref.finalize(self, os.close, self._handle)

    def text(self) -> bytes:
        """Return the file's present content."""
        if self._handle < 0:
            return b""
        try:
            # pread from 0 makes the kernel write the content again, without opening the file again.
            return os.pread(self._handle, 1 << 16, 0)
        except OSError:  # its subject is gone: a process that ended, or a control group that was removed
            return b""

    def number(self) -> float:
        """Return the number that the file begins with."""
        return number(self.text())


def number(text: bytes) -> float:
    """Return the number at the start of a text, NaN if there is none.

    >>> number(b"42 us")
    42.0
    """
    word, *_ = text.split(None, 1) or [b""]
    return float(word) if word.isdigit() else NAN


def field(text: bytes, key: bytes) -> float:
    """Return the number that follows a key, NaN if the key is absent.

    >>> field(b"nr_periods 8 throttled_usec 120", b"throttled_usec")
    120.0
    """
    return number(text.partition(key)[2])
