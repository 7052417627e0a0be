"""Files that appear whole or not at all, and temporary folders: what a killed process left of them is removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

MARK = ".paceline-"
"""Part of a temporary file's name between that of the file to be and a random end."""

FOLDER, LOCK = ".paceline-tmp-", ".lock"
"""Beginning of a temporary folder's name, and the file in it that its process holds locked."""


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` to write to; it is renamed to ``path`` only if the block succeeds.

    Raises
    ------
    FileNotFoundError
        If the folder of ``path`` does not exist.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(f"{folder}/note.txt") as temporary:
    ...         _ = temporary.write_text("all of it")
    ...     Path(f"{folder}/note.txt").read_text()
    'all of it'
    """
    named, path = Path(path), Path(path).resolve()  # through a link, so that the link stays
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {named.parent} to write {named.name} into")
    if path.exists() and not path.is_file():
        with _write_through(named, path) as temporary:
            yield temporary
        return
    with _naming_errors(named, path.parent):
        _remove(path, _left_in(path.parent))
        handle, temporary = _begun(path)
    try:
        with _naming_errors(named, path.parent):
            yield temporary
            temporary.chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner can read
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(handle)


def require_writable(path: str | Path) -> None:
    """Raise an error unless a file can be written here: called before long work, not after it.

    Raises
    ------
    FileNotFoundError
        If the folder does not exist.
    OSError
        If the folder or the file cannot be written.
    """
    named, path = Path(path), Path(path).resolve()
    if path.is_dir():
        raise IsADirectoryError(f"{named} is a folder: name a file to write")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {named.parent} to write {named.name} into")
    with _naming_errors(named, path.parent):
        if path.exists() and not path.is_file():
            path.open("wb").close()
        else:
            handle, temporary = _begun(path)
            os.close(handle)
            temporary.unlink(missing_ok=True)


@contextmanager
def _write_through(named: Path, path: Path) -> Iterator[Path]:
    """Yield a temporary path whose content is then copied to a device or a pipe."""
    if path.is_dir():
        raise IsADirectoryError(f"{named} is a folder: name a file to write")
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder, path.name)
        yield temporary
        with _naming_errors(named, path.parent), temporary.open("rb") as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)


@contextmanager
def _naming_errors(named: Path, folder: Path) -> Iterator[None]:
    """Name the file that was asked for, in place of a temporary one, in errors of the system."""
    try:
        yield
    except OSError as error:
        about = str(error.filename or "")
        if error.errno is None or (about and Path(about).parent != folder):
            raise
        raise type(error)(error.errno, f"cannot write {named}: {error.strerror}") from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def remove_leftovers(path: str | Path) -> None:
    """Remove the temporary files that processes left which were killed while they wrote this one.

    A file that a process still writes is locked by it, on whichever machine it runs, and is let alone.
    """
    path = Path(path)
    _remove(path, path.parent.glob(f".*{MARK}*"))


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A temporary folder; if its process is killed, the next that makes one in the same place removes it.

    Parameters
    ----------
    place
        The folder to make it in; by default the system's for temporary files.

    Examples
    --------
    >>> with TemporaryFolder() as folder:
    ...     _ = Path(folder, "rows").write_text("1, 2")
    >>> Path(folder).exists()
    False
    """

    def __init__(self, place: str | Path | None = None) -> None:
        place = Path(place or tempfile.gettempdir())
        _swept(place)
        super().__init__(prefix=FOLDER, dir=place, ignore_cleanup_errors=True)
        self._unlock = weakref.finalize(self, os.close, locked(Path(self.name)))

    def cleanup(self) -> None:
        """Remove the folder and what it holds."""
        super().cleanup()
        self._unlock()


def remove_left_folders(place: Path) -> None:
    """Remove the temporary folders that killed processes of this user left in a place."""
    for left in place.glob(f"{FOLDER}*"):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile, by its own process or by another
            if left.lstat().st_uid == os.getuid():
                _if_unlocked(left / LOCK, os.O_CREAT, partial(shutil.rmtree, left, ignore_errors=True))


_swept = cache(remove_left_folders)
"""To look through a folder takes long where it is full: once in a process."""


def locked(folder: Path) -> int:
    """Return the handle by which this process holds the folder locked."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            if _holds(handle):
                return handle
        folder.mkdir(mode=0o700, exist_ok=True)  # another process took it for left behind before it was locked


def _begun(path: Path) -> tuple[int, Path]:
    """Return the handle and the name of a new temporary file for a path, locked as long as this process lives."""
    while True:
        # In the same folder, because a rename is atomic only within one file system.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path))
        if _holds(handle):
            return handle, Path(name)


def _holds(handle: int) -> bool:
    """Lock a file; close it and return false if it was removed before, as something left behind."""
    with contextlib.suppress(OSError):  # some network file systems have no locks
        fcntl.flock(handle, fcntl.LOCK_EX)
    if os.fstat(handle).st_nlink:
        return True
    os.close(handle)
    return False


@cache
def _left_in(folder: Path) -> tuple[Path, ...]:
    """Return the temporary files in a folder as this process first writes into it: each listing of many takes long."""
    return tuple(folder.glob(f".*{MARK}*"))


def _remove(path: Path, left: Iterable[Path]) -> None:
    """Remove those of the temporary files that are of this path, and that no process holds locked."""
    for one in left:
        if one.name.startswith(_prefix(path)):
            _if_unlocked(one, 0, one.unlink)


def _if_unlocked(file: Path, flags: int, remove: Callable[[], object]) -> None:
    """Call ``remove`` if no process holds the file locked."""
    with contextlib.suppress(OSError):  # somebody else's, in use, or gone by now
        handle = os.open(file, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove()
        finally:
            os.close(handle)


def _prefix(path: Path) -> str:
    return f".{path.name}{MARK}"
