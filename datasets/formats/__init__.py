"""The interface of a reader: a name, a test that matches its files, and a function that yields traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.datasets.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Format:
    """One readable format.

    Parameters
    ----------
    name
        Its name: ``paceline data load FILE --format NAME``.
    about
        The content of the files, in a phrase.
    files
        The names of the files.
    gives
        ``"speed"`` if iterations or rates were measured, ``"usage"`` if only resource usage was.
    read
        Yields the traces of the files of one job; the parameters after ``paths`` are the format's options, by keyword.
    matches
        Returns whether a file has this format, from its path and its first 64 kB of text.
    seen
        What it was tried on: ``"real files of NAME"``, or :data:`NATIVE`, :data:`QUOTED` or :data:`MADE`.
    job
        Returns the job that a file belongs to: files of one folder and one job are read together.
    per_rank
        Whether each rank may have written a file of its own: such files are joined.
    """

    name: str
    about: str
    files: str
    gives: str
    read: Callable[..., Iterator[Trace]]
    matches: Callable[[Path, str], bool]
    seen: str
    job: Callable[[Path], str] = str
    per_rank: bool = False


NATIVE = "a format of this library"

MADE = "files made in its layout only"
"""Evidence for a format known from its documentation alone: a real file may differ."""

QUOTED = "lines of real files as public repositories quote them; no whole file"
