"""Strict CSV: columns by name, numbers that are numbers, rows of one length; errors with file, row and column."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.datasets.readers.files import head, opened
from paceline.datasets.readers.tally import Tally

if TYPE_CHECKING:
    import pandas as pd

NUMBER, TEXT = "number", "text"
"""Kinds of columns."""


def header_of(text: str, delimiter: str = ",") -> list[str]:
    r"""Return the column names in the first line of a text.

    >>> header_of("Timestamp [ms];\tCPU cores\n1;\t2\n", ";")
    ['Timestamp [ms]', 'CPU cores']
    """
    lines = text.splitlines()[:1]
    try:
        return [name.strip() for row in csv.reader(lines, delimiter=delimiter) for name in row]
    except csv.Error:
        return []


def delimiter_of(text: str) -> str:
    r"""Return what separates the cells of a table's first line: a semicolon or a tab where it holds no comma.

    >>> [delimiter_of(line) for line in ("a,b;c", "a;b", "a\tb", "a")]
    [',', ';', '\t', ',']
    """
    first = text.splitlines()[0] if text else ""
    return next((delimiter for delimiter in ",;\t" if delimiter in first), ",")


def headed(path: Path, names: Sequence[str]) -> bool:
    """Return whether a file of a set without headers was given one: its first line begins with the first name."""
    return header_of(head(path))[:1] == list(names[:1])


def frames(
    path: Path,
    columns: Mapping[str, str],
    tally: Tally,
    *,
    names: Sequence[str] = (),
    optional: Sequence[str] = (),
    missing: Sequence[str] = (),
    delimiter: str = ",",
    skip: int = 0,
) -> Iterator[pd.DataFrame]:
    """Yield the columns of a CSV file block by block; infinite numbers become NaN and are counted.

    Parameters
    ----------
    path, tally
        The file, compressed or not, and where its rows are counted.
    columns
        The columns wanted, each :data:`NUMBER` or :data:`TEXT`.
    names
        All column names in their order, for a file without a header.
    optional
        Columns of ``columns`` that the file may lack.
    missing
        Words that mean "no value", in addition to the empty cell.
    skip
        Lines to skip before the header, or before the first row where ``names`` are given.

    Raises
    ------
    ValueError
        If columns are missing or repeated, a row is truncated, or a cell holds no number; the message names file, row
        and column.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    found = list(names) or _header(path, delimiter, skip)
    lacking = [name for name in columns if name not in found]
    if needed := [name for name in lacking if name not in optional]:
        raise ValueError(f"{path}: columns {needed} are missing; it has {found}")
    wanted = {name: kind for name, kind in columns.items() if name not in lacking}
    if repeated := sorted({name for name in wanted if found.count(name) > 1}):
        raise ValueError(f"{path}: the header repeats the columns {repeated}")
    skipped = skip + (0 if names else 1)
    convert = arrow_csv.ConvertOptions(
        column_types={name: pa.float64() if kind == NUMBER else pa.string() for name, kind in wanted.items()},
        include_columns=list(wanted),
        null_values=["", *missing],
        strings_can_be_null=True,
    )
    # the parser takes about fifty times as much memory as the block that it parses
    read = arrow_csv.ReadOptions(column_names=found, skip_rows=skipped, block_size=1 << 20, use_threads=False)
    try:
        with opened(path) as file:
            parse = arrow_csv.ParseOptions(delimiter=delimiter)
            for batch in arrow_csv.open_csv(file, read_options=read, parse_options=parse, convert_options=convert):
                yield _checked(batch.to_pandas(), wanted, tally)
    except pa.ArrowException as error:
        raise ValueError(f"{path}: {_describe(str(error), found)}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: must be UTF-8 text, but {error}") from error


def frame(path: Path, columns: Mapping[str, str], tally: Tally, **options: Any) -> pd.DataFrame:
    """Return the columns of a CSV file that fits into memory: see :func:`frames`.

    Raises
    ------
    ValueError
        If the file has no rows, or for the reasons of :func:`frames`.
    """
    import pandas as pd

    blocks = [block for block in frames(path, columns, tally, **options) if len(block)]
    if not blocks:
        raise ValueError(f"{path}: has no rows")
    return pd.concat(blocks, ignore_index=True)


def _header(path: Path, delimiter: str, skip: int) -> list[str]:
    return header_of("\n".join(head(path).splitlines()[skip:]), delimiter)


def _checked(block: pd.DataFrame, wanted: Mapping[str, str], tally: Tally) -> pd.DataFrame:
    tally.read(len(block))
    for name, kind in wanted.items():
        if kind == NUMBER and (infinite := np.isinf(block[name].to_numpy())).any():
            block.loc[infinite, name] = np.nan
            tally.cells(f"infinite values of {name}", infinite.sum())
    return block


def _describe(sentence: str, names: Sequence[str]) -> str:
    """Translate the parser's error: rows numbered like lines in an editor, columns by their names."""
    named = re.sub(
        r"In CSV column #(\d+): Row #(\d+): CSV conversion error to \w+: invalid value '(.*)'",
        lambda found: f"row {found[2]}, column {names[int(found[1])]!r}: must hold a number, got {found[3]!r}",
        sentence,
        flags=re.DOTALL,
    )
    named = re.sub(
        r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+)", r"row \1: must have \2 cells, got \3", named
    )
    if "straddl" in named or "out of sync" in named:
        named = "a row is longer than 1 MB, or a quotation mark is not closed"
    return named if len(named) < 400 else named[:400] + " ..."


def csv_fault(error: Exception) -> str:
    """Return what is wrong with a CSV file, from what pandas raised about it.

    >>> csv_fault(ValueError("Error tokenizing data. C error: Expected 2 fields in line 3, saw 4"))
    'row 3: must have 2 cells as the header has, got 4'
    """
    if isinstance(error, UnicodeDecodeError):
        return "must be UTF-8 text"
    if uneven := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
        return f"row {uneven[2]}: must have {uneven[1]} cells as the header has, got {uneven[3]}"
    if "No columns" in str(error):
        return "has no header and no rows"
    return f"is no CSV table: a quotation mark may not be closed ({str(error).rpartition(': ')[2]})"
