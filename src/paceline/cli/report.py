"""The command ``paceline report``."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from paceline._text import count, to_printable
from paceline.cli.output import out, typed


def report(
    source: Annotated[
        Path,
        typer.Argument(help="A run's .jsonl file, or a folder of them, from which the one written to last is taken."),
    ],
    target: Annotated[Path, typer.Option("--out", "-o", help="The .html file to write.")] = Path("report.html"),
) -> None:
    """Write a report as one HTML page: who is slow, what waiting costs, what balancing saved, and what to do.

    The page needs no other file and no network; its numbers are in a .json file of the same name beside it.
    [cyan]paceline evaluate[/], [cyan]replay[/] and [cyan]audit[/] write the same page with [cyan]--report[/].
    """
    from paceline.recording import AsyncRun, Run, is_asynchronous, newest, read_async_run, read_run
    from paceline.report import async_page, run_page
    from paceline.report.page import require_page, write_page

    require_page(target)
    path = newest(source)
    run: Run | AsyncRun
    if path.is_file() and is_asynchronous(path):
        run = read_async_run(path)
        page, what = async_page(run, digest=sha256(path), command=typed()), "rounds"
    else:
        run = read_run(path)
        page, what = run_page(run, digest=sha256(path), command=typed()), "iterations"
    write_page(page, target)
    skipped = f"; {count(run.skipped, 'line')} could not be read and were skipped" if run.skipped else ""
    holds = f"{len(run)} {what} of {len(run.workers)} workers{skipped}"
    out.print(f"written to {escape(to_printable(str(target)))}: {holds}", soft_wrap=True)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
