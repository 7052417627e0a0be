"""Traces as Parquet files that explain themselves: schema version, units and meta travel in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.datasets.frame import from_frame, to_frame
from paceline.datasets.trace import UNITS, Trace
from paceline.datasets.whole import written_whole

if TYPE_CHECKING:
    import pyarrow

SCHEMA_VERSION = 1

REPEATING = ["worker", "samples"]
"""Columns that hold few different values."""


def save(trace: Trace, path: str | Path) -> Path:
    """Write a trace to a Parquet file and return its path.

    The file appears whole or not at all: it is written under a temporary name and renamed.

    Examples
    --------
    >>> import tempfile
    >>> trace = Trace(samples=[[8, 8]], seconds=[[1, 2]], meta={"job": "tiny"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(load(save(trace, f"{folder}/tiny.parquet")))
    <Trace 'tiny': 1 iterations x 2 workers; no drivers>
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    table = pa.Table.from_pandas(to_frame(trace), preserve_index=False)
    about = {
        "schema_version": SCHEMA_VERSION,
        "units": UNITS,
        "workers": list(trace.workers),
        "drivers": list(trace.driver_names),
        "meta": dict(trace.meta),
    }
    table = table.replace_schema_metadata({"paceline": json.dumps(about)})
    measured = [name for name in table.column_names if name not in ("iteration", *REPEATING)]
    with written_whole(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            compression_level=19,
            use_dictionary=REPEATING,  # pyright: ignore[reportArgumentType] - pyarrow takes names, its types say bool
            column_encoding=dict.fromkeys(measured, "BYTE_STREAM_SPLIT"),  # a quarter smaller
        )
    return path


def load(path: str | Path) -> Trace:
    """Read a trace from a Parquet file.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is cut off, not Parquet, or its columns are not those of a trace; the sentence names the file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no trace file {path}")
    try:
        table = pq.ParquetFile(path).read()
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(
            f"{path}: not a whole Parquet file (cut off while writing, or another format): {error}"
        ) from error
    try:
        about = _about(table)
        frame = table.to_pandas()
        return _in_order(from_frame(frame, meta=about.get("meta")), about.get("workers"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _about(table: pyarrow.Table) -> dict[str, dict[str, str]]:
    about: dict[str, dict[str, str]] = json.loads((table.schema.metadata or {}).get(b"paceline", b"{}"))
    version = about.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise ValueError(f"written with trace schema {version}, but this version of paceline reads {SCHEMA_VERSION}")
    return about


def _in_order(trace: Trace, workers: dict[str, str] | list[str] | None) -> Trace:
    return trace.select(workers=list(workers)) if workers and set(workers) == set(trace.workers) else trace
