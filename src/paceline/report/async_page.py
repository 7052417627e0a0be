"""The page of a recorded asynchronous run. Axes: R rounds, W workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paceline._arrays import Array, mean
from paceline.recording import AsyncRun
from paceline.report.drawing import answer, sentence, shown
from paceline.report.page import ChartLine, Page, lines, named, of_fleet, page, section, table


def async_page(run: AsyncRun, *, digest: str = "", command: str = "") -> Page:
    """Return the page of a run of :func:`paceline.recording.read_async_run`; see :func:`paceline.report.run_page`."""
    stalest = np.argsort(
        [-np.nan_to_num(mean(column)) for column in run.of_workers["staleness"].T], kind="stable"
    ).tolist()
    bound = "none" if run.bound is None else f"{run.bound} versions"
    name = Path(run.name)
    return page(
        "asynchronous run",
        name.stem,
        [_straggles(run), _stale(run, stalest[0]), _wasted(run), _next(run)],
        [_staleness(run, stalest), _sizes(run, stalest), _waste(run), _workers(run, stalest), _happened(run)],
        settings=[("scheme", run.scheme), ("bound on staleness", bound), ("full batch", f"{run.batch} samples")],
        data=[(name.name, f"{len(run)} rounds of {len(run.workers)} workers", digest)],
        command=command,
    )


def _straggles(run: AsyncRun) -> dict[str, Any]:
    shares = {worker: float(np.mean([worker in one for one in run.stragglers])) for worker in run.workers}
    worst = max(shares, key=shares.__getitem__)
    if not shares[worst]:
        return answer("Who is slow?", "Nobody", sentence("No worker was a straggler in any round."))
    first = next(r for r, names in enumerate(run.stragglers) if worst in names)
    since = {"since": (float(run.seconds[first]), "seconds")} if first else {}
    detail = sentence(
        "It was a straggler in {share} of the rounds, "
        + ("for the first time after {since}." if first else "from the first one on."),
        share=(shares[worst], "percent"),
        **since,
    )
    return answer("Who is slow?", named(worst), detail)


def _stale(run: AsyncRun, stalest: int) -> dict[str, Any]:
    seen = mean(run.of_workers["staleness"])
    detail = sentence(
        "versions stale in the mean, {most} at most; {worker} is stalest with {its}.",
        most=(float(run.of_fleet["largest"][-1]), "count"),
        worker=(named(run.workers[stalest]), "text"),
        its=(mean(run.of_workers["staleness"][:, stalest]), "number"),
        mean=(seen, "number"),
    )
    return answer("How stale are its gradients?", shown(seen, "number"), detail)


def _wasted(run: AsyncRun) -> dict[str, Any]:
    share, last = float(run.wasted_share[-1]), {name: float(values[-1]) for name, values in run.of_fleet.items()}
    detail = sentence(
        "of the samples were for nothing: {dropped} dropped beyond the bound, {abandoned} given up, {refused} refused.",
        dropped=(last["dropped"], "count"),
        abandoned=(last["abandoned"], "count"),
        refused=(last["refused"], "count"),
        share=(share, "percent"),
    )
    return answer("What was wasted?", shown(share, "percent"), detail)


def _next(run: AsyncRun) -> dict[str, Any]:
    share = float(run.wasted_share[-1])
    fact = {"share": (share, "percent")}
    if share > 0.05:
        text = (
            "{share} of the samples wasted is much: compare with AsyncJob(..., scheme='saps'), which limits staleness."
        )
        return answer("What next?", "Try another scheme", sentence(text, **fact))
    return answer("What next?", "Nothing", sentence("{share} of the samples wasted is little.", **fact))


def _staleness(run: AsyncRun, stalest: list[int]) -> dict[str, Any]:
    w = stalest[0]
    chart_lines, bands = of_fleet(_held(run.of_workers["staleness"]), run.workers, stalest)
    charts = [
        _over_time(
            run,
            "Staleness",
            "Versions that the model moved between a worker's last pull and its push.",
            chart_lines,
            "versions",
            bands,
        ),
        _over_time(
            run,
            f"Forecast and actual staleness of {named(run.workers[w])}",
            "The stalest worker.",
            [
                ChartLine("actual", _held(run.of_workers["staleness"])[:, w], 5),
                ChartLine("forecast", run.of_workers["expected"][:, w], 1),
            ],
            "versions",
        ),
    ]
    last = {name: float(values[-1]) for name, values in run.of_fleet.items()}
    rows = [
        ("staleness forecast, mean", shown(last["forecast"], "number")),
        ("staleness seen, mean", shown(last["actual"], "number")),
        ("pushes within the limit of the forecast", shown(last["covered"], "percent")),
    ]
    return section("Staleness", "", *charts, table("Calibration", (("quantity", "text"), ("value", "text")), rows))


def _sizes(run: AsyncRun, stalest: list[int]) -> dict[str, Any]:
    chart_lines, bands = of_fleet(run.of_workers["sizes"], run.workers, stalest)
    return section("Sizes", "", _over_time(run, "Samples of a step", "", chart_lines, "samples", bands))


def _waste(run: AsyncRun) -> dict[str, Any]:
    last = {name: float(values[-1]) for name, values in run.of_fleet.items()}
    rows = (
        ("lasted", shown(float(run.seconds[-1]), "seconds")),
        ("samples applied", shown(last["applied"], "count")),
        ("samples applied a second", shown(run.samples_per_second, "number")),
        ("versions", shown(last["version"], "count")),
        ("lines of the file that could not be read", shown(run.skipped, "count")),
        ("rounds that could not be written to the file", shown(run.lost, "count")),
    )
    wasted = [ChartLine("wasted so far", 100 * run.wasted_share, 1)]
    chart = _over_time(run, "Wasted", "Share of the samples computed so far.", wasted, "%")
    return section(
        "What was applied, and what was wasted",
        "",
        chart,
        table("In figures", (("quantity", "text"), ("value", "text")), rows),
    )


def _workers(run: AsyncRun, stalest: list[int]) -> dict[str, Any]:
    rows = []
    for w in stalest:
        of = {name: values[:, w] for name, values in run.of_workers.items()}
        done, wasted, waited = (float(np.nanmax(of[name])) for name in ("done", "wasted", "waited"))
        straggler = float(np.mean([run.workers[w] in one for one in run.stragglers]))
        means = (mean(of[name]) for name in ("sizes", "staleness", "expected"))
        rows.append((run.workers[w], done, wasted, wasted / max(done + wasted, 1.0), *means, straggler, waited))
    return section(
        "Workers",
        "The stalest first.",
        table(
            "All workers",
            (
                ("worker", "text"),
                ("samples applied", "count"),
                ("wasted", "count"),
                ("wasted share", "percent"),
                ("samples of a step, mean", "number"),
                ("staleness, mean", "number"),
                ("expected, mean", "number"),
                ("straggler in", "percent"),
                ("waited", "seconds"),
            ),
            rows,
        ),
    )


def _happened(run: AsyncRun) -> dict[str, Any]:
    happened = [r for r in range(len(run)) if run.acted[r]][-20:]
    rows = [(f"{run.of_fleet['index'][r]:.0f}", run.why[r]) for r in happened]
    return section(
        "What happened, and why", "", table("The last rounds", (("round", "text"), ("reason", "text")), rows)
    )


def _held(values_RW: Array) -> Array:
    """Return each worker's last known value, round by round: of a round without its push nothing is known.

    >>> _held(np.array([[np.nan], [2.0], [np.nan]]))[:, 0]
    array([nan,  2.,  2.])
    """
    last_RW = np.where(np.isfinite(values_RW), np.arange(len(values_RW))[:, None], 0)
    return np.asarray(np.take_along_axis(values_RW, np.maximum.accumulate(last_RW, axis=0), axis=0))


def _over_time(
    run: AsyncRun, title: str, about: str, chart_lines: list[ChartLine], unit: str, bands: Any = ()
) -> dict[str, Any]:
    return lines(title, about, run.seconds, chart_lines, x="seconds", unit=unit, bands=bands)
