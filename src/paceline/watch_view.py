"""How a run looks in a terminal: who is slow, who waits, what was done and why. Axes: T iterations, W workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from paceline.coordinator import why

if TYPE_CHECKING:
    from paceline.coordinator.metrics import Run

Array = NDArray[np.float64]

RECENT = 20
"""Iterations that a worker's row is the median of."""

SHOWN = 12
"""So many workers get a row: those for which the others waited most."""

CHANGES = 5
"""So many of the last changes are told."""

LEVELS = "▁▂▃▄▅▆▇█"


def view(run: Run, *, done: int, silent: float = 0.0) -> Panel:
    """Return the picture of a run's last iterations.

    Parameters
    ----------
    run
        Its last iterations, at least one.
    done
        How many iterations were done in all.
    silent
        Seconds since the last one.
    """
    parts: list[RenderableType] = [
        _headline(run, silent),
        Text(),
        _times(run),
        Text(),
        _workers(run),
        Text(),
        _changes(run),
    ]
    count = f"{why.count(done, 'iteration')} recorded"
    return Panel(Group(*parts), title=Text(run.name), title_align="left", subtitle=Text(count), subtitle_align="right")


def sparkline(values: Array, width: int) -> str:
    """Return numbers as a row of bars from 0 to the largest, neighbours averaged where there are too many.

    >>> sparkline(np.array([0.0, 0.02, 0.04, np.nan, 0.08]), width=10)
    '▁▃▅ █'
    """
    parts = np.array_split(values, min(width, len(values)))
    means = [float(part[np.isfinite(part)].mean()) if np.isfinite(part).any() else np.nan for part in parts]
    top = np.nanmax([*means, 0.0]) or 1.0
    steps = len(LEVELS) - 1
    return "".join(" " if np.isnan(mean) else LEVELS[round(mean / top * steps)] for mean in means)


def _headline(run: Run, silent: float) -> Text:
    recent = slice(-RECENT, None)
    equal, made, wall = (
        run.of_fleet["equal_seconds"][recent],
        run.makespan[recent],
        run.of_fleet["wall_seconds"][recent],
    )
    known = np.isfinite(equal) & np.isfinite(made)
    saved = 1.0 - made[known].sum() / equal[known].sum() if known.any() else 0.0
    text = Text.assemble((f"iteration {run.of_fleet['index'][-1]:.0f}", "bold"))
    text.append(f"  {_time(_mean(wall))} each, {_time(_mean(made))} of it computing on the slowest\n")
    text.append(f"waiting {_percent(_mean(run.waiting_share[recent]))} of the computing time")
    text.append(f", {'saves' if saved >= 0 else 'costs'} about {_percent(abs(saved))} against equal batches")
    if not run.agreed.all():
        text.append(
            f"\nthe workers had different plans {why.count(int(np.sum(~run.agreed)), 'time')}", style="bold red"
        )
    if silent > max(5.0, 10 * _mean(wall)):
        text.append(f"\nnothing new for {_time(silent)}", style="bold yellow")
    return text


def _times(run: Run) -> Text:
    wall = run.of_fleet["wall_seconds"]
    seconds = np.where(np.isfinite(wall), wall, run.makespan)
    top = _time(float(np.fmax.reduce(seconds)))
    return Text.assemble("iteration time, up to ", top, "  ", (sparkline(seconds, 60), "cyan"))


def _workers(run: Run) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("worker", no_wrap=True)
    table.add_column("samples", justify="right", no_wrap=True)
    for name in ("time", "forecast", "off by", "speed", "waits", "slowest"):
        table.add_column(name, justify="right", no_wrap=True)
    sizes_W, seconds_W, forecast_W, waits_W, error_W = (_recent(rows) for rows in _rows(run))
    order = [int(w) for w in np.argsort(waits_W, kind="stable") if np.isfinite(sizes_W[w])]
    for w in order[:SHOWN]:
        table.add_row(
            Text(run.workers[w]),
            f"{sizes_W[w]:.0f}" if np.isfinite(run.sizes[-1, w]) else "gone",
            _time(seconds_W[w]),
            _time(forecast_W[w]),
            _percent(error_W[w]),
            _speed(sizes_W[w] / seconds_W[w]) if seconds_W[w] > 0 else "-",
            _percent(waits_W[w]),
            _slowest(run, w),
        )
    if len(order) > SHOWN:
        table.add_row(Text(f"{len(order) - SHOWN} others wait longer", style="dim"))
    return table


def _rows(run: Run) -> tuple[Array, ...]:
    waits = run.wait_seconds / run.makespan[:, None]
    return run.sizes, run.seconds, run.forecast_seconds, waits, np.abs(run.forecast_error)


def _slowest(run: Run, w: int) -> Text:
    """Say how often the others waited for this worker; in red where it is always the same one of many."""
    slowest = np.argmax(np.nan_to_num(run.seconds[-RECENT:], nan=-1.0), axis=1)
    share = float(np.mean(slowest == w))
    return Text(_percent(share), style="bold red" if share > 0.5 and len(run.workers) > 2 else "")


def _changes(run: Run) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("", Text("what the balancer did, and why", style="dim"))
    last = len(run) - 1
    shown = [t for t in range(len(run)) if run.acted[t]][-CHANGES:]
    for t in shown if last in shown else [*shown, last]:
        style = "" if run.acted[t] else "dim"
        table.add_row(Text(f"{run.of_fleet['index'][t]:.0f}", justify="right", style="bold"), Text(run.why[t], style))
    return table


def _recent(rows_TW: Array) -> Array:
    """Return the median of each column's last known values, ``[W]``: the first forecasts are far from anything."""
    known = [column[np.isfinite(column)] for column in rows_TW[-RECENT:].T]
    return np.array([np.median(values) if len(values) else np.nan for values in known])


def _time(seconds: float) -> str:
    return why.duration(seconds) if np.isfinite(seconds) else "-"


def _speed(speed: float) -> str:
    return f"{speed:,.0f}/s" if speed >= 100 else f"{speed:.3g}/s"


def _percent(share: float) -> str:
    return why.percent(share) if np.isfinite(share) else "-"


def _mean(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
