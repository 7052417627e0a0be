"""The commands ``paceline watch`` and ``paceline report``: a live run, and one that is over."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, RenderableType
from rich.text import Text

if TYPE_CHECKING:
    from paceline.coordinator.metrics import RunReader

out = Console()

KEPT = 2000
"""So many of the last iterations are drawn while watching."""

Source = Annotated[
    Path, typer.Argument(help="A .jsonl file of a run, or a folder of them: the one written to last is taken.")
]


def watch(
    source: Source,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and stop.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks at the file.")] = 0.5,
) -> None:
    """Watch a run: who is slow, who waits, what the balancer did and why.

    Follows the file as it grows, until Ctrl-C; the run may not have begun. Where the output is not a terminal, one
    picture is printed, as with [cyan]--once[/].
    """
    if every <= 0:
        raise ValueError(f"--every must be above 0 seconds, got {every:g}")
    if once or not out.is_terminal:
        out.print(_picture(_opened(source, None)))
        return
    from rich.live import Live

    reader: RunReader | None = None
    try:
        with Live(console=out, auto_refresh=False) as live:
            while True:
                try:
                    reader = _opened(source, reader)
                    live.update(_picture(reader, now=time.time()), refresh=True)
                except FileNotFoundError:
                    live.update(Text(f"waiting for {source} ..."), refresh=True)
                time.sleep(every)
    except KeyboardInterrupt:
        return


def report(
    source: Source,
    target: Annotated[Path, typer.Option("--out", "-o", help="The .html file to write.")] = Path("report.html"),
) -> None:
    """Write what happened in a run as one HTML file: a figure, tables, and the balancer's reasons, counted."""
    from paceline.coordinator.metrics import newest, read_run
    from paceline.eval.run_report import run_report

    run = read_run(newest(source))
    run_report(run, target)
    out.print(f"written to {target}: {len(run)} iterations of {len(run.workers)} workers", soft_wrap=True)


def _opened(source: Path, reader: RunReader | None) -> RunReader:
    """Return a reader of the file to be watched now, the one at hand where that is still the newest."""
    from paceline.coordinator.metrics import RunReader, newest

    path = newest(source)
    return reader if reader is not None and reader.path == path else RunReader(path)


def _picture(reader: RunReader, now: float | None = None) -> RenderableType:
    from paceline.watch_view import view

    reader.poll()
    if not len(reader):
        return Text(f"{reader.path} holds no iteration yet")
    run = reader.run(last=KEPT)
    silent = 0.0 if now is None else now - run.of_fleet["time"][-1]
    return view(run, done=len(reader), silent=silent)
