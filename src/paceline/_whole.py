"""Files that appear whole or not at all."""

from __future__ import annotations

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
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)  # mkstemp makes files that only their owner can read
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
