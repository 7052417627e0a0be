"""Write files atomically, and append lines that are never partial, even when the disk is full."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from uuid import uuid4


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` to write to; it is renamed to ``path`` only if the block succeeds."""
    requested, path = Path(path), Path(path).resolve()  # through a link, so that the link stays
    with _temporary_file(requested) as temporary:
        yield temporary
        temporary.chmod(0o666 & ~_read_umask())  # begun as a file that only its owner can read
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # after a power failure the name must not stand for an empty file
        temporary.replace(path)


def require_writable(path: str | Path) -> None:
    """Raise an error unless a file can be written here: called before long work, not after it."""
    with _temporary_file(Path(path)):
        pass


@contextmanager
def _temporary_file(requested_path: Path) -> Iterator[Path]:
    """Yield the temporary file of a path; system errors name the requested path in its place."""
    path = requested_path.resolve()
    if path.exists() and not path.is_file():  # a device or a pipe would be replaced by a file
        kind = "a folder" if path.is_dir() else "not a regular file"
        raise OSError(f"{requested_path} is {kind}: pass the path of a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {requested_path.name}: folder {requested_path.parent} does not exist")
    try:
        with _locked_temporary_file(path) as temporary:
            yield temporary
    except OSError as error:
        about = str(error.filename or "")
        if error.errno is None or (about and Path(about).parent != path.parent):
            raise
        raise type(error)(error.errno, f"cannot write {requested_path}: {error.strerror}") from error


def _read_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@contextmanager
def _locked_temporary_file(path: Path) -> Iterator[Path]:
    """Yield the temporary file of a path, locked: another process that writes the same path waits."""
    # In the same folder, because a rename is atomic only within one file system.
    temporary = path.with_name(f".{path.name}.paceline-tmp")
    while True:
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # some network file systems have no locks: no other writer has a random name
            os.close(handle)
            temporary.unlink(missing_ok=True)
            temporary = path.with_name(f".{path.name}.paceline-{uuid4().hex}")
            handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            break
        if _is_same_file(handle, temporary):
            break
        os.close(handle)  # whoever held it has renamed or removed it
    try:
        os.ftruncate(handle, 0)  # what a killed process left
        yield temporary
    finally:
        if _is_same_file(handle, temporary):  # once renamed, the name is free for the next process
            temporary.unlink()
        os.close(handle)


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


class LineWriter:
    """Appends whole lines to a file, each at once and without a buffer.

    A line that does not fit, as on a full disk, is taken back whole and counted; later lines are written again once
    there is space. Nothing raises after the file was opened: a record must never end the job that it records.

    Losses are reported to ``log``: an error at the first lost line, and the count when lines fit again and at the end.
    Lines are appended to an existing file, after a line break if its last line was cut short; if it must be new, a
    FileExistsError is raised. With ``locks_file``, a BlockingIOError is raised if another process writes to the file.
    """

    def __init__(
        self, path: str | Path, log: logging.Logger, *, must_be_new: bool = False, locks_file: bool = False
    ) -> None:
        self.path = Path(path)
        self.lost_lines = 0  # lines that could not be written so far
        self._log = log
        self._torn_bytes = 0  # bytes of a line cut short at the end of the file that could not be taken back yet
        self._is_failing = False
        self.file: FileIO | None = self.path.open("xb" if must_be_new else "ab", buffering=0)
        if locks_file:
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.file.close()
                raise
            except OSError:  # locks are not supported, as on NFS
                pass
        self._line_break = b""
        if self.path.is_file() and self.path.stat().st_size:
            with self.path.open("rb") as file:
                file.seek(-1, 2)
                self._line_break = b"" if file.read() == b"\n" else b"\n"

    def append(self, line: str) -> bool:
        """Write a line, and return whether all of it was written."""
        content = self._line_break + line.encode("utf-8", "backslashreplace") + b"\n"
        try:
            self._truncate_torn_line()
            self._write(content)
        except OSError as error:
            self.lost_lines += 1
            if not self._is_failing:
                self._log.error("%s: a line could not be written and is lost: %s", self.path, error)
            self._is_failing = True
            with suppress(OSError):  # tried again before the next line
                self._truncate_torn_line()
            return False
        self._line_break = b""
        if self._is_failing:
            self._log.warning("%s: lines are written again; %d were lost", self.path, self.lost_lines)
        self._is_failing = False
        return True

    def close(self) -> None:
        """Close the file and log how many lines were lost; closing again does nothing."""
        file, self.file = self.file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as error:  # a network file system may refuse only now what it took before
            self._log.error("%s could not be closed: %s; its last lines may be missing", self.path, error)
        if self.lost_lines:
            self._log.error("%s lacks %d lines that could not be written", self.path, self.lost_lines)

    def _write(self, content: bytes) -> None:
        if self.file is None:
            raise OSError("the file is closed")
        while content:
            # The kernel writes what fits and says how much; only the next attempt says that the disk is full.
            done = self.file.write(content) or 0
            content = content[done:]
            self._torn_bytes += done
            if content and not done:
                raise OSError("nothing more could be written; the disk may be full")
        self._torn_bytes = 0

    def _truncate_torn_line(self) -> None:
        # Otherwise the next line would be glued to the torn one. Some file systems need space even to truncate, so this
        # is tried again before each line.
        if self._torn_bytes and self.file is not None:
            self.file.truncate(self.file.seek(0, 2) - self._torn_bytes)
            self.file.seek(0, 2)  # truncating leaves the position behind the end, where zeros would fill the gap
            self._torn_bytes = 0
