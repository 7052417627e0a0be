"""The command ``paceline watch``: a run while it goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from paceline._arrays import Array, finite_mean, finite_median
from paceline._text import count, duration, join_names, percent, to_printable
from paceline.cli.output import RunSource, out

if TYPE_CHECKING:
    from paceline.recording import AsyncRun, Run, RunReader


def watch(
    source: RunSource,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
) -> None:
    """Show slow and waiting workers of a run, and the balancer's decisions with their reasons.

    Follows the file until Ctrl-C; you may start it before the run. If the output is not a terminal, it prints one
    snapshot, as with [cyan]--once[/].
    """
    watched = FollowedRun(source)
    if once or not out.on_terminal:
        picture = watched.render()
        if isinstance(picture, Panel):
            picture.expand = out.on_terminal  # a file has no width to fill
        out.print(picture)
        return
    from rich.live import Live

    try:
        with Live(console=out, auto_refresh=False) as live:
            while True:
                try:
                    live.update(watched.render(), refresh=True)
                except FileNotFoundError:
                    live.update(Text(f"waiting for {to_printable(str(source))} ..."), refresh=True)
                time.sleep(0.5)
    except KeyboardInterrupt:
        return


class FollowedRun:
    """The watched run: the given file, or the file of a folder that was written to last."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._reader: RunReader | None = None
        self._last_arrival: float | None = None

    def render(self) -> RenderableType:
        """Return the picture of the run now; raise ``FileNotFoundError`` if there is no file yet."""
        from paceline.recording import AsyncRun, RunReader, newest_run_file

        path = newest_run_file(self._source)
        if self._reader is None or self._reader.path != path:
            self._reader, self._last_arrival = RunReader(path, keep=2000), None
            self._reader.poll()
        elif self._reader.poll():
            self._last_arrival = time.monotonic()
        reader = self._reader
        if not len(reader):
            return Text(reader.describe_missing_records())
        run, silent_seconds = reader.run(), 0.0
        if not reader.ended:
            # By this process's own clock, once it has seen a line arrive. Until then by the writer's, which on another
            # host may be ahead or behind.
            last_time = run.fleet_columns["time"][-1]
            seen = self._last_arrival
            silent_seconds = max(time.time() - last_time, 0.0) if seen is None else time.monotonic() - seen
        noun = "round" if isinstance(run, AsyncRun) else "iteration"
        return run_panel(run, f"{count(len(reader), noun)} recorded{', ended' if reader.ended else ''}", silent_seconds)


LEVELS, ABOVE = "▁▂▃▄▅▆▇", "█"


def sparkline(values: Array, width: int = 60) -> tuple[str, float]:
    """Return numbers as a row of bars, neighbors averaged if there are too many, and the value at their top.

    Bars begin at 0; values above the top have their own mark. NaN if nothing is known.

    >>> sparkline(np.array([1.0, 2.0, 2.0, np.nan, 2.1, 2.0, 40.0]), width=10)
    ('▃▆▆ ▆▆█', 2.52)
    """
    means_B = [finite_mean(part) for part in np.array_split(values, min(width, len(values)))]
    known = [one for one in means_B if np.isfinite(one)]
    if not known:
        return " " * len(means_B), float("nan")
    high = float(np.quantile(known, 0.95, method="lower"))
    # A little above the 95th percentile, to leave room for ordinary scatter, but at most 3 medians: among few bars,
    # that percentile is an outlier itself.
    top, steps = min(max(known), 1.2 * high, 3.0 * float(np.median(known))) or 1.0, len(LEVELS) - 1
    bars = (" " if np.isnan(one) else ABOVE if one > top else LEVELS[round(one / top * steps)] for one in means_B)
    return "".join(bars), top


def _format_speed(samples_a_second: float) -> str:
    if not np.isfinite(samples_a_second):
        return "-"
    return f"{samples_a_second:,.0f}/s" if samples_a_second >= 100 else f"{samples_a_second:.3g}/s"


def format_percent(share: float) -> str:
    """Return a share in percent; shares above 1000% are not shown exactly."""
    if not np.isfinite(share):
        return "-"
    return percent(share) if share <= 10 else ">1000%"


RECENT_ITERATIONS = 20
"""Number of iterations, or rounds, that a worker's row sums up."""

MAX_WORKER_ROWS = 12
"""Most workers with a row: those that the others waited for most, and recently."""


def run_panel(run: Run | AsyncRun, subtitle: str, silent_seconds: float) -> Panel:
    """Return the picture of a run's last records: what is recorded, and how long after the last one.

    The frame is red in an alarm.
    """
    from paceline.recording import Run

    is_silent = is_long_silence(silent_seconds, typical_seconds(run))
    if isinstance(run, Run):
        alarms = list(_alarms(run, silent_seconds if is_silent else None))
        is_alarm, heading = is_silent or bool(run.silent_iterations.any()), "what the balancer did, and why"
        state = [_headline(run), Text(), *_iteration_time_sparkline(run), Text(), *_workers_table(run)]
    else:
        alarms = list(_async_alarms(run, silent_seconds if is_silent else None))
        is_alarm, heading = bool(alarms), "what happened, and why"
        state = [_async_headline(run), Text(), _async_workers_table(run)]
    return Panel(
        Group(*alarms, *state, Text(), decisions_table(run, heading)),  # first what may need somebody to act
        title=Text(short_path(run.name)),
        title_align="left",
        subtitle=Text(subtitle),
        subtitle_align="right",
        border_style="red" if is_alarm else "none",
    )


def short_path(name: str) -> str:
    """Return the file with its folder, or the end of that, which says most."""
    shown, limit = to_printable("/".join(PurePath(name).parts[-2:])), 70  # in the frame of a terminal of 80 columns
    return shown if len(shown) <= limit else f"…{shown[1 - limit :]}"


# -- alarms -----------------------------------------------------------------------------------------------------


def _alarms(run: Run, silent_seconds: float | None) -> Iterator[Text]:
    if silent_seconds is not None:
        typical = typical_seconds(run)
        before = f": one usually comes every {duration(typical)}" if typical > 0 else ""
        yield Text(f"No iteration has been reported for {duration(silent_seconds)}{before}.", style="bold red")
        known = run.slowest[-RECENT_ITERATIONS:][run.slowest[-RECENT_ITERATIONS:] >= 0]
        if len(known) and len(run.workers) > 1:
            worker = to_printable(run.workers[int(np.bincount(known).argmax())])
            yield Text(f"The slowest until then was {worker}.", style="bold red")
    missing = [int(w) for w in np.argsort(-run.silent_iterations, kind="stable") if run.silent_iterations[w]]
    if missing:
        lasts = {w: count(int(run.silent_iterations[w]), "iteration") for w in missing}
        named = [f"{to_printable(run.workers[w])} for {lasts[w]}" for w in missing]
        whose = join_names(named)
        if len(missing) == np.isfinite(run.sizes[-1]).sum():
            whose = f"any worker for {lasts[missing[-1]]}"
        yield Text(f"No report from {whose}.", style="bold red")
    if not run.agreed.all():
        times = count(int(np.sum(~run.agreed)), "time")
        yield Text(f"The workers had different plans {times}.", style="bold red")
    yield from _file_alarms(run, "iteration")


def _file_alarms(run: Run | AsyncRun, record_noun: str) -> Iterator[Text]:
    if run.skipped_lines:
        were = "was" if run.skipped_lines == 1 else "were"
        skipped = count(run.skipped_lines, "line")
        yield Text(f"{skipped} of the file could not be read and {were} skipped.", style="bold yellow")
    if run.lost_records:
        lost = count(run.lost_records, record_noun)
        yield Text(f"{lost} could not be written to the file: was the disk full?", style="bold yellow")


def is_long_silence(silent_seconds: float, typical_seconds: float) -> bool:
    """Return whether a silence is far longer than the usual time between two reports, in seconds; NaN if unknown.

    Less than three seconds or five usual times may be a checkpoint being written, or a slow file system.
    """
    return silent_seconds > max(3.0, 5.0 * typical_seconds if np.isfinite(typical_seconds) else 0.0)


def typical_seconds(run: Run | AsyncRun) -> float:
    """Return the usual time between two reports in seconds, NaN if unknown."""
    from paceline.recording import Run

    between = np.diff(run.fleet_columns["time"][-RECENT_ITERATIONS - 1 :])
    if len(between):
        return float(np.median(between))
    if not isinstance(run, Run):
        return float("nan")
    wall = float(run.fleet_columns["wall_seconds"][-1])
    return wall if np.isfinite(wall) else float(run.makespan[-1])


# -- state -----------------------------------------------------------------------------------------------------


def _headline(run: Run) -> Text:
    recent = slice(-RECENT_ITERATIONS, None)
    equal, wall = run.fleet_columns["equal_seconds"][recent], run.fleet_columns["wall_seconds"][recent]
    made = run.makespan[recent]
    known = np.isfinite(equal) & np.isfinite(made) & (equal > 0)
    saved = 1.0 - made[known].sum() / equal[known].sum() if known.any() else 0.0
    # Medians, because one checkpoint among the iterations would dominate a mean.
    text = Text.assemble((f"iteration {run.fleet_columns['index'][-1]:.0f}", "bold"))
    text.append(
        f"  {duration(finite_median(wall))} each, {duration(finite_median(made))} of it computing on the slowest\n"
    )
    waits = run.waiting(last=RECENT_ITERATIONS)
    text.append(f"waiting {format_percent(waits.share)} of the computing time")
    text.append(f", {'saves' if saved >= 0 else 'costs'} about {format_percent(abs(saved))} against equal batches")
    if waits.is_known:
        text.append(f"\nit would be {format_percent(waits.from_workers)} with equal work (uneven workers), ")
        text.append(f"{format_percent(waits.from_work)} with equal speeds (uneven samples)")
    return text


def _iteration_time_sparkline(run: Run) -> Iterator[Text]:
    """Yield a line that explains the bars, and the bars on their own line, because 80 columns hold no more."""
    wall = run.fleet_columns["wall_seconds"]
    seconds = np.where(np.isfinite(wall), wall, run.makespan)
    (text_bars, top), longest = sparkline(seconds), float(np.fmax.reduce(seconds))
    label = f"iteration time: bars end at {duration(top)}"
    label += f", {ABOVE} is longer" if ABOVE in text_bars else ""
    yield Text(label + (f"; longest {duration(longest)}" if longest > top else ""))
    yield Text(text_bars, style="cyan")


def _workers_table(run: Run) -> Iterator[RenderableType]:
    table = worker_table("samples", "time", "forecast", "off by", "speed", "waits", "slowest")
    with np.errstate(divide="ignore", invalid="ignore"):
        waits_TW = run.wait_seconds / run.makespan[:, None]
    sizes_W, seconds_W, forecast_W, waits_W, error_W = (
        # Medians, as the first forecasts are far off.
        np.array([finite_median(column) for column in rows_TW[-RECENT_ITERATIONS:].T])
        for rows_TW in (run.sizes, run.seconds, run.forecast_seconds, waits_TW, np.abs(run.forecast_error))
    )
    slowest_T, silent_W = run.slowest[-RECENT_ITERATIONS:], run.silent_iterations
    # having been waited for counts half as much 5 iterations later
    weight_T, known_T = 0.5 ** (np.arange(len(slowest_T))[::-1] / 5), slowest_T >= 0
    waited_for_W = np.bincount(slowest_T[known_T], weights=weight_T[known_T], minlength=len(run.workers))
    order = [int(w) for w in np.lexsort((waits_W, -waited_for_W, silent_W == 0)) if np.isfinite(sizes_W[w])]
    for w in order[:MAX_WORKER_ROWS]:
        missing, share = bool(silent_W[w]), float(np.mean(slowest_T == w))
        table.add_row(
            Text(to_printable(run.workers[w]), style="bold red" if missing else ""),
            f"{sizes_W[w]:.0f}" if np.isfinite(run.sizes[-1, w]) else "gone",
            Text("missing", style="bold red") if missing else duration(seconds_W[w]),
            duration(forecast_W[w]),
            format_percent(error_W[w]),
            _format_speed(sizes_W[w] / seconds_W[w]) if seconds_W[w] > 0 else "-",
            format_percent(waits_W[w]),
            Text(format_percent(share), style="bold red" if share > 0.5 and len(run.workers) > 2 else ""),
        )
    yield table
    if len(order) > MAX_WORKER_ROWS:  # below the table, whose first column is as narrow as the names
        yield Text(f"{len(order) - MAX_WORKER_ROWS} others were waited for less", style="dim")


def worker_table(*columns: str) -> Table:
    """Return a table with a row per worker and these numbers."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("worker", overflow="fold")  # a long name wraps, so that no number is truncated
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def decisions_table(run: Run | AsyncRun, heading: str) -> Table:
    """Return what was done last, and why, with the newest line in any case."""
    table = Table.grid(padding=(0, 2))
    table.add_row("", Text(heading, style="dim"))
    last = len(run) - 1
    shown = [t for t in range(len(run)) if run.acted[t]][-5:]
    for t in shown if last in shown else [*shown, last]:
        index = Text(f"{run.fleet_columns['index'][t]:.0f}", justify="right", style="bold")
        table.add_row(index, Text(to_printable(run.why[t]), "" if run.acted[t] else "dim"))
    return table


def _async_alarms(run: AsyncRun, silent_seconds: float | None) -> Iterator[Text]:
    if silent_seconds is not None:
        yield Text(f"No round has been reported for {duration(silent_seconds)}.", style="bold red")
    if refused := int(run.fleet_columns["refused"][-1]):
        yield Text(f"{count(refused, 'sample')} of refused pushes: see the log.", style="bold red")
    yield from _file_alarms(run, "round")


def _async_headline(run: AsyncRun) -> Text:
    last = {name: values[-1] for name, values in run.fleet_columns.items()}
    bound = "no bound" if run.bound is None else f"bound {run.bound}"
    text = Text.assemble((f"{to_printable(run.scheme)}, version {last['version']:.0f}", "bold"))
    text.append(f"  {last['applied']:,.0f} samples applied, {_format_speed(run.samples_per_second)}\n")
    text.append(
        f"largest staleness applied {last['largest']:.0f}, {bound}; wasted {format_percent(last['wasted_share'])}"
    )
    text.append(f" (dropped {last['dropped']:,.0f}, given up {last['abandoned']:,.0f}, refused {last['refused']:,.0f})")
    return text


def _async_workers_table(run: AsyncRun) -> Table:
    table = worker_table("next", "staleness", "expected", "applied", "wasted", "waited", "straggler")
    rows, names = run.worker_columns, set(run.stragglers[-1])
    stale_W = np.array([finite_mean(column) for column in rows["staleness"][-RECENT_ITERATIONS:].T])
    order = np.argsort(-np.nan_to_num(stale_W, nan=-1.0), kind="stable")
    for w in order[:MAX_WORKER_ROWS].tolist():
        worker, there = run.workers[w], bool(np.isfinite(rows["sizes"][-1, w]))
        table.add_row(
            Text(to_printable(worker), style="bold red" if worker in names else ""),
            f"{rows['sizes'][-1, w]:.0f}" if there else "gone",
            _format_staleness(float(stale_W[w])),
            _format_staleness(float(rows["expected"][-1, w])),
            f"{last_known(rows['done'][:, w]):.0f}",
            f"{last_known(rows['wasted'][:, w]):.0f}",
            duration(last_known(rows["waited"][:, w])),
            format_percent(float(np.mean([worker in one for one in run.stragglers[-RECENT_ITERATIONS:]]))),
        )
    if len(order) > MAX_WORKER_ROWS:
        table.add_row(Text(f"{len(order) - MAX_WORKER_ROWS} others are fresher", style="dim"))
    return table


def last_known(values_R: Array) -> float:
    """Return the last known value; 0 if there is none."""
    known = values_R[np.isfinite(values_R)]
    return float(known[-1]) if len(known) else 0.0


def _format_staleness(staleness: float) -> str:
    return f"{staleness:.1f}" if np.isfinite(staleness) else "-"
