"""Tidy CSV whose cells are plain numbers, read column by column: faster than cells whose kind must be guessed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

BLOCK_BYTES = 1 << 18
"""Bytes parsed at once: few enough that every block is parsed in the memory of the one before."""

MOST_NAMES = 20_000
"""Most workers: every block looks its own up among all, which costs more than pandas does where there are more."""


def plain_table(file: BinaryIO, size: int, header: Sequence[str], worker: str) -> pd.DataFrame | None:
    """Return the table that ``pandas.read_csv`` would, its workers as categories; ``size`` is the file's, in bytes.

    It is ``None`` if a cell is no plain number (a date, a word for a missing value), a row has another length, or there
    are very many workers.
    """
    import pandas as pd
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    # Whole numbers are read as such too: as integers, 0x1F would be one.
    if len(set(header)) < len(header) or worker not in header or not all(header):
        return None
    kinds: dict[str, pa.DataType] = dict.fromkeys(header, pa.float64())
    kinds[worker] = pa.dictionary(pa.int32(), pa.string())
    convert = arrow_csv.ConvertOptions(column_types=kinds, null_values=[""], strings_can_be_null=True)
    read = arrow_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False)
    try:
        blocks = arrow_csv.open_csv(file, read_options=read, convert_options=convert)
        if blocks.schema.names != list(header):
            return None
        columns, names = _filled(blocks, size, worker)
    except (pa.ArrowException, UnicodeDecodeError):  # pandas reads it, or says what is wrong
        return None
    if not columns or not _as_pandas_reads(names):
        return None
    columns[worker] = pd.Categorical.from_codes(columns[worker], pd.Index(names, dtype="str"))  # type: ignore[assignment]
    return pd.DataFrame(columns, copy=False)


def _filled(blocks: Iterable[pa.RecordBatch], size: int, worker: str) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Return the columns, that of the workers as places among their names, and these names.

    There are none if a name is missing, or too many are different.
    """
    import pyarrow as pa

    columns: dict[str, NDArray[Any]] = {}
    names, count = pa.array([], pa.string()), 0
    for block in blocks:
        found: dict[str, NDArray[Any]] = {}
        for name, column in zip(block.schema.names, block.columns, strict=True):
            if name == worker:
                if column.null_count or len(names) > MOST_NAMES:
                    return {}, []
                found[name], names = _placed(column, names)
            else:
                found[name] = column.to_numpy(zero_copy_only=False)
        end = count + block.num_rows
        if not columns or end > len(columns[worker]):
            # Room for the whole file at once, and for twice as much if it is compressed: memory that is written for the
            # first time costs as much as parsing.
            rows = max(int(1.1 * block.num_rows * (size / BLOCK_BYTES + 1)), 2 * end)
            columns = {name: _longer(columns.get(name), new.dtype, rows, count) for name, new in found.items()}
        for name, new in found.items():
            columns[name][count:end] = new
        count = end
    return {name: column[:count] for name, column in columns.items()}, [str(name) for name in names.to_pylist()]


def _longer(column: NDArray[Any] | None, kind: np.dtype[Any], rows: int, count: int) -> NDArray[Any]:
    longer = np.empty(rows, dtype=kind)
    if column is not None:
        longer[:count] = column[:count]
    return longer


def _placed(column: pa.DictionaryArray, names: pa.StringArray) -> tuple[NDArray[Any], pa.StringArray]:
    """Return each cell's place among the names, and the names with those that are new."""
    import pyarrow as pa
    from pyarrow.compute import index_in  # pyright: ignore[reportAttributeAccessIssue] (made as pyarrow is imported)

    own = column.dictionary
    places = index_in(own, value_set=names)
    if places.null_count:
        names = pa.concat_arrays([names, own.filter(places.is_null())])
        places = index_in(own, value_set=names)
    return places.to_numpy()[column.indices.to_numpy()], names


def _as_pandas_reads(names: Sequence[str]) -> bool:
    """Whether pandas leaves these names as they are: it takes 01 for a number, and NA for none.

    >>> [_as_pandas_reads(names) for names in (["7", "8"], ["a", "b, c"], ["01"], ["NA"])]
    [True, True, False, False]
    """
    import pandas as pd

    if not names:
        return False
    text = io.StringIO()
    csv.writer(text).writerows([[name, ""] for name in names])
    text.seek(0)
    found = pd.read_csv(text, header=None)[0]
    return not found.isna().any() and [str(name) for name in found] == list(names)
