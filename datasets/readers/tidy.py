"""Paceline's own files: Parquet of ``Trace.save``, and tidy CSV with one row per iteration and worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from paceline.datasets.frame import REQUIRED
from paceline.datasets.readers.csv_rows import header_of
from paceline.datasets.readers.files import opened
from paceline.datasets.readers.format import Format, require_dense
from paceline.datasets.trace import Trace


def read_parquet(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield the trace of each file."""
    yield from map(Trace.load, paths)


def read_csv(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield the trace of each file."""
    import pandas as pd

    for path in paths:
        try:
            with opened(path) as file:
                table = pd.read_csv(file)
            if {"worker", "iteration"} <= set(table):
                require_dense(path, len(table), table["iteration"].nunique(), table["worker"].nunique())
            yield Trace.from_frame(table, meta={"job": path.name.split(".csv")[0], "source": path.name})
        except (ValueError, pd.errors.ParserError, OverflowError) as error:
            raise ValueError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from error


def _is_parquet(path: Path, head: str) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return head.startswith("PAR1") and set(REQUIRED) <= set(pq.read_schema(path).names)
    except (pa.ArrowException, OSError):
        return path.suffix == ".parquet"  # by name only, so that reading a damaged file says what is wrong


FORMATS = (
    Format(
        name="parquet",
        about="a trace written by paceline",
        files="<job>.parquet",
        gives="all that a trace holds",
        read=read_parquet,
        recognises=_is_parquet,
    ),
    Format(
        name="csv",
        about="a tidy table, one row per iteration and worker",
        files="CSV with the columns worker, iteration, samples, seconds and any drivers",
        gives="all that a trace holds",
        read=read_csv,
        recognises=lambda path, head: {"worker", "iteration"} <= set(header_of(head)),
    ),
)
