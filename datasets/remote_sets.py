"""Public sets that can be fetched: each file's address at a fixed commit, licence and sha256.

If a file's path is empty, only its sha256 is known, and you must give the address. If its sha256 is empty, no
verified copy was available, and you must give the sha256. Nothing is downloaded without a call of ``fetch``.
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
        Its name, and a one-sentence description.
    address
        The folder in the source's repository at a fixed commit; ends with a slash.
    licence
        The licence under which the authors publish it.
    format
        The format that its files are read as; ``profiles: X`` is for :func:`paceline.datasets.profiles.read_profiles`.
    selection
        The part of the source that is listed.
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
