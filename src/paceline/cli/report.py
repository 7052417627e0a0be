"""The command ``paceline report``."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from paceline._text import count, printable
from paceline.cli.output import out, typed

if TYPE_CHECKING:
    from paceline.report.page import Page


def report(
    source: Annotated[
        Path,
        typer.Argument(
            help="A run's .jsonl file, or a folder of them, from which the one written to last is taken; what "
            "[cyan]paceline audit --json[/] printed; or the .json beside a report."
        ),
    ],
    target: Annotated[Path, typer.Option("--out", "-o", help="The .html file to write.")] = Path("report.html"),
) -> None:
    """Write a report as one HTML page: who is slow, what waiting costs, what balancing saved, and what to do.

    The page needs no other file and no network; its numbers are in a .json file of the same name beside it.
    [cyan]paceline evaluate[/], [cyan]replay[/] and [cyan]audit[/] write the same page with [cyan]--report[/].
    """
    from paceline.recording import newest
    from paceline.report.page import require_page, write_page

    require_page(target)
    path = newest(source)
    if path.suffix != ".json":
        page, holds = _of_run(path)
    else:
        page, holds = _of_json(path, target)
    write_page(page, target)
    out.print(f"written to {escape(printable(str(target)))}: {holds}", soft_wrap=True)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_run(path: Path) -> tuple[Page, str]:
    from paceline.recording import AsyncRun, Run, is_asynchronous, read_async_run, read_run
    from paceline.report import async_page, run_page

    run: Run | AsyncRun
    if path.is_file() and is_asynchronous(path):
        run = read_async_run(path)
        page, what = async_page(run, digest=sha256(path), command=typed()), "rounds"
    else:
        run = read_run(path)
        page, what = run_page(run, digest=sha256(path), command=typed()), "iterations"
    skipped = f"; {count(run.skipped, 'line')} could not be read and were skipped" if run.skipped else ""
    return page, f"{len(run)} {what} of {len(run.workers)} workers{skipped}"


def _of_json(path: Path, target: Path) -> tuple[Page, str]:
    from paceline.report import audit_page, read_page
    from paceline.report.audit_page import is_audit

    found: Any = None
    with suppress(ValueError):  # read_page says what is wrong
        found = json.loads(path.read_text(encoding="utf-8"))
    if not is_audit(found):
        page = read_page(path)
        return page, f"the {page['kind']} of {printable(str(path))}"
    if target.with_suffix(".json").resolve() == path.resolve():
        raise ValueError(f"--out {target} would write its numbers over {printable(str(path))}: give another name")
    return audit_page(found, script=path.stem, digest=sha256(path), command=typed()), "an audit"
