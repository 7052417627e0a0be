"""The command ``paceline simulate``: what balancing would gain, before anything is attached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from paceline._text import to_printable
from paceline.cli.options import find_traces
from paceline.cli.output import AsJson, FileFormat, Options, out, show_activity

if TYPE_CHECKING:
    from paceline.eval.simulate import Simulation


def simulate(
    source: Annotated[
        str | None, typer.Argument(help="Name of a recorded job, or a file or folder of traces or logs.")
    ] = None,
    speeds: Annotated[
        str | None,
        typer.Option(help="Instead of a source: typical speeds of the workers, such as [cyan]100,100,60[/]."),
    ] = None,
    profiles: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            help="Instead of a source: output of [cyan]paceline profile[/] and the number of workers with that device, "
            "such as [cyan]t4.csv=2[/]; repeat for each device.",
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option("--global-batch", help="Samples per iteration over all workers.")] = None,
    noise: Annotated[
        float, typer.Option(help="Relative variation of speeds between iterations, for --speeds and --profile.")
    ] = 0.05,
    file_format: FileFormat = None,
    options: Options = None,
    as_json: AsJson = False,
) -> None:
    """Estimate how much time balancing would save, before you change the job.

    The source is a trace or a log: a table of times or rates per rank, Megatron-LM's timers, scores of
    nvidia-resiliency-ext, or exports of torch.profiler. The balancer of a live job is replayed on it with its defaults.
    The output is the share of time saved, with a 90% interval, how much workers wait, and the lines to add to your
    script.

    If batch sizes never change, a log does not show which part of a step's time depends on the batch, so the estimate
    is a range. [cyan]paceline record --probe -- torchrun ...[/] records a short run with two batch sizes to narrow it.
    """
    from paceline.eval import from_profiles, from_speeds
    from paceline.eval import simulate as simulate_trace

    sources = [one for one in (source, speeds, profiles) if one]
    if len(sources) != 1:
        raise ValueError(
            f"simulate takes exactly one of a source (a trace or a log), --speeds and --profile, got {len(sources)}"
        )
    known: dict[str, Any] = {"global_batch": batch, "noise": noise}
    with show_activity("replaying"):
        if speeds:
            found = [("speeds", from_speeds(_parse_speeds(speeds), **known))]
        elif profiles:
            if batch is None:
                raise ValueError("--profile needs --global-batch, as a device's speed depends on its batch")
            found = [("profiles", from_profiles(_parse_profiles(profiles), **known))]
        else:
            traces = find_traces(str(source), file_format, options)
            found = [(trace.name, simulate_trace(trace, **known)) for trace in traces]
    if not found:
        raise ValueError(f"{source} holds no trace")
    if as_json:
        print(json.dumps([{"job": name, **one.to_dict()} for name, one in found]))
        return
    for name, one in found:
        for line in (*([f"{name}:"] if len(found) > 1 else []), *one.sentences, *_next_commands(one)):
            out.print(escape(to_printable(line)), highlight=False, soft_wrap=True)


def _parse_speeds(speeds: str) -> list[float]:
    try:
        return [float(text) for text in speeds.split(",")]
    except ValueError:
        raise ValueError(f"--speeds must be numbers like 100,100,60, got {speeds!r}") from None


def _parse_profiles(profiles: list[str]) -> dict[str | Path, int]:
    counts: dict[str | Path, int] = {}
    for text in profiles:
        name, equals, count = text.rpartition("=")
        if equals and not count.isdecimal():
            raise ValueError(f"--profile takes a file and a number of workers like t4.csv=2, got {text!r}")
        counts[name or text] = int(count) if equals else 1
    return counts


def _next_commands(simulation: Simulation) -> list[str]:
    if simulation.needs_probe:
        command = simulation.command or "<your command>"
        return [f"Next: measure it in a short run with two batch sizes: paceline record --probe -- {command}"]
    if not simulation.pays:
        return ["Next: leave the script as it is."]
    arguments = f"global_batch={simulation.job_batch or '...'}"
    if simulation.accumulate > 1:
        arguments += f", accumulate={simulation.accumulate}"
    lines = [
        "Next: add to the script (docs/howto/pytorch.md)",
        "",
        "from paceline.torch import BalancedLoader, attach",
        "",
        f"loader = BalancedLoader(dataset, {arguments})  # in place of DataLoader and DistributedSampler",
        "attach(model, loader)  # model: your DistributedDataParallel",
    ]
    # worth a loader that knows the samples' costs
    if simulation.waiting.is_known and simulation.waiting.from_work >= 0.02:
        lines += ["", "Samples differ in cost: give the loader costs= too (docs/howto/work.md)."]
    return [*lines, "", "paceline audit -- <your command> checks whether the script stays exact."]
