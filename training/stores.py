"""Traces in object stores and other file systems: ``s3://bucket/folder``, through pyarrow or fsspec."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from paceline._require import require
from paceline.datasets import Trace
from paceline.datasets.readers.registry import iter_traces

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


NATIVE = ("file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
"""Protocols of pyarrow's own file systems. Others are asked of fsspec, and these are not: a mistake in such an address
would end in the question for a library that does not help."""


def addresses(address: str) -> list[str]:
    """Return the address of every file below one; of a file, its own.

    Raises
    ------
    FileNotFoundError
        If there is nothing.
    ImportError
        If the protocol is one of fsspec's and a library is missing.
    """
    from pyarrow.fs import FileSelector, FileType

    system, path = _system(address)
    (about,) = system.get_file_info([path])
    if about.type == FileType.NotFound:
        raise FileNotFoundError(f"there is nothing at {address}")
    if about.type == FileType.File:
        return [address]
    protocol, _, rest = address.partition("://")
    options = f"?{rest.partition('?')[2]}" if "?" in rest else ""
    below = system.get_file_info(FileSelector(path, recursive=True))
    files = sorted(f.path for f in below if f.type == FileType.File and not _hidden(f.path, path))
    return [f"{protocol}://{file.lstrip('/')}{options}" for file in files]


def read(address: str) -> Iterator[Trace]:
    """Yield the traces of one file in a store, through a copy that is removed when they have been read."""
    system, path = _system(address)
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        # Under its own name, by which some formats are recognised.
        copy = Path(folder) / PurePosixPath(path).name
        with system.open_input_stream(path) as store, copy.open("wb") as local:
            while block := store.read(1 << 20):
                local.write(block)
        try:
            yield from iter_traces(copy)
        except ValueError as error:
            raise ValueError(str(error).replace(str(copy), address)) from error


def _system(address: str) -> tuple[FileSystem, str]:
    """Return the file system of an address, and the path in it: pyarrow's own, or one of fsspec's."""
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    if address.partition("://")[0] not in NATIVE:
        return _fsspec(address)
    try:
        system, path = FileSystem.from_uri(address)
    except pa.ArrowNotImplementedError:  # this build of pyarrow lacks it
        return _fsspec(address)
    except pa.ArrowInvalid as error:  # as for an option that the store does not have
        raise ValueError(f"{address}: {error}") from error
    return system, path


def _fsspec(address: str) -> tuple[FileSystem, str]:
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    require("fsspec", needed_by=f"reading {address}", extra="remote")
    import fsspec

    other: Any
    other, path = fsspec.core.url_to_fs(address)
    return PyFileSystem(FSSpecHandler(other)), path


def _hidden(path: str, below: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(path).parts[len(PurePosixPath(below).parts) :])
