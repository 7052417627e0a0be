"""The command ``paceline live``: a real training on this machine, with equal and with balanced batches."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from paceline.cli.output import AsJson, err, out, print_rows

if TYPE_CHECKING:
    from paceline.lab import ExperimentOutcome


def live(
    schemes: Annotated[
        list[str] | None, typer.Argument(help="Predictors to balance with, such as [cyan]auto[/] or [cyan]ewma[/].")
    ] = None,
    contention: Annotated[
        list[str] | None,
        typer.Option(
            "--contention",
            "-c",
            help="How the second rank is disturbed: none, quota (half a core), hogs (3 competing processes), "
            "bursty (a quarter of a core, on and off), bursty-hogs, or between (40 ms after each iteration); "
            "repeat for several. "
            "\\[default: quota if it can be set here, otherwise hogs]",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Number of phases per predictor.")] = 4,
    seconds: Annotated[float, typer.Option(help="Length of a phase.")] = 3.0,
    as_json: AsJson = False,
) -> None:
    """Train on two local ranks, one of them slowed down, and measure the speed-up of balanced batches.

    One run alternates between phases with equal and with balanced batches. Each balanced phase is compared with the
    equal phases before and after it, so a drift of the machine's speed does not bias the result. Each rank is pinned
    to its own core.

    [cyan]oracle[/] is the speed-up with known future speeds, and [cyan]reached[/] the oracle's time divided by the
    measured one. [cyan]waiting[/] is the share of time that ranks wait, and [cyan]added time[/] the time that balancing
    takes per iteration.
    """
    from paceline.lab import ExperimentSetting, can_set_quotas, experiment

    for kind in contention or ["quota" if can_set_quotas() else "hogs"]:
        setting = ExperimentSetting(contention=kind, schemes=tuple(schemes or ["auto"]), rounds=rounds, seconds=seconds)
        with Progress(console=err, transient=True, disable=not err.on_terminal) as progress:
            task = progress.add_task(f"training under contention: {setting.contention}", total=1.0)
            outcome = experiment(setting, progress=lambda share: progress.update(task, completed=share))  # noqa: B023
        if as_json:
            out.print_json(data={"setting": asdict(setting), "rows": [asdict(row) for row in outcome.rows]})
        else:
            print_outcome(outcome)


def print_outcome(outcome: ExperimentOutcome) -> None:
    """Print the outcome of an experiment as a table."""
    from paceline.lab import DISTURBANCES

    rows = [
        {
            "balanced by": row.scheme,
            "speed-up over equal batches": f"{row.speed_up:.2f} ± {row.half_width:.2f}",
            "oracle": f"{row.oracle:.2f}",
            "reached": f"{row.share_of_oracle:.0%}",
            "waiting": f"{row.waiting_share:.0%}",
            "added time": f"{row.overhead * 1e6:.0f} us",
        }
        for row in outcome.rows
    ]
    print_rows(str(DISTURBANCES[outcome.setting.contention]), rows)
