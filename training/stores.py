"""Traces in object stores and other file systems: ``s3://bucket/folder``, through pyarrow or fsspec."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from paceline._require import require
from paceline.datasets import Trace
from paceline.datasets.readers.registry import iter_traces

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


NATIVE = ("file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
"""Protocols of pyarrow's own file systems. fsspec opens others, and these only where pyarrow was built without them:
otherwise a mistake in such an address would end in the question for a library that does not help."""


@dataclass(frozen=True)
class Stored:
    """A file in a store.

    Parameters
    ----------
    address
        What messages call it: without the key and the secret that an address may hold.
    system, path
        Where it is read: a path may hold characters that an address may not.
    """

    address: str
    system: FileSystem
    path: str


def files(address: str) -> list[Stored]:
    """Return every file below an address; of a file, itself.

    Raises
    ------
    FileNotFoundError
        If there is nothing.
    ValueError
        If it is no address, or has an option that the store does not know.
    ImportError
        If the protocol is one of fsspec's and a library is missing.
    """
    from pyarrow.fs import FileSelector, FileType

    system, path = _system(address)
    (about,) = system.get_file_info([path])
    if about.type == FileType.NotFound:
        raise FileNotFoundError(f"there is nothing at {without_secret(address)}")
    if about.type == FileType.File:
        return [Stored(without_secret(address), system, path)]
    below = system.get_file_info(FileSelector(path, recursive=True))
    names = sorted(f.path for f in below if f.type == FileType.File and not _hidden(f.path, path))
    protocol = address.partition("://")[0]
    return [Stored(f"{protocol}://{name.lstrip('/')}", system, name) for name in names]


def read(file: Stored) -> Iterator[Trace]:
    """Yield the traces of one file in a store, through a copy that is removed when they have been read."""
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        # Under its own name, by which some formats are recognised.
        copy = Path(folder) / PurePosixPath(file.path).name
        with file.system.open_input_stream(file.path) as store, copy.open("wb") as local:
            while block := store.read(1 << 20):
                local.write(block)
        try:
            yield from iter_traces(copy)
        except ValueError as error:
            raise ValueError(str(error).replace(str(copy), file.address)) from error


def without_secret(address: str) -> str:
    """Return an address without the key and the secret that it may begin with.

    >>> without_secret("s3://key:secret@bucket/jobs"), without_secret("s3://bucket/jobs")
    ('s3://***@bucket/jobs', 's3://bucket/jobs')
    """
    return re.sub(r"://[^/@]*:[^/@]*@", "://***@", address)


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
    except pa.ArrowInvalid as error:  # as for an option that the store does not have
        shown = without_secret(address)
        raise ValueError(f"{shown}: {str(error).replace(address, shown)}") from None  # the cause holds the secret
    return system, path


def _fsspec(address: str) -> tuple[FileSystem, str]:
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    require("fsspec", needed_by=f"reading {without_secret(address)}", extra="remote")
    import fsspec

    other: Any
    other, path = fsspec.core.url_to_fs(address)
    return PyFileSystem(FSSpecHandler(other)), path


def _hidden(path: str, below: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(path).parts[len(PurePosixPath(below).parts) :])
