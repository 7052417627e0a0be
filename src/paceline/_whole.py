"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside ``path`` to write to; it takes the name ``path`` only if the block succeeds.

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
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
