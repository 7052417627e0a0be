"""The command ``paceline report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from paceline._text import count, to_printable
from paceline.cli.output import RunSource, command_line, out


def report(
    source: RunSource,
    target: Annotated[Path, typer.Option("--out", "-o", help="The .html file to write.")] = Path("report.html"),
) -> None:
    """Write an HTML report of a run: slow workers, the cost of waiting, what balancing saved, and what to do next.

    The page is a single file and needs no network. [cyan]paceline evaluate[/] and [cyan]paceline replay[/] write such a
    page with [cyan]--report[/].
    """
    from paceline.recording import newest_run_file, read_run
    from paceline.report import run_page
    from paceline.report.page import require_page, write_page

    require_page(target)
    run = read_run(newest_run_file(source))
    write_page(run_page(run, command=command_line()), target)
    skipped = f"; {count(run.skipped_lines, 'line')} could not be read and were skipped" if run.skipped_lines else ""
    holds = f"{len(run)} iterations of {len(run.workers)} workers{skipped}"
    out.print(f"written to {escape(to_printable(str(target)))}: {holds}", soft_wrap=True)
