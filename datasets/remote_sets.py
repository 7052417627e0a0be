"""Public sets that can be fetched: where each file is, at a fixed commit, under which licence, with which sha256.

Of a file whose path is empty only the sha256 is known: its address has to be given. Of a file whose sha256 is empty
nobody here has seen the whole file: its sha256 has to be given. Nothing is downloaded unless it is asked for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RemoteFile:
    """A file of a set: its name in the cache, its path below the set's address, and the sha256 of its bytes."""

    name: str
    path: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class RemoteSet:
    """A public set, or the part of it that is listed here.

    Parameters
    ----------
    name, about
        What it is called, and what it is, in a sentence.
    address
        The folder in the source's repository at a fixed commit; ends with a slash.
    licence
        Under which the authors publish it.
    format
        What its files are read as; ``profiles: X`` is for :func:`paceline.datasets.profiles.read_profiles`.
    selection
        Which part of the source is listed.
    files
        The files.
    """

    name: str
    about: str
    address: str
    licence: str
    format: str
    selection: str
    files: tuple[RemoteFile, ...]


def _listed() -> dict[str, RemoteSet]:
    sets = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {
        one["name"]: RemoteSet(**{**one, "files": tuple(RemoteFile(*file) for file in one["files"])}) for one in sets
    }


REMOTE_SETS: dict[str, RemoteSet] = _listed()
"""Every set by its name; the list itself is remote_sets.json."""
