"""Unpack archives from others: nothing outside the folder, no links, no decompression bombs."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Self, cast

from paceline._whole import TemporaryFolder
from paceline.datasets import growth

MOST_MEMBERS = 100_000
MOST_FOLDERS = 64
"""Most folders above a member; each takes a place on the disk but no bytes of the archive's budget."""

MOST_HEADER = 1 << 20
"""Bytes of a tar header with a long name or other facts: Python reads it whole and takes many times its size."""

MOST_DICTIONARY = 192 << 20
"""Memory for unpacking xz: enough for every preset (-9 takes 65 MB); a header may ask for 4 GB."""

Member = tuple[str, int, IO[bytes] | None]
"""Name, size and content; None for a folder's content."""


def unpack(archive: str | Path, folder: str | Path) -> list[Path]:
    """Unpack a zip or tar archive into a new folder, whole or not at all, and return the files.

    Raises
    ------
    FileNotFoundError
        If there is no such archive.
    FileExistsError
        If the folder exists already.
    ValueError
        If the archive is truncated or of another kind, or a member has an absolute path or one with ``..``, is a link
        or a device, or the whole, headers included, grows to more than 64 MB and 200 times the archive's size.

    Examples
    --------
    >>> import tempfile, zipfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with zipfile.ZipFile(f"{folder}/x.zip", "w") as made:
    ...         made.writestr("inside.csv", "1")
    ...     [file.name for file in unpack(f"{folder}/x.zip", f"{folder}/x")]
    ['inside.csv']
    """
    archive, folder = Path(archive), Path(folder)
    if not archive.is_file():
        raise FileNotFoundError(f"there is no archive {archive}")
    if folder.exists():
        raise FileExistsError(f"{folder} exists: choose a new folder")
    most = growth.most_bytes(archive)
    with TemporaryFolder(folder.parent) as temporary:
        target = Path(temporary) / "unpacked"
        target.mkdir()
        try:
            with ExitStack() as stack:
                for count, member in enumerate(_members(archive, stack), start=1):
                    if count > MOST_MEMBERS:
                        raise ValueError(f"{archive}: holds more than {MOST_MEMBERS} members; nothing was unpacked")
                    most -= _written(archive, member, target, most)
        except Exception as error:  # the modules of the standard library raise a dozen kinds on broken archives
            if isinstance(error, ValueError) and str(error).startswith(str(archive)):
                raise
            raise ValueError(f"{archive}: is truncated, damaged or locked: {error}; nothing was unpacked") from error
        target.rename(folder)
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _members(archive: Path, stack: ExitStack) -> Iterator[Member]:
    if zipfile.is_zipfile(archive):
        yield from _zip_members(archive, stack.enter_context(zipfile.ZipFile(archive)))
        return
    stream = _decompressed(archive, stack)
    try:
        tar = stack.enter_context(tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header))  # noqa: SIM115 - the stack closes it
    except (tarfile.TarError, EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{archive}: is neither a zip nor a tar archive: {error}") from error
    for info in tar:
        if info.issparse() or not (info.isfile() or info.isdir()):
            raise ValueError(f"{archive}: member {info.name!r} is a link or a device, or sparse; nothing was unpacked")
        yield info.name, info.size, tar.extractfile(info) if info.isfile() else None
    while stream.read(1 << 16):  # to the end, where compressed files keep the checksum and say whether they are whole
        pass


def _decompressed(archive: Path, stack: ExitStack) -> BinaryIO:
    """Open a tar archive through its compression; more than the archive may grow to is never read, headers included."""
    plain = stack.enter_context(archive.open("rb"))
    first = plain.read(6)
    plain.seek(0)
    unpacked: Any = plain
    if first.startswith(b"\x1f\x8b"):
        unpacked = gzip.GzipFile(fileobj=plain)
    elif first.startswith(b"BZh"):
        unpacked = bz2.BZ2File(plain)
    elif first.startswith(b"\xfd7zXZ"):
        unpacked = _Unxz(plain)
    most = growth.most_bytes(archive) + MOST_HEADER
    counted: Any = Counted(archive, "its headers", unpacked, most)
    return cast("BinaryIO", counted)


class _Unxz(io.RawIOBase):
    """The content of an xz file, unpacked within bounded memory; Python's own reader takes what the file asks for."""

    def __init__(self, plain: BinaryIO) -> None:
        self._plain = plain
        self._unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MOST_DICTIONARY)

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes, at most so many."""
        while not self._unpacker.eof:
            packed = self._plain.read(1 << 16) if self._unpacker.needs_input else b""
            if self._unpacker.needs_input and not packed:
                raise EOFError("the xz stream is cut")
            if data := self._unpacker.decompress(packed, max_length=count):
                return data
        return b""


class _Header(tarfile.TarInfo):
    """A header of a tar archive that refuses to be large."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header of 512 bytes; what follows it is read whole if it is one of those with facts about the next."""
        info = super().frombuf(buf, encoding, errors)
        if info.type in FACTS and not 0 <= info.size <= MOST_HEADER:
            raise ValueError(f"a header has {info.size} bytes, but at most {MOST_HEADER} are read")
        return info


FACTS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
"""Types of headers that hold a name or other facts of the member after them."""


def _zip_members(archive: Path, file: zipfile.ZipFile) -> Iterator[Member]:
    for info in file.infolist():
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others name their own memory
            raise ValueError(f"{archive}: member {info.filename!r} is compressed in a rare way; nothing was unpacked")
        if (info.external_attr >> 16) & 0o170000 == 0o120000:
            raise ValueError(f"{archive}: member {info.filename!r} is a link or a device; nothing was unpacked")
        yield info.filename, info.file_size, None if info.is_dir() else file.open(info)


def _written(archive: Path, member: Member, target: Path, most: int) -> int:
    """Write one member below the target, and return its number of bytes; the size that it declares is not trusted."""
    name, size, content = member
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in "".join(path.parts[:1]) or "\0" in name:
        raise ValueError(f"{archive}: member {name!r} would be written outside the folder; nothing was unpacked")
    if len(path.parts) > MOST_FOLDERS:
        raise ValueError(
            f"{archive}: member {name!r:.80} lies deeper than {MOST_FOLDERS} folders; nothing was unpacked"
        )
    place = target.joinpath(*path.parts)
    if content is None:
        place.mkdir(parents=True, exist_ok=True)
        return 0
    if size > most:
        raise ValueError(_bomb(archive, name))
    place.parent.mkdir(parents=True, exist_ok=True)
    with content, place.open("xb") as out:
        shutil.copyfileobj(Counted(archive, name, content, most), out)
        return out.tell()


def _bomb(archive: Path, name: str) -> str:
    return f"{archive}: member {name!r} makes it grow to over {growth.MOST_TIMES} times its size; nothing was unpacked"


class Counted:
    """A file that refuses to yield more than this many bytes."""

    def __init__(self, archive: Path, name: str, content: IO[bytes], most: int) -> None:
        self._archive, self._name, self._content, self._left = archive, name, content, most

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes."""
        data = self._content.read(count)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(_bomb(self._archive, self._name))
        return data
