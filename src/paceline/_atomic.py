"""Files that appear whole or not at all; a killed process leaves one hidden file, which the next write replaces."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


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
    with _naming_errors(named, path.parent), _begun(path) as temporary:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # begun as a file that only its owner can read
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # after a power failure the name must not stand for an empty file
        temporary.replace(path)


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
            with _begun(path):
                pass


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


@contextmanager
def _begun(path: Path) -> Iterator[Path]:
    """Yield the temporary file of a path. This process holds it locked, and another that writes the path waits."""
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
        if _is_at(handle, temporary):
            break
        os.close(handle)  # whoever held it has renamed or removed it
    try:
        os.ftruncate(handle, 0)  # what a killed process left
        yield temporary
    finally:
        if _is_at(handle, temporary):  # once renamed, the name is free for the next process
            temporary.unlink()
        os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False
