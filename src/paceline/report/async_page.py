"""The page of a recorded asynchronous run. Axes: R rounds, W workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paceline._arrays import Array, finite_mean
from paceline.recording import AsyncRun
from paceline.report.drawing import answer, sentence, shown
from paceline.report.page import ChartLine, Page, figures, lines, named, of_fleet, page, section, table


def async_page(run: AsyncRun, *, digest: str = "", command: str = "") -> Page:
    """Return the page of a run of :func:`paceline.recording.read_async_run`; see :func:`paceline.report.run_page`."""
    staleness = [-np.nan_to_num(finite_mean(column)) for column in run.of_workers["staleness"].T]
    stalest = np.argsort(staleness, kind="stable").tolist()
    last = {name: float(values[-1]) for name, values in run.of_fleet.items()}
    bound = "none" if run.bound is None else f"{run.bound} versions"
    name = Path(run.name)
    return page(
        "asynchronous run",
        name.stem,
        _verdict(run, stalest[0], last),
        [*_charts(run, stalest, last), _workers(run, stalest), _events(run)],
        settings=[("scheme", run.scheme), ("bound on staleness", bound), ("full batch", f"{run.batch} samples")],
        data=[(name.name, f"{len(run)} rounds of {len(run.workers)} workers", digest)],
        command=command,
    )


def _verdict(run: AsyncRun, stalest: int, last: dict[str, float]) -> list[dict[str, Any]]:
    shares = {worker: float(np.mean([worker in one for one in run.stragglers])) for worker in run.workers}
    worst = max(shares, key=shares.__getitem__)
    slow = answer("Who is slow?", "Nobody", sentence("No worker was a straggler in any round."))
    if shares[worst]:
        first = next(r for r, names in enumerate(run.stragglers) if worst in names)
        since = {"since": (float(run.seconds[first]), "seconds")} if first else {}
        text = "It was a straggler in {share} of the rounds, "
        text += "for the first time after {since}." if first else "from the first one on."
        slow = answer("Who is slow?", named(worst), sentence(text, share=(shares[worst], "percent"), **since))
    seen, wasted = finite_mean(run.of_workers["staleness"]), last["wasted_share"]
    stale = sentence(
        "versions stale in the mean, {most} at most; {worker} is stalest with {its}.",
        most=(last["largest"], "count"),
        worker=(named(run.workers[stalest]), "text"),
        its=(finite_mean(run.of_workers["staleness"][:, stalest]), "number"),
        mean=(seen, "number"),
    )
    lost = sentence(
        "of the samples were for nothing: {dropped} dropped beyond the bound, {abandoned} given up, {refused} refused.",
        **{name: (last[name], "count") for name in ("dropped", "abandoned", "refused")},
        share=(wasted, "percent"),
    )
    advice, text = "Nothing", "{share} of the samples wasted is little."
    if wasted > 0.05:
        advice = "Try another scheme"
        text = "{share} of the samples wasted is much: compare with AsyncJob(..., scheme='saps'), "
        text += "which limits staleness."
    return [
        slow,
        answer("How stale are its gradients?", shown(seen, "number"), stale),
        answer("What was wasted?", shown(wasted, "percent"), lost),
        answer("What next?", advice, sentence(text, share=(wasted, "percent"))),
    ]


def _charts(run: AsyncRun, stalest: list[int], last: dict[str, float]) -> list[dict[str, Any]]:
    chart, w = partial(lines, along=run.seconds, x="seconds"), stalest[0]
    held_RW = _hold_last(run.of_workers["staleness"])
    staleness, staleness_bands = of_fleet(held_RW, run.workers, stalest)
    sizes, sizes_bands = of_fleet(run.of_workers["sizes"], run.workers, stalest)
    about = "Versions that the model moved between a worker's last pull and its push."
    both = [ChartLine("actual", held_RW[:, w], 5), ChartLine("forecast", run.of_workers["expected"][:, w], 1)]
    title = f"Forecast and actual staleness of {named(run.workers[w])}"
    calibration = [
        ("staleness forecast, mean", shown(last["forecast"], "number")),
        ("staleness seen, mean", shown(last["actual"], "number")),
        ("pushes within the limit of the forecast", shown(last["covered"], "percent")),
    ]
    wasted = [ChartLine("wasted so far", 100 * run.wasted_share, 1)]
    facts = [
        ("lasted", shown(float(run.seconds[-1]), "seconds")),
        ("samples applied", shown(last["applied"], "count")),
        ("samples applied a second", shown(run.samples_per_second, "number")),
        ("versions", shown(last["version"], "count")),
        ("lines of the file that could not be read", shown(run.skipped, "count")),
        ("rounds that could not be written to the file", shown(run.lost, "count")),
    ]
    return [
        section(
            "Staleness",
            "",
            chart("Staleness", about, chart_lines=staleness, unit="versions", bands=staleness_bands),
            chart(title, "The stalest worker.", chart_lines=both, unit="versions"),
            figures(calibration, "Calibration"),
        ),
        section("Sizes", "", chart("Samples of a step", "", chart_lines=sizes, unit="samples", bands=sizes_bands)),
        section(
            "What was applied, and what was wasted",
            "",
            chart("Wasted", "Share of the samples computed so far.", chart_lines=wasted, unit="%"),
            figures(facts),
        ),
    ]


def _workers(run: AsyncRun, stalest: list[int]) -> dict[str, Any]:
    columns = [("worker", "text"), ("samples applied", "count"), ("wasted", "count"), ("wasted share", "percent")]
    columns += [("samples of a step, mean", "number"), ("staleness, mean", "number"), ("expected, mean", "number")]
    columns += [("straggler in", "percent"), ("waited", "seconds")]
    rows = []
    for w in stalest:
        of = {name: values[:, w] for name, values in run.of_workers.items()}
        done, wasted, waited = (float(np.nanmax(of[name])) for name in ("done", "wasted", "waited"))
        straggler = float(np.mean([run.workers[w] in one for one in run.stragglers]))
        means = (finite_mean(of[name]) for name in ("sizes", "staleness", "expected"))
        rows.append((run.workers[w], done, wasted, wasted / max(done + wasted, 1.0), *means, straggler, waited))
    return section("Workers", "The stalest first.", table("All workers", columns, rows))


def _events(run: AsyncRun) -> dict[str, Any]:
    happened = [r for r in range(len(run)) if run.acted[r]][-20:]
    rows = [(f"{run.of_fleet['index'][r]:.0f}", run.why[r]) for r in happened]
    reasons = table("The last rounds", (("round", "text"), ("reason", "text")), rows)
    return section("What happened, and why", "", reasons)


def _hold_last(values_RW: Array) -> Array:
    """Return each worker's last known value, round by round: of a round without its push nothing is known."""
    last_RW = np.where(np.isfinite(values_RW), np.arange(len(values_RW))[:, None], 0)
    return np.asarray(np.take_along_axis(values_RW, np.maximum.accumulate(last_RW, axis=0), axis=0))
