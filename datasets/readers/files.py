"""Open files from others: compressed or not, never a pickle, never a decompression bomb."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from paceline.datasets.parquet import MAX_RATIO, max_bytes

HEAD = 1 << 16
"""Bytes at the start of a file that are used to recognize its format."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read bytes, through gzip if it is compressed.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is empty, a pickle or an archive, is truncated within its compression, or grows too large.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    with path.open("rb") as plain:
        compressed = plain.peek().startswith(b"\x1f\x8b")
        file = io.BufferedReader(Unzipped(path, plain), HEAD) if compressed else plain
        try:
            _refuse(path, file.peek())
            yield file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: the compressed file is truncated or damaged: {error}") from error


def head(path: Path) -> str:
    """Return the start of a file as text; bytes that are not text are replaced."""
    with opened(path) as file:
        return file.read(HEAD).decode("utf-8-sig", errors="replace")


def json_of(path: Path, limit: int, advice: str) -> Any:
    """Return the content of a JSON file.

    Raises
    ------
    ValueError
        If it is larger than ``limit`` (the message then ends with ``advice``), or not a complete JSON file.
    """
    with opened(path) as file:
        text = file.read(limit + 1)
    if len(text) > limit:
        raise ValueError(f"{path}: is larger than {limit} bytes; {advice}")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}: is not a complete JSON file: it is damaged or truncated at line {error.lineno}, column "
            f"{error.colno}"
        ) from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path}: is not a complete JSON file: it is not UTF-8 text, or nested too deeply") from None


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line of a text file with its number, from 1; a carriage return ends a line too.

    Raises
    ------
    ValueError
        If a line is longer than 16 MB or is not UTF-8 text.
    """
    number = 0
    with opened(path) as file:
        for raw in _bounded_lines(path, file):
            for piece in raw.replace(b"\r\n", b"\n").rstrip(b"\n").split(b"\r"):
                number += 1
                try:
                    yield number, piece.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise ValueError(f"{path}, line {number}: must be UTF-8 text, but {error}") from error


def _bounded_lines(path: Path, file: BinaryIO, limit: int = 1 << 24) -> Iterator[bytes]:
    while raw := file.readline(limit):
        if len(raw) == limit:
            raise ValueError(f"{path}: a line is longer than {limit} bytes; this is not a text file with lines")
        yield raw


def _refuse(path: Path, first: bytes) -> None:
    if not first:
        raise ValueError(f"{path}: the file is empty")
    # the text that stands for a file in a clone without Git LFS
    if first.startswith(b"version https://git-lfs.github.com/spec"):
        raise ValueError(f"{path}: is a Git LFS pointer and not the file itself; fetch it with `git lfs pull`")
    # Pickles of every protocol; older protocols are text: a module's name on a line, then that of a member.
    # Headers such as ``cost`` and ``cnt`` begin like a module, and numbers follow.
    pickled = (
        rb"\x80[\x00-\x05]|\(dp\d|\(lp\d"
        rb"|c(__builtin__|builtins|copy_reg|copyreg|os|posix|nt|subprocess|numpy|pandas)(\.\w+)*\n[A-Za-z_][\w.]*\n"
    )
    if re.match(pickled, first) or path.suffix in (".pkl", ".pickle"):
        raise ValueError(
            f"{path}: is a pickle, which can run any program when opened; it was not opened. Export it as JSON or CSV"
        )
    binary = {
        b"PK\x03\x04": "a zip archive",
        b"\x93NUMPY": "a numpy array",
        b"\x89HDF": "an HDF5 file",
        b"BZh": "bzip2",
    }
    for magic, name in binary.items():
        if first.startswith(magic):
            raise ValueError(f"{path}: is {name}, which no reader takes; unpack it or export it as CSV first")


class Unzipped(io.RawIOBase):
    """The content of a gzip file, up to a largest size."""

    def __init__(self, path: Path, plain: BinaryIO) -> None:
        self._path = path
        self._file = gzip.GzipFile(fileobj=plain)
        self._limit = max_bytes(path)
        self._grown = 0

    def readable(self) -> bool:
        """Return True: this file can be read."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer, and return the number of bytes read."""
        data = self._file.read(len(buffer))
        self._grown += len(data)
        if self._grown > self._limit:
            raise ValueError(
                f"{self._path}: grows to more than {self._limit} bytes when it is decompressed, over "
                f"{MAX_RATIO} times its size; if this is intended, decompress it yourself first"
            )
        buffer[: len(data)] = data
        return len(data)
