"""A file of whole lines that grows, and stays whole when the disk is full."""

from __future__ import annotations

import contextlib
import logging
from io import FileIO
from pathlib import Path


class Lines:
    r"""Appends whole lines to a file, each at once and without a buffer.

    A line that does not fit, as on a full disk, is taken back whole and counted; later lines are written again once
    there is space. Nothing raises after the file was opened: a record must never end the job that it records.

    Parameters
    ----------
    path
        The file.
    log
        Where losses are reported: an error at the first lost line, and the count when lines fit again and at the end.
    new
        Whether the file must not exist yet. Otherwise lines are appended, after a line break if the last line of the
        file was cut short.
    alone
        Whether no other process may write to the file while this one does.

    Attributes
    ----------
    lost
        Number of lines that could not be written so far.

    Raises
    ------
    OSError
        If the file cannot be opened; FileExistsError if it must be new and exists; BlockingIOError if another process
        writes to it and this one must be alone.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lines = Lines(f"{folder}/notes.txt", logging.getLogger("paceline"))
    ...     written = lines.append("the first"), lines.append("the second")
    ...     lines.close()
    ...     (written, lines.lost, Path(f"{folder}/notes.txt").read_text())
    ((True, True), 0, 'the first\nthe second\n')
    """

    def __init__(self, path: str | Path, log: logging.Logger, *, new: bool = False, alone: bool = False) -> None:
        self.path = Path(path)
        self.lost = 0
        self._log = log
        self._torn = 0  # bytes of a line cut short at the end of the file that could not be taken back yet
        self._failing = False
        self.file: FileIO | None = self.path.open("xb" if new else "ab", buffering=0)
        if alone:
            _lock(self.file)
        self._break = b"" if new or _ends_with_newline(self.path) else b"\n"

    def append(self, line: str) -> bool:
        """Write a line, and return whether all of it was written."""
        content = self._break + line.encode("utf-8", "backslashreplace") + b"\n"
        try:
            self._take_back()
            self._write(content)
        except OSError as error:
            self.lost += 1
            self._log_lost(error)
            return False
        self._break = b""
        self._log_found()
        return True

    def close(self) -> None:
        """Close the file and say how many lines were lost; closing again does nothing."""
        file, self.file = self.file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as error:  # a network file system may refuse only now what it took before
            self._log.error("%s could not be closed: %s; its last lines may be missing", self.path, error)
        if self.lost:
            self._log.error("%s lacks %d lines that could not be written", self.path, self.lost)

    def _write(self, content: bytes) -> None:
        if self.file is None:
            raise OSError("the file is closed")
        while content:
            # The kernel writes what fits and says how much; only the next attempt says that the disk is full.
            done = self.file.write(content) or 0
            content = content[done:]
            self._torn += done
            if content and not done:
                raise OSError("nothing more could be written")
        self._torn = 0

    def _take_back(self) -> None:
        # Otherwise the next line would be glued to the torn one. Some file systems need space even to truncate, so this
        # is tried again before each line.
        if self._torn and self.file is not None:
            self.file.truncate(self.file.seek(0, 2) - self._torn)
            self.file.seek(0, 2)  # truncating leaves the position behind the end, where zeros would fill the gap
            self._torn = 0

    def _log_lost(self, error: OSError) -> None:
        if not self._failing:
            self._log.error("%s: a line could not be written and is lost: %s", self.path, error)
        self._failing = True
        with contextlib.suppress(OSError):  # tried again before the next line
            self._take_back()

    def _log_found(self) -> None:
        if self._failing:
            self._log.warning("%s: lines are written again; %d were lost", self.path, self.lost)
        self._failing = False


def _lock(file: FileIO) -> None:
    """Keep other processes from locking this file, until it is closed; where locks are not known, as on NFS, go on."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    except OSError:
        return


def _ends_with_newline(path: Path) -> bool:
    """Return whether a file is empty or ends with a line break; so does what cannot be read back, such as a pipe."""
    if not path.is_file() or not path.stat().st_size:
        return True
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read() == b"\n"
