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

    It is ``None`` if a cell is not a plain number (a date, a word for a missing value), a row has another length, or
    there are very many workers.
    """
    import pandas as pd
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    # Whole numbers are read as such too: as integers, 0x1F would be one.
    if len(set(header)) < len(header) or worker not in header or not all(header):
        return None
    kinds: dict[str, pa.DataType] = dict.fromkeys(header, pa.float64())
    kinds[worker] = pa.string()
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
    columns: dict[str, NDArray[Any]] = {}
    names, count = _Names(), 0
    for block in blocks:
        found: dict[str, NDArray[Any]] = {}
        for name, column in zip(block.schema.names, block.columns, strict=True):
            if name == worker:
                if column.null_count or len(names.different) > MOST_NAMES:
                    return {}, []
                found[name] = names.places(column)
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
    columns = {name: column[:count] for name, column in columns.items()}
    return columns, [str(name) for name in names.different.to_pylist()]


def _longer(column: NDArray[Any] | None, kind: np.dtype[Any], rows: int, count: int) -> NDArray[Any]:
    longer = np.empty(rows, dtype=kind)
    if column is not None:
        longer[:count] = column[:count]
    return longer


class _Names:
    """The different names of workers, in the order in which they appear.

    Most files repeat their workers in one order. Comparing a block with that order takes a tenth of the time of looking
    every cell up.
    """

    def __init__(self) -> None:
        import pyarrow as pa

        self.different = pa.array([], pa.string())
        self._rounds, self._place_N, self._next = self.different, np.zeros(0, dtype=np.int32), 0

    def places(self, cells: pa.StringArray) -> NDArray[np.int32]:
        """Return each cell's place among the names, and add new ones."""
        end = self._next + len(cells)
        expected = cells.equals(self._rounds[self._next : end])
        place_N = self._place_N[self._next : end] if expected else self._looked_up(cells)
        if len(place_N):
            self._next = (int(place_N[-1]) + 1) % len(self.different)
        return place_N

    def _looked_up(self, cells: pa.StringArray) -> NDArray[np.int32]:
        import pyarrow as pa
        from pyarrow.compute import index_in  # pyright: ignore[reportAttributeAccessIssue] (made as pyarrow is imported)

        packed = cells.dictionary_encode()
        places = index_in(packed.dictionary, value_set=self.different)
        if places.null_count:
            self.different = pa.concat_arrays([self.different, packed.dictionary.filter(places.is_null())])
            places = index_in(packed.dictionary, value_set=self.different)
            # Rounds for twice a block's rows, as rows differ in length, from whatever name the block begins with.
            rounds = 2 * len(cells) // len(self.different) + 2
            self._rounds = pa.concat_arrays([self.different] * rounds)
            self._place_N = np.tile(np.arange(len(self.different), dtype=np.int32), rounds)
        place_N: NDArray[np.int32] = places.to_numpy()[packed.indices.to_numpy()]
        return place_N


def _as_pandas_reads(names: Sequence[str]) -> bool:
    """Return whether pandas leaves these names as they are: it takes 01 for a number, and NA for a missing value.

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
