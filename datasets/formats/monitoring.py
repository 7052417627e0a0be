"""Output of monitors of a machine: ``dstat --output``, ``sadf -d`` (sar), nvidia-smi, Prometheus.

Axes: N rows, D covariates.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline._arrays import Array
from paceline.datasets.columns import ColumnMapping, column_names_in
from paceline.datasets.formats import QUOTED_FILES, SYNTHETIC_FILES, Format
from paceline.datasets.formats.tables import make_trace, map_table, require_values
from paceline.datasets.frame import numeric_column
from paceline.datasets.io import (
    TEXT,
    RowCounts,
    numbered_lines,
    parse_header,
    read_csv_frame,
    read_head,
    read_json,
    seconds_since_1970,
)
from paceline.datasets.trace import Trace
from paceline.datasets.usage import UsageDescription, UsageRows, iter_usage_traces

if TYPE_CHECKING:
    import pandas as pd


NumberedRow = tuple[int, list[str]]


def read_dstat(path: Path, row_counts: RowCounts) -> Iterator[Trace]:
    """Yield the usage of a machine every second, without the first row, which is the mean since boot."""
    names, units, rows, began = _parse_dstat(path, row_counts)
    values_ND = np.delete(_parse_numbers(path, names, rows), began, axis=0)
    row_counts.drop_rows("first row, the mean since the machine booted", len(began))
    row_counts.count_restarts(len(began) - 1)
    if not len(values_ND):
        raise ValueError(f"{path} has no row besides the first, which is the mean since boot: record for longer")
    none_T = np.full((len(values_ND), 1), np.nan)
    yield Trace(
        samples=none_T,
        seconds=none_T,
        covariates=values_ND[:, None, :],
        covariate_names=names,
        meta={
            "units": "; ".join(f"{name}: {unit}" for name, unit in zip(names, units, strict=True)),
            "period_seconds": "1",
        },
    )


def _parse_dstat(path: Path, row_counts: RowCounts) -> tuple[list[str], list[str], list[NumberedRow], list[int]]:
    """Return the columns' names and units, the rows, and which rows a start of dstat began with."""
    names: list[str] = []
    units: list[str] = []
    groups: list[str] = []
    rows: list[NumberedRow] = []
    began: list[int] = []
    within_header = True
    for line, text in numbered_lines(path):
        if "\0" in text:
            row_counts.drop_rows("row at the end, cut off by NUL bytes", 1)
            row_counts.count_read(1)
            break
        cells = next(csv.reader([text]), [])
        within_header |= bool(cells) and cells[0].startswith("Dstat ")
        if within_header:
            # the names of the columns are in one of the first lines
            if not names and line > 10:
                raise ValueError(
                    f"{path} has no line of column names (usr, sys, ...) in its first 10: use dstat --output"
                )
            if {"usr", "sys"} <= set(cells):  # other groups, such as "epoch", may come first
                found = _dstat_columns(groups, cells)
                if names and found != (names, units):
                    raise ValueError(
                        f"{path}: dstat was restarted with other columns at row {line}: split the file there"
                    )
                names, units = found
                within_header = False
                began.append(len(rows))
            groups = cells
        elif cells:
            rows.append((line, cells))
    began = [k for k in began if k < len(rows)]
    row_counts.count_read(len(rows))
    if not rows:
        raise ValueError(f"{path} has no rows")
    return names, units, rows, began


def _dstat_columns(groups: Sequence[str], columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return names such as ``disk_read``, from the line of groups above the line of columns."""
    known = {
        "total cpu usage": ("cpu", "percent"),
        "dsk/total": ("disk", "B/s"),
        "net/total": ("net", "B/s"),
        "memory usage": ("memory", "B"),
        "paging": ("paging", "B/s"),
        "system": ("system", "1/s"),
        "io/total": ("io", "requests/s"),
    }
    names, units, group = [], [], ("", "")
    for k, column in enumerate(columns):
        above = groups[k] if k < len(groups) else ""
        group = known.get(above, (above, "as in the file")) if above else group
        names.append(f"{group[0]}_{column}")
        units.append(group[1])
    return names, units


def read_sar(path: Path, row_counts: RowCounts, *, period: float | None = None) -> Iterator[Trace]:
    """Yield the usage of machines from ``sadf -d``; each device or core is a separate worker."""
    for rows, description in _iter_sar_parts(path, row_counts):
        yield from iter_usage_traces([path], [rows], description, row_counts, period=period)


def _parse_sar_part(
    path: Path, header: Sequence[str], rows: Sequence[NumberedRow]
) -> tuple[UsageRows, UsageDescription]:
    import pandas as pd

    devices = [name for name in header[3:4] if not name.startswith("%") and name.isupper()]
    names = list(header[3 + len(devices) :])
    worker = [row[0] + (f" {devices[0].lower()} {row[3]}" if devices and row[3] != "-1" else "") for _, row in rows]
    written = [row[2] for _, row in rows]
    if written[0].replace(".", "", 1).isdigit():
        time_N = _parse_numbers(path, ["timestamp"], [(line, row[2:3]) for line, row in rows])[:, 0]
    else:
        time_N = seconds_since_1970(path, pd.Series(written), "timestamp", first_row=rows[0][0])
    values_ND = _parse_numbers(path, names, [(line, row[3 + len(devices) :]) for line, row in rows])
    interval_N = np.abs(_parse_numbers(path, ["interval"], [(line, row[1:2]) for line, row in rows])[:, 0])
    usage = UsageRows(pd.Series(worker), time_N, values_ND)
    description = UsageDescription(
        covariates=dict.fromkeys(names, "as sar names it"),
        period=float(np.median(np.where(interval_N > 0, interval_N, 1.0))),
        since_1970=True,
    )
    return usage, description


def _iter_sar_parts(path: Path, row_counts: RowCounts) -> Iterator[tuple[UsageRows, UsageDescription]]:
    header: list[str] = []
    rows: list[NumberedRow] = []
    has_part = False
    for line, text in numbered_lines(path):
        cells = [cell.strip() for cell in text.split(";")]
        if text.lstrip().startswith("#"):
            if rows:
                has_part = True
                yield _parse_sar_part(path, header, rows)
            header, rows = [cells[0].lstrip("# "), *cells[1:]], []
        elif len(cells) > 3 and cells[3].startswith("LINUX-RESTART"):  # may stand above the first header
            row_counts.count_read(1)
            row_counts.drop_rows("restarts of the machine", 1)
            row_counts.count_restarts(1)
        elif text.strip() and header:
            row_counts.count_read(1)
            if len(cells) != len(header):
                raise ValueError(f"{path}: row {line} must have {len(header)} cells, got {len(cells)}")
            rows.append((line, cells))
        elif text.strip():
            raise ValueError(
                f"{path}: row {line} is above any header like '# hostname;interval;timestamp;...': use sadf -d"
            )
    if rows:
        yield _parse_sar_part(path, header, rows)
    elif not has_part:
        raise ValueError(f"{path} has no rows")


def _parse_numbers(path: Path, column_names: Sequence[str], numbered_rows: Sequence[NumberedRow]) -> Array:
    """Return cells as numbers, NaN for an empty one; the error for another cell says where it is."""
    import pandas as pd

    if wrong := [(line, len(cells)) for line, cells in numbered_rows if len(cells) != len(column_names)]:
        raise ValueError(f"{path}: row {wrong[0][0]} must have {len(column_names)} cells, got {wrong[0][1]}")
    lines, rows = zip(*numbered_rows, strict=True)
    table = pd.DataFrame(rows, lines, list(column_names), dtype="str").replace(r"^\s*$", np.nan, regex=True)
    try:
        values_ND = np.stack([numeric_column(table, name) for name in column_names], axis=1)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return np.where(np.isinf(values_ND), np.nan, values_ND)


GPU_COLUMNS = ("index", "pci.bus_id", "gpu_bus_id", "uuid", "gpu_uuid", "gpu_serial", "serial")
"""Columns that name a GPU, the first that is there names the worker."""

UNIT_PATTERN = re.compile(r"\s*\[([^\]]*)\]$")
QUERY_PATTERN = re.compile(r"(utilization|memory|temperature|power|clocks|fan|pcie|encoder|ecc)\.[.\w]+( \[.*\])?")
MISSING_WORDS = (
    "[N/A]",
    "N/A",
    "[Not Supported]",
    "[Unknown Error]",
    "[GPU is lost]",
    "ERR!",
    "[Insufficient Permissions]",
)


def read_nvidia_smi(path: Path, row_counts: RowCounts, *, period: float | None = None) -> Iterator[Trace]:
    """Yield the usage of the GPUs of each file; a period is an iteration, by default the median between two rows."""
    names = parse_header(read_head(path))
    missing = [*MISSING_WORDS, *(f" {word}" for word in MISSING_WORDS)]
    table = read_csv_frame(path, dict.fromkeys(names, TEXT), row_counts, null_words=missing)
    table = table[(table["timestamp"] != "timestamp").to_numpy()]  # a log that was appended to has another header
    times = seconds_since_1970(path, table["timestamp"], "timestamp")
    found = next((name for name in GPU_COLUMNS if name in names), None)
    found_W = table[found].str.strip() if found else "0"
    units = {UNIT_PATTERN.sub("", name): match[1] for name in names if (match := UNIT_PATTERN.search(name))}
    values = table.drop(columns=["timestamp", *([found] if found else [])]).dropna(axis=1, how="all")
    values = values.apply(lambda cells: cells.str.replace(r"\s*(%|MiB|W|MHz|C|KB/s|MB/s)?\s*$", "", regex=True))
    rows = values.rename(columns=lambda name: UNIT_PATTERN.sub("", name))
    rows = rows.assign(worker=found_W, start=times, samples=np.nan, seconds=np.nan)
    rows.index = rows.index + 2  # as an editor counts rows, from the header
    if rows.empty:
        raise ValueError(f"{path} has no rows")
    between = rows.sort_values("start").groupby("worker")["start"].diff()
    median_gap = float(between[between > 0].median())
    column_mapping = ColumnMapping(period=period or (max(round(median_gap, 2), 0.01) if median_gap > 0 else 1.0))
    meta = {"units": "; ".join(f"{name}: {unit}" for name, unit in units.items())}
    yield make_trace(map_table(path, rows, column_mapping, row_counts, meta))


# --- The answer to a range query of Prometheus.


def read_prometheus(
    path: Path,
    row_counts: RowCounts,
    *,
    values: str | None = None,
    samples: str | float = 1.0,
    unit: str = "s",
    period: float | None = None,
) -> Iterator[Trace]:
    """Yield the trace of each file: a series is a worker, a step of the query an iteration."""
    require_values(path, values)
    table = _read_prometheus_table(path, row_counts)
    steps = np.diff(np.unique(table["start"].to_numpy(dtype=np.float64)))
    if values == "usage":
        table = table.assign(samples=np.nan, seconds=np.nan)  # the values stay as a covariate
    column_mapping = ColumnMapping(
        columns={"seconds": "value", "samples": samples} if values == "seconds" else {},
        rate="value" if values == "rate" else None,
        unit=unit,
        period=period or (float(steps.min()) if len(steps) else 1.0),
    )
    yield make_trace(map_table(path, table, column_mapping, row_counts, {}))


def _read_prometheus_table(path: Path, row_counts: RowCounts) -> pd.DataFrame:
    """Return rows of ``worker``, named by the labels in which series differ, ``start`` and ``value``."""
    import pandas as pd

    answer = read_json(path, 1 << 29, "query a shorter range")
    data = answer.get("data", answer) if isinstance(answer, dict) else {}
    if not isinstance(data, dict) or data.get("resultType") != "matrix" or not data.get("result"):
        raise ValueError(
            f"{path} must be the answer to a range query (resultType matrix) with at least one series, as "
            "/api/v1/query_range returns it"
        )
    try:
        labels = pd.DataFrame([dict(one["metric"]) for one in data["result"]]).fillna("").astype(str)
        # a number is text in the answer: "NaN" and "+Inf" are some
        points = [pd.DataFrame(one["values"], columns=["start", "value"]).astype(float) for one in data["result"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: each series must have a metric, and values of [time, number] pairs") from error
    labels = labels.loc[:, labels.nunique() > 1]
    # its value of the one label in which series differ, or all of these with their labels
    names = [
        row[0]
        if len(row) == 1
        else ",".join(f"{label}={value}" for label, value in zip(labels, row, strict=True)) or "0"
        for row in labels.to_numpy()
    ]
    if len(set(names)) < len(names):
        raise ValueError(
            f"{path}: series must differ in their labels, got {names!r:.200}: keep the worker's label in the query"
        )
    table = pd.concat([one.assign(worker=name) for name, one in zip(names, points, strict=True)], ignore_index=True)
    if not len(table):
        raise ValueError(f"{path} has no rows")
    row_counts.count_read(len(table))
    return table


FORMATS = (
    Format(
        name="dstat",
        description="CPU, disk, network, memory, paging, switches of a machine every second (dstat -cdnmgyr --output)",
        files="CSV of dstat",
        provides="usage",
        tested_on=QUOTED_FILES,
        read=read_dstat,
        matches=lambda path, head: "dstat" in head[:200].lower() and "CSV output" in head[:200],
    ),
    Format(
        name="sar",
        description="sar's record of a machine, its cores or devices (sadf -d)",
        files="text with the header '# hostname;interval;timestamp;...'",
        provides="usage",
        tested_on=QUOTED_FILES,
        read=read_sar,
        matches=lambda path, head: "# hostname;interval;timestamp" in head[:1000],
    ),
    Format(
        name="nvidia_smi",
        description="usage of the GPUs of a machine (nvidia-smi --query-gpu=timestamp,index,... --format=csv -l 1)",
        files="CSV with the columns timestamp, index and any of those that nvidia-smi lists, with or without units",
        provides="usage",
        tested_on=QUOTED_FILES,
        read=read_nvidia_smi,
        matches=lambda path, head: (
            "timestamp" in parse_header(head) and any(map(QUERY_PATTERN.fullmatch, parse_header(head)))
        ),
    ),
    Format(
        name="prometheus",
        description="the answer to a range query of Prometheus",
        files="JSON of /api/v1/query_range, with resultType matrix",
        provides="speed or usage",
        tested_on=SYNTHETIC_FILES,
        read=read_prometheus,
        matches=lambda path, head: (
            head.lstrip().startswith("{") and {"resultType", "metric", "values"} <= set(column_names_in(head))
        ),
    ),
)
