"""Output of monitors of one machine: ``dstat --output`` and ``sadf -d`` (sar). Axes: N rows, D covariates."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from paceline._arrays import Array
from paceline.datasets.readers.files import numbered_lines
from paceline.datasets.readers.format import QUOTED, Format
from paceline.datasets.readers.panel import Layout, Rows, usage_traces
from paceline.datasets.readers.tally import Tally
from paceline.datasets.readers.timestamps import seconds_since_1970
from paceline.datasets.trace import Trace

Numbered = tuple[int, list[str]]


def read_dstat(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield the usage of a machine every second, without the first row, which is the mean since boot."""
    for path in paths:
        tally = Tally()
        names, units, rows, began = _dstat(path, tally)
        values_ND = np.delete(_numbers(path, names, rows), began, axis=0)
        tally.rows("first row, the mean since the machine booted", len(began))
        tally.restarts(len(began) - 1)
        if not len(values_ND):
            raise ValueError(f"{path}: has no row after the mean since boot")
        none_T = np.full((len(values_ND), 1), np.nan)
        yield Trace(
            samples=none_T,
            seconds=none_T,
            covariates=values_ND[:, None, :],
            covariate_names=names,
            meta={
                "job": path.name.split(".")[0],
                "format": "dstat",
                "units": "; ".join(f"{name}: {unit}" for name, unit in zip(names, units, strict=True)),
                "period_seconds": "1",
                **tally.meta(),
            },
        )


def _dstat(path: Path, tally: Tally) -> tuple[list[str], list[str], list[Numbered], list[int]]:
    """Return the columns' names and units, the rows, and which rows a start of dstat began with.

    A dstat that is started again writes its header again, below its first rows. A file truncated while writing may end
    in NUL bytes.
    """
    names: list[str] = []
    units: list[str] = []
    groups: list[str] = []
    rows: list[Numbered] = []
    began: list[int] = []
    within_header = True
    for line, text in numbered_lines(path):
        if "\0" in text:
            tally.rows("row at the end, cut off by NUL bytes", 1)
            tally.read(1)
            break
        cells = next(csv.reader([text]), [])
        within_header |= bool(cells) and cells[0].startswith("Dstat ")
        if within_header:
            # the names of the columns are in one of the first lines
            if not names and line > 10:
                raise ValueError(f"{path}: has no line of column names (usr, sys, ...) in its first 10")
            if {"usr", "sys"} <= set(cells):  # other groups, such as "epoch", may come first
                found = _dstat_columns(path, groups, cells)
                if names and found != (names, units):
                    raise ValueError(f"{path}: row {line}: dstat was started again with other columns; cut the file")
                names, units = found
                within_header = False
                began.append(len(rows))
            groups = cells
        elif cells:
            rows.append((line, cells))
    began = [k for k in began if k < len(rows)]
    tally.read(len(rows))
    if not rows:
        raise ValueError(f"{path}: has no rows")
    return names, units, rows, began


def _dstat_columns(path: Path, groups: Sequence[str], columns: Sequence[str]) -> tuple[list[str], list[str]]:
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
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{path}: the header repeats the columns {repeated}")
    return names, units


def read_sar(
    paths: Sequence[Path], *, period: float | None = None, workers: Sequence[str] | None = None
) -> Iterator[Trace]:
    """Yield the usage of machines from ``sadf -d``; each device or core is a separate worker."""
    for path in paths:
        tally, selected = Tally(), False
        for part in _sar_parts(path, tally):
            if workers is None or part.rows.worker.isin(list(workers)).any():
                selected = True
                yield from usage_traces([path], [part.rows], part.layout, tally, period=period, workers=workers)
            else:
                tally.rows("rows of workers that were not asked for", len(part.rows.time))
        if not selected:
            raise ValueError(f"{path}: has no row of the workers {list(workers or ())}")


class _Part:
    """The rows under one header of a sadf file."""

    def __init__(self, path: Path, header: Sequence[str], rows: Sequence[Numbered]) -> None:
        import pandas as pd

        devices = [name for name in header[3:4] if not name.startswith("%") and name.isupper()]
        names = list(header[3 + len(devices) :])
        worker = [row[0] + (f" {devices[0].lower()} {row[3]}" if devices and row[3] != "-1" else "") for _, row in rows]
        time_N = _sar_times(path, rows)
        values_ND = _numbers(path, names, [(line, row[3 + len(devices) :]) for line, row in rows])
        interval_N = np.abs(_numbers(path, ["interval"], [(line, row[1:2]) for line, row in rows])[:, 0])
        self.rows = Rows(pd.Series(worker), time_N, values_ND)
        self.layout = Layout(
            covariates=dict.fromkeys(names, "as sar names it"),
            period=float(np.median(np.where(interval_N > 0, interval_N, 1.0))),
            since_1970=True,
            meta={"format": "sar"},
        )


def _sar_parts(path: Path, tally: Tally) -> Iterator[_Part]:
    header: list[str] = []
    rows: list[Numbered] = []
    has_part = False
    for line, text in numbered_lines(path):
        cells = [cell.strip() for cell in text.split(";")]
        if text.lstrip().startswith("#"):
            if rows:
                has_part = True
                yield _Part(path, header, rows)
            header, rows = [cells[0].lstrip("# "), *cells[1:]], []
        elif len(cells) > 3 and cells[3].startswith("LINUX-RESTART"):  # may stand above the first header
            tally.read(1)
            tally.rows("restarts of the machine", 1)
            tally.restarts(1)
        elif text.strip() and header:
            tally.read(1)
            if len(cells) != len(header):
                raise ValueError(f"{path}: row {line}: must have {len(header)} cells, got {len(cells)}")
            rows.append((line, cells))
        elif text.strip():
            raise ValueError(
                f"{path}: row {line}: a header such as '# hostname;interval;timestamp;...' must come first"
            )
    if rows:
        yield _Part(path, header, rows)
    elif not has_part:
        raise ValueError(f"{path}: has no rows")


def _sar_times(path: Path, rows: Sequence[Numbered]) -> Array:
    import pandas as pd

    written = [row[2] for _, row in rows]
    if written[0].replace(".", "", 1).isdigit():
        return _numbers(path, ["timestamp"], [(line, row[2:3]) for line, row in rows])[:, 0]
    return seconds_since_1970(path, pd.Series(written), "timestamp", first_row=rows[0][0])


def _numbers(path: Path, names: Sequence[str], rows: Sequence[Numbered]) -> Array:
    """Return cells as numbers, NaN for an empty one; the error for another cell says where it is."""
    values_ND = np.full((len(rows), len(names)), np.nan)
    for n, (line, cells) in enumerate(rows):
        if len(cells) != len(names):
            raise ValueError(f"{path}: row {line}: must have {len(names)} cells, got {len(cells)}")
        for d, cell in enumerate(cells):
            try:
                values_ND[n, d] = float(cell) if cell.strip() else np.nan
            except ValueError:
                raise ValueError(f"{path}: row {line}, column {names[d]!r}: must hold a number, got {cell!r}") from None
    return np.where(np.isinf(values_ND), np.nan, values_ND)


FORMATS = (
    Format(
        name="dstat",
        about="CPU, disk, network, memory, paging and switches of a machine every second (dstat -cdnmgyr --output)",
        files="CSV of dstat",
        gives="usage",
        seen=QUOTED,
        read=read_dstat,
        matches=lambda path, head: "dstat" in head[:200].lower() and "CSV output" in head[:200],
    ),
    Format(
        name="sar",
        about="sar's record of a machine, its cores or devices (sadf -d)",
        files="text with the header '# hostname;interval;timestamp;...'",
        gives="usage",
        seen=QUOTED,
        read=read_sar,
        matches=lambda path, head: "# hostname;interval;timestamp" in head[:1000],
    ),
)
