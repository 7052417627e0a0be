"""The command ``paceline watch``: a run while it goes on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.panel import Panel
from rich.text import Text

from paceline._text import count, printable
from paceline.cli.show import out

if TYPE_CHECKING:
    from paceline.recording import AsyncRunReader, RunReader


Source = Annotated[
    Path, typer.Argument(help="A run's .jsonl file, or a folder of them, from which the one written to last is taken.")
]


def watch(
    source: Source,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and stop.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two reads of the file.")] = 0.5,
) -> None:
    """Watch a run: which workers are slow, which wait, what the balancer did and why.

    Follows the file as it grows, until Ctrl-C; you may start it before the run. If the output is not a terminal, one
    picture is printed, as with [cyan]--once[/].
    """
    if every <= 0:
        raise ValueError(f"--every must be above 0 seconds, got {every:g}")
    watched = Watched(source)
    if once or not out.on_terminal:
        picture = watched.picture()
        if isinstance(picture, Panel):
            picture.expand = out.on_terminal  # a file has no width to fill
        out.print(picture)
        return
    from rich.live import Live

    try:
        with Live(console=out, auto_refresh=False) as live:
            while True:
                try:
                    live.update(watched.picture(), refresh=True)
                except FileNotFoundError:
                    live.update(Text(f"waiting for {printable(str(source))} ..."), refresh=True)
                time.sleep(every)
    except KeyboardInterrupt:
        return


class Watched:
    """The watched run: the given file, or the file of a folder that was written to last."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._reader: RunReader | AsyncRunReader | None = None
        self._arrived: float | None = None

    def picture(self) -> RenderableType:
        """Return the picture of the run now.

        Raises
        ------
        FileNotFoundError
            If there is no file yet.
        """
        from paceline.cli.watch_async_view import async_view
        from paceline.cli.watch_view import view
        from paceline.recording import AsyncRun

        reader = self._read()
        if not len(reader):
            skipped = f"; {count(reader.skipped, 'line')} could not be read" if reader.skipped else ""
            return Text(f"{printable(str(reader.path))} holds no iteration yet{skipped}")
        run = reader.run()
        silent = 0.0 if reader.ended else self._silent(run.of_fleet["time"][-1])
        shown = async_view if isinstance(run, AsyncRun) else view
        picture = shown(run, done=len(reader), silent=silent)  # type: ignore[arg-type]  # each has the run of its kind
        if reader.ended and isinstance(picture.subtitle, Text):
            picture.subtitle.append(", ended")
        return picture

    def _read(self) -> RunReader | AsyncRunReader:
        from paceline.recording import AsyncRunReader, RunReader, is_asynchronous, newest

        path = newest(self._source)
        # Each time again: the file may have been empty so far, or a run of the other kind was written over it.
        kind = AsyncRunReader if path.is_file() and is_asynchronous(path) else RunReader
        if self._reader is None or self._reader.path != path or not isinstance(self._reader, kind):
            self._reader, self._arrived = kind(path, keep=2000), None
            self._reader.poll()
        elif self._reader.poll():
            self._arrived = time.monotonic()
        return self._reader

    def _silent(self, last: float) -> float:
        """Return the seconds since the last line.

        Once this process has seen a line arrive, it uses its own clock. Until then it relies on the writer's clock,
        which on another host may be ahead or behind.
        """
        return max(time.time() - last, 0.0) if self._arrived is None else time.monotonic() - self._arrived
