"""What a reader promises: a name, how its files are recognised, and traces one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.datasets.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Format:
    """One format that can be read.

    Parameters
    ----------
    name
        What it is called: ``paceline data load FILE --format NAME``.
    about
        What the files hold, in a phrase.
    files
        What the files are called.
    gives
        ``"speed"`` where iterations or rates were measured, ``"usage"`` where only resource usage was.
    read
        Yields the traces of the files of one job; what follows ``paths`` are the format's options, by keyword.
    recognises
        Says from a file's path and its first 64 kB of text whether it is of this format.
    job
        The job that a file belongs to: files of one folder and one job are read together.
    """

    name: str
    about: str
    files: str
    gives: str
    read: Callable[..., Iterator[Trace]]
    recognises: Callable[[Path, str], bool]
    job: Callable[[Path], str] = str
