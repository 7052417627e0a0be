"""Paceline's own files: Parquet of ``Trace.save``, and tables of CSV or JSON, one row per iteration and worker."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline._whole import written_whole
from paceline.datasets.bounded_parquet import MOST_COLUMNS
from paceline.datasets.columns import MEASURED
from paceline.datasets.frame import REQUIRED
from paceline.datasets.readers.csv_rows import header_of
from paceline.datasets.readers.files import HEAD, head, json_of, opened
from paceline.datasets.readers.format import OWN, Format
from paceline.datasets.readers.nearest import names_in
from paceline.datasets.readers.plain import plain_table
from paceline.datasets.readers.restarts import continued, repeated_rows, runs_of_rows
from paceline.datasets.readers.tabular.arrangement import Arrangement, without_texts
from paceline.datasets.readers.tabular.json_tables import is_json, json_table
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

TABLE = re.compile(r"\.(?:csv|jsonl|ndjson|json)(?=\.|$)")
"""Suffix at which the name of a table's file ends."""

MOST_ABOUT = 1 << 20
"""Bytes of ``meta`` that are read from beside a CSV."""


def read_parquet(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield the trace of each file; one without a recorded job is named after its file, as a CSV is."""
    for path in paths:
        trace = Trace.load(path)
        yield replace(trace, meta={"job": path.name.removesuffix(".parquet"), **trace.meta})


def read_csv(
    paths: Sequence[Path],
    *,
    worker: str | None = None,
    iteration: str | None = None,
    samples: str | float | None = None,
    seconds: str | None = None,
    comm_seconds: str | None = None,
    wait_seconds: str | None = None,
    start: str | None = None,
    rate: str | None = None,
    values: str | None = None,
    workers: Sequence[str] | None = None,
    period: float | None = None,
    unit: str = "s",
    start_unit: str = "s",
) -> Iterator[Trace]:
    """Yield the trace of each file of CSV or JSON, whose columns are arranged as these options say.

    A ``start`` that is written as a date, such as ``2024-05-01T12:00:00+02:00``, is UTC unless it names its zone.
    """
    given = {"worker": worker, "iteration": iteration, "samples": samples, "seconds": seconds}
    given |= {"comm_seconds": comm_seconds, "wait_seconds": wait_seconds, "start": start}
    for path in paths:
        tally = Tally()
        try:
            how = Arrangement(
                columns={name: column for name, column in given.items() if column is not None},
                rate=rate,
                values=values,
                workers=workers,
                period=period,
                unit=unit,
                start_unit=start_unit,
            )
            table = _table(path, worker or "worker", tally)
        except (ValueError, TypeError, OverflowError, MemoryError, RecursionError) as error:
            raise _about_file(path, error) from error
        yield from traces_of(path, table, how, tally)


def traces_of(
    path: Path, table: pd.DataFrame, how: Arrangement, tally: Tally, format_name: str | None = None
) -> Iterator[Trace]:
    """Yield the trace of a file's table."""
    try:
        table, texts = without_texts(how.applied(path, table, tally))
        table = _in_one_run(table, tally)
        meta = {"job": TABLE.split(path.name)[0], "source": path.name}
        meta |= {"format": format_name} if format_name else {}
        meta |= {"columns_dropped": f"{', '.join(texts)}: no numbers"} if texts else {}
        meta |= {**tally.meta(), **_kept(path)}
        yield Trace.from_frame(table, unit=how.unit, start_unit=how.start_unit, meta=meta)
    except (ValueError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        raise _about_file(path, error) from error


def _about_file(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path}: {str(error).removeprefix(f'{path}: ')}")


def _table(path: Path, worker: str, tally: Tally) -> pd.DataFrame:
    """Return the table in a file of CSV or JSON, and count its rows."""
    import pandas as pd

    if is_json(head(path)):
        return json_table(path, tally)
    header = _checked_header(path)
    with opened(path) as file:
        found = plain_table(file, path.stat().st_size, header, worker)
    if found is None:
        with opened(path) as file:
            found = pd.read_csv(file)
    tally.read(len(found))
    return found


def is_table_with(first: str, options: Mapping[str, object]) -> bool:
    """Return whether a file is a plain table once these options name its columns; ``first`` is its beginning.

    Where they say what was measured, workers and iterations may go without columns.

    >>> is_table_with("rank,iteration,duration_ms", {"worker": "rank", "seconds": "duration_ms", "samples": 32})
    True
    >>> is_table_with('{"iteration": 0, "ms": 12.5}', {"seconds": "ms", "samples": 32, "unit": "ms"})
    True
    >>> is_table_with("rank,iteration,duration_ms", {"seconds": "duration"})
    False
    """
    names = set(names_in(first) if is_json(first) else header_of(first))
    if {options.get(name, name) for name in ("worker", "iteration")} <= names:
        return True
    told = {one for name in (*REQUIRED, *MEASURED, "rate") if isinstance(one := options.get(name), str)}
    measured = "seconds" in names or any(name in options for name in ("seconds", "rate", "values"))
    return bool(options) and told <= names and measured


def about(path: Path) -> Path:
    """Return the file beside a CSV that keeps what its table cannot hold: licence, units, source, ..."""
    return path.with_name(f"{path.name}.meta.json")


def write_csv(trace: Trace, path: Path) -> None:
    """Write a trace as tidy CSV, and its ``meta`` beside it: :func:`read_csv` reads both."""
    with written_whole(about(path)) as temporary:
        temporary.write_text(json.dumps(dict(trace.meta), indent=2) + "\n")
    with written_whole(path) as temporary:
        trace.to_frame().to_csv(temporary, index=False)


def _kept(path: Path) -> dict[str, str]:
    """Return the ``meta`` kept beside a CSV, if there is any."""
    beside = about(path)
    if not beside.is_file():
        return {}
    found = json_of(beside, MOST_ABOUT, "it is not what paceline wrote")
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"{beside}: must hold a JSON object of texts")
    return found


def _in_one_run(table: pd.DataFrame, tally: Tally) -> pd.DataFrame:
    """Drop rows that were written twice, and let a job that was started again go on after its first run."""
    import pandas as pd

    if not {"worker", "iteration"} <= set(table) or not pd.api.types.is_numeric_dtype(table["iteration"]):
        return table  # what is wrong with it is said by from_frame
    step_N = table["iteration"].to_numpy()
    if not (step_N[1:] < step_N[:-1]).any():  # written iteration by iteration: no worker's steps go back
        return table
    step_N, code_N = step_N.astype(np.float64), pd.factorize(table["worker"])[0]  # names would be wider than numbers
    if not np.isfinite(step_N).all():
        return table
    again_N = repeated_rows(code_N, step_N)
    tally.rows("repeated rows of a worker and iteration, of which the first counts", again_N.sum())
    table, step_N, code_N = table[~again_N], step_N[~again_N], code_N[~again_N]
    run_N = runs_of_rows(code_N, step_N)
    if not run_N.any():
        return table
    tally.restarts(run_N.max())
    return table.assign(iteration=continued(step_N, run_N))


def _checked_header(path: Path) -> list[str]:
    """Refuse a first line that is not a header (each column costs a millisecond), or that repeats a column."""
    first = head(path)
    header = header_of(first)
    if (columns := len(header)) > MOST_COLUMNS or (len(first) >= HEAD and not {"\n", "\r"} & set(first)):
        raise ValueError(f"the header has {columns} columns or more; at most {MOST_COLUMNS}, within 64 kB, are read")
    if twice := sorted(name for name, times in Counter(header).items() if name and times > 1):
        raise ValueError(f"columns {twice} appear more than once; give each column a name of its own")
    return header


def _is_parquet(path: Path, first: str) -> bool:
    import pyarrow.parquet as pq

    try:
        return first.startswith("PAR1") and set(REQUIRED) <= set(pq.read_schema(path).names)
    except Exception:  # pyarrow raises many kinds on damaged files
        return path.suffix == ".parquet"  # so that reading it says what is broken


FORMATS = (
    Format(
        name="parquet",
        about="a trace written by paceline",
        files="<job>.parquet",
        gives="all that a trace holds",
        seen=OWN,
        read=read_parquet,
        recognises=_is_parquet,
    ),
    Format(
        name="csv",
        about="a tidy table, one row per iteration and worker",
        files="CSV with the columns worker, iteration, samples, seconds and any covariates",
        gives="all that a trace holds",
        seen=OWN,
        read=read_csv,
        columns=REQUIRED,
        recognises=lambda path, first: not is_json(first) and is_table_with(first, {}),
    ),
    Format(
        name="json",
        about="a tidy table in JSON, one object per iteration and worker, or an object of columns",
        files="JSON lines, a list of objects or an object of lists, with the keys worker, iteration, samples, seconds",
        gives="all that a trace holds",
        seen=OWN,
        read=read_csv,
        columns=REQUIRED,
        recognises=lambda path, first: is_json(first) and set(REQUIRED) <= set(names_in(first)),
    ),
)
