"""Tables that describe machines and jobs, without series: read as frames, not as traces."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.datasets.readers.csv_rows import NUMBER, TEXT, frame, headed
from paceline.datasets.readers.nearest import names_in
from paceline.datasets.readers.tally import Tally

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """A file that describes machines or jobs: its name, a pattern for its file's name, its reader, columns or keys."""

    name: str
    files: str
    read: Callable[[Path], pd.DataFrame]
    columns: tuple[str, ...]

    def fits(self, path: Path, text: str) -> bool:
        """Return whether a file's name is this table's, or its header or keys (in its first 64 kB) are."""
        named = fnmatch.fnmatch(path.name.removesuffix(".gz"), self.files)
        return named or set(self.columns) <= set(names_in(text))


def csv_table(name: str, files: str, columns: str, *, texts: str = "") -> TableFile:
    """Return a table of CSV; ``columns``, and ``texts`` among them, are names separated by spaces.

    A first line that begins with the first column's name is a header. All columns but ``texts`` hold numbers.
    """
    names = columns.split()
    kinds = {column: TEXT if column in texts.split() else NUMBER for column in names}

    def read(path: Path) -> pd.DataFrame:
        return frame(path, kinds, Tally(), names=names, skip=int(headed(path, names)))

    return TableFile(name=name, files=files, read=read, columns=tuple(names))
