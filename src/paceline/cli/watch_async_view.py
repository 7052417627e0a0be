"""The picture of an asynchronous run in a terminal: who is stale, who is a straggler, what was wasted, and why.

Axes: R rounds, W workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from paceline._arrays import Array, mean
from paceline._text import count, printable
from paceline.cli.watch_view import (
    RECENT,
    SHOWN,
    changes,
    framed,
    is_long,
    percent,
    samples,
    speed,
    time,
    worker_table,
)

if TYPE_CHECKING:
    from paceline.recording import AsyncRun


def async_view(run: AsyncRun, *, done: int, silent: float = 0.0) -> Panel:
    """Return the picture of an asynchronous run's last rounds.

    Parameters
    ----------
    run
        The run's last rounds, at least one.
    done
        Total number of rounds recorded.
    silent
        Seconds since the last record.
    """
    alarms = _alarms(run, silent)
    parts: list[RenderableType] = [
        *alarms,
        _headline(run),
        Text(),
        _workers(run),
        Text(),
        changes(run, "what happened, and why"),
    ]
    return framed(parts, run.name, f"{count(done, 'round')} recorded", alarm=bool(alarms))


def _alarms(run: AsyncRun, silent: float) -> list[Text]:
    alarms, between = [], np.diff(run.seconds[-RECENT - 1 :])
    if is_long(silent, typical=float(np.median(between)) if len(between) else 0.0):
        alarms.append(f"No round has been reported for {time(silent)}.")
    if run.of_fleet["refused"][-1]:
        alarms.append(f"{count(int(run.of_fleet['refused'][-1]), 'sample')} of refused pushes: see the log.")
    if run.skipped:
        alarms.append(f"{count(run.skipped, 'line')} of the file could not be read.")
    if run.lost:
        alarms.append(f"{count(run.lost, 'round')} could not be written to the file: was the disk full?")
    return [Text(sentence, style="bold red") for sentence in alarms]


def _headline(run: AsyncRun) -> Text:
    last = {name: values[-1] for name, values in run.of_fleet.items()}
    bound = "no bound" if run.bound is None else f"bound {run.bound}"
    text = Text.assemble((f"{printable(run.scheme)}, version {last['version']:.0f}", "bold"))
    text.append(f"  {last['applied']:,.0f} samples applied, {speed(run.samples_per_second)}\n")
    text.append(f"largest staleness applied {last['largest']:.0f}, {bound}; wasted {percent(run.wasted_share[-1])}")
    text.append(f" (dropped {last['dropped']:,.0f}, given up {last['abandoned']:,.0f}, refused {last['refused']:,.0f})")
    if np.isfinite(last["forecast"]):
        text.append(f"\nstaleness forecast {last['forecast']:.1f}, seen {last['actual']:.1f}; ")
        text.append(f"{percent(last['covered'])} of the pushes within the limit of the forecast")
    return text


def _workers(run: AsyncRun) -> Table:
    table = worker_table("next", "staleness", "expected", "applied", "wasted", "waited", "straggler")
    rows, names = run.of_workers, set(run.stragglers[-1])
    stale_W = np.array([mean(column) for column in rows["staleness"][-RECENT:].T])
    order = np.argsort(-np.nan_to_num(stale_W, nan=-1.0), kind="stable")
    for w in order[:SHOWN].tolist():
        worker, there = run.workers[w], bool(np.isfinite(rows["sizes"][-1, w]))
        table.add_row(
            Text(printable(worker), style="bold red" if worker in names else ""),
            samples(rows["sizes"][-1, w]) if there else "gone",
            _versions(float(stale_W[w])),
            _versions(float(rows["expected"][-1, w])),
            samples(last(rows["done"][:, w])),
            samples(last(rows["wasted"][:, w])),
            time(last(rows["waited"][:, w])),
            percent(float(np.mean([worker in one for one in run.stragglers[-RECENT:]]))),
        )
    if len(order) > SHOWN:
        table.add_row(Text(f"{len(order) - SHOWN} others are fresher", style="dim"))
    return table


def last(values_R: Array) -> float:
    """Return the last known value; 0 if there is none.

    >>> last(np.array([1.0, 2.0, np.nan]))
    2.0
    """
    known = values_R[np.isfinite(values_R)]
    return float(known[-1]) if len(known) else 0.0


def _versions(staleness: float) -> str:
    return f"{staleness:.1f}" if np.isfinite(staleness) else "-"
