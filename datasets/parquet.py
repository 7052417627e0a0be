"""Traces as self-describing Parquet files, and Parquet files of others, read within bounds.

A few bytes of Parquet may stand for billions of rows, so the metadata of a file is checked before it is read, and the
size of its columns while they are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._files import atomic_write
from paceline.datasets.frame import COLUMN_UNITS

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

FREE_BYTES, MAX_GROWTH = 64 << 20, 200
"""A compressed file of any size may grow to 64 MB while it is read, and a larger one to 200 times its size."""

SCHEMA_VERSION = 1


def write(frame: pd.DataFrame, metadata: Mapping[str, object], path: str | Path) -> Path:
    """Write a trace's frame and its meta: see :meth:`paceline.datasets.Trace.save`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    described = json.dumps({"schema_version": SCHEMA_VERSION, "units": COLUMN_UNITS, **metadata})
    table = table.replace_schema_metadata({"paceline": described})
    # columns with few distinct values are dictionary-encoded
    measured = [name for name in table.column_names if name not in ("iteration", "worker", "samples")]
    with atomic_write(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            compression_level=19,
            use_dictionary=["worker", "samples"],  # pyright: ignore[reportArgumentType] - pyarrow takes names, its types say bool
            column_encoding=dict.fromkeys(measured, "BYTE_STREAM_SPLIT"),  # a quarter smaller
        )
    return path


def read(path: str | Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return a trace's frame and its meta: see :meth:`paceline.datasets.Trace.load`."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no trace file {path}")
    frame, metadata = read_frame(path)
    about = json.loads(metadata.get(b"paceline", b"{}"))
    if not isinstance(about, dict):
        raise ValueError("the file's paceline metadata must be a JSON object: write the trace again")
    version = about.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"the file was written with trace schema {version}, but this version of paceline reads schema "
            f"{SCHEMA_VERSION}: install a matching version, or import the original data again"
        )
    names = about.get("workers", [])
    names_fit = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not isinstance(about.get("meta", {}), dict) or not names_fit:
        raise ValueError("the file's paceline metadata must hold meta, an object, and workers, a list: write it again")
    return frame, about


def max_bytes_of(path: Path) -> int:
    """Return the bytes to which a file may grow while it is read: a larger one is an accident or an attack."""
    return max(FREE_BYTES, MAX_GROWTH * path.stat().st_size)


MAX_COLUMNS = 4096
"""Each column costs a millisecond and more, whatever it holds."""


def read_table(path: Path, columns: Sequence[str]) -> pa.Table:
    """Return some columns of a Parquet file; texts are read as dictionaries."""
    with _open_checked(path) as file:
        return _read_columns(file, columns, max_bytes_of(path))


def read_frame(path: Path) -> tuple[pd.DataFrame, dict[bytes, bytes]]:
    """Return all columns of a Parquet file as a frame, and its metadata; texts become categories.

    The metadata of pandas is not obeyed: it may ask for anything.
    """
    with _open_checked(path) as file:
        table = _read_columns(file, file.schema_arrow.names, max_bytes_of(path))
        return table.to_pandas(ignore_metadata=True), file.schema_arrow.metadata or {}


@contextmanager
def _open_checked(path: Path) -> Iterator[ParquetFile]:
    """Open a file whose metadata holds; whatever pyarrow finds wrong with it while it is read is a ValueError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_metadata(path, file)
            texts = [field.name for field in file.schema_arrow if _is_text(field.type)]
        # A text in a dictionary is kept once, and not again for every row.
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            yield file
    except (pa.ArrowException, OSError, MemoryError, KeyError, TypeError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(
            "this is not a complete Parquet file: if it was cut off, write or copy it again; if it has another format, "
            f"rename it ({error})"
        ) from error


def _check_metadata(path: Path, file: ParquetFile) -> None:
    """Refuse a file that says itself that it is too large."""
    about, max_bytes = file.metadata, max_bytes_of(path)
    if about.num_columns > MAX_COLUMNS:
        raise ValueError(f"the file has {about.num_columns} columns; at most {MAX_COLUMNS} can be read: remove columns")
    if nested := [field.name for field in file.schema_arrow if not _is_plain(field.type)]:
        raise ValueError(f"columns {nested} must hold plain numbers, texts or times, not lists or other nested types")
    groups = [about.row_group(k) for k in range(about.num_row_groups)]
    unpacked = sum(max(group.total_byte_size, 0) for group in groups)
    if max(about.num_rows * max(about.num_columns, 1) * 8, unpacked) > max_bytes:
        raise ValueError(_too_large_message(max_bytes))


def _read_columns(file: ParquetFile, columns: Sequence[str], max_bytes: int) -> pa.Table:
    import pyarrow as pa

    batches, grown = [], 0
    # read at once; of a table with few columns, as many rows as hold two million numbers
    rows = max(1 << 16, (1 << 21) // max(file.metadata.num_columns, 1))
    for batch in file.iter_batches(rows, columns=list(columns), use_threads=False):
        grown += batch.nbytes
        if grown > max_bytes:
            raise ValueError(_too_large_message(max_bytes))
        batches.append(batch)
    empty = pa.schema([field for field in file.schema_arrow if field.name in columns])
    schema = batches[0].schema if batches else empty
    return pa.Table.from_batches(batches, schema).unify_dictionaries()


def _is_text(arrow_type: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type))


def _is_plain(arrow_type: pa.DataType) -> bool:
    import pyarrow as pa

    is_a = pa.types
    numbers = (is_a.is_integer, is_a.is_floating, is_a.is_boolean, is_a.is_timestamp, is_a.is_duration)
    return _is_text(arrow_type) or any(is_kind(arrow_type) for is_kind in (*numbers, is_a.is_null, is_a.is_dictionary))


def _too_large_message(max_bytes: int) -> str:
    times = f"over {MAX_GROWTH} times its size"
    return f"the file grows to more than {max_bytes} bytes in memory, {times}; if this is intended, split it"
