"""The commands ``paceline data``: list, describe, check and read traces."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from paceline._atomic import require_writable
from paceline._printable import printable
from paceline.cli.show import err, out

if TYPE_CHECKING:
    from paceline.datasets import Trace
    from paceline.datasets.health import Series

data_app = typer.Typer(
    help="List, describe, check and read traces, and write them as Parquet or CSV.", no_args_is_help=True
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]
FileFormat = Annotated[
    str | None, typer.Option("--format", help="A name from [cyan]paceline data list formats[/]. [default: recognised]")
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="NAME=VALUE",
        help="An option of the format of named files, as [cyan]period=300[/] or [cyan]workers=m_1,m_2[/]; repeat.",
    ),
]
Source = Annotated[str, typer.Argument(help="A recorded trace's name, a file of any format, or a folder of files.")]

COUNTS, COUNT = ("rows_read", "rows_dropped"), re.compile(r"[0-9]{1,15}")

MAX_DESCRIBED = 50
"""Most traces of one file that are described; a file may hold thousands."""


@data_app.command("list")
def data_list(
    what: Annotated[str, typer.Argument(help="shipped or formats.")] = "shipped",
    as_json: AsJson = False,
) -> None:
    """List the traces that come with the library, or the formats it reads."""
    from paceline.cli.show import print_rows

    listed = {"shipped": _shipped, "formats": _formats}
    if what not in listed:
        raise ValueError(f"there is no list of {what!r}; there are {list(listed)}")
    rows = listed[what]()
    wide = ("files",) if what == "formats" and not as_json else ()
    print_rows(what, [{key: value for key, value in row.items() if key not in wide} for row in rows], as_json)


@data_app.command("info")
def data_info(
    name: Source,
    file_format: FileFormat = None,
    options: Options = None,
    as_json: AsJson = False,
) -> None:
    """Describe traces: their workers, their covariates, what was dropped in reading, and how they were made."""
    found = list(islice(_traces(name, file_format, options), MAX_DESCRIBED + 1))
    about = [{**_summary(trace), "covariates": ", ".join(trace.covariate_names), **trace.meta} for trace in found]
    if as_json:
        print(json.dumps(about[0] if len(about) == 1 else about))
        return
    for one in about[:MAX_DESCRIBED]:
        for key, value in one.items():
            if value not in ("", None):
                out.print(
                    f"[bold]{escape(printable(key))}[/]  {escape(printable(_readable(key, value)))}", highlight=False
                )
        out.print()
    if len(about) > MAX_DESCRIBED:
        out.print(f"... and more; the first {MAX_DESCRIBED} are described")


@data_app.command("load")
def data_load(
    name: Source,
    target: Annotated[
        Path, typer.Option("--out", "-o", help="The .parquet or .csv file to write, or a folder for several traces.")
    ],
    file_format: FileFormat = None,
    options: Options = None,
) -> None:
    """Read a file of any format, and write it as traces of this library: as Parquet, or one trace as tidy CSV.

    Licence, units and all else that is known about a trace are kept: beside a CSV, in a file NAME.csv.meta.json.

    Example: [cyan]paceline data load machine_usage.csv --with period=300 --out traces/[/]
    """
    one = target.suffix in (".parquet", ".csv")
    if not one:
        target.mkdir(parents=True, exist_ok=True)
    require_writable(target if one else target / "trace.parquet")
    traces = _traces(name, file_format, options)
    first = list(islice(traces, 2))
    if not first:
        raise ValueError(f"{name} holds no trace to write")
    if one:
        if len(first) > 1:
            raise ValueError(f"{name} holds more than one trace: give a folder with --out instead of {target}")
        _written(first[0], target)
        return
    used: set[str] = set()
    for trace in (*first, *traces):
        if trace.name in used:
            raise ValueError(f"{name} holds several traces named {trace.name!r}: read its files one by one")
        used.add(trace.name)
        _written(trace, target / f"{trace.name.replace('/', '_')}.parquet")


@data_app.command("check")
def data_check(
    name: Source,
    file_format: FileFormat = None,
    options: Options = None,
    figure: Annotated[Path | None, typer.Option(help="The picture of a single trace to write.")] = None,
    batch: Annotated[
        int | None,
        typer.Option("--global-batch", help="Samples per iteration over all workers. [default: the trace's own]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check traces before learning from them: what balancing would gain, why workers wait, gaps, outliers, forecasts.

    The gain is what [cyan]paceline simulate[/] says; [cyan]paceline replay[/] compares predictors on the whole job.

    Where waiting comes from: with equal work and every worker's own speed (uneven workers), with the recorded work and
    equal speeds (uneven samples). It needs work beside the times, which [cyan]paceline record[/] records.

    For each series: the share of values missing, equal to the previous one, and far from their neighbours; coefficient
    of variation; correlation with the previous value; share of workers that are not white noise; correlation with
    speed.
    """
    from paceline.cli.show import print_rows
    from paceline.datasets.health import health
    from paceline.datasets.waiting_time import waiting_of

    if figure is not None:
        require_writable(figure)
    traces = _traces(name, file_format, options)
    first = list(islice(traces, 2))
    if figure is not None:
        _draw_figure(first, figure)
    found = ((health(trace), _gain(trace, batch), waiting_of(trace)) for trace in (*first, *traces))
    if as_json:
        about = [{**one.to_dict(), "balancing": gain, "waiting": waits.to_dict()} for one, gain, waits in found]
        print(json.dumps(about))
        return
    for one, gain, waits in found:
        lines = [*str(one).splitlines(), "what balancing would gain:", *(f"- {text}" for text in gain["gain"])]
        lines += ["where waiting comes from:", *(f"- {text}" for text in waits.sentences)]
        for line in lines:
            out.print(escape(printable(line)), highlight=False, soft_wrap=True)
        print_rows("", [_short(series) for series in one.series])


# -- parts -------------------------------------------------------------------------------------------------------


def _traces(name: str, file_format: str | None, options: list[str] | None) -> Iterator[Trace]:
    from paceline.cli import named_sources as sources

    return sources.find_traces(name, file_format, **sources.options_of(options))


def _gain(trace: Trace, batch: int | None) -> dict[str, Any]:
    """Return what balancing would gain, as ``simulate`` says it; or why that is not known."""
    from paceline.eval.simulate import simulate

    try:
        found = simulate(trace, global_batch=batch)
    except ValueError as error:
        reason = str(error)
        return {"gain": [f"{reason[:1].upper()}{reason[1:]}."]}
    return {**found.to_dict(), "gain": list(found.gain)}


def _readable(key: str, value: Any) -> str:
    """Return a value as people read it: four digits, thousands apart, a date beside seconds since 1970.

    >>> _readable("median seconds", 0.22307702229625076), _readable("iterations", 45000), _readable("job", "2023")
    ('0.2231', '45,000', '2023')
    >>> _readable("first_time", "1372629804 s since 1970 (UTC)")
    '1372629804 s since 1970 (UTC), 2013-06-30 22:03:24'
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) or (key in COUNTS and COUNT.fullmatch(value)):
        return f"{int(value):,}"
    since = re.fullmatch(r"([0-9]{1,10}(?:\.[0-9]+)?) s since 1970 \(UTC\)", value)
    return f"{value}, {datetime.fromtimestamp(float(since[1]), UTC):%Y-%m-%d %H:%M:%S}" if since else value


def _written(trace: Trace, path: Path) -> None:
    import numpy as np

    from paceline.datasets.readers.tidy import write_csv

    if path.suffix == ".csv":
        write_csv(trace, path)
    else:
        trace.save(path)

    unmeasured = "" if np.isfinite(trace.speed).any() else ", usage only: no speed"
    out.print(
        f"{path}: {len(trace)} iterations of {len(trace.workers)} workers{unmeasured}; dropped: "
        f"{trace.meta.get('dropped')}"
    )


def _short(one: Series) -> dict[str, Any]:
    """Return a series as a table row that fits into a terminal."""
    return {
        "series": printable(one.name),
        "missing": _known(one.missing, ".0%"),
        "same": _known(one.repeated, ".0%"),
        "far": _known(one.outliers, ".1%"),
        "CV": _known(one.variation, ".2f"),
        "lag-1": _known(one.lag_one, ".2f"),
        "signal": _known(one.predictable, ".0%"),
        "~speed": _known(one.with_speed, ".2f"),
    }


def _known(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "-"


def _draw_figure(first: list[Trace], figure: Path) -> None:
    from paceline.eval.plots import health_figure

    if len(first) != 1:
        raise ValueError("--figure draws a single trace, but there are several: load them into a folder and choose one")
    err.print(f"written to {health_figure(first[0], figure)}")


def _shipped() -> list[dict[str, Any]]:
    from paceline.datasets import recorded

    return [_summary(recorded.load(name)) for name in recorded.names()]


def _formats() -> list[dict[str, Any]]:
    from paceline.datasets.readers import FORMATS

    return [{"name": one.name, "gives": one.gives, "about": one.about, "files": one.files} for one in FORMATS.values()]


def _summary(trace: Trace) -> dict[str, Any]:
    import numpy as np

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
