"""The verdict on a run: who is slow, what waiting costs, what balancing saved, and the next step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline._arrays import Array, mean, median
from paceline.recording import Run
from paceline.report.blocks import named
from paceline.report.shown import answer, say, shown
from paceline.report.slow import who_is_slow

LITTLE = 0.05
"""Waiting below this share is not worth a further step."""

FAR_OFF = 0.2
"""Forecasts that are off by more than this share in the median want another predictor."""

DRIFTED = 0.05
"""Share of speeds or covariates far from what the model was fitted on above which it should be fitted again."""

RECENT = 100
"""Last iterations on which the next step rests."""


def run_verdict(run: Run) -> list[dict[str, Any]]:
    """Return the answers to what readers ask first."""
    return [who_is_slow(speed_of(run), run.workers, run.of_fleet["index"]), _cost(run), _saved(run), _next(run)]


def speed_of(run: Run) -> Array:
    """Return each worker's speed, ``[T, W]``: of the work where samples have costs, otherwise of the samples."""
    with np.errstate(divide="ignore", invalid="ignore"):
        speed_TW = (run.sizes if run.work is None else run.work) / run.seconds
    return np.where(np.isfinite(speed_TW), speed_TW, np.nan)


def _cost(run: Run) -> dict[str, Any]:
    share, waited = run.waiting().share, float(np.nansum(run.wait_seconds))
    if np.isnan(share):
        return answer(
            "What does waiting cost?", "Not known", say("No two workers reported a time in the same iteration.")
        )
    said = say(
        "of the workers' time was spent waiting for the slowest one: {waited}, summed over {workers} workers.",
        share=(share, "percent"),
        waited=(waited, "seconds"),
        workers=(len(run.workers), "count"),
    )
    return answer("What does waiting cost?", shown(share, "percent"), said)


def _saved(run: Run) -> dict[str, Any]:
    equal, asks = run.of_fleet["equal_seconds"], "What did balancing save?"
    if np.isnan(run.saved):
        return answer(asks, "Not known", say("The file holds no estimate of equal batches' time."))
    known = np.isfinite(equal) & np.isfinite(run.makespan)
    seconds = float((equal - run.makespan)[known].sum())
    changes = int(run.acted.sum())
    facts = {"saved": (run.saved, "percent"), "changes": (changes, "count")}
    if run.saved >= 0:
        said = say(
            "of the computing time against equal batches, an estimate: {seconds}, by {changes} "
            f"{'change' if changes == 1 else 'changes'} of sizes.",
            seconds=(seconds, "seconds"),
            **facts,
        )
    else:
        said = say(
            "It was slower than equal batches, by an estimated {seconds}.", seconds=(-seconds, "seconds"), **facts
        )
    return answer(asks, shown(run.saved, "percent"), said)


def _next(run: Run) -> dict[str, Any]:
    headline, said = next(advice for step in STEPS if (advice := step(run)) is not None)
    return answer("What next?", headline, said)


Advice = tuple[str, dict[str, Any]]


def _look_for_the_silent(run: Run) -> Advice | None:
    silent_W = run.silent_workers
    if not silent_W.any():
        return None
    w = int(np.argmax(silent_W))
    said = say(
        "{worker} sent no report in its last {count} iterations.",
        worker=(named(run.workers[w]), "text"),
        count=(int(silent_W[w]), "count"),
    )
    return "Look for the silent", said


def _fit_again(run: Run) -> Advice | None:
    drift = mean(run.of_fleet["drift"][-RECENT:])
    if not drift > DRIFTED:
        return None
    text = (
        "{drift} of the latest speeds or covariates are far from what the model was fitted on: paceline models check."
    )
    return "Fit again", say(text, drift=(drift, "percent"))


def _leave_it(run: Run) -> Advice | None:
    share = run.waiting(RECENT).share
    if np.isnan(share):
        return "Nothing", say("Nobody waits where fewer than two workers report.")
    if share > LITTLE:
        return None
    return "Nothing", say("Workers waited {recent} of their time of late.", recent=(share, "percent"))


def _say_what_samples_cost(run: Run) -> Advice | None:
    waits = run.waiting(RECENT)
    if not waits.known or not waits.from_work > waits.from_workers:
        return None
    text = "{work} of the time would be waited even if all had one speed: divide samples by what they cost (Costs)."
    return "Even out the samples", say(text, work=(waits.from_work, "percent"))


def _forecast_better(run: Run) -> Advice | None:
    off = median(np.abs(run.forecast_error[-RECENT:]))
    if not off > FAR_OFF:
        return None
    text = "Forecasts are off by {off} in the median: compare predictors with paceline evaluate on this run's trace."
    return "Forecast better", say(text, off=(off, "percent"))


def _replay(run: Run) -> Advice:
    share = run.waiting(RECENT).share
    text = (
        "Workers still waited {recent} of their time of late: paceline replay says what forecasts could reach at best."
    )
    return "Replay it", say(text, recent=(share, "percent"))


STEPS: Sequence[Callable[[Run], Advice | None]] = (
    _look_for_the_silent,
    _fit_again,
    _leave_it,
    _say_what_samples_cost,
    _forecast_better,
    _replay,
)
"""The first of these that has something to say is the next step."""
