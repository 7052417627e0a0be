"""Traces in object stores and other file systems: ``s3://bucket/folder``, through pyarrow or fsspec."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from paceline._address import hiding, is_readable, shown, without_secrets
from paceline._require import require
from paceline._whole import TemporaryFolder
from paceline.datasets import Trace
from paceline.datasets.readers.reader_registry import iter_traces

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


NATIVE = ("file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
"""Protocols of pyarrow's own file systems. fsspec opens others, and these only where pyarrow was built without them:
otherwise a mistake in such an address would end in the question for a library that does not help."""

WEB = ("http", "https")

MOST_BYTES = 1 << 30
"""Bytes that are read of one file in a store, unless the environment variable ``PACELINE_STORE_BYTES`` says more."""

BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Stored:
    """A file in a store.

    Parameters
    ----------
    address
        What messages call it: without the secrets that an address may hold.
    system, path
        Where it is read: a path may hold characters that an address may not.
    given
        The address by which it was found, with its secrets.
    """

    address: str
    system: FileSystem = field(repr=False)
    path: str = field(repr=False)  # on the web an address, with its secrets
    given: str = field(repr=False)

    @property
    def name(self) -> str:
        """The file's name alone, by which some formats are recognised."""
        path = unquote(urlsplit(self.path).path) if _is_web(self.path) else self.path
        name = PurePosixPath(path).name
        return "file" if name in ("", "..") else name


def files(address: str) -> list[Stored]:
    """Return every file below an address; of a file, itself.

    Raises
    ------
    FileNotFoundError
        If there is nothing.
    ValueError
        If it is no address, has an option that the store does not know, or could be read by others on the way.
    ImportError
        If the protocol is one of fsspec's and a library is missing.
    OSError
        If the store cannot be reached, or refuses.
    """
    from pyarrow.fs import FileSelector, FileType

    with hiding(address):
        _require_safe(address)
        system, path = _system(address)
        (about,) = system.get_file_info([path])
        if about.type == FileType.NotFound:
            if _is_web(path):
                system.handler.fs.info(path)  # it raises an error that says why
            raise FileNotFoundError(f"there is nothing at {shown(address)}")
        found = [about]
        if about.type == FileType.Directory:
            below = system.get_file_info(FileSelector(path, recursive=True))
            found = [f for f in below if f.type == FileType.File and not _hidden(f.path, path)]
    names = sorted(f.path for f in found)
    return [Stored(_shown_path(address, name), system, name, address) for name in names]


def read(file: Stored) -> Iterator[Trace]:
    """Yield the traces of one file in a store, through a copy that is removed when they have been read.

    Raises
    ------
    ValueError
        If the file is larger than ``MOST_BYTES``, or cannot be read.
    OSError
        If the store cannot be reached, or refuses.
    """
    with TemporaryFolder() as folder:
        copy = Path(folder) / file.name
        with hiding(file.given):
            _copy(file, copy)
        try:
            yield from iter_traces(copy)
        except ValueError as error:
            raise ValueError(str(error).replace(str(copy), file.address)) from error


def _require_safe(address: str) -> None:
    for one in address.split("::"):  # of which the first may lie within the second
        if is_readable(one):
            raise ValueError(
                f"others on the way can read and change what {one.partition(':')[0]} transfers, tokens too: use https, "
                "or download it in a way that you trust and name the file"
            )


def _copy(file: Stored, copy: Path) -> None:
    most, copied = _most_bytes(), 0
    with file.system.open_input_stream(file.path) as store, copy.open("wb") as local:
        while block := store.read(BLOCK_BYTES):
            copied += len(block)
            if copied > most:
                raise ValueError(
                    f"{file.address}: is larger than {most} bytes, and was not kept; if it should be, set the "
                    "environment variable PACELINE_STORE_BYTES to as many bytes as it may have"
                )
            local.write(block)


def _most_bytes() -> int:
    text = os.environ.get("PACELINE_STORE_BYTES", str(MOST_BYTES))
    if not text.isdecimal():
        raise ValueError(f"PACELINE_STORE_BYTES must be a whole number of bytes, got {text!r}")
    return int(text)


def _shown_path(address: str, path: str) -> str:
    """Return the path of a file found at an address, as messages show it."""
    name = path if "://" in path else f"{address.partition('://')[0]}://{path.lstrip('/')}"
    # An @ or a ? is a part of most names; but some file systems leave a secret in the path, and on the web all do.
    return name if name != path and without_secrets(path, address) == path else shown(name)


def _is_web(path: str) -> bool:
    return path.partition("://")[0] in WEB


def _system(address: str) -> tuple[FileSystem, str]:
    """Return the file system of an address, and the path in it: pyarrow's own, or one of fsspec's."""
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    if address.partition("://")[0] not in NATIVE:
        return _fsspec(address)
    try:
        system, path = FileSystem.from_uri(address)
    except pa.ArrowNotImplementedError:  # pyarrow was built without this store
        return _fsspec(address)
    return system, path


def _fsspec(address: str) -> tuple[FileSystem, str]:
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    require("fsspec", needed_by=f"reading {shown(address)}", extra="remote")
    import fsspec

    options = {web: {"get_client": _client} for web in WEB if f"{web}://" in address}
    other: Any
    other, path = fsspec.core.url_to_fs(address, **options)
    return PyFileSystem(FSSpecHandler(other)), path


async def _client(**options: Any) -> Any:
    """Return fsspec's client of the web, which says where it is sent on to."""
    import aiohttp

    watching = aiohttp.TraceConfig()
    watching.on_request_redirect.append(_sent_on)
    return aiohttp.ClientSession(**options, trace_configs=[watching])


async def _sent_on(_session: Any, _context: Any, request: Any) -> None:
    """Refuse a redirect to what others can read; say one to another host."""
    begin = request.url
    headers = request.response.headers
    target = begin.join(type(begin)(headers.get("Location") or headers.get("URI", "")))
    if is_readable(str(target)) or (target.scheme == "http" and begin.scheme == "https"):
        raise ValueError(f"{shown(str(begin))} redirects to {shown(str(target))}, which others on the way can read")
    if target.host != begin.host:
        warnings.warn(f"{shown(str(begin))} is answered by another host, {target.host}", stacklevel=2)


def _hidden(path: str, below: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(path).parts[len(PurePosixPath(below).parts) :])
