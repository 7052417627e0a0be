"""Limit to which a file may grow while it is read: a small one that fills the memory is an accident or an attack."""

from __future__ import annotations

from pathlib import Path

FREE_BYTES, MOST_TIMES = 64 << 20, 200
"""A compressed file of any size may grow to 64 MB, and a larger one to 200 times its size."""


def most_bytes(path: Path) -> int:
    """Return the bytes to which a file may grow."""
    return max(FREE_BYTES, MOST_TIMES * path.stat().st_size)
