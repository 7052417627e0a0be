"""The command ``paceline profile``: batch sizes against step times of a model, on the device at hand."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from paceline._files import require_writable
from paceline.cli.output import out, working

if TYPE_CHECKING:
    import pandas as pd


def profile(
    model: Annotated[
        str, typer.Argument(help="Function make_step, as [cyan]package.module:make_step[/].")
    ] = "paceline.training.profile:example",
    sizes: Annotated[str, typer.Option(help="Batch sizes to measure.")] = "1,2,4,8,16,32,64,128,256",
    target: Annotated[Path, typer.Option("--out", "-o", help="The .csv file to write.")] = Path("profile.csv"),
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:<number>.")] = "cpu",
    name: Annotated[str, typer.Option(help="Name of the device in the profile. \\[default: its own name]")] = "",
    repeats: Annotated[int, typer.Option(help="Timed steps per size and pass; their median counts.")] = 5,
    warmup: Annotated[int, typer.Option(help="Steps per size and pass before the timed ones.")] = 3,
    precision: Annotated[float, typer.Option(help="Measure until each median is certain to this share.")] = 0.03,
    passes: Annotated[int, typer.Option(help="Most passes over the sizes.")] = 15,
) -> None:
    """Measure a model's training step over batch sizes, and fit its batch time curve.

    [cyan]make_step(batch_size, device)[/] returns a function that runs one training step of that batch when called:

    [cyan]def make_step(batch_size, device):
        return lambda: train_once(images[:batch_size].to(device))[/]

    Passes over the sizes, in random order, go on until the median of each is certain. If memory runs out, the limit is
    found by bisection. Writes the profile and, if matplotlib is installed, a picture of it.
    """
    from paceline.datasets.profiles import save_profile
    from paceline.training import profile as profiling
    from paceline.training.profile import load_make_step

    try:
        chosen = [int(text) for text in sizes.split(",")]
    except ValueError as error:
        raise ValueError(f"--sizes must be whole numbers like 8,16,32, got {sizes!r}") from error
    make_step = load_make_step(model)
    if target.suffix != ".csv":
        raise ValueError(f"--out must end in .csv, got {target}")
    require_writable(target)
    with working("measuring") as show:
        measured = profiling.profile(
            make_step,
            chosen,
            device=device,
            name=name,
            model=model,
            warmup=warmup,
            repeats=repeats,
            precision=precision,
            max_passes=passes,
            progress=lambda size: show(f"measuring a batch of {size}"),
        )
    save_profile(measured, target)
    for line in _describe_profile(measured):
        out.print(escape(line))
    written = str(target)
    if find_spec("matplotlib") is not None and measured["seconds"].count() > 1:
        from paceline.eval.plots import curve_figure

        written += f" and {curve_figure(measured, target.with_suffix('.png'))}"
    out.print(escape(f"written to {written}"), soft_wrap=True)


def _describe_profile(measured: pd.DataFrame) -> list[str]:
    from paceline.predictors.curve_fit import fit_curve, weights_by_uncertainty

    fits = measured.dropna(subset=["seconds"])
    columns = (measured[name].to_numpy(dtype=float) for name in ("batch", "seconds", "uncertainty"))
    lines = [
        f"{batch:8.0f} samples  {1e3 * seconds:10.3f} ms {f'+-{uncertainty:.1%}':>8}  {batch / seconds:10.1f} samples/s"
        if seconds > 0
        else f"{batch:8.0f} samples  no memory"
        for batch, seconds, uncertainty in zip(*columns, strict=True)
    ]
    lines.append("+- is half the 95% interval of the median; nan: fewer than six passes")
    if len(fits) > 1:
        weights = weights_by_uncertainty(fits["uncertainty"])
        floor, slope, intercept = fit_curve(fits["batch"].to_numpy(), fits["seconds"].to_numpy(), weights)
        lines.append(f"t(x) = max({floor:.3g} s, {intercept:.3g} s + {slope:.3g} s x)")
    if len(fits) < len(measured):
        lines.append(f"memory limit: {fits['batch'].max():.0f} samples")
    return lines
