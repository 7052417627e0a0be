"""The page of a recorded run. Axes: T iterations, W workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from paceline._arrays import Array, mean, median
from paceline.recording import Run
from paceline.report.blocks import ChartBand, ChartLine, gantt, lines, named, of_fleet, section, table
from paceline.report.forecast_errors import by_regime, held, moved, past_band
from paceline.report.page import Page, page
from paceline.report.reason_counts import reasons
from paceline.report.run_verdict import run_verdict, speed_of
from paceline.report.shown import shown
from paceline.report.slow import slow_workers

WINDOW = 8
"""Iterations of a Gantt chart."""

WITH_A_ROW = 12
"""Most workers with a row of their own in a Gantt chart."""

LISTED = 20
"""Number of last changes that are listed."""

WITHIN = (0.02, 0.05, 0.1, 0.2, 0.5)
"""Relative errors whose frequency is told."""


def run_page(run: Run, *, digest: str = "", command: str = "") -> Page:
    """Return the page of a run: verdict, who waited, times, forecasts, workers, and the balancer's reasons.

    Parameters
    ----------
    run
        A run read with :func:`paceline.recording.read_run`.
    digest
        SHA-256 of its file.
    command
        The command that makes the page again.
    """
    first = _first(run)
    name = Path(run.name)
    holds = f"{len(run)} iterations of {len(run.workers)} workers"
    return page(
        "run",
        name.stem,
        run_verdict(run),
        [
            _waits(run, first),
            _times(run),
            _forecasts(run, first[0]),
            _shares(run, first),
            _workers(run, first),
            _reasons(run),
        ],
        settings=_settings(run),
        data=[(name.name, holds, digest)],
        command=command,
    )


def _first(run: Run) -> list[int]:
    """Return all workers, those first that were slow, then those that the others waited for most."""
    slow = [one.worker for one in slow_workers(speed_of(run))]
    waited_for_W = np.bincount(run.slowest[run.slowest >= 0], minlength=len(run.workers))
    order = np.argsort(-waited_for_W, kind="stable").tolist()
    return list(dict.fromkeys([*slow, *order]))


# -- who waited --------------------------------------------------------------------------------------------------


def _waits(run: Run, first: list[int]) -> dict[str, Any]:
    windows = list(_windows(run))
    until = max(float(np.nansum(np.fmax.reduce(run.seconds[rows], axis=1))) for _, _, rows in windows)
    charts = [
        gantt(title, about, run.workers, run.seconds[rows], first=first[:WITH_A_ROW], until=until or None)
        for title, about, rows in windows
    ]
    about = (
        "Each row is a worker, slow ones first. It computes, then waits for the slowest one; communication is left out."
    )
    share = 100 * run.waiting_share
    waited = lines(
        "Waiting over the run",
        "Share of the workers' time, up to the slowest one's end, that was spent waiting.",
        run.of_fleet["index"],
        [ChartLine("waiting", share, 1)],
        x="iteration",
        unit="%",
    )
    return section("Who waited, and when", about, *charts, waited)


def _windows(run: Run) -> Iterator[tuple[str, str, slice]]:
    """Yield the iterations before and after the change of sizes that was expected to gain most."""
    gain_T = np.where(run.acted, np.nan_to_num(run.of_fleet["gain"]), -1.0)
    t = int(np.argmax(gain_T))
    if not run.acted.any() or t + 1 >= len(run):
        t = _most_waiting(run)
        shown = slice(max(t - WINDOW + 1, 0), t + 1)
        yield "The iterations that waited most", _which(run, shown) + " Sizes were not changed.", shown
        return
    before, after = slice(max(t - WINDOW + 1, 0), t + 1), slice(t + 1, t + 1 + WINDOW)
    yield "Before", _which(run, before) + " Then came the change of sizes that was expected to gain most.", before
    yield "After", _which(run, after) + " The time axis is the same.", after


def _which(run: Run, rows: slice) -> str:
    index = run.of_fleet["index"][rows]
    return f"Iterations {index[0]:.0f} to {index[-1]:.0f}."


def _most_waiting(run: Run) -> int:
    """Return the last of the iterations in a row that waited most."""
    waits_T = np.nan_to_num(run.waiting_share)
    sums_T = np.convolve(waits_T, np.ones(WINDOW))[: len(waits_T)]
    return int(np.argmax(sums_T))


# -- times and forecasts -----------------------------------------------------------------------------------------


def _times(run: Run) -> dict[str, Any]:
    equal, expected = run.of_fleet["equal_seconds"], np.fmax.reduce(run.forecast_seconds, axis=1)
    top = 1.1 * float(np.fmax.reduce([*run.makespan, *equal, 0.0]))
    chart = lines(
        "Time of the slowest worker",
        "Balancing gains where the measured line runs below that of equal batches, which is an estimate.",
        run.of_fleet["index"],
        [
            ChartLine("equal batches, an estimate", 1e3 * equal, 5),
            ChartLine("forecast", 1e3 * np.where(expected < top, expected, np.nan), 1),  # the first is far off
            ChartLine("measured", 1e3 * run.makespan, 0),
        ],
        x="iteration",
        unit="ms",
    )
    return section(
        "Iteration times", "", chart, table("In figures", (("quantity", "text"), ("value", "text")), _figures(run))
    )


def _figures(run: Run) -> list[tuple[str, Any]]:
    fleet, waits = run.of_fleet, run.waiting()
    rows = (
        ("iterations", len(run), "count"),
        ("samples", float(np.nansum(run.sizes)), "count"),
        ("lasted", float(fleet["time"][-1] - fleet["time"][0]), "seconds"),
        ("iteration, from start to start", mean(fleet["wall_seconds"]), "seconds"),
        ("slowest worker's busy time", mean(run.makespan), "seconds"),
        ("the same with equal batches, an estimate", mean(fleet["equal_seconds"]), "seconds"),
        ("waiting with equal work, each worker at its own speed: uneven workers", waits.from_workers, "percent"),
        ("waiting with the actual work, all at one speed: uneven samples", waits.from_work, "percent"),
        ("time that balancing took, per iteration", mean(fleet["overhead_seconds"]), "seconds"),
        ("changes of sizes", int(run.acted.sum()), "count"),
        (
            "speeds or covariates far from what the model was fitted on, the most at a time",
            _most(fleet["drift"]),
            "percent",
        ),
        ("times the workers had different plans", int((~run.agreed).sum()), "count"),
        ("lines of the file that could not be read", run.skipped, "count"),
        ("iterations that could not be written to the file", run.lost, "count"),
    )
    return [(name, shown(value, how)) for name, value, how in rows if not np.isnan(value)]


def _forecasts(run: Run, w: int) -> dict[str, Any]:
    forecast, actual = 1e3 * run.forecast_seconds[:, w], 1e3 * run.seconds[:, w]
    low, high = past_band(forecast, actual)
    top = 1.1 * float(np.fmax.reduce([*actual, 0.0]))
    chart = lines(
        f"Forecast and actual time of {named(run.workers[w])}",
        "The band is where nine tenths of its last 100 errors would put the actual time.",
        run.of_fleet["index"],
        [ChartLine("actual", actual, 5), ChartLine("forecast", np.where(forecast < top, forecast, np.nan), 1)],
        x="iteration",
        unit="ms",
        bands=[
            ChartBand(
                "90 % of the last errors", np.where(high < 1.5 * top, low, np.nan), np.minimum(high, 1.5 * top), 1
            )
        ],
    )
    error_TW = run.forecast_error
    known = np.abs(error_TW[np.isfinite(error_TW)])
    rows = [
        (f"off by {shown(limit, 'percent')} at most", float((known <= limit).mean()) if len(known) else None)
        for limit in WITHIN
    ]
    rows.append((f"inside the band, of {named(run.workers[w])}", held(low, actual, high)))
    calibration = table("Calibration", (("forecasts", "text"), ("share", "percent")), rows)
    about = "Forecasts were made before their iteration. The band should hold nine times in ten."
    return section("Forecasts", about, chart, by_regime(moved(speed_of(run)), {"forecast": error_TW}), calibration)


# -- workers and reasons -----------------------------------------------------------------------------------------


def _shares(run: Run, first: list[int]) -> dict[str, Any]:
    total_T = np.nansum(run.sizes, axis=1, keepdims=True)
    drawn, bands = of_fleet(100 * run.sizes / np.where(total_T > 0, total_T, np.nan), run.workers, first)
    chart = lines(
        "Share of the batch",
        "Shares, not samples: an epoch's last batch is smaller.",
        run.of_fleet["index"],
        drawn[::-1],
        x="iteration",
        unit="%",
        bands=bands,
    )
    return section("Sizes", "A slow worker gets less, so that all end together.", chart)


WORKER_COLUMNS = (
    ("worker", "text"),
    ("samples, mean", "number"),
    ("time, median", "seconds"),
    ("samples/s, median", "number"),
    ("forecast off by, median", "percent"),
    ("waits", "percent"),
    ("slowest in", "percent"),
    ("no report in", "percent"),
)


def _workers(run: Run, first: list[int]) -> dict[str, Any]:
    with np.errstate(divide="ignore", invalid="ignore"):
        speed_TW, waits_TW = run.sizes / run.seconds, run.wait_seconds / run.makespan[:, None]
    missing_TW = np.where(np.isfinite(run.sizes), np.isnan(run.seconds), np.nan)
    rows = [
        (
            run.workers[w],
            mean(run.sizes[:, w]),
            median(run.seconds[:, w]),
            median(speed_TW[:, w]),
            median(np.abs(run.forecast_error[:, w])),
            mean(waits_TW[:, w]),
            float(np.mean(run.slowest == w)),
            mean(missing_TW[:, w]),
        )
        for w in first
    ]
    return section(
        "Workers",
        "Slow ones first, then those that the others waited for most.",
        table("All workers", WORKER_COLUMNS, rows),
    )


def _reasons(run: Run) -> dict[str, Any]:
    counts = table(
        "How often", (("reason", "text"), ("iterations", "count")), reasons(run.why, run.workers).most_common()
    )
    acted = np.flatnonzero(run.acted)[-LISTED:]
    rows = [(f"{run.of_fleet['index'][t]:.0f}", run.why[t]) for t in acted]
    changes = table("The last changes of sizes", (("iteration", "text"), ("reason", "text")), rows)
    return section("What the balancer did, and why", "", counts, changes)


def _settings(run: Run) -> list[tuple[str, str]]:
    planned = np.nansum(run.of_workers["planned"], axis=1)
    return [("workers", f"{len(run.workers)}"), ("global batch", f"{planned[-1]:.0f}")]


def _most(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else float("nan")
