"""The picture of a run in a terminal: whether it is alive, which workers are slow or wait, what was done and why.

Axes: T iterations, W workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from paceline import _text
from paceline._arrays import Array, median
from paceline._text import printable

if TYPE_CHECKING:
    from paceline.recording import AsyncRun, Run


LEVELS = "▁▂▃▄▅▆▇"
ABOVE = "█"

HEADROOM, MAX_MEDIANS = 1.2, 3.0
"""The top of the bars is a little above the 95th percentile, to leave room for ordinary scatter, but at most 3 medians:
among few bars, that percentile is an outlier itself."""


def bars(values: Array, width: int = 60) -> str:
    """Return numbers as a row of bars from 0 to :func:`bars_top`, neighbors averaged if there are too many.

    Values above the top have their own mark.

    >>> bars(np.array([1.0, 2.0, 2.0, np.nan, 2.1, 2.0, 40.0]), width=10)
    '▃▆▆ ▆▆█'
    """
    means_B = _means(values, width)
    top, steps = _top(means_B), len(LEVELS) - 1
    return "".join(
        " " if np.isnan(mean) else ABOVE if mean > top else LEVELS[round(mean / top * steps)] for mean in means_B
    )


def bars_top(values: Array, width: int = 60) -> float:
    """Return the value at the top of the bars; NaN if nothing is known.

    >>> bars_top(np.array([1.0, 2.0, 2.0, np.nan, 2.1, 2.0, 40.0]), width=10)
    2.52
    """
    return _top(_means(values, width))


def _means(values: Array, width: int) -> list[float]:
    parts = np.array_split(values, min(width, len(values)))
    return [float(part[np.isfinite(part)].mean()) if np.isfinite(part).any() else np.nan for part in parts]


def _top(means_B: list[float]) -> float:
    known = [mean for mean in means_B if np.isfinite(mean)]
    if not known:
        return float("nan")
    high = float(np.quantile(known, 0.95, method="lower"))
    return min(max(known), HEADROOM * high, MAX_MEDIANS * float(np.median(known))) or 1.0


def time(seconds: float) -> str:
    """Return a time with its unit.

    >>> time(0.0414), time(95), time(700), time(90_000), time(float("nan"))
    ('41.4 ms', '95 s', '11.7 min', '25 h', '-')
    """
    if not np.isfinite(seconds):
        return "-"
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return _text.duration(seconds)


def speed(samples_a_second: float) -> str:
    """Return a speed.

    >>> speed(4.25), speed(24_144), speed(12_345_678), speed(float("nan"))
    ('4.25/s', '24,144/s', '12.3 M/s', '-')
    """
    if not np.isfinite(samples_a_second):
        return "-"
    if samples_a_second >= 1e6:
        return f"{samples_a_second / 1e6:.3g} M/s"
    return f"{samples_a_second:,.0f}/s" if samples_a_second >= 100 else f"{samples_a_second:.3g}/s"


def samples(number: float) -> str:
    """Return a number of samples.

    >>> samples(64.0), samples(123_456_789)
    ('64', '123 M')
    """
    return f"{number:.0f}" if number < 1e7 else f"{number / 1e6:.0f} M"


def percent(share: float) -> str:
    """Return a share in percent; shares above 1000% are not shown exactly.

    >>> percent(0.034), percent(123.4), percent(float("nan"))
    ('3.4%', '>1000%', '-')
    """
    if not np.isfinite(share):
        return "-"
    return _text.percent(share) if share <= 10 else ">1000%"


RECENT = 20
"""Number of iterations, or rounds, that a worker's row sums up."""


SHOWN = 12
"""Most workers with a row: those that the others waited for most, and recently."""

SILENT_TIMES, SILENT_SECONDS = 5.0, 3.0
"""Silence is reported once it has lasted for this many usual intervals, and at least this many seconds: less may be a
checkpoint being written, or a slow file system."""


def view(run: Run, *, done: int, silent: float = 0.0) -> Panel:
    """Return the picture of a run's last iterations.

    Parameters
    ----------
    run
        The run's last iterations, at least one.
    done
        Total number of iterations done.
    silent
        Seconds since the last report.
    """
    parts: list[RenderableType] = [
        *_alarms(run, silent),  # first what may need somebody to act
        _headline(run),
        Text(),
        *_times(run),
        Text(),
        *_workers(run),
        Text(),
        changes(run, "what the balancer did, and why"),
    ]
    alarm = is_silent(run, silent) or bool(run.silent_workers.any())
    return framed(parts, run.name, f"{_text.count(done, 'iteration')} recorded", alarm=alarm)


def framed(parts: list[RenderableType], name: str, count: str, *, alarm: bool) -> Panel:
    """Return a picture's parts in a frame with the run's name, red in an alarm."""
    return Panel(
        Group(*parts),
        title=Text(title(name)),
        title_align="left",
        subtitle=Text(count),
        subtitle_align="right",
        border_style="red" if alarm else "none",
    )


def title(name: str) -> str:
    """Return the file with its folder, if both fit: a long path would lose its end, which says most.

    >>> title("/home/me/experiments/monday/run.jsonl"), title("/home/" + 80 * "a" + "/run.jsonl")
    ('monday/run.jsonl', 'run.jsonl')
    """
    parts = PurePath(name).parts
    both, file = printable("/".join(parts[-2:])), printable(parts[-1])
    limit = 70  # fits into the frame of a terminal of 80 columns
    if len(both) <= limit:
        return both
    return file if len(file) <= limit else f"…{file[1 - limit :]}"


# -- alarms -----------------------------------------------------------------------------------------------------


def _alarms(run: Run, silent: float) -> Iterator[Text]:
    if is_silent(run, silent):
        yield from (Text(sentence, style="bold red") for sentence in _silence(run, silent))
    missing = [int(w) for w in np.argsort(-run.silent_workers, kind="stable") if run.silent_workers[w]]
    if missing:
        yield Text(f"No report from {_missing(run, missing)}.", style="bold red")
    if not run.agreed.all():
        times = _text.count(int(np.sum(~run.agreed)), "time")
        yield Text(f"The workers had different plans {times}.", style="bold red")
    if run.skipped:
        were = "was" if run.skipped == 1 else "were"
        skipped = _text.count(run.skipped, "line")
        yield Text(f"{skipped} of the file could not be read and {were} skipped.", style="bold yellow")
    if run.lost:
        lost = _text.count(run.lost, "iteration")
        yield Text(f"{lost} could not be written to the file: was the disk full?", style="bold yellow")


def is_silent(run: Run, silent: float) -> bool:
    """Return whether a run has been silent for far longer than an iteration usually takes."""
    return is_long(silent, typical_seconds(run))


def is_long(silent: float, typical: float) -> bool:
    """Return whether a silence is far longer than the usual time between two reports, in seconds; NaN if unknown.

    >>> is_long(4.0, typical=0.5), is_long(4.0, typical=1.0), is_long(4.0, typical=float("nan"))
    (True, False, True)
    """
    return silent > max(SILENT_SECONDS, SILENT_TIMES * typical if np.isfinite(typical) else 0.0)


def typical_seconds(run: Run) -> float:
    """Return the usual time between two reports in seconds, NaN if unknown."""
    between = np.diff(run.of_fleet["time"][-RECENT - 1 :])
    if len(between):
        return float(np.median(between))
    wall = float(run.of_fleet["wall_seconds"][-1])
    return wall if np.isfinite(wall) else float(run.makespan[-1])


def _silence(run: Run, silent: float) -> Iterator[str]:
    typical = typical_seconds(run)
    before = f": one usually comes every {time(typical)}" if typical > 0 else ""
    yield f"No iteration has been reported for {time(silent)}{before}."
    known = run.slowest[-RECENT:][run.slowest[-RECENT:] >= 0]
    if len(known) and len(run.workers) > 1:
        yield f"The slowest until then was {printable(run.workers[int(np.bincount(known).argmax())])}."


def _missing(run: Run, missing: list[int]) -> str:
    if len(missing) == np.isfinite(run.sizes[-1]).sum():
        return f"any worker for {_text.count(int(run.silent_workers[missing[-1]]), 'iteration')}"
    named = [
        f"{printable(run.workers[w])} for {_text.count(int(run.silent_workers[w]), 'iteration')}" for w in missing[:3]
    ]
    return _text.listed(named, max(len(missing) - 3, 0))


# -- state -----------------------------------------------------------------------------------------------------


def _headline(run: Run) -> Text:
    recent = slice(-RECENT, None)
    equal, wall = run.of_fleet["equal_seconds"][recent], run.of_fleet["wall_seconds"][recent]
    made = run.makespan[recent]
    known = np.isfinite(equal) & np.isfinite(made) & (equal > 0)
    saved = 1.0 - made[known].sum() / equal[known].sum() if known.any() else 0.0
    # Medians, because one checkpoint among the iterations would dominate a mean.
    text = Text.assemble((f"iteration {run.of_fleet['index'][-1]:.0f}", "bold"))
    text.append(f"  {time(median(wall))} each, {time(median(made))} of it computing on the slowest\n")
    waits = run.waiting(last=RECENT)
    text.append(f"waiting {percent(waits.share)} of the computing time")
    text.append(f", {'saves' if saved >= 0 else 'costs'} about {percent(abs(saved))} against equal batches")
    if waits.known:
        text.append(f"\nit would be {percent(waits.from_workers)} with equal work (uneven workers), ")
        text.append(f"{percent(waits.from_work)} with equal speeds (uneven samples)")
    return text


def _times(run: Run) -> Iterator[Text]:
    """Yield a line that explains the bars, and the bars on their own line, because 80 columns hold no more."""
    wall = run.of_fleet["wall_seconds"]
    seconds = np.where(np.isfinite(wall), wall, run.makespan)
    top, longest = bars_top(seconds), float(np.fmax.reduce(seconds))
    text_bars = bars(seconds)
    label = f"iteration time: bars end at {time(top)}"
    label += f", {ABOVE} is longer" if ABOVE in text_bars else ""
    yield Text(label + (f"; longest {time(longest)}" if longest > top else ""))
    yield Text(text_bars, style="cyan")


def _workers(run: Run) -> Iterator[RenderableType]:
    table = worker_table("samples", "time", "forecast", "off by", "speed", "waits", "slowest")
    sizes_W, seconds_W, forecast_W, waits_W, error_W = (_recent(rows) for rows in _rows(run))
    silent_W = run.silent_workers
    order = [int(w) for w in np.lexsort((waits_W, -_waited_for(run), silent_W == 0)) if np.isfinite(sizes_W[w])]
    for w in order[:SHOWN]:
        missing = bool(silent_W[w])
        table.add_row(
            Text(printable(run.workers[w]), style="bold red" if missing else ""),
            samples(sizes_W[w]) if np.isfinite(run.sizes[-1, w]) else "gone",
            Text("missing", style="bold red") if missing else time(seconds_W[w]),
            time(forecast_W[w]),
            percent(error_W[w]),
            speed(sizes_W[w] / seconds_W[w]) if seconds_W[w] > 0 else "-",
            percent(waits_W[w]),
            _slowest(run, w),
        )
    yield table
    if len(order) > SHOWN:  # below the table, whose first column is as narrow as the names
        yield Text(f"{len(order) - SHOWN} others were waited for less", style="dim")


def worker_table(*columns: str) -> Table:
    """Return a table with a row per worker and these numbers."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("worker", overflow="fold")  # a long name wraps, so that no number is truncated
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _waited_for(run: Run) -> Array:
    """Return how long each worker was waited for recently, ``[W]``: older iterations count less."""
    slowest_T = run.slowest[-RECENT:]
    # having been waited for counts half as much 5 iterations later
    weight_T = 0.5 ** (np.arange(len(slowest_T))[::-1] / 5)
    known_T = slowest_T >= 0
    return np.bincount(slowest_T[known_T], weights=weight_T[known_T], minlength=len(run.workers)).astype(np.float64)


def _rows(run: Run) -> tuple[Array, ...]:
    with np.errstate(divide="ignore", invalid="ignore"):
        waits = run.wait_seconds / run.makespan[:, None]
    return run.sizes, run.seconds, run.forecast_seconds, waits, np.abs(run.forecast_error)


def _slowest(run: Run, w: int) -> Text:
    """Return how often the others waited for this worker; in red if it was mostly this one of several."""
    share = float(np.mean(run.slowest[-RECENT:] == w))
    return Text(percent(share), style="bold red" if share > 0.5 and len(run.workers) > 2 else "")


def changes(run: Run | AsyncRun, heading: str) -> Table:
    """Return what was done last, and why, with the newest line in any case."""
    table = Table.grid(padding=(0, 2))
    table.add_row("", Text(heading, style="dim"))
    last = len(run) - 1
    shown = [t for t in range(len(run)) if run.acted[t]][-5:]
    for t in shown if last in shown else [*shown, last]:
        index = Text(f"{run.of_fleet['index'][t]:.0f}", justify="right", style="bold")
        table.add_row(index, Text(printable(run.why[t]), "" if run.acted[t] else "dim"))
    return table


def _recent(rows_TW: Array) -> Array:
    """Return the median of each column's last known values, ``[W]``: the first forecasts are far off."""
    return np.array([median(column) for column in rows_TW[-RECENT:].T])
