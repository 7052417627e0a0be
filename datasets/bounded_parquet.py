"""Reading Parquet files that others made: only plain columns, and never more than a multiple of the file's size.

A few bytes of Parquet may stand for billions of rows, so what a file says of itself is checked before it is read, and
what was read while it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

FREE_BYTES, MOST_TIMES = 64 << 20, 200
"""A file may grow to 64 MB in memory whatever its size, and beyond that to 200 times its size."""

MOST_COLUMNS = 4096
"""Each column costs a millisecond and more, whatever it holds."""

BATCH, BATCH_NUMBERS = 1 << 16, 1 << 21
"""Rows that are read at once; of a table with few columns, as many as hold two million numbers."""


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the columns of a Parquet file, or some of them; texts are read as dictionaries.

    Raises
    ------
    ValueError
        If it is no whole Parquet file, has columns of lists or other nested types, or grows to more than 64 MB and 200
        times its size.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_promises(path, file)
            texts = [field.name for field in file.schema_arrow if _is_text(field.type)]
        # A text in a dictionary is kept once, and not again for every row.
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            return _read(path, file, columns)
    except (pa.ArrowException, OSError, MemoryError, KeyError, TypeError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(f"not a whole Parquet file (cut off while writing, or another format): {error}") from error


def _most_bytes(path: Path) -> int:
    return max(FREE_BYTES, MOST_TIMES * path.stat().st_size)


def _check_promises(path: Path, file: ParquetFile) -> None:
    """Refuse a file that says itself that it is too large."""
    about, most = file.metadata, _most_bytes(path)
    if about.num_columns > MOST_COLUMNS:
        raise ValueError(f"has {about.num_columns} columns; at most {MOST_COLUMNS} are read")
    nested = [field.name for field in file.schema_arrow if not _is_plain(field.type)]
    if nested:
        raise ValueError(f"columns {nested} must hold plain numbers or texts, not lists or other nested types")
    groups = [about.row_group(k) for k in range(about.num_row_groups)]
    unpacked = sum(max(group.total_byte_size, 0) for group in groups)
    if max(about.num_rows * max(about.num_columns, 1) * 8, unpacked) > most:
        raise ValueError(_too_large(most))


def _read(path: Path, file: ParquetFile, columns: Sequence[str] | None) -> pa.Table:
    import pyarrow as pa

    batches, grown, most = [], 0, _most_bytes(path)
    rows = max(BATCH, BATCH_NUMBERS // max(file.metadata.num_columns, 1))
    for batch in file.iter_batches(rows, columns=None if columns is None else list(columns), use_threads=False):
        grown += batch.nbytes
        if grown > most:
            raise ValueError(_too_large(most))
        batches.append(batch)
    schema = batches[0].schema if batches else file.schema_arrow
    return pa.Table.from_batches(batches, schema).unify_dictionaries()


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_plain(kind: pa.DataType) -> bool:
    import pyarrow as pa

    wanted = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null, pa.types.is_dictionary)
    return _is_text(kind) or any(is_kind(kind) for is_kind in wanted)


def _too_large(most: int) -> str:
    return f"grows to more than {most} bytes in memory, over {MOST_TIMES} times its size; if that is meant, split it"
