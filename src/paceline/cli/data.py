"""The commands ``paceline data``: list, describe and read traces."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from paceline._files import require_writable
from paceline._text import to_printable
from paceline.cli import options as sources
from paceline.cli.output import AsJson, FileFormat, Options, out, print_rows
from paceline.datasets import Trace, recorded
from paceline.datasets.formats.tables import write_csv
from paceline.datasets.readers import FORMATS

data_app = typer.Typer(help="List, describe and convert traces.", no_args_is_help=True)

Source = Annotated[str, typer.Argument(help="Name of a recorded job, or a file or folder of traces in any format.")]


@data_app.command("list")
def data_list(
    what: Annotated[str, typer.Argument(help="What to list: shipped (recorded jobs) or formats.")] = "shipped",
    as_json: AsJson = False,
) -> None:
    """List the recorded jobs included in the library, or the formats it reads."""
    if what == "shipped":
        rows = [_describe_trace(recorded.load(name)) for name in recorded.names()]
    elif what == "formats":
        columns = ("name", "provides", "description", *(("files", "tested_on") if as_json else ()))
        rows = [{key: getattr(one, key) for key in columns} for one in FORMATS.values()]
    else:
        raise ValueError(f"cannot list {what!r}; choose from ['shipped', 'formats']")
    print_rows(what, rows, as_json)


@data_app.command("info")
def data_info(name: Source, file_format: FileFormat = None, options: Options = None, as_json: AsJson = False) -> None:
    """Describe traces: workers, covariates, gaps, repeated speeds, clock jumps, restarts and dropped rows.

    Use [cyan]paceline simulate[/] to estimate what balancing would save, and [cyan]paceline evaluate[/] to see how
    well speeds can be forecast.
    """
    limit = 50  # a file may hold thousands of traces
    found = list(islice(sources.find_traces(name, file_format, options), limit + 1))
    about = [
        {
            **_describe_trace(trace),
            "covariates": ", ".join(trace.covariate_names),
            **_quality_issues(trace),
            **trace.meta,
        }
        for trace in found
    ]
    if as_json:
        print(json.dumps(about[0] if len(about) == 1 else about))
        return
    for one in about[:limit]:
        for key, value in one.items():
            if value not in ("", None):
                out.print(
                    f"[bold]{escape(to_printable(key))}[/]  {escape(to_printable(_format_value(key, value)))}",
                    highlight=False,
                )
        out.print()
    if len(about) > limit:
        out.print(f"... and more; the first {limit} are described")


@data_app.command("load")
def data_load(
    name: Source,
    target: Annotated[
        Path, typer.Option("--out", "-o", help="The .parquet or .csv file to write, or a folder for several traces.")
    ],
    file_format: FileFormat = None,
    options: Options = None,
) -> None:
    """Convert a file of any supported format to Parquet, or a single trace to CSV.

    The metadata (license, units, dropped rows) is stored in the Parquet file, or next to a CSV in NAME.csv.meta.json.

    Example: [cyan]paceline data load machine_usage.csv --with period=300 --out traces/[/]
    """
    one = target.suffix in (".parquet", ".csv")
    if not one:
        target.mkdir(parents=True, exist_ok=True)
    require_writable(target if one else target / "trace.parquet")
    traces = sources.find_traces(name, file_format, options)
    first = list(islice(traces, 2))
    if not first:
        raise ValueError(f"{name} holds no trace to write")
    if one:
        if len(first) > 1:
            raise ValueError(f"{name} holds more than one trace: pass a folder as --out, instead of {target}")
        _write_trace(first[0], target)
        return
    used: set[str] = set()
    for trace in (*first, *traces):
        if trace.name in used:
            raise ValueError(f"{name} holds several traces named {trace.name!r}: load its files one by one")
        used.add(trace.name)
        _write_trace(trace, target / f"{trace.name.replace('/', '_')}.parquet")


# -- parts -------------------------------------------------------------------------------------------------------


def _format_value(key: str, value: Any) -> str:
    """Return a value as people read it: four digits, thousands apart, a date beside seconds since 1970."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) or (key in ("rows_read", "rows_dropped") and re.fullmatch(r"[0-9]{1,15}", value)):
        return f"{int(value):,}"
    since = re.fullmatch(r"([0-9]{1,10}(?:\.[0-9]+)?) s since 1970 \(UTC\)", value)
    return f"{value}, {datetime.fromtimestamp(float(since[1]), UTC):%Y-%m-%d %H:%M:%S}" if since else value


def _write_trace(trace: Trace, path: Path) -> None:
    if path.suffix == ".csv":
        write_csv(trace, path)
    else:
        trace.save(path)
    unmeasured = "" if np.isfinite(trace.speed).any() else ", usage only: no speed"
    out.print(
        f"{path}: {len(trace)} iterations of {len(trace.workers)} workers{unmeasured}; dropped: "
        f"{trace.meta.get('dropped')}"
    )


def _describe_trace(trace: Trace) -> dict[str, Any]:
    speed = trace.speed
    measured = speed[:, np.isfinite(speed).any(axis=0)]
    variation = (np.nanstd(measured, axis=0) / np.nanmean(measured, axis=0)).mean() if measured.size else None
    return {
        "job": trace.name,
        "split": trace.meta.get("split", ""),
        "pattern": trace.meta.get("pattern", ""),
        "iterations": len(trace),
        "workers": len(trace.workers),
        "covariates": len(trace.covariate_names),
        "median seconds": float(np.nanmedian(trace.seconds)) if measured.size else None,
        "variation of speed": None if variation is None else float(variation),
    }


def _quality_issues(trace: Trace) -> dict[str, Any]:
    """Return what to know about a trace before learning from it; shares lie in [0, 1]."""
    speed = trace.speed
    there = np.isfinite(speed)
    if not there.any():
        return {"no speed": _why_no_speed(trace)}
    both = there[1:] & there[:-1]
    repeated = (both & (speed[1:] == speed[:-1])).sum() / both.sum() if both.any() else None
    gaps = [len(list(run)) for one in there.T for known, run in groupby(one.tolist()) if not known]
    jumps = backwards = None
    if trace.start is not None:
        intervals = [np.diff(one[np.isfinite(one)]) for one in trace.start.T]
        forward = [one[one > 0] for one in intervals]
        # over more than ten median intervals
        jumps = sum(int((one > 10.0 * np.median(one)).sum()) for one in forward if one.size)
        backwards = sum(int((one < 0).sum()) for one in intervals)
    return {
        "missing speeds": float(1.0 - there.mean()),
        "longest gap": max(gaps, default=0),
        "speeds equal to the one before": None if repeated is None else float(repeated),
        "clock jumps": jumps,
        "clock steps back": backwards,
    }


def _why_no_speed(trace: Trace) -> str:
    if trace.covariate_names and np.isnan(trace.samples).all() and np.isnan(trace.seconds).all():
        return "the trace only has usage"
    for name, panel in (("samples", trace.samples), ("seconds", trace.seconds)):
        if not (panel > 0).any():
            return f"all its {name} are {'missing' if np.isnan(panel).all() else 'missing or 0'}"
    return "no worker reported samples and seconds of the same iteration"
