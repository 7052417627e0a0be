"""The interface of a reader: a name, a test that matches its files, and a function that yields traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.datasets.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Format:
    """One readable format.

    ``read`` yields the traces of the files of one job; its parameters after ``paths`` are the format's options, by
    keyword. ``matches`` tells a file by its path and its first 64 kB of text. ``provides`` is ``"speed"`` if iterations
    or rates were measured. ``tested_on`` is what it was tried on: ``"real files of NAME"``, or :data:`NATIVE_FORMAT`,
    :data:`QUOTED_FILES` or :data:`SYNTHETIC_FILES`. Files of one folder and one ``job`` are read together;
    ``per_rank`` ones may be a rank's each.
    """

    name: str
    description: str
    files: str
    provides: str
    read: Callable[..., Iterator[Trace]]
    matches: Callable[[Path, str], bool]
    tested_on: str
    job: Callable[[Path], str] = str
    per_rank: bool = False


NATIVE_FORMAT = "this library's own formats"

SYNTHETIC_FILES = "synthetic files in the documented layout only"
"""Evidence for a format known from its documentation alone: a real file may differ."""

QUOTED_FILES = "lines of real files quoted in public repositories"
