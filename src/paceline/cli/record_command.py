"""The command ``paceline record``: record built-in jobs, or any training command on this machine."""

from __future__ import annotations

import shutil
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from paceline.lab import Contention, Job, Usage

from paceline.cli.show import err, out

PROBE_STEPS = 200
"""Steps of a probe: with changes of size at every fourth, a fixed share is known to a few per cent in 5% of noise."""


def record(
    what: Annotated[
        list[str] | None, typer.Argument(help="Names of jobs, or [cyan]--[/] and a command. [default: all jobs]")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the trace files.")] = Path("traces"),
    name: Annotated[str, typer.Option(help="The trace's name, for a command. [default: that of its script]")] = "",
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Cut every other block of a command's batches to half, and stop after a while."),
    ] = False,
    iterations: Annotated[
        int | None,
        typer.Option(help="Iterations of each job, or of a probe. [default: the job's own number, or 200]"),
    ] = None,
    usage: Annotated[
        str, typer.Option(help="Trace of real hosts' CPU usage, replayed by jobs of the pattern [cyan]usage[/].")
    ] = "",
    covariate: Annotated[
        str, typer.Option(help="The covariate (column) of that trace that holds the usage.")
    ] = "cpu_usage",
    slot: Annotated[
        float | None,
        typer.Option(help="Seconds that each row of that trace covers in the replay. [default: as measured]"),
    ] = None,
    pattern: Annotated[
        str, typer.Option(help="Contention beside a command's workers: none, steady, bursty, moving or usage.")
    ] = "",
    workers: Annotated[
        int, typer.Option(help="Number of workers that the command starts here; required with a pattern.")
    ] = 0,
    competitors: Annotated[int, typer.Option(help="Number of competitors beside each contended worker.")] = 1,
    kind: Annotated[
        str, typer.Option(help="What competitors do: cpu, memory, disk, or stress-ng-cpu, -memory, -disk.")
    ] = "cpu",
    quota: Annotated[float, typer.Option(help="Cores that a worker and its competitors may use together.")] = 0.4,
    seed: Annotated[int, typer.Option(help="Seed that makes the contention repeatable.")] = 0,
    show: Annotated[bool, typer.Option("--list", help="List the jobs and stop.")] = False,
) -> None:
    """Record data-parallel training on this machine: any command of yours, or built-in jobs under contention.

    [cyan]paceline record -- torchrun --nproc-per-node 4 train.py[/] runs the command as it is and records every
    worker that trains under DistributedDataParallel, even if the command fails.

    [cyan]--probe[/] records a short run of it with batches of two sizes, from which [cyan]paceline simulate[/] learns
    how much of a step does not depend on the batch. Half of the samples of some batches are left out, and the workers
    exit after 200 steps: let the command write no checkpoint that you keep.

    With [cyan]--pattern bursty --workers 4[/] competitors come and go beside the command's workers meanwhile.

    [cyan]paceline record digits-cnn-bursty[/] trains a small model while competitors come and go beside its workers.
    Needs the [cyan]lab[/] extra. Where control groups can be written (as root on Linux),
    every worker gets a CPU quota of its own; elsewhere workers are pinned to cores.
    """
    from paceline.lab import JOBS, Contention

    if show:
        _list(JOBS)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up workers and groups as after Ctrl-C
    if what and what[0] not in JOBS and shutil.which(what[0]):
        contention = None
        if pattern:
            contention = Contention(
                workers=workers,
                pattern=pattern,
                competitors=competitors,
                kind=kind,
                quota=quota,
                seed=seed,
                usage=_usage(usage, covariate, slot),
            )
        name = name or _name(what) + "-probe" * probe
        _command(what, folder / f"{name}.parquet", contention, (iterations or PROBE_STEPS) if probe else 0)
        return
    if probe:
        raise ValueError("--probe records a command: paceline record --probe -- torchrun --nproc-per-node 2 train.py")
    replayed = _usage(usage, covariate, slot)
    folder.mkdir(parents=True, exist_ok=True)
    for job in _chosen(JOBS, what, replayed):
        _job(job if iterations is None else replace(job, iterations=iterations), folder, replayed)


def _command(command: list[str], path: Path, contention: Contention | None, probe_steps: int) -> None:
    from paceline.lab.record.command import record_command

    recorded = record_command(command, path, contention=contention, probe_steps=probe_steps)
    for sentence in recorded.missing:
        err.print(sentence, style="yellow")
    if recorded.trace is None:
        raise RuntimeError(
            f"no iteration was recorded: {command[0]} ended with status {recorded.status}, and no process with a RANK "
            "took an optimiser's step under DistributedDataParallel"
        )
    workers = len(recorded.trace.workers)
    err.print(f"{path}: {len(recorded.trace)} iterations of {workers} workers; status {recorded.status}")
    if probe_steps:
        samples_TW = recorded.trace.samples
        if (samples_TW == samples_TW[0]).all():
            raise RuntimeError(
                "no batch was cut to half: the script's batches hold one sample, or do not come from "
                "torch.utils.data.BatchSampler, as those of a DataLoader with batch_size= do"
            )
        err.print(f"paceline simulate {path}")
    raise typer.Exit(recorded.status)


def _name(command: list[str]) -> str:
    scripts = [Path(word).stem for word in command if word.endswith(".py")]
    return scripts[0] if scripts else Path(command[0]).stem


def _job(job: Job, folder: Path, usage: Usage | None) -> None:
    from paceline.lab import USAGE, record_job

    path = folder / f"{job.name}.parquet"
    with _progress() as progress:
        task = progress.add_task(job.name, total=job.iterations)
        trace = record_job(
            job, path, usage=usage if job.pattern == USAGE else None, progress=partial(_advance, progress, task)
        )
    out.print(f"{path}: {len(trace)} iterations of {len(trace.workers)} workers")


def _usage(name: str, covariate: str, slot: float | None) -> Usage | None:
    from paceline.cli import named_sources as sources
    from paceline.lab import Usage

    return Usage.of_trace(sources.trace(name), covariate, slot_seconds=slot) if name else None


def _chosen(jobs: dict[str, Job], names: list[str] | None, usage: Usage | None) -> list[Job]:
    # The named jobs, or all of them; without a usage trace, those that need one are left out.
    unknown = [name for name in names or () if name not in jobs]
    if unknown:
        raise ValueError(
            f"{unknown[0]!r} is neither a command on the PATH nor a job; jobs are {list(jobs)}. To record a command, "
            "activate the environment in which it is installed, or name its file"
        )
    if names:
        return [jobs[name] for name in names]
    return [job for job in jobs.values() if job.pattern != "usage" or usage is not None]


def _list(jobs: dict[str, Job]) -> None:
    import pandas as pd

    from paceline.cli.show import print_frames

    shown = ("name", "split", "model", "pattern", "workers", "batch_size", "iterations", "seed")
    rows = [{key: getattr(job, key) for key in shown} for job in jobs.values()]
    print_frames({"Jobs": pd.DataFrame(rows)}, as_json=False)


def _advance(progress: Progress, task: TaskID, done: int) -> None:
    progress.update(task, completed=done)


def _progress() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=err, disable=not err.on_terminal)
