"""A page: plain data, written as one HTML file that needs no other."""

from __future__ import annotations

import base64
import hashlib
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline._arrays import Array, finite_mean
from paceline._files import atomic_write, require_writable
from paceline._require import require
from paceline._text import count, to_printable
from paceline._version import __version__
from paceline.report import drawing
from paceline.report.drawing import as_text

if TYPE_CHECKING:
    from jinja2 import Environment

    from paceline.datasets import Trace


MAX_TABLE_ROWS = 20
"""Rows of a table that the page shows; its data hold all."""

MAX_LINE_POINTS = 300
"""A line over more iterations than this is drawn as the means of this many pieces."""


def section(title: str, description: str, *blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section: its heading, a sentence on how to read it, and its tables and charts."""
    return {"title": title, "about": description, "blocks": list(blocks)}


def table(
    caption: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]], *, note: str = ""
) -> dict[str, Any]:
    """Return a table: columns with the way in which each is shown, and rows of values, the most important first."""
    heads = [{"name": name, "how": form} for name, form in columns]
    return {"block": "table", "caption": caption, "columns": heads, "rows": [list(row) for row in rows], "note": note}


def quantity_table(rows: Iterable[tuple[str, Any]], caption: str = "In figures") -> dict[str, Any]:
    """Return a table of quantities, whose values are texts."""
    return table(caption, (("quantity", "text"), ("value", "text")), rows)


class ChartLine(NamedTuple):
    """One line of a chart: its name in the legend, and values along the chart, ``[T]``; NaN leaves a gap.

    Each color has a pattern of dashes too, for those who do not see it.
    """

    name: str
    values: ArrayLike
    color: int  # 0 to 5; -1 is gray


class ChartBand(NamedTuple):
    """An area between two values along a chart, ``[T]`` each."""

    name: str
    low: ArrayLike
    high: ArrayLike
    color: int = -1


def lines_block(
    title: str,
    description: str,
    x_values: NDArray[Any],
    chart_lines: Sequence[ChartLine],
    *,
    unit: str,
    x_label: str = "iteration",
    bands: Sequence[ChartBand] = (),
) -> dict[str, Any]:
    """Return a chart of lines, the most important last, and of areas behind them; of many iterations, mean neighbors.

    They run over ``x_values``, ``[T]``, ascending numbers of ``x_label``; ``unit`` is that of the values.
    """
    each = -(-len(x_values) // MAX_LINE_POINTS)
    thinned = f" Each point is the mean of {each} neighbors." if each > 1 else ""
    return {
        "block": "lines",
        "title": title,
        "about": description + thinned,
        "x": {"name": x_label, "values": _downsample(x_values)},
        "unit": unit,
        "lines": [{"name": one.name, "color": one.color, "values": _downsample(one.values)} for one in chart_lines],
        "bands": [
            {"name": one.name, "color": one.color, "low": _downsample(one.low), "high": _downsample(one.high)}
            for one in bands
        ],
    }


def fleet_lines(
    values_TW: Array, workers: Sequence[str], highlighted: Sequence[int]
) -> tuple[list[ChartLine], list[ChartBand]]:
    """Return lines of some workers, and a band where all others lie, or nine tenths of many."""
    # six workers have a line of their own; the others are a band
    chosen = list(highlighted)[:6]
    others = [w for w in range(len(workers)) if w not in chosen]
    chart_lines = [ChartLine(worker_label(workers[w]), values_TW[:, w], color) for color, w in enumerate(chosen)]
    if not others:
        return chart_lines, []
    share = "90% of " if len(others) >= 20 else ""
    low, high = _quantiles(values_TW[:, others], (0.05, 0.95) if share else (0.0, 1.0))
    return chart_lines, [ChartBand(f"{share}{count(len(others), 'other')}", low, high)]


def gantt_block(
    title: str,
    description: str,
    workers: Sequence[str],
    seconds_KW: Array,
    *,
    highlighted: Sequence[int],
    end_seconds: float | None = None,
) -> dict[str, Any]:
    """Return who computed and who waited in K iterations that follow each other, on one row a worker.

    The ``highlighted`` workers have a row of their own; one more row is the median of all others. The time axis ends at
    ``end_seconds``, by default where the last bar does.
    """
    ends_K = np.cumsum(np.fmax.reduce(seconds_KW, axis=1))
    begins_K = np.concatenate([[0.0], ends_K[:-1]])
    rows = [_gantt_row(worker_label(workers[w]), seconds_KW[:, w], begins_K, ends_K) for w in highlighted]
    others = [w for w in range(len(workers)) if w not in highlighted]
    if others:
        name = worker_label(workers[others[0]]) if len(others) == 1 else f"median of {len(others)}"
        rows.append(_gantt_row(name, _quantiles(seconds_KW[:, others], (0.5,))[0], begins_K, ends_K))
    end = _round_for_chart(ends_K[-1] if end_seconds is None else end_seconds)
    return {"block": "gantt", "title": title, "about": description, "rows": rows, "until": end}


def worker_label(worker: str) -> str:
    """Return a worker's name as words: a rank's number alone says nothing."""
    return f"worker {worker}" if worker.isdigit() else worker


def _gantt_row(name: str, seconds_K: Array, begins_K: Array, ends_K: Array) -> dict[str, Any]:
    known = np.isfinite(seconds_K)
    waited = 1.0 - seconds_K[known].sum() / (ends_K - begins_K)[known].sum() if known.any() else float("nan")
    bars = [
        [_round_for_chart(begin), _round_for_chart(begin + seconds), _round_for_chart(end)]
        for begin, seconds, end in zip(begins_K, seconds_K, ends_K, strict=True)
        if np.isfinite(seconds)
    ]
    return {"name": name, "waits": _round_for_chart(waited), "bars": bars}


def _downsample(values: ArrayLike) -> list[float | None]:
    values_T = np.asarray(values, dtype=np.float64)
    if len(values_T) <= MAX_LINE_POINTS:
        return [_round_for_chart(value) for value in values_T]
    return [_round_for_chart(finite_mean(piece)) for piece in np.array_split(values_T, MAX_LINE_POINTS)]


def _quantiles(values_TW: Array, levels: Sequence[float]) -> list[Array]:
    """Return quantiles over workers of the known values, ``[T]`` each; NaN where no worker reported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # rows without a report
        return list(np.nanquantile(np.where(np.isfinite(values_TW), values_TW, np.nan), levels, axis=1))


def _round_for_chart(value: float) -> float | None:
    """Return a number with the digits that a chart can show; None if it is not finite."""
    return float(f"{value:.5g}") if np.isfinite(value) else None


TEMPLATE = Path(__file__).parent / "template"

Page = dict[str, Any]
"""A page: ``kind``, ``title``, ``verdict``, ``sections``, ``command``, the ``version`` that made it."""


def page(
    kind: str,
    title: str,
    verdict: Sequence[Mapping[str, Any]],
    sections: Sequence[Mapping[str, Any]],
    *,
    settings: Sequence[tuple[str, str]],
    data: Sequence[Sequence[Any]],
    command: str = "",
) -> Page:
    """Return a page of answers and sections, and at its end what it was made from, and by which command.

    ``settings`` are names and values of what was chosen; ``data`` are name and size of what was read.
    """
    origin = section(
        "Settings and data",
        "The same data and the same version make the same page, byte by byte.",
        quantity_table([*settings, ("paceline", __version__)], "Settings"),
        table("Data", (("data", "text"), ("holds", "text")), data),
    )
    about = {"paceline_report": 1, "version": __version__, "kind": kind, "title": title, "command": command}
    made: Page = _to_json({**about, "verdict": list(verdict), "sections": [*sections, origin]})
    return made


def name_and_size(trace: Trace) -> tuple[str, str]:
    """Return a trace's name and its size."""
    return trace.name, f"{len(trace)} iterations of {len(trace.workers)} workers"


def require_page(path: str | Path) -> None:
    """Raise an error unless a page can be written here: called before long work."""
    require("jinja2", needed_by="a report", extra="report")
    if Path(path).suffix != ".html":
        raise ValueError(f"a report's path must end in .html, got {to_printable(str(path))}")
    require_writable(path)


def write_page(page: Page, path: str | Path) -> Path:
    """Write a page to a path that ends in ``.html``, and return the path; ``ImportError`` if Jinja2 is missing."""
    path = Path(path)
    require_page(path)
    with atomic_write(path) as temporary:
        temporary.write_text(render(page), encoding="utf-8")
    return path


def render(page: Page) -> str:
    """Return a page as HTML. Everything that comes from data is escaped, and control characters are shown."""
    style, script = ((TEMPLATE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = _environment().get_template("page.html")
    return template.render(page=_to_json(page), style=style, script=script, digest=digest)


@cache
def _environment() -> Environment:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": as_text, "safe_css": Markup, "safe_script": Markup}
    environment.globals |= {
        name: getattr(drawing, name) for name in ("line_chart", "gantt_chart", "range_scale", "percent_along")
    }
    environment.globals |= {"ROWS": MAX_TABLE_ROWS, "ROW": drawing.GANTT_ROW_HEIGHT}
    return environment


def _to_json(value: Any) -> Any:
    """Return a value as JSON holds it, without NaN and infinity, and with control characters of its texts escaped."""
    if isinstance(value, Mapping):
        return {str(key): _to_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(one) for one in value]
    if isinstance(value, str):
        return to_printable(value)
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
