"""Traces as self-describing Parquet files, which contain schema version, units and meta."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._whole import written_whole
from paceline.datasets.bounded_parquet import read_frame
from paceline.datasets.columns import UNITS

if TYPE_CHECKING:
    import pandas as pd

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
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no trace file {path}")
    frame, metadata = read_frame(path)
    return frame, _about(metadata)


def _about(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    about = json.loads(metadata.get(b"paceline", b"{}"))
    if not isinstance(about, dict):
        raise ValueError("what the file says about itself must be a JSON object")
    version = about.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise ValueError(f"written with trace schema {version}, but this version of paceline reads {SCHEMA_VERSION}")
    if not isinstance(about.get("meta", {}), dict) or not _are_names(about.get("workers", [])):
        raise ValueError("what the file says about itself must hold meta, an object, and workers, a list of names")
    return about


def _are_names(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)
