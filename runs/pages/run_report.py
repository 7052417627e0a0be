"""A report of a finished run on one page: a figure, tables, and counts of the balancer's reasons.

Axes: T iterations, W workers.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline._arrays import Array
from paceline._figures import BLACK, BLUE, GREEN, GREY, VERMILION, plain, png
from paceline._printable import printable
from paceline._require import require
from paceline._whole import written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from paceline.runs import Run


COLOURS = (BLUE, VERMILION, GREEN, "#CC79A7", "#E69F00", "#56B4E9", BLACK, GREY)
"""Colours of the workers that the figure names."""

POINTS = 400
"""A line over more iterations than this is drawn as the means of this many pieces."""

LISTED = 30
"""Number of last changes that are listed."""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #222 }}
table {{ border-collapse: collapse; margin: 1em 0 }} th, td {{ padding: .25em .9em; text-align: right }}
th {{ border-bottom: 2px solid #222 }} td {{ border-bottom: 1px solid #ddd }}
th:first-child, td:first-child, .text td {{ text-align: left }} img {{ max-width: 100% }}
</style></head><body><h1>{title}</h1>
{body}
</body></html>
"""


def run_report(run: Run, path: str | Path) -> Path:
    """Write the report of a run as one self-contained HTML file, and return its path.

    Parameters
    ----------
    run
        A run read with :func:`paceline.runs.read_run`.
    path
        The file to write.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    FileNotFoundError
        If the folder does not exist.
    """
    picture = base64.b64encode(run_figure(run)).decode()
    body = [
        table(("", ""), _overview(run)),
        f'<img alt="iteration times, shares and waiting over the run" src="data:image/png;base64,{picture}">',
        "<h2>Workers</h2>",
        table(WORKER_COLUMNS, _workers(run)),
        "<h2>What the balancer did, and why</h2>",
        table(("iterations", "reason"), [(count, kind) for kind, count in reasons(run).most_common()], text=True),
        f"<h2>The last changes of sizes, {LISTED} at most</h2>",
        table(("iteration", "reason"), _changes(run), text=True),
    ]
    return write_page(path, f"Run {Path(run.name).stem}", body)


def write_page(path: str | Path, title: str, body: Iterable[str]) -> Path:
    """Write a report's page, whole or not at all."""
    path = Path(path)
    with written_whole(path) as temporary:
        page = PAGE.format(title=escape(printable(title)), body="\n".join(body))
        temporary.write_text(page, encoding="utf-8")
    return path


def reasons(run: Run) -> Counter[str]:
    """Count the balancer's reasons, without their numbers and workers' names."""
    return Counter(kind_of(sentence, run.workers) for sentence in run.why)


def kind_of(sentence: str, workers: Sequence[str]) -> str:
    """Return a reason without its numbers and names, so that similar reasons can be counted together.

    >>> kind_of("Moved 24 samples from g2 (62 % slower than the median) to g3, g1 and g0: the next ...", ["g0", "g1"])
    'Moved samples'
    >>> kind_of("Kept the sizes: the best split would gain at most 1.2 %; a change costs 5 %.", ["g0", "g1"])
    'Kept the sizes: the best split would gain …; a change costs …'
    """
    if sentence.startswith("Moved"):
        return "Moved samples"
    for worker in sorted(workers, key=len, reverse=True):  # a number is left out below anyway
        sentence = re.sub(rf"(?<!\w){re.escape(worker)}(?!\w)", "a worker", sentence)
    return re.sub(r"\d[\d.]*(?: (?:%|ms|us|s)(?!\w))?", "…", sentence.rstrip(".").replace("at most ", ""))


def run_figure(run: Run) -> bytes:
    """Draw iteration times, shares of the batch and waiting, and return the picture as PNG.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    """
    require("matplotlib", needed_by="run_figure", extra="plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 7.5), layout="constrained")
    times, shares, waits = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": [1.3, 1.3, 0.8]})
    _draw_times(times, run)
    _draw_shares(shares, run)
    waits.fill_between(*_pieces(run, 100 * run.waiting_share), color=GREY, alpha=0.6, linewidth=0)
    waits.set_ylabel("waiting, %")
    waits.set_xlabel("iteration")
    for axes in (times, waits):
        axes.set_ylim(bottom=0)
    return png(figure)


def _draw_times(axes: Axes, run: Run) -> None:
    equal, expected = run.of_fleet["equal_seconds"], np.fmax.reduce(run.forecast_seconds, axis=1)
    top = 1.1 * float(np.fmax.reduce([*run.makespan, *equal, 0.0]))
    lines = (
        ("equal batches, an estimate", equal, BLACK, "-", 1.3),
        ("measured", run.makespan, BLUE, "-", 1.3),
        ("forecast", np.where(expected < top, expected, np.nan), "#E69F00", (0, (4, 2)), 1.8),  # the first is far off
    )
    for name, seconds, colour, style, width in lines:  # the forecast last: it lies on what was measured if it is good
        axes.plot(*_pieces(run, 1e3 * seconds), linestyle=style, color=colour, linewidth=width, label=name)
    axes.set_ylabel("time of the slowest\nworker, ms")
    axes.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))


def _draw_shares(axes: Axes, run: Run) -> None:
    """Draw the shares of the few workers whose share changed most in colour, and the others in grey.

    Shares, not samples, because an epoch's last batch is smaller.
    """
    total_T = np.nansum(run.sizes, axis=1, keepdims=True)
    shares_TW = 100 * run.sizes / np.where(total_T > 0, total_T, np.nan)
    spread_W = [_spread(share_T) for share_T in shares_TW.T]
    named = np.argsort(spread_W, kind="stable")[::-1][: len(COLOURS)]
    for w in set(range(len(run.workers))) - set(named.tolist()):
        axes.plot(*_pieces(run, shares_TW[:, w]), color="#CCCCCC", linewidth=0.7)
    for w, colour in zip(sorted(named.tolist()), COLOURS, strict=False):
        axes.plot(*_pieces(run, shares_TW[:, w]), color=colour, linewidth=1.2, label=f" {plain(run.workers[w])}")
    axes.set_ylim(*_ends(shares_TW))
    axes.set_ylabel("share of the batch, %")
    axes.legend(frameon=False, ncols=4, loc="lower right", bbox_to_anchor=(1, 1))


def _ends(shares_TW: Array) -> tuple[float, float]:
    """Return the ends of an axis of shares: it begins at 0 unless all shares lie far above.

    >>> _ends(np.array([[10.0, 90.0]])), _ends(np.array([[3.0, 3.5]]))
    ((0.0, 94.0), (2.975, 3.525))
    """
    known = shares_TW[np.isfinite(shares_TW)]
    if not len(known):
        return 0.0, 100.0
    low, high = float(known.min()), float(known.max())
    margin = 0.05 * (high - low) or 0.05 * high or 1.0
    return (0.0 if low < high / 2 else low - margin), high + margin


def _pieces(run: Run, values_T: Array) -> tuple[Array, Array]:
    """Return where to draw, and means of neighbouring iterations if there are too many for a line."""
    count = min(POINTS, len(run))
    where = np.array([piece.mean() for piece in np.array_split(run.of_fleet["index"], count)])
    return where, np.array([mean(piece) for piece in np.array_split(values_T, count)])


def _overview(run: Run) -> list[tuple[Any, ...]]:
    fleet, saved, waits = run.of_fleet, run.saved, run.waiting()
    lasted = float(fleet["time"][-1] - fleet["time"][0])
    return [
        ("iterations", len(run)),
        ("workers", len(run.workers)),
        ("samples", f"{np.nansum(run.sizes):,.0f}"),
        ("lasted", f"{lasted:,.1f} s"),
        ("iteration, from start to start", _ms(mean(fleet["wall_seconds"]))),
        ("slowest worker's busy time", _ms(mean(run.makespan))),
        ("the same with equal batches, an estimate", _ms(mean(fleet["equal_seconds"]))),
        ("saved against equal batches, an estimate", percent(saved)),
        ("share of the workers' time spent waiting", percent(mean(run.waiting_share))),
        ("the same with equal work, each worker at its own speed: uneven workers", percent(waits.from_workers)),
        ("the same with the actual work, all at one speed: uneven samples", percent(waits.from_work)),
        ("forecast off by, median", percent(_median(np.abs(run.forecast_error)))),
        ("time that balancing took, per iteration", _ms(mean(fleet["overhead_seconds"]))),
        ("changes of sizes", int(run.acted.sum())),
        (
            "speeds or covariates far from what the model was fitted on, the most at a time",
            percent(_most(fleet["drift"])),
        ),
        ("times the workers had different plans", int((~run.agreed).sum())),
        ("lines of the file that could not be read", run.skipped),
        ("iterations that could not be written to the file", run.lost),
    ]


WORKER_COLUMNS = (
    "worker",
    "samples, mean",
    "least",
    "most",
    "time, median",
    "samples/s, median",
    "forecast off by, median",
    "waits",
    "slowest in",
    "no report in",
)


def _workers(run: Run) -> list[tuple[Any, ...]]:
    rows = []
    for w, worker in enumerate(run.workers):
        sizes, seconds = run.sizes[:, w], run.seconds[:, w]
        there = np.isfinite(sizes)
        with np.errstate(divide="ignore", invalid="ignore"):
            speed, waits = sizes / seconds, run.wait_seconds[:, w] / run.makespan
        rows.append(
            (
                worker,
                number(mean(sizes), ".1f"),
                number(float(np.fmin.reduce(sizes)), ".0f"),
                number(float(np.fmax.reduce(sizes)), ".0f"),
                _ms(_median(seconds)),
                number(_median(speed), ",.1f"),
                percent(_median(np.abs(run.forecast_error[:, w]))),
                percent(mean(waits)),
                percent(float(np.mean(run.slowest == w))),
                percent(mean(np.isnan(seconds[there]).astype(np.float64))),
            )
        )
    return rows


def _changes(run: Run) -> list[tuple[Any, ...]]:
    changed = np.flatnonzero(run.acted)[-LISTED:]
    return [(f"{run.of_fleet['index'][t]:.0f}", run.why[t]) for t in changed]


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, text: bool = False) -> str:
    """Return a table of HTML; texts are escaped."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns) if any(columns) else ""
    lines = ["".join(f"<td>{escape(printable(str(cell)))}</td>" for cell in row) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in ([head] if head else []) + lines)
    return f"<table{' class=text' if text else ''}>\n{body}\n</table>"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms" if np.isfinite(seconds) else "not known"


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.1f} %" if np.isfinite(share) else "not known"


def number(value: float, how: str) -> str:
    """Return a number in a format, if it is known."""
    return format(value, how) if np.isfinite(value) else "not known"


def _spread(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(known.std()) if len(known) else 0.0


def mean(values: Array) -> float:
    """Return the mean of the known values; NaN if there is none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _most(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else float("nan")


def _median(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
