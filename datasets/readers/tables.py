"""Tables that describe machines and jobs, and hold no series: read as frames, not as traces."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.datasets.readers.csv_rows import NUMBER, TEXT, frame, header_of
from paceline.datasets.readers.files import head
from paceline.datasets.readers.tally import Tally

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Table:
    """A file that describes machines or jobs: its name, a pattern that its file's name fits, and how it is read."""

    name: str
    files: str
    read: Callable[[Path], pd.DataFrame]

    def fits(self, path: Path) -> bool:
        """Say whether a file's name is this table's."""
        return fnmatch.fnmatch(path.name.removesuffix(".gz"), self.files)


def csv_table(name: str, files: str, columns: str, *, texts: str = "", missing: Sequence[str] = ()) -> Table:
    """Return a table of CSV; ``columns`` and those of them that are ``texts`` stand between spaces.

    A first line that begins with the first column's name is taken for a header. All that is no text is a number.
    """
    names = columns.split()
    kinds = {column: TEXT if column in texts.split() else NUMBER for column in names}

    def read(path: Path) -> pd.DataFrame:
        headed = header_of(head(path))[:1] == names[:1]
        return frame(path, kinds, Tally(), names=names, skip=1 if headed else 0, missing=missing)

    return Table(name=name, files=files, read=read)
