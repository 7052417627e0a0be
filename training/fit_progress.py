"""Progress of a fit while it runs: a bar with rate and remaining time, or scalars for TensorBoard."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from paceline._heartbeat import Heartbeat
from paceline._require import require
from paceline.predictors.fitting import Moment


class Bar:
    """A bar on the terminal, of :mod:`rich`: what is done, the rate, the remaining time at most, and the losses.

    Where there is no terminal, such as in a log, a line every ten seconds says the same.

    Examples
    --------
    >>> with Bar() as bar:
    ...     bar(Moment("training", 512, 1024, rate=256.0, loss=0.5))
    """

    def __init__(self, console: Any = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
        console = console or Console(stderr=True)
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks: dict[str, Any] = {}
        self._lines = None if console.is_terminal else Heartbeat(partial(_print_line, console), "fitting")

    def __enter__(self) -> Self:
        self._bars.start()
        if self._lines is not None:
            self._lines.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
        if self._lines is not None:
            self._lines.__exit__(kind, error, trace)

    def __call__(self, moment: Moment) -> None:
        """Show this moment."""
        if self._lines is not None:
            self._lines.tell(line(moment))
            return
        if moment.stage not in self._tasks:
            self._tasks[moment.stage] = self._bars.add_task(moment.stage, total=moment.total, told="")
        self._bars.update(self._tasks[moment.stage], completed=moment.done, total=moment.total, told=sentence(moment))


def _print_line(console: Any, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def line(moment: Moment) -> str:
    """Return a line for a log: the stage, what is done, and what :func:`sentence` says.

    >>> line(Moment("read", 3, 10))
    'read: 3 of 10'
    """
    done = f"{moment.stage}: {moment.done:,} of {moment.total:,}"
    return f"{done}, {told}" if (told := sentence(moment)) else done


def sentence(moment: Moment) -> str:
    """Return rate, remaining time and losses, as far as they are known.

    >>> sentence(Moment("training", 1000, 4000, rate=250.0, loss=0.25, held_out=0.5))
    '250/s, at most 12 s left, loss 0.25, held out 0.5'
    """
    known = [
        (moment.rate, f"{moment.rate:,.0f}/s"),
        (moment.seconds_left, f"at most {moment.seconds_left:,.0f} s left"),
        (moment.loss, f"loss {moment.loss:.4g}"),
        (moment.held_out, f"held out {moment.held_out:.4g}"),
    ]
    return ", ".join(text for value, text in known if math.isfinite(value))


class Scalars:
    """Writes losses and the rate of a fit for TensorBoard.

    Parameters
    ----------
    folder
        Where the event files go.

    Raises
    ------
    ImportError
        If TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        require("torch", needed_by="Scalars", extra="torch")
        require("tensorboard", needed_by="Scalars", extra="metrics")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def __call__(self, moment: Moment) -> None:
        """Write this moment, at the number of windows trained so far."""
        if moment.stage != "training":
            return
        for name in ("loss", "held_out", "rate"):
            if math.isfinite(value := getattr(moment, name)):
                self._writer.add_scalar(f"fit/{name}", value, moment.done)

    def close(self) -> None:
        """Write what is buffered."""
        self._writer.close()
