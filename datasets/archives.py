"""Unpack archives from others: nothing outside the folder, no links, no decompression bombs."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import IO

MOST_MEMBERS = 100_000
FREE_BYTES, MOST_TIMES = 64 << 20, 200
"""An archive of any size may grow to 64 MB, and a larger one to 200 times its size."""

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
        or a device, or the whole grows to more than 64 MB and 200 times the archive's size.

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
    most = max(FREE_BYTES, MOST_TIMES * archive.stat().st_size)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        target = Path(temporary) / "unpacked"
        target.mkdir()
        try:
            with ExitStack() as stack:
                for count, member in enumerate(_members(archive, stack), start=1):
                    if count > MOST_MEMBERS:
                        raise ValueError(f"{archive}: holds more than {MOST_MEMBERS} members; nothing was unpacked")
                    most -= _written(archive, member, target, most)
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, RuntimeError, OSError) as error:
            raise ValueError(f"{archive}: is truncated, damaged or locked: {error}; nothing was unpacked") from error
        target.rename(folder)
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _members(archive: Path, stack: ExitStack) -> Iterator[Member]:
    if zipfile.is_zipfile(archive):
        yield from _zip_members(archive, stack.enter_context(zipfile.ZipFile(archive)))
        return
    try:
        tar = stack.enter_context(tarfile.open(archive, "r|*"))  # noqa: SIM115 - the stack closes it
    except tarfile.TarError as error:
        raise ValueError(f"{archive}: is neither a zip nor a tar archive: {error}") from error
    for info in tar:
        if not (info.isfile() or info.isdir()):
            raise ValueError(f"{archive}: member {info.name!r} is a link or a device; nothing was unpacked")
        yield info.name, info.size, tar.extractfile(info) if info.isfile() else None


def _zip_members(archive: Path, file: zipfile.ZipFile) -> Iterator[Member]:
    for info in file.infolist():
        if (info.external_attr >> 16) & 0o170000 == 0o120000:
            raise ValueError(f"{archive}: member {info.filename!r} is a link or a device; nothing was unpacked")
        yield info.filename, info.file_size, None if info.is_dir() else file.open(info)


def _written(archive: Path, member: Member, target: Path, most: int) -> int:
    """Write one member below the target, and return its number of bytes; the size that it declares is not trusted."""
    name, size, content = member
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in "".join(path.parts[:1]) or "\0" in name:
        raise ValueError(f"{archive}: member {name!r} would be written outside the folder; nothing was unpacked")
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
    return f"{archive}: member {name!r} makes it grow to over {MOST_TIMES} times its size; nothing was unpacked"


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
