"""The command ``paceline audit``: a verdict on a training script, before anyone trusts it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.markup import escape

from paceline.cli.output import AsJson, err, out, show_activity


def audit(
    command: Annotated[
        list[str],
        typer.Argument(
            help="After [cyan]--[/], the command that starts the script, such as torchrun, accelerate or python."
        ),
    ],
    steps: Annotated[int, typer.Option(help="Number of optimizer steps to compare.", min=1)] = 3,
    as_json: AsJson = False,
    timeout: Annotated[float, typer.Option(help="Max seconds for one run of the script.", min=1)] = 600.0,
    keep: Annotated[
        Path | None, typer.Option(help="New folder in which to keep the records and logs of all runs.")
    ] = None,
) -> None:
    """Check that a training script gives every sample the same weight, on any rank and in any micro-batch.

    Example: [cyan]paceline audit -- torchrun --nproc-per-node 2 train.py --lr 0.1[/]

    Runs the unmodified script for a few steps at a time: twice unchanged, then with the same samples on other ranks
    and in other micro-batches, then as one process. A script with a balanced loader runs with uneven batches instead.
    The verdict is [cyan]exact[/], or [cyan]not exact[/] with the first step that deviates, the likely cause and a fix,
    or [cyan]undecided[/].

    Exit code 0: exact; 1: not exact; 2: undecided.
    """
    from paceline.audit import Audit, Launcher
    from paceline.audit.launch import find_program

    program = find_program(command)
    with ExitStack() as closing:
        folder = Path(closing.enter_context(TemporaryDirectory(prefix="paceline-", ignore_cleanup_errors=True)))
        if keep is not None:
            keep.mkdir(parents=True)
            folder = keep.absolute()
        show = closing.enter_context(show_activity("the first run"))
        launcher = Launcher(program, folder, timeout, report=show)
        verdict = Audit(launcher, steps=steps).verdict()
    if as_json:
        print(verdict.to_json())
    else:
        color = {"EXACT": "green", "NOT_EXACT": "red", "COULD_NOT_TELL": "yellow"}[verdict.status.name]
        out.print(f"[bold {color}]{escape(verdict.sentence)}[/]", soft_wrap=True, highlight=False)
        if verdict.remedy:
            out.print(escape(verdict.remedy), soft_wrap=True, highlight=False)
        for note in verdict.notes:
            err.print(escape(note), soft_wrap=True, highlight=False)
    raise typer.Exit(verdict.status.value)
