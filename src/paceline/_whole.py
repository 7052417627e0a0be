"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline._address import is_address, shown


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` to write to; it is renamed to ``path`` only if the block succeeds.

    Raises
    ------
    FileNotFoundError
        If the folder of ``path`` does not exist.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with written_whole(f"{folder}/note.txt") as temporary:
    ...         _ = temporary.write_text("all of it")
    ...     Path(f"{folder}/note.txt").read_text()
    'all of it'
    """
    path = Path(path)
    if not path.parent.is_dir():
        what = f"{path.parent} to write {path.name} into" if not is_address(str(path)) else shown(str(path))
        raise FileNotFoundError(f"there is no folder {what}")
    # In the same folder, because a rename is atomic only within one file system.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path))
    temporary = Path(name)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)  # as long as this process lives: see remove_leftovers
        yield temporary
        temporary.chmod(0o644)  # mkstemp makes files that only their owner can read
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(handle)


def remove_leftovers(path: str | Path) -> None:
    """Remove the temporary files that processes left which were killed while they wrote this one.

    A file that a process still writes is locked by it, on whichever machine it runs, and is let alone.
    """
    path = Path(path)
    for left in path.parent.glob(f"{glob.escape(_prefix(path))}*"):
        with contextlib.suppress(OSError):  # somebody else's, written just now, or gone by now
            handle = os.open(left, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
            finally:
                os.close(handle)


def _prefix(path: Path) -> str:
    return f".{path.name}.paceline-"
