"""The command ``paceline fit``: fit a predictor to traces, and write a model file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from paceline._files import require_writable
from paceline.cli.output import Options, err, out

FitTraces = Annotated[
    list[str] | None,
    typer.Option(
        "--fit-on",
        "-f",
        help="Traces to fit to: name of a recorded job, or a file or folder; repeat for several. "
        "\\[default: the recorded jobs for fitting]",
    ),
]


def fit(
    predictor: Annotated[
        str, typer.Argument(help="A predictor such as [cyan]narx[/] or [cyan]narx:lags=8,hidden=32[/].")
    ],
    traces: FitTraces = None,
    options: Options = None,
    model: Annotated[Path, typer.Option("--out", "-o", help="The model file to write.")] = Path("model.safetensors"),
    start: Annotated[str | None, typer.Option(help="Model file to continue from.")] = None,
    hold_out: Annotated[float, typer.Option(help="Share of the workers held out for early stopping.")] = 0.0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail on a file that cannot be read, instead of skipping it.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Fit a predictor to traces and write a model file.

    Under [cyan]torchrun[/], its processes share the work.

    Example: [cyan]paceline fit narx -f traces/ --out narx.safetensors[/]
    """
    from paceline.cli import options as sources
    from paceline.predictors import KINDS
    from paceline.predictors.nested import PredictorAdapter
    from paceline.training import fit, save_model

    if model.suffix != ".safetensors":
        raise ValueError(f"--out must end in .safetensors, got {model}")
    require_writable(model)
    unfitted = sources.load_predictor(predictor)
    if isinstance(unfitted, PredictorAdapter):
        raise ValueError(
            f"{predictor} cannot be saved in a model file, as its class does not inherit from FleetPredictor: pass "
            "it to evaluate or replay, which fit it first"
        )
    source = sources.fit_source(traces, "fit", strict=strict, options=options)
    together = "TORCHELASTIC_RUN_ID" in os.environ
    first = not together or os.environ.get("RANK") == "0"
    fitted = fit(
        unfitted,
        source,
        start=None if start is None else sources.load_predictor(start),
        hold_out=hold_out,
        progress=first,
        device=device,
        distributed=together,
    )
    if not first:
        return
    out.print(escape(repr(fitted)))
    about = ", ".join(source.trace_names[:100])
    try:
        file = save_model(fitted, model, fitted_on=about)
    except OSError as error:  # the disk may have filled up during the fit, whose result is not to be lost
        folder = Path(tempfile.mkdtemp(prefix="paceline-"))
        file = save_model(fitted, folder / model.name, fitted_on=about)
        err.print(f"{error}; the model is in {file} instead", markup=False, soft_wrap=True)
    use = "use it by its file name in evaluate and replay"  # which know the classes of this library alone
    if type(fitted) not in KINDS:
        use = f"use it in Python, beside its class: load_model({str(file)!r}, kinds=[{type(fitted).__name__}])"
    out.print(f"written to {file}; {use}", markup=False, soft_wrap=True)
