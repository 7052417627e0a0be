"""Traces as self-describing Parquet files, which contain schema version, units and meta."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._whole import written_whole
from paceline.datasets.columns import UNITS

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow

SCHEMA_VERSION = 1

REPEATING = ["worker", "samples"]
"""Columns with few distinct values, worth dictionary encoding."""


def write(frame: pd.DataFrame, about: Mapping[str, object], path: str | Path) -> Path:
    """Write a trace's frame and its meta: see :meth:`paceline.datasets.Trace.save`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    described = json.dumps({"schema_version": SCHEMA_VERSION, "units": UNITS, **about})
    table = table.replace_schema_metadata({"paceline": described})
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


def read(path: str | Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return a trace's frame and its meta: see :meth:`paceline.datasets.Trace.load`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no trace file {path}")
    try:
        table = pq.ParquetFile(path).read()
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"not a whole Parquet file (cut off while writing, or another format): {error}") from error
    return table.to_pandas(), _about(table)


def _about(table: pyarrow.Table) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((table.schema.metadata or {}).get(b"paceline", b"{}"))
    version = about.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise ValueError(f"written with trace schema {version}, but this version of paceline reads {SCHEMA_VERSION}")
    return about
