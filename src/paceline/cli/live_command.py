"""The command ``paceline live``: a real training on this machine, with equal and with balanced batches."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress
from rich.table import Table

if TYPE_CHECKING:
    from paceline.lab import AsyncOutcome, ExperimentOutcome, Setting

from paceline._whole import require_writable
from paceline.cli.show import err, out


def live(
    schemes: Annotated[
        list[str] | None,
        typer.Argument(
            help="Predictors to balance with, such as [cyan]auto[/] or [cyan]ewma[/], or asynchronous schemes, such as "
            "[cyan]saps[/], [cyan]asp[/] and [cyan]bsp[/]: those are compared with each other."
        ),
    ] = None,
    contention: Annotated[
        list[str] | None,
        typer.Option(
            "--contention",
            "-c",
            help="none, quota, hogs, bursty, bursty-hogs or between; on a device kernels or bursty-kernels; repeat "
            "for several. "
            "[default: quota if this machine allows setting one, otherwise hogs]",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="The model to train: digits-mlp, digits-cnn, digits-attention, or one whose ranks wait inside a step: "
            "digits-batch-norm, digits-sync-batch-norm or digits-contrastive."
        ),
    ] = "digits-cnn",
    global_batch: Annotated[int, typer.Option(help="Samples per iteration over both ranks.")] = 896,
    rounds: Annotated[int, typer.Option(help="Turns of every scheme.")] = 4,
    seconds: Annotated[float, typer.Option(help="Length of a turn.")] = 3.0,
    seed: Annotated[int, typer.Option(help="Seed of the model, the data's order and the bursts.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, or cuda: one device that both ranks share.")] = "cpu",
    precision: Annotated[str, typer.Option(help="single or mixed, which is autocast to bfloat16.")] = "single",
    figure: Annotated[
        Path | None, typer.Option(help="The picture of the losses to write; a folder if there are several contentions.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")] = False,
) -> None:
    """Train for real with two ranks, one of them disturbed: equal and balanced batches in turns, in one run.

    Each rank is pinned to its own core. Every turn of a scheme is compared with the turns of equal batches before and
    after it, so that a machine whose speed drifts does not bias the result. Asynchronous schemes train anew in every
    turn, from the same start, in an order that turns round; the table holds medians over their turns.
    """
    from paceline.coordinator.asynchronous import SCHEMES
    from paceline.lab import AsyncOutcome, AsyncSetting, ExperimentOutcome, Setting, can_set_quotas
    from paceline.lab.figure import loss_figure

    kinds = contention or ["quota" if can_set_quotas() else "hogs"]
    asked = schemes or ["auto"]
    chosen = {AsyncSetting: [s for s in asked if s in SCHEMES], Setting: [s for s in asked if s not in SCHEMES]}
    if figure and chosen[AsyncSetting]:
        raise ValueError("--figure draws balanced schemes only: leave out " + ", ".join(chosen[AsyncSetting]))
    settings = [
        kind_of_setting(
            contention=kind,
            schemes=tuple(names),
            model=model,
            global_batch=global_batch,
            rounds=rounds,
            seconds=seconds,
            seed=seed,
            device=device,
            precision=precision,
        )
        for kind in kinds
        for kind_of_setting, names in chosen.items()
        if names
    ]
    if figure:
        (figure.parent if len(settings) == 1 else figure).mkdir(parents=True, exist_ok=True)
        require_writable(figure if len(settings) == 1 else figure / f"{settings[0].contention}.png")
    for setting in settings:
        outcome = _watched(setting)
        if as_json:
            out.print_json(data={"setting": asdict(setting), "rows": [asdict(row) for row in outcome.rows]})
        else:
            out.print(async_table(outcome) if isinstance(outcome, AsyncOutcome) else outcome_table(outcome))
        if figure and isinstance(outcome, ExperimentOutcome):
            path = figure if len(settings) == 1 else figure / f"{setting.contention}.png"
            err.print(f"drawn: {loss_figure(outcome, path)}")


def outcome_table(outcome: ExperimentOutcome) -> Table:
    """Return the outcome of an experiment as a table."""
    from paceline.lab import DISTURBANCES

    shown = Table(title=f"{DISTURBANCES[outcome.setting.contention]}", title_justify="left")
    for heading in ("balanced by", "speed-up over equal batches", "oracle", "reached", "waiting", "added time"):
        shown.add_column(heading, justify="left" if heading == "balanced by" else "right")
    for row in outcome.rows:
        shown.add_row(
            row.scheme,
            f"{row.speed_up:.2f} ± {row.half_width:.2f}",
            f"{row.oracle:.2f}",
            f"{row.reached:.0%}",
            f"{row.waiting:.0%}",
            f"{row.overhead * 1e6:.0f} us",
        )
    return shown


def async_table(outcome: AsyncOutcome) -> Table:
    """Return the outcome of an experiment among asynchronous schemes as a table."""
    from paceline.lab import DISTURBANCES

    shown = Table(title=f"{DISTURBANCES[outcome.setting.contention]}", title_justify="left")
    after = f"loss after {outcome.equal_samples:,}"
    for heading in ("scheme", "samples/s", "all turns", after, "stale", "largest", "bound", "waits", "wasted"):
        shown.add_column(heading, justify="left" if heading == "scheme" else "right")
    shown.add_column("slow rank's", justify="right")
    for row in outcome.rows:
        shown.add_row(
            row.scheme,
            f"{row.samples_per_second:,.0f}",
            f"{row.spread[0]:,.0f}-{row.spread[1]:,.0f}",
            f"{row.loss:.3f}",
            f"{row.staleness:.1f}",
            f"{row.largest}",
            "none" if row.bound < 0 else f"{row.bound}",
            f"{row.waiting:.0%}",
            f"{row.wasted:.1%}",
            f"{row.slow_share:.0%}",
        )
    return shown


def _watched(setting: Setting) -> ExperimentOutcome | AsyncOutcome:
    from paceline.lab import AsyncSetting, asynchronous_experiment, experiment

    with Progress(console=err, transient=True, disable=not err.on_terminal) as progress:
        task = progress.add_task(f"training under contention: {setting.contention}", total=1.0)

        def seen(share: float) -> None:
            progress.update(task, completed=share)

        if isinstance(setting, AsyncSetting):
            return asynchronous_experiment(setting, progress=seen)
        return experiment(setting, progress=seen)
