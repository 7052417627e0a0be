"""Tables on a terminal, JSON for machines, and pages."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from paceline._runtime import heartbeat
from paceline._text import to_printable

if TYPE_CHECKING:
    import pandas as pd


class SafeConsole(Console):
    """A console that escapes unprintable characters, and wraps lines only on a terminal.

    Names of workers, covariates and files come from files that anybody may have made. Rich passes an escape sequence in
    a text on; only what rich itself adds for colors reaches the terminal from here.
    """

    @property
    def on_terminal(self) -> bool:
        """Whether a terminal shows the output; FORCE_COLOR makes ``is_terminal`` true for a pipe as well."""
        return self.is_terminal and self.file.isatty()

    @property  # type: ignore[misc] # nobody sets it
    def size(self) -> ConsoleDimensions:
        """Return the size of the terminal; a file or a pipe has no width at which lines wrap."""
        if self.on_terminal:
            return super().size
        return ConsoleDimensions(100_000, 25)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of what is printed, with unprintable characters escaped."""
        for segment in super().render(renderable, options):
            if segment.control is not None or segment.text.isprintable():
                yield segment
            else:
                lines = (to_printable(line) for line in segment.text.split("\n"))
                yield Segment("\n".join(lines), segment.style)


out = SafeConsole()
err = SafeConsole(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
FileFormat = Annotated[
    str | None,
    typer.Option(
        "--format", help="Format of the file; [cyan]paceline data list formats[/] lists them. \\[default: detected]"
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="NAME=VALUE",
        help="Option for reading the files, such as [cyan]period=300[/] or [cyan]worker=rank unit=ms[/].",
    ),
]
RunSource = Annotated[
    Path, typer.Argument(help="A run's .jsonl file, or a folder: its most recently written run is used.")
]
ReportPath = Annotated[Path | None, typer.Option("--report", help="The .html page to write.")]


@contextmanager
def show_activity(activity: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done while it lasts: a spinner on a terminal, elsewhere a line every ten seconds.

    Yields a function to call with further words.
    """
    if err.on_terminal:
        with err.status(f"{escape(to_printable(activity))} ...") as status:
            yield lambda text: status.update(f"{escape(to_printable(text))} ...")
    else:
        with heartbeat(lambda line: err.print(line, markup=False, highlight=False), activity) as update:
            yield update


def print_frames(frames: dict[str, pd.DataFrame], as_json: bool) -> None:
    """Print tables, or one JSON object that holds them under their titles."""
    if as_json:
        print(json.dumps({title: json.loads(frame.to_json(orient="records")) for title, frame in frames.items()}))
        return
    for title, frame in frames.items():
        if not frame.empty:
            print_rows(title, frame.to_dict("records"))


def print_rows(title: str, rows: Sequence[Mapping[Any, Any]], as_json: bool = False) -> None:
    """Print rows, one at least, as a table, or as one JSON list."""
    if as_json:
        print(json.dumps(rows))
        return
    # Escaped before the columns are laid out, not only when they are printed.
    shown = [
        {to_printable(str(key)): to_printable(one) if isinstance(one, str) else one for key, one in row.items()}
        for row in rows
    ]
    for k, part in enumerate(_split_columns(shown, out.width)):
        table = Table(title=f"{title}, continued" if k else title, title_justify="left", title_style="bold")
        for key, value in part[0].items():
            number = isinstance(value, (int, float))
            widest = 0 if number or table.columns else min(24, max(len(str(row[key])) for row in part))
            table.add_column(key, justify="right" if number else "left", min_width=widest)
        for row in part:
            table.add_row(*map(_format_cell, row.values()))
        out.print(table)


def _split_columns(rows: list[dict[str, Any]], width: int) -> list[list[dict[str, Any]]]:
    """Divide rows that are wider than the terminal into tables that fit, each with the columns that name a row."""
    columns = list(rows[0])
    texts = next((k for k, key in enumerate(columns) if not isinstance(rows[0][key], str)), len(columns))
    keys, others = (columns[:2], columns[2:]) if texts == 2 else (columns[:1], columns[1:])
    wide = {key: 3 + max(len(key), *(len(_format_cell(row[key])) for row in rows)) for key in rows[0]}
    parts = [[*keys]]
    for key in others:
        if len(parts[-1]) > len(keys) and 1 + sum(wide[one] for one in (*parts[-1], key)) > width:
            parts.append([*keys])
        parts[-1].append(key)
    return [[{key: row[key] for key in part} for row in rows] for part in parts]


def _format_cell(value: Any) -> str:
    """Return a cell's text: four digits of a number, and a dash for one that is not known."""
    if isinstance(value, float):
        return f"{value:.4g}" if value == value else "-"
    return escape(str(value))


def command_line() -> str:
    """Return the command as it was typed."""
    return shlex.join(["paceline", *sys.argv[1:]])
