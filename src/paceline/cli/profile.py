"""The command ``paceline profile``: batch sizes against step times of a model, on the device at hand."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.markup import escape

from paceline._files import atomic_write, require_writable
from paceline.cli.output import out, show_activity

if TYPE_CHECKING:
    import pandas as pd

    from paceline.training.profile import MakeStep


def profile(
    model: Annotated[
        str, typer.Argument(help="Your function, as [cyan]package.module:make_step[/].")
    ] = "paceline.training.profile:example",
    sizes: Annotated[str, typer.Option(help="Batch sizes to measure.")] = "1,2,4,8,16,32,64,128,256",
    target: Annotated[Path, typer.Option("--out", "-o", help="The .csv file to write.")] = Path("profile.csv"),
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:<number>.")] = "cpu",
    name: Annotated[
        str, typer.Option(help="Name of the device in the profile. \\[default: cpu, or the name of the GPU]")
    ] = "",
    precision: Annotated[
        float, typer.Option(help="Stop when half the 95% interval of each median is below this share of it.")
    ] = 0.03,
    passes: Annotated[int, typer.Option(help="Max passes over the sizes.")] = 15,
) -> None:
    """Measure the time of a training step at several batch sizes, and fit a curve to it.

    Pass a function [cyan]make_step(batch_size, device)[/] that returns a function which runs one training step:

    [cyan]def make_step(batch_size, device):
        return lambda: train_once(images[:batch_size].to(device))[/]

    All sizes are measured in repeated passes, in random order, until --precision or --passes is reached. If memory runs
    out, the largest size that fits is found by bisection.
    """
    from paceline.training import profile as profiling

    try:
        chosen = [int(text) for text in sizes.split(",")]
    except ValueError as error:
        raise ValueError(f"--sizes must be whole numbers like 8,16,32, got {sizes!r}") from error
    make_step = _load_make_step(model)
    if target.suffix != ".csv":
        raise ValueError(f"--out must end in .csv, got {target}")
    require_writable(target)
    with show_activity("measuring") as show:
        measured = profiling.profile(
            make_step,
            chosen,
            device=device,
            name=name,
            model=model,
            precision=precision,
            max_passes=passes,
            progress=lambda size: show(f"measuring a batch of {size}"),
        )
    with atomic_write(target) as temporary:
        measured.to_csv(temporary, index=False)
    for line in _describe_profile(measured):
        out.print(escape(line))
    out.print(escape(f"written to {target}"), soft_wrap=True)


def _load_make_step(function_path: str) -> MakeStep:
    from paceline.cli.options import CLASS_PATTERN, import_module
    from paceline.training.profile import StepError

    found = CLASS_PATTERN.fullmatch(function_path)
    if found is None or found["arguments"] is not None:
        raise StepError(
            f"the model must be named like package.module:make_step or my_file.py:make_step, got {function_path!r}"
        )
    module = import_module(found["module"])
    make_step: MakeStep | None = getattr(module, found["name"], None)
    if not callable(make_step):
        functions = [name for name, thing in vars(module).items() if inspect.isfunction(thing)]
        raise StepError(f"{found['module']} has no function {found['name']!r}; it has {functions}")
    return make_step


def _describe_profile(measured: pd.DataFrame) -> list[str]:
    from paceline.predictors.curve_fit import curve_seconds, fit_curve, weights_by_uncertainty

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
        sizes, seconds = fits["batch"].to_numpy(), fits["seconds"].to_numpy()
        curve = floor, slope, intercept = fit_curve(sizes, seconds, weights)
        off = np.abs(curve_seconds(curve, sizes) / seconds - 1.0)
        lines.append(f"t(x) = max({floor:.3g} s, {intercept:.3g} s + {slope:.3g} s x)")
        lines.append(
            f"off by {np.median(off):.1%} in the median, by {off.max():.0%} at {sizes[off.argmax()]:.0f} samples"
        )
    if len(fits) < len(measured):
        lines.append(f"memory limit: {fits['batch'].max():.0f} samples")
    return lines
