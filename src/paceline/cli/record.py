"""The command ``paceline record``: record any training command on this machine."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.output import err


def record(
    command: Annotated[list[str], typer.Argument(help="After [cyan]--[/], the command to run.")],
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the trace.")] = Path("traces"),
    name: Annotated[str, typer.Option(help="Name of the trace. \\[default: name of the script]")] = "",
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Halve every other block of four batches, and stop after --iterations steps."),
    ] = False,
    # With a size change at every fourth step, 200 steps give the fixed share to a few percent at 5% noise.
    iterations: Annotated[int, typer.Option(help="Number of steps of a probe.")] = 200,
) -> None:
    """Record a training job on this machine, and report which worker is slow and in which phase.

    Example: [cyan]paceline record -- torchrun --nproc-per-node 4 train.py[/]

    Runs the unmodified command and keeps its exit status. The trace is also written if the command fails.

    [cyan]--probe[/] records a short run with two batch sizes, from which [cyan]paceline simulate[/] learns which part
    of a step's time depends on the batch. It skips some samples and ends the workers after --iterations steps: do not
    let the command write a checkpoint that you keep.
    """
    from paceline.recording.launch import describe_slow_workers, record_command

    if shutil.which(command[0]) is None:
        raise ValueError(
            f"{command[0]!r} is not a command on the PATH: activate the environment in which it is installed, "
            "or give the path of its file, as in: paceline record -- torchrun --nproc-per-node 2 train.py"
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up workers as after Ctrl-C
    script = next((word for word in command if word.endswith(".py")), command[0])
    name = name or Path(script).stem + "-probe" * probe
    path = folder / f"{name}.parquet"
    recorded = record_command(command, path, probe_steps=iterations if probe else 0)
    for sentence in recorded.missing:
        err.print(sentence, style="yellow")
    if recorded.trace is None:
        if recorded.status:
            raise RuntimeError(
                f"{command[0]} failed with status {recorded.status} before an iteration was recorded: fix its error, "
                "and record again"
            )
        raise RuntimeError(
            "no iteration was recorded: the script must take more than one optimizer step in a torch.distributed job "
            "that torchrun starts, as in: paceline record -- torchrun --nproc-per-node 2 train.py"
        )
    workers = len(recorded.trace.workers)
    err.print(f"{path}: {len(recorded.trace)} iterations of {workers} workers; status {recorded.status}")
    if not recorded.missing:
        err.print(describe_slow_workers(recorded.files))
    if probe:
        samples_TW = recorded.trace.samples
        if (samples_TW == samples_TW[0]).all():
            raise RuntimeError(
                "--probe cut no batch in half: the script's batches must have two samples or more, and come from a "
                "DataLoader with batch_size= or another torch.utils.data.BatchSampler"
            )
        err.print(f"paceline simulate {path}")
    raise typer.Exit(recorded.status)
