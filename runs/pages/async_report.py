"""A report of a finished asynchronous run on one page: a figure, tables, and what happened.

Axes: R rounds, W workers.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline._figures import GREY, plain, png
from paceline._require import require
from paceline.runs.pages.run_report import COLOURS, LISTED, mean, number, percent, table, write_page

if TYPE_CHECKING:
    from paceline.runs import AsyncRun

WORKER_COLUMNS = (
    "worker",
    "samples applied",
    "wasted",
    "wasted share",
    "samples of a step, mean",
    "staleness, mean",
    "expected, mean",
    "straggler in",
    "waited, s",
)


def async_report(run: AsyncRun, path: str | Path) -> Path:
    """Write the report of a run read with :func:`paceline.runs.read_async_run`, as ``run_report`` does.

    It takes, returns and raises the same as :func:`paceline.runs.pages.run_report.run_report`.
    """
    picture = base64.b64encode(async_figure(run)).decode()
    happened = [r for r in range(len(run)) if run.acted[r]][-LISTED:]
    body = [
        table(("", ""), _overview(run)),
        f'<img alt="staleness, sizes and waste over the run" src="data:image/png;base64,{picture}">',
        "<h2>Workers</h2>",
        table(WORKER_COLUMNS, _workers(run)),
        f"<h2>What happened, and why: the last {LISTED} rounds at most</h2>",
        table(("round", "reason"), [(f"{run.of_fleet['index'][r]:.0f}", run.why[r]) for r in happened], text=True),
    ]
    return write_page(path, f"Run {Path(run.name).stem}", body)


def async_figure(run: AsyncRun) -> bytes:
    """Draw staleness, sizes and what was wasted over the run; return the picture as ``run_figure`` does."""
    require("matplotlib", needed_by="async_figure", extra="plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 7.5), layout="constrained")
    stale, sizes, wasted = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": [1.3, 1.3, 0.8]})
    # The few workers that were stalest in colour, and the others in grey.
    stalest = np.argsort([-mean(column) for column in run.of_workers["staleness"].T], kind="stable")[: len(COLOURS)]
    colours = dict(zip(sorted(stalest.tolist()), COLOURS, strict=False))
    for w, worker in enumerate(run.workers):
        look = {"color": colours.get(w, "#CCCCCC"), "linewidth": 1.2 if w in colours else 0.7}
        stale.plot(
            run.seconds, run.of_workers["staleness"][:, w], **look, label=f" {plain(worker)}" if w in colours else None
        )
        stale.plot(run.seconds, run.of_workers["expected"][:, w], **{**look, "linestyle": ":"})
        sizes.plot(run.seconds, run.of_workers["sizes"][:, w], **look)
    stale.set_ylabel("staleness, versions\n(dotted: forecast)")
    stale.legend(frameon=False, ncols=4, loc="lower right", bbox_to_anchor=(1, 1))
    sizes.set_ylabel("samples of a step")
    wasted.fill_between(run.seconds, 100 * run.wasted_share, color=GREY, alpha=0.6, linewidth=0)
    wasted.set_ylabel("wasted, %")
    wasted.set_xlabel("seconds")
    for axes in figure.axes:
        axes.set_ylim(bottom=0)
    return png(figure)


def _overview(run: AsyncRun) -> list[tuple[Any, ...]]:
    last = {name: float(values[-1]) for name, values in run.of_fleet.items()}
    return [
        ("scheme", run.scheme),
        ("bound on staleness", "none" if run.bound is None else f"{run.bound} versions"),
        ("workers", len(run.workers)),
        ("lasted", f"{run.seconds[-1]:,.1f} s"),
        ("samples applied", f"{last['applied']:,.0f}"),
        ("samples applied a second", number(run.samples_per_second, ",.1f")),
        ("versions", f"{last['version']:,.0f}"),
        ("largest staleness applied", f"{last['largest']:,.0f}"),
        ("staleness forecast, mean", number(last["forecast"], ".2f")),
        ("staleness seen, mean", number(last["actual"], ".2f")),
        ("pushes within the limit of the forecast", percent(last["covered"])),
        ("samples wasted, all drawn again", percent(run.wasted_share[-1])),
        ("of them dropped beyond the bound", f"{last['dropped']:,.0f}"),
        ("of them given up", f"{last['abandoned']:,.0f}"),
        ("of them refused", f"{last['refused']:,.0f}"),
        ("lines of the file that could not be read", run.skipped),
        ("rounds that could not be written to the file", run.lost),
    ]


def _workers(run: AsyncRun) -> list[tuple[Any, ...]]:
    rows = []
    for w, worker in enumerate(run.workers):
        of = {name: values[:, w] for name, values in run.of_workers.items()}
        done, wasted, waited = (float(np.nanmax(of[name])) for name in ("done", "wasted", "waited"))
        rows.append(
            (
                worker,
                f"{done:,.0f}",
                f"{wasted:,.0f}",
                percent(wasted / max(done + wasted, 1.0)),
                number(mean(of["sizes"]), ".1f"),
                number(mean(of["staleness"]), ".2f"),
                number(mean(of["expected"]), ".2f"),
                percent(float(np.mean([worker in one for one in run.stragglers]))),
                f"{waited:,.2f}",
            )
        )
    return rows
