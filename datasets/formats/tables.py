"""Paceline's own Parquet files, and tables of CSV, JSON or Parquet with a row per iteration and worker."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paceline._files import atomic_write
from paceline.datasets.columns import ColumnMapping, column_names_in, drop_text_columns, format_options, infer_options
from paceline.datasets.formats import NATIVE_FORMAT, Format
from paceline.datasets.frame import MEASURED_COLUMNS, REQUIRED_COLUMNS, convert_to_seconds
from paceline.datasets.io import (
    HEAD_BYTES,
    RowCounts,
    counted_lines,
    describe_csv_error,
    detect_delimiter,
    is_json,
    open_bytes,
    parse_header,
    read_head,
    read_json,
)
from paceline.datasets.parquet import MAX_COLUMNS, read_frame
from paceline.datasets.ranks import have_one_worker_each, join_ranks, merge_ranks
from paceline.datasets.restarts import continue_steps, number_row_runs
from paceline.datasets.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("paceline.datasets.readers")


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
    """Yield the trace of each file of CSV, JSON or Parquet, whose columns are arranged as these options say.

    A ``start`` that is written as a date, such as ``2024-05-01T12:00:00+02:00``, is UTC unless it names its zone.
    """
    named = {"worker": worker, "iteration": iteration, "samples": samples, "seconds": seconds}
    named |= {"comm_seconds": comm_seconds, "wait_seconds": wait_seconds, "start": start}
    columns = {name: column for name, column in named.items() if column is not None}
    others: dict[str, Any] = {"rate": rate, "values": values, "workers": workers, "period": period}
    others |= {"unit": unit, "start_unit": start_unit}
    chosen = {name: value for name, value in others.items() if value not in (None, "s")}
    if not (columns or chosen) and all(map(_is_paceline_parquet, paths)):
        # one without a recorded job is named after its file, as a CSV is
        loaded = [(Trace.load(path), path.name.removesuffix(".parquet")) for path in paths]
        yield from merge_ranks([replace(trace, meta={"job": name, **trace.meta}) for trace, name in loaded], paths)
        return
    found: list[MappedTable] = []
    for path in paths:
        row_counts = RowCounts()
        guess = guess_options(read_column_names(path, read_head(path)), {**columns, **chosen})
        of_guess = {n: float(text) if text.isdecimal() else text for n, text in guess.items() if n != "unit"}
        with _name_file_in_errors(path):
            column_mapping = ColumnMapping(
                columns={**of_guess, **columns}, **{**others, "unit": guess.get("unit", unit)}
            )
            table = _read_table(path, row_counts)
        if guess:
            log.warning("%s is read with options guessed from its columns: %s", path, format_options(guess))
        meta = {"read_as": format_options(guess)} if guess else {}
        found.append(map_table(path, table, column_mapping, row_counts, meta))
    if have_one_worker_each([one.workers for one in found]):
        yield _join_tables(found)
    else:
        yield from map(make_trace, found)


class MappedTable(NamedTuple):
    """A file's tidy rows, before they are put in order."""

    path: Path
    tidy_rows: pd.DataFrame
    column_mapping: ColumnMapping
    row_counts: RowCounts
    meta: dict[str, str]

    @property
    def workers(self) -> list[str]:
        """The names of its workers; none if it has no such column, as ``from_frame`` then says."""
        return list(map(str, self.tidy_rows["worker"].unique())) if "worker" in self.tidy_rows else []


def map_table(
    path: Path, table: pd.DataFrame, column_mapping: ColumnMapping, row_counts: RowCounts, meta: Mapping[str, str]
) -> MappedTable:
    """Return the tidy rows of a file's table."""
    with _name_file_in_errors(path):
        rows, texts = drop_text_columns(column_mapping.map_table(path, table, row_counts))
    job = re.split(r"\.(?:csv|jsonl|ndjson|json|parquet)(?=\.|$)", path.name)[0]
    about = {"job": job, "source": path.name, **meta}
    if texts:
        about["columns_dropped"] = f"{', '.join(texts)}: no numbers"
    return MappedTable(path, rows, column_mapping, row_counts, about)


def make_trace(mapped_table: MappedTable) -> Trace:
    """Return the trace of a file's tidy rows, with what is stored beside it."""
    with _name_file_in_errors(mapped_table.path):
        rows = _merge_restarted_runs(mapped_table.tidy_rows, mapped_table.row_counts)
        beside, stored = meta_path(mapped_table.path), {}
        if beside.is_file():
            stored = read_json(beside, 1 << 20, "it was not written by paceline: remove it, or write the trace again")
            if not isinstance(stored, dict) or not all(isinstance(value, str) for value in stored.values()):
                raise ValueError(f"{beside} must hold a JSON object of texts: remove it, or write the trace again")
        meta = {**mapped_table.meta, **mapped_table.row_counts.to_meta(), **stored}
        if altered := mapped_table.row_counts.summary():
            log.warning("%s: %s", mapped_table.path, altered)
        mapping = mapped_table.column_mapping
        return Trace.from_frame(rows, unit=mapping.unit, start_unit=mapping.start_unit, meta=meta)


def _join_tables(tables: Sequence[MappedTable]) -> Trace:
    paths = [one.path for one in tables]
    row_counts = RowCounts()
    for one in tables:
        row_counts.add(one.row_counts)
    rows, about = join_ranks([one.tidy_rows for one in tables], paths)
    meta = {**tables[0].meta, **about}
    return make_trace(MappedTable(paths[0].parent, rows, tables[0].column_mapping, row_counts, meta))


def require_values(path: Path, values: str | None) -> None:
    """Raise an error unless the user named what the values of a file are."""
    if values is None:
        raise ValueError(
            f"{path} does not say what its values are: pass values=seconds (and unit=ms), values=rate or values=usage"
        )


@contextmanager
def _name_file_in_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


# --- What kind of table a file holds, and what its columns mean.


def table_kind(head: str) -> str:
    """Return whether a file that begins so is "parquet", "json" or "csv"."""
    return "parquet" if head.startswith("PAR1") else "json" if is_json(head) else "csv"


def read_column_names(path: Path, head: str) -> list[str]:
    """Return the names of a table's columns, or of its keys; ``head`` is the beginning of the file."""
    import pyarrow.parquet as pq

    if table_kind(head) != "parquet":
        return column_names_in(head)
    try:
        return [str(name) for name in pq.read_schema(path).names]
    except Exception:  # pyarrow raises many kinds on damaged files; reading it says what is broken
        return list(REQUIRED_COLUMNS)


def guess_options(column_names: Sequence[str], options: Mapping[str, object]) -> dict[str, str]:
    """Return the options that are clear from a table's own columns, where ``options`` leave them open."""
    if {"seconds", "rate", "values", "period", "unit"} & options.keys():
        return {}
    if set(REQUIRED_COLUMNS) <= {str(name) for name in (*column_names, *options)}:
        return {}
    return {name: value for name, value in infer_options(column_names).items() if name not in options}


def is_table_with(column_names: Sequence[str], options: Mapping[str, object]) -> bool:
    """Return whether columns of these names are a plain table once these options say what they are.

    Where they say what was measured, workers and iterations may go without columns.
    """
    names, texts = set(column_names), {name: one for name, one in options.items() if isinstance(one, str)}
    if guess_options(column_names, options) and set(texts.values()) <= names:
        return True
    if {options.get(name, name) for name in ("worker", "iteration")} <= names:
        return True
    of_columns = texts.keys() & {*REQUIRED_COLUMNS, *MEASURED_COLUMNS, "rate"}
    measured = "seconds" in names or bool({"seconds", "rate", "values"} & options.keys())
    return bool(options) and {texts[name] for name in of_columns} <= names and measured


def _is_table(expected_kind: str, path: Path, head: str) -> bool:
    return table_kind(head) == expected_kind and is_table_with(read_column_names(path, head), {})


def _is_paceline_parquet(path: Path) -> bool:
    """Return whether ``Trace.save`` wrote a file: then it says itself what it holds."""
    import pyarrow.parquet as pq

    try:
        return path.suffix == ".parquet" and b"paceline" in (pq.read_schema(path).metadata or {})
    except Exception:  # pyarrow raises many kinds on damaged files
        return True  # so that loading it says what is broken


# --- The table of a file.


def _read_table(path: Path, row_counts: RowCounts) -> pd.DataFrame:
    """Return the table in a file of CSV, JSON or Parquet, and count its rows."""
    import pandas as pd

    head = read_head(path)
    kind = table_kind(head)
    if kind == "json":
        return _read_json_table(path, row_counts)
    if kind == "parquet":
        frame = read_frame(path)[0]
        frame = frame[[name for name in frame if not re.fullmatch(r"__index_level_\d+__", str(name))]]  # of pandas
        dates = [name for name in frame if frame[name].dtype.kind == "M" or "datetime" in str(frame[name].dtype)]
        row_counts.count_read(len(frame))
        return frame.assign(**convert_to_seconds(frame[dates]))
    delimiter = detect_delimiter(head)
    header = parse_header(head, delimiter)
    # a first line without end is not a header, and each column costs a millisecond
    if (columns := len(header)) > MAX_COLUMNS or (len(head) >= HEAD_BYTES and not {"\n", "\r"} & set(head)):
        raise ValueError(
            f"the header has {columns} columns or more; at most {MAX_COLUMNS}, within 64 kB, can be read: remove some"
        )
    if twice := sorted(name for name, times in Counter(header).items() if name and times > 1):
        raise ValueError(f"columns {twice} appear more than once; rename all but one")
    # A decimal comma stands only where commas separate nothing else.
    lines = head.partition("\n")[2]
    decimal = "," if delimiter == ";" and re.search(r"\d,\d", lines) and not re.search(r"\d\.\d", lines) else "."
    try:
        with open_bytes(path) as file:
            table = pd.read_csv(file, sep=delimiter, decimal=decimal, skipinitialspace=True, index_col=False)
    except (pd.errors.EmptyDataError, pd.errors.ParserError) as error:
        raise ValueError(describe_csv_error(error)) from None
    table = table.rename(columns=_unescape_formula)
    texts = [name for name in table if table[name].dtype == object or isinstance(table[name].dtype, pd.StringDtype)]
    for name in texts:
        if any(isinstance(text, str) and text.startswith("'") for text in table[name].unique()):
            table[name] = table[name].map(_unescape_formula)
    table.index = pd.RangeIndex(2, len(table) + 2)  # rows are counted as an editor does, from the header
    row_counts.count_read(len(table))
    return table


def _read_json_table(path: Path, row_counts: RowCounts) -> pd.DataFrame:
    """Return the table in a JSON file. Incomplete lines, such as the last of a killed job, are counted."""
    import pandas as pd

    of_lines = _is_json_lines(read_head(path))
    if of_lines:
        found: Any = list(_iter_json_lines(path, row_counts))
    else:  # is read into memory at once
        found = read_json(path, 1 << 29, "write one object per line instead, or CSV")
    if isinstance(found, list) and all(isinstance(row, dict) for row in found):
        names = {name for row in found for name in row}
    elif isinstance(found, dict) and _is_json_columns(found):
        names = set(found)
    else:
        raise ValueError(
            "the file must hold one JSON object per line, a list of objects, or an object with a list for each column"
        )
    if len(names) > MAX_COLUMNS:
        raise ValueError(f"the file has {len(names)} columns; at most {MAX_COLUMNS} can be read: remove columns")
    table = pd.DataFrame(found).map(_json_cell)
    row_counts.count_read(0 if of_lines else len(table))
    if not len(table):
        raise ValueError("the file has no rows")
    return table


def _is_json_lines(json_text: str) -> bool:
    """Return whether JSON holds an object in each line: the first line is an object, and not the whole table."""
    first, _, more = json_text.lstrip().partition("\n")
    try:
        found = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and (bool(more.strip()) or not _is_json_columns(found))


def _is_json_columns(columns: dict[str, Any]) -> bool:
    return bool(columns) and all(isinstance(column, list) for column in columns.values())


def _iter_json_lines(path: Path, row_counts: RowCounts) -> Iterator[dict[str, Any]]:
    for _, line in counted_lines(path, row_counts):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            yield found
        else:
            row_counts.drop_rows("lines that hold no complete JSON object", 1)


def _json_cell(value: Any) -> Any:
    """Return a number, a text or nothing as it is; a list or an object, and a number beyond float64, as text."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value if abs(value) < 1e300 or value != value else str(value)
    return value if isinstance(value, str) else json.dumps(value)[:1000]


# --- Rows in order: without repetitions, and a job that was started again after its first run.


def _merge_restarted_runs(table: pd.DataFrame, row_counts: RowCounts) -> pd.DataFrame:
    """Drop rows that were written twice, and let a job that was started again go on after its first run."""
    import pandas as pd

    key = ["worker", "iteration"]
    if not set(key) <= set(table) or not pd.api.types.is_numeric_dtype(table["iteration"]):
        return table  # from_frame says what is wrong with it
    step_N = table["iteration"].to_numpy(dtype=np.float64)
    if not np.isfinite(step_N).all():
        return table
    code_N = pd.factorize(table["worker"])[0]  # names would be wider than numbers
    again_N = table.duplicated(key).to_numpy()
    if again_N.any():
        run_N = number_row_runs(code_N, step_N)
        twice_N = table.duplicated().to_numpy(copy=True)
        if not run_N.any() or 2 * twice_N.sum() > again_N.sum():
            row_counts.drop_rows("rows that repeat another one exactly", twice_N.sum())
            twice_N |= _find_untimed(table[~twice_N], key, row_counts).reindex(table.index, fill_value=False).to_numpy()
            table, step_N, code_N = table[~twice_N], step_N[~twice_N], code_N[~twice_N]
            run_N = number_row_runs(code_N, step_N)
        if run_N.any():
            # where an epoch goes on, its iterations are only counted again
            rises = False
            if "epoch" in table and pd.api.types.is_numeric_dtype(table["epoch"]):
                epochs = table["epoch"].groupby(run_N)
                rises = bool((epochs.min().to_numpy()[1:] > epochs.max().to_numpy()[:-1]).all())
            if rises:
                text = "epochs count their iterations from the start and were put one after the other"
                row_counts.count_changed(text, run_N.max() + 1)
            else:
                row_counts.count_restarts(run_N.max())
            return table.assign(iteration=continue_steps(step_N, run_N))
    written_N = np.argsort(code_N, kind="stable")
    back_N = (np.diff(code_N[written_N]) == 0) & (np.diff(step_N[written_N]) < 0)
    row_counts.count_changed("rows were out of order and were sorted by iteration", back_N.sum())
    return table


def _find_untimed(table: pd.DataFrame, key: list[str], row_counts: RowCounts) -> pd.Series[bool]:
    """Return the rows without a time beside another of the same worker and iteration, as loggers write several."""
    if "seconds" not in table:
        return table.duplicated(key) & False
    timed = table["seconds"].notna()
    beside = ~timed & timed.groupby([table[name] for name in key], observed=True).transform("any")
    row_counts.drop_rows("rows without a time beside one of the same worker and iteration", beside.sum())
    return beside


# --- Tidy CSV with what a table cannot hold beside it.


def meta_path(path: Path) -> Path:
    """Return the file beside a CSV that keeps what its table cannot hold: licence, units, source, ..."""
    return path.with_name(f"{path.name}.meta.json")


def write_csv(trace: Trace, path: Path) -> None:
    """Write a trace as tidy CSV, and its ``meta`` beside it: :func:`read_csv` reads both."""
    with atomic_write(meta_path(path)) as temporary:
        temporary.write_text(json.dumps(dict(trace.meta), indent=2) + "\n", encoding="utf-8")
    with atomic_write(path) as temporary:
        table = trace.to_frame().rename(columns=_escape_formula)
        table["worker"] = table["worker"].map(_escape_formula)
        table.to_csv(temporary, index=False)


FORMULA_PATTERN = re.compile(r"'*[=+\-@\t\r]")
"""Beginning of a text that a spreadsheet would run, with the marks that were put before it."""


def _escape_formula(name: str) -> str:
    """Return a name as a spreadsheet shows it and does not run it: with a mark before it.

    >>> _escape_formula("=cmd()"), _escape_formula("gpu0"), _unescape_formula(_escape_formula("'=a"))
    ("'=cmd()", 'gpu0', "'=a")
    """
    return f"'{name}" if FORMULA_PATTERN.match(name) else name


def _unescape_formula(name: Any) -> Any:
    return name[1:] if isinstance(name, str) and name.startswith("'") and FORMULA_PATTERN.match(name) else name


FORMATS = tuple(
    Format(
        name=name,
        per_rank=True,
        description=about,
        files=files,
        provides="all that a trace holds",
        tested_on=NATIVE_FORMAT,
        read=read_csv,
        matches=partial(_is_table, name),
    )
    for name, about, files in (
        (
            "parquet",
            "a trace written by paceline, or a tidy table",
            "Parquet with the columns worker, iteration, samples, seconds and any covariates",
        ),
        (
            "csv",
            "a tidy table, one row per iteration and worker",
            "CSV with the columns worker, iteration, samples, seconds and any covariates",
        ),
        (
            "json",
            "a tidy table in JSON, one object per iteration and worker, or an object of columns",
            "JSON lines, a list of objects or an object of lists, with the keys worker, iteration, samples, seconds",
        ),
    )
)
