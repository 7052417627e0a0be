"""The page of a recorded run. Axes: T iterations, W workers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, finite_mean, finite_median
from paceline._text import count, join_names
from paceline.recording import Run
from paceline.report.drawing import answer, as_text
from paceline.report.page import (
    ChartLine,
    Page,
    gantt_block,
    lines_block,
    page,
    quantity_table,
    section,
    table,
    worker_label,
)


@dataclass(frozen=True)
class SlowPeriod:
    """The longest time for which a worker, a column, was slow; iterations are positions in the job."""

    worker: int
    first_iteration: int
    last_iteration: int
    speed: float  # its median speed meanwhile, over the usual one
    is_ongoing: bool  # it was still slow at the end

    @property
    def lost_iterations(self) -> float:
        """Iterations of the whole fleet that its missing speed would make, were all as slow."""
        return (self.last_iteration - self.first_iteration + 1) * (1.0 - self.speed)


def slow_workers(speed_TW: Array) -> list[SlowPeriod]:
    """Return the workers that were slow for a while, the one that lost most first.

    The usual speed is the fleet's median of the iteration; of two workers it is the other's.

    Examples
    --------
    >>> speed_TW = np.full((100, 4), 50.0)
    >>> speed_TW[60:, 2] = 20.0
    >>> [(one.worker, one.first_iteration, one.last_iteration, one.speed) for one in slow_workers(speed_TW)]
    [(2, 60, 99, 0.4)]
    """
    import pandas as pd

    pieces = min(400, len(speed_TW))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # nobody may have reported
        two = speed_TW.shape[1] == 2
        relative_TW = speed_TW / (speed_TW[:, ::-1] if two else np.nanmedian(speed_TW, axis=1, keepdims=True))
    piece_T = np.arange(len(speed_TW)) * pieces // len(speed_TW)
    # more than half of 9 iterations must be slow: fewer are a stray value
    window = -(-9 * pieces // len(speed_TW)) | 1
    medians_PW = pd.DataFrame(relative_TW).groupby(piece_T).median()
    relative_PW = medians_PW.rolling(window, center=True, min_periods=1).median().to_numpy()
    starts = [*np.searchsorted(piece_T, np.arange(pieces)).tolist(), len(speed_TW)]
    found = [_worst_slow_period(w, relative_P, starts) for w, relative_P in enumerate(relative_PW.T)]
    return sorted((one for one in found if one is not None), key=lambda one: -one.lost_iterations)


def who_is_slow(speed_TW: Array, workers: Sequence[str], index_T: Sequence[int] | NDArray[Any]) -> dict[str, Any]:
    """Return the verdict on who is slow, and since which iteration."""
    found, asks = slow_workers(speed_TW), "Who is slow?"
    if len(workers) < 2:
        return answer(asks, "One worker", "There is nobody to compare it with.")
    if not np.isfinite(speed_TW).any():
        return answer(asks, "Not known", "No worker reported a time.")
    if not found:
        return answer(asks, "Nobody", f"No worker stayed more than {as_text(0.1, 'percent')} below the usual speed.")
    worst, other = found[0], "the other" if len(workers) == 2 else "the median"
    slower = as_text(1 - worst.speed, "percent")
    first, last = (as_text(float(index_T[t]), "count") for t in (worst.first_iteration, worst.last_iteration))
    if worst.is_ongoing:
        since = f"since iteration {first}" if worst.first_iteration else "ever since the first iteration"
        detail = f"It has been {slower} slower than {other} {since}."
    else:
        detail = f"It was {slower} slower than {other} from iteration {first} to {last}."
    if 2 * len(found) > len(workers) > 2 and not worst.is_ongoing:
        turns = f"{len(found)} of {len(workers)} workers were slow at times."
        longest = f"The longest time was that of {worker_label(workers[worst.worker])}:"
        return answer(asks, "It moves", turns, longest, detail.replace("It was", "it was"))
    if len(found) == 1:
        return answer(asks, worker_label(workers[worst.worker]), detail)
    names = join_names([worker_label(workers[one.worker]) for one in found[1:]], limit=2)
    too = f"{names} {'was' if len(found) == 2 else 'were'} slow for a while too."
    return answer(asks, worker_label(workers[worst.worker]), detail, too)


def _worst_slow_period(worker: int, relative_speed_P: Array, piece_starts: Sequence[int]) -> SlowPeriod | None:
    """Return the episode of a worker in which it lost most; None if it was never slow."""
    slow_P = relative_speed_P < 0.9
    edges: NDArray[np.int64] = np.flatnonzero(np.diff(np.concatenate([[False], slow_P, [False]]).astype(np.int8)))
    found = []
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        first, last = piece_starts[begin], piece_starts[end] - 1
        if last - first + 1 >= min(5, piece_starts[-1]):
            speed = float(np.median(relative_speed_P[begin:end]))
            found.append(SlowPeriod(worker, first, last, speed, is_ongoing=end == len(relative_speed_P)))
    return max(found, key=lambda one: one.lost_iterations, default=None)


RECENT_ITERATIONS = 100
"""Last iterations on which the next step rests."""


def worker_speeds(run: Run) -> Array:
    """Return each worker's speed, ``[T, W]``: of the work where samples have costs, otherwise of the samples."""
    with np.errstate(divide="ignore", invalid="ignore"):
        speed_TW = (run.sizes if run.work is None else run.work) / run.seconds
    return np.where(np.isfinite(speed_TW), speed_TW, np.nan)


def _waiting_cost_answer(run: Run) -> dict[str, str]:
    share, waited, asks = run.waiting().share, float(np.nansum(run.wait_seconds)), "What does waiting cost?"
    if np.isnan(share):
        return answer(asks, "Not known", "No two workers reported a time in the same iteration.")
    detail = "of the workers' time was spent waiting for the slowest one: "
    detail += f"{as_text(waited, 'seconds')}, summed over {len(run.workers):,} workers."
    return answer(asks, as_text(share, "percent"), detail)


def _saving_answer(run: Run) -> dict[str, str]:
    equal, asks = run.fleet_columns["equal_seconds"], "What did balancing save?"
    if np.isnan(run.saved_share):
        return answer(asks, "Not known", "The file holds no estimate of equal batches' time.")
    known = np.isfinite(equal) & np.isfinite(run.makespan)
    seconds = float((equal - run.makespan)[known].sum())
    if run.saved_share >= 0:
        detail = f"of the computing time against equal batches, an estimate: {as_text(seconds, 'seconds')}, by "
        detail += f"{count(int(run.acted.sum()), 'change')} of sizes."
    else:
        detail = f"It was slower than equal batches, by an estimated {as_text(-seconds, 'seconds')}."
    return answer(asks, as_text(run.saved_share, "percent"), detail)


def _next_answer(run: Run) -> dict[str, str]:
    asks, silent_W, waits = "What next?", run.silent_iterations, run.waiting(RECENT_ITERATIONS)
    if silent_W.any():
        w = int(np.argmax(silent_W))
        text = f"{worker_label(run.workers[w])} sent no report in its last {count(int(silent_W[w]), 'iteration')}."
        return answer(asks, "Look for the silent", text)
    if np.isnan(waits.share):
        return answer(asks, "Nothing", "Nobody waits where fewer than two workers report.")
    recent = as_text(waits.share, "percent")
    if waits.share <= 0.05:
        return answer(asks, "Nothing", f"Workers waited {recent} of their time recently.")
    if waits.is_known and waits.from_work > waits.from_workers:
        text = f"{as_text(waits.from_work, 'percent')} of the time would be waited even if all had one speed: "
        return answer(asks, "Even out the samples", text + "divide samples by what they cost (Costs).")
    off = finite_median(np.abs(run.forecast_error[-RECENT_ITERATIONS:]))
    if off > 0.2:
        text = f"Forecasts are off by {as_text(off, 'percent')} in the median: "
        return answer(asks, "Forecast better", text + "compare predictors with paceline evaluate on this run's trace.")
    text = f"Workers still waited {recent} of their time recently: "
    return answer(asks, "Replay it", text + "paceline replay says what forecasts could reach at best.")


WINDOW = 8
"""Iterations of a Gantt chart."""


def run_page(run: Run, *, command: str = "") -> Page:
    """Return the page of a run: verdict, who waited, times, forecasts, workers, and the balancer's reasons.

    ``run`` is read with :func:`paceline.recording.read_run`; ``command`` makes the page again.
    """
    first = _workers_by_slowness(run)
    name = Path(run.name)
    batch = np.nansum(run.worker_columns["planned"][-1])
    return page(
        "run",
        name.stem,
        [
            who_is_slow(worker_speeds(run), run.workers, run.fleet_columns["index"]),
            _waiting_cost_answer(run),
            _saving_answer(run),
            _next_answer(run),
        ],
        [
            _waiting_section(run, first),
            _times_section(run),
            _forecasts_section(run, first[0]),
            _workers_section(run, first),
            _reasons_section(run),
        ],
        settings=[("workers", f"{len(run.workers)}"), ("global batch", f"{batch:.0f}")],
        data=[(name.name, f"{len(run)} iterations of {len(run.workers)} workers")],
        command=command,
    )


def _workers_by_slowness(run: Run) -> list[int]:
    """Return all workers, those first that were slow, then those that the others waited for most."""
    slow = [one.worker for one in slow_workers(worker_speeds(run))]
    waited_for_W = np.bincount(run.slowest[run.slowest >= 0], minlength=len(run.workers))
    order = np.argsort(-waited_for_W, kind="stable").tolist()
    return list(dict.fromkeys([*slow, *order]))


# -- who waited --------------------------------------------------------------------------------------------------


def _waiting_section(run: Run, worker_order: list[int]) -> dict[str, Any]:
    windows = list(_chart_windows(run))
    until = max(float(np.nansum(run.makespan[rows])) for _, _, rows in windows)
    axes: dict[str, Any] = {"highlighted": worker_order[:12], "end_seconds": until or None}
    charts = []
    for title, then, rows in windows:
        index = run.fleet_columns["index"][rows]
        about = f"Iterations {index[0]:.0f} to {index[-1]:.0f}. {then}"
        charts.append(gantt_block(title, about, run.workers, run.seconds[rows], **axes))
    about = (
        "Each row is a worker, slow ones first. It computes, then waits for the slowest one; communication is left out."
    )
    waited = lines_block(
        "Waiting over the run",
        "Share of the workers' time, up to the slowest one's end, that was spent waiting.",
        run.fleet_columns["index"],
        [ChartLine("waiting", 100 * run.waiting_share, 1)],
        unit="%",
    )
    return section("Who waited, and when", about, *charts, waited)


def _chart_windows(run: Run) -> Iterator[tuple[str, str, slice]]:
    """Yield the iterations before and after the change of sizes that was expected to gain most."""
    t = int(np.argmax(np.where(run.acted, np.nan_to_num(run.fleet_columns["gain"]), -1.0)))
    if run.acted.any() and t + 1 < len(run):
        before = slice(max(t - WINDOW + 1, 0), t + 1)
        yield "Before", "Then came the change of sizes that was expected to gain most.", before
        yield "After", "The time axis is the same.", slice(t + 1, t + 1 + WINDOW)
        return
    waits_T = np.nan_to_num(run.waiting_share)
    t = int(np.argmax(np.convolve(waits_T, np.ones(WINDOW))[: len(waits_T)]))  # the last of those that waited most
    yield "The iterations that waited most", "Sizes were not changed.", slice(max(t - WINDOW + 1, 0), t + 1)


# -- times and forecasts -----------------------------------------------------------------------------------------


def _times_section(run: Run) -> dict[str, Any]:
    equal, expected = run.fleet_columns["equal_seconds"], np.fmax.reduce(run.forecast_seconds, axis=1)
    top = 1.1 * float(np.fmax.reduce([*run.makespan, *equal, 0.0]))
    chart = lines_block(
        "Time of the slowest worker",
        "Balancing gains where the measured line runs below that of equal batches, which is an estimate.",
        run.fleet_columns["index"],
        [
            ChartLine("equal batches, an estimate", 1e3 * equal, 5),
            ChartLine("forecast", 1e3 * np.where(expected < top, expected, np.nan), 1),  # the first is far off
            ChartLine("measured", 1e3 * run.makespan, 0),
        ],
        unit="ms",
    )
    fleet, waits = run.fleet_columns, run.waiting()
    rows = (
        ("lasted", float(fleet["time"][-1] - fleet["time"][0]), "seconds"),
        ("iteration, from start to start", finite_mean(fleet["wall_seconds"]), "seconds"),
        ("slowest worker's busy time", finite_mean(run.makespan), "seconds"),
        ("the same with equal batches, an estimate", finite_mean(fleet["equal_seconds"]), "seconds"),
        ("waiting with equal work, each worker at its own speed: uneven workers", waits.from_workers, "percent"),
        ("waiting with the actual work, all at one speed: uneven samples", waits.from_work, "percent"),
        ("time that balancing took, per iteration", finite_mean(fleet["overhead_seconds"]), "seconds"),
        ("times the workers had different plans", int((~run.agreed).sum()), "count"),
        ("lines of the file that could not be read", run.skipped_lines, "count"),
        ("iterations that could not be written to the file", run.lost_records, "count"),
    )
    known = [(name, as_text(value, form)) for name, value, form in rows if not np.isnan(value)]
    return section("Iteration times", "", chart, quantity_table(known))


def _forecasts_section(run: Run, worker_index: int) -> dict[str, Any]:
    forecast, actual = 1e3 * run.forecast_seconds[:, worker_index], 1e3 * run.seconds[:, worker_index]
    top = 1.1 * float(np.fmax.reduce([*actual, 0.0]))
    chart = lines_block(
        f"Forecast and actual time of {worker_label(run.workers[worker_index])}",
        "Forecasts were made before their iteration.",
        run.fleet_columns["index"],
        [ChartLine("actual", actual, 5), ChartLine("forecast", np.where(forecast < top, forecast, np.nan), 1)],
        unit="ms",
    )
    return section("Forecasts", "", chart)


# -- workers and reasons -----------------------------------------------------------------------------------------


def _workers_section(run: Run, worker_order: list[int]) -> dict[str, Any]:
    with np.errstate(divide="ignore", invalid="ignore"):
        speed_TW, waits_TW = run.sizes / run.seconds, run.wait_seconds / run.makespan[:, None]
    missing_TW = np.where(np.isfinite(run.sizes), np.isnan(run.seconds), np.nan)
    rows = [
        (
            run.workers[w],
            finite_mean(run.sizes[:, w]),
            finite_median(run.seconds[:, w]),
            finite_median(speed_TW[:, w]),
            finite_median(np.abs(run.forecast_error[:, w])),
            finite_mean(waits_TW[:, w]),
            float(np.mean(run.slowest == w)),
            finite_mean(missing_TW[:, w]),
        )
        for w in worker_order
    ]
    columns = [("worker", "text"), ("samples, mean", "number"), ("time, median", "seconds")]
    columns += [("samples/s, median", "number"), ("forecast off by, median", "percent"), ("waits", "percent")]
    columns += [("slowest in", "percent"), ("no report in", "percent")]
    about = "Slow ones first, then those that the others waited for most."
    return section("Workers", about, table("All workers", columns, rows))


def _reasons_section(run: Run) -> dict[str, Any]:
    acted = np.flatnonzero(run.acted)[-20:]
    rows = [(f"{run.fleet_columns['index'][t]:.0f}", run.why[t]) for t in acted]
    changes = table("The last changes of sizes", (("iteration", "text"), ("reason", "text")), rows)
    return section("What the balancer did, and why", "", changes)
