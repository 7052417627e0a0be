"""Download public sets into the user's cache: verified, and resumed after an interruption."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from paceline._address import hiding, is_readable, shown, without_secrets
from paceline._require import require
from paceline.datasets.remote_sets import REMOTE_SETS, RemoteFile, RemoteSet

CHUNK_BYTES = 1 << 16
MOST_BYTES = 4 << 30
"""No file of these sets is larger than this; a larger download is refused."""

SECONDS = 30.0
"""Seconds without an answer after which a server is given up."""


def fetch(
    name: str,
    file: str | None = None,
    *,
    url: str | None = None,
    sha256: str | None = None,
    cache: str | Path | None = None,
) -> list[Path]:
    """Download a public set, or one file of it, and return the files' paths; existing files are kept.

    Parameters
    ----------
    name
        A name of :data:`paceline.datasets.remote_sets.REMOTE_SETS`.
    file
        One file of the set; by default all of them.
    url
        Address of the file instead of the listed one: a mirror, or for a file without a listed address.
    sha256
        Hash of a file whose sha256 is not listed; a listed one cannot be replaced.
    cache
        The folder to keep files in; by default the user's cache folder. Each set has its own subfolder.

    Raises
    ------
    ImportError
        If pooch is not installed.
    ValueError
        If there is no such set or file, its address or sha256 is neither listed nor given, or its content has a
        different sha256; such a file is not kept.
    OSError
        If the server cannot be reached or refuses. Received bytes are kept, and the next call continues from there.
    """
    one = _set(name)
    chosen = [each for each in one.files if file in (None, each.name)]
    if not chosen:
        raise ValueError(f"set {name!r} has no file {file!r}; it has {[each.name for each in one.files]}")
    if len(chosen) > 1 and (url or sha256):
        raise ValueError(f"url and sha256 are those of one file: name it, one of {[each.name for each in chosen]}")
    wanted = [(each, _address(one, each, url), _hash(each, sha256)) for each in chosen]
    require("pooch", needed_by="fetch", extra="remote")
    import pooch  # type: ignore[import-untyped]

    folder = Path(cache if cache is not None else pooch.os_cache("paceline")) / name
    pooch.get_logger().addFilter(_without_secrets)  # it logs addresses; added again it is the same one
    return [_retrieved(pooch.retrieve, folder, each, address, known) for each, address, known in wanted]


def _retrieved(retrieve: Callable[..., Any], folder: Path, file: RemoteFile, address: str, sha256: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{file.name}.{sha256[:16]}.part"
    with hiding(address):
        try:
            found = retrieve(
                address, known_hash=f"sha256:{sha256}", fname=file.name, path=folder, downloader=Resuming(part)
            )
        except ValueError as error:
            raise ValueError(f"{shown(address)}: has unexpected content and was not kept: {error}") from error
    return Path(found)


def _without_secrets(record: logging.LogRecord) -> bool:
    record.msg, record.args = without_secrets(record.getMessage()), ()
    return True


class Resuming:
    """A downloader for pooch that keeps received bytes in its own file and continues from there."""

    def __init__(self, part: Path) -> None:
        self.part = part

    def __call__(self, url: str, output_file: str | IO[bytes], pooch: Any, check_only: bool = False) -> None:
        """Download to ``output_file``, which pooch then verifies and moves to its place."""
        import requests

        have = self.part.stat().st_size if self.part.exists() else 0
        asked = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
        with requests.get(url, headers=asked, stream=True, timeout=SECONDS) as answer:
            if answer.status_code == requests.codes.requested_range_not_satisfiable:
                self.part.unlink()  # longer than the file, so it belongs to another version
                raise OSError(f"{url}: the part received before does not match; it was removed: fetch again")
            answer.raise_for_status()
            resumed = answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            with self.part.open("ab" if resumed else "wb") as kept:
                for chunk in answer.iter_content(CHUNK_BYTES):
                    kept.write(chunk)
                    if kept.tell() > MOST_BYTES:
                        raise ValueError(f"{url}: is larger than {MOST_BYTES} bytes")
        _moved(self.part, output_file)


def _moved(part: Path, output_file: str | IO[bytes]) -> None:
    if isinstance(output_file, (str, Path)):
        shutil.move(part, output_file)
        return
    with part.open("rb") as kept:
        shutil.copyfileobj(kept, output_file)
    part.unlink()


def _set(name: str) -> RemoteSet:
    if name not in REMOTE_SETS:
        raise ValueError(f"there is no remote set {name!r}; there are {list(REMOTE_SETS)}")
    return REMOTE_SETS[name]


def _address(one: RemoteSet, file: RemoteFile, url: str | None) -> str:
    if url is None and not file.path:
        raise ValueError(
            f"the path of {file.name} below {one.address} is not listed: look it up there and give it as url; its "
            "sha256 is listed and will be checked"
        )
    address = one.address + file.path if url is None else url
    if address.partition("://")[0] not in ("http", "https") or is_readable(address):
        raise ValueError(f"url must begin with https://, got {shown(address)!r}")
    return address


def _hash(file: RemoteFile, sha256: str | None) -> str:
    if sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ValueError(f"sha256 must be 64 hexadecimal digits in small letters, got {sha256!r}")
    if file.sha256 and sha256 not in (None, file.sha256):
        raise ValueError(f"the sha256 of {file.name} is listed as {file.sha256}, which is not the given one")
    known = file.sha256 or sha256
    if not known:
        raise ValueError(f"the sha256 of {file.name} is not listed: give a sha256 that you trust")
    return known
