"""The interface of a reader: a name, a test that matches its files, and a function that yields traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.datasets.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Format:
    """One readable format.

    ``read(path, row_counts)`` yields the traces of a file, without their counts of rows. Where a job may have several
    files, those of one folder and one ``job``, or of one rank each (``per_rank``), ``read(paths)`` yields the traces of
    a job. Further parameters, by keyword, are the format's options. ``matches`` tells a file by its path and its first
    64 kB of text. ``provides`` is ``"speed"`` if iterations or rates were measured. ``tested_on`` is what it was tried
    on: ``"real files of NAME"``, or :data:`NATIVE_FORMAT`, :data:`QUOTED_FILES` or :data:`SYNTHETIC_FILES`.
    """

    name: str
    description: str
    files: str
    provides: str
    read: Callable[..., Iterator[Trace]]
    matches: Callable[[Path, str], bool]
    tested_on: str
    job: Callable[[Path], str] | None = None
    per_rank: bool = False


NATIVE_FORMAT = "this library's own formats"

SYNTHETIC_FILES = "synthetic files in the documented layout only"
"""Evidence for a format known from its documentation alone: a real file may differ."""

QUOTED_FILES = "lines of real files quoted in public repositories"
