"""The command ``paceline fit``: fit a predictor to traces, and write a model file."""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from paceline._files import require_writable
from paceline._text import to_printable
from paceline.cli.output import AsJson, Options, err, out

if TYPE_CHECKING:
    from paceline.training import Source

FitTraces = Annotated[
    list[str] | None,
    typer.Option(
        "--fit-on",
        "-f",
        help="A recorded trace's name, a file or a folder of files; repeat for several. "
        "\\[default: the recorded jobs to fit]",
    ),
]


def fit(
    predictor: Annotated[str, typer.Argument(help="A kind such as [cyan]narx[/] or [cyan]narx:lags=8,hidden=32[/].")],
    traces: FitTraces = None,
    options: Options = None,
    model: Annotated[Path, typer.Option("--out", "-o", help="The model file to write.")] = Path("model.safetensors"),
    start: Annotated[str | None, typer.Option(help="A model to go on from, such as yesterday's.")] = None,
    hold_out: Annotated[float, typer.Option(help="Share of the workers that decide when to stop.")] = 0.0,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at a file that cannot be read.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Fit a predictor to traces and write a model file. Under [cyan]torchrun[/], all its processes fit together.

    Example: [cyan]paceline fit narx -f traces/ --out narx.safetensors[/]
    """
    from paceline.cli import options as sources
    from paceline.predictors import KINDS
    from paceline.predictors.nested import PredictorAdapter
    from paceline.training import Bar, fit, save_model

    if model.suffix != ".safetensors":
        raise ValueError(
            f"--out must name a .safetensors file, the extension of models in evaluate and replay, got {model}"
        )
    require_writable(model)
    unfitted = sources.predictor(predictor)
    if isinstance(unfitted, PredictorAdapter):
        raise ValueError(
            f"{predictor} cannot be saved in a model file, as its class does not inherit from FleetPredictor; name "
            "it in evaluate and replay, which fit it first"
        )
    source = sources.source(traces, "fit", strict=strict, options=options)
    together = "TORCHELASTIC_RUN_ID" in os.environ
    first = not together or os.environ.get("RANK") == "0"
    with Bar(err) if first else contextlib.nullcontext() as bar:
        fitted = fit(
            unfitted,
            source,
            start=None if start is None else sources.predictor(start),
            hold_out=hold_out,
            progress=bar or False,
            device=device,
            distributed=together,
            warn=False,
        )
    if not first:
        return
    _report_skipped(source)
    out.print(escape(repr(fitted)))
    about = ", ".join(fact.name for fact in source.facts[:100])
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


def _report_skipped(source: Source) -> None:
    left, limit = source.left_out, 10
    for one in left[:limit]:
        err.print(f"left out: {escape(to_printable(str(one)))}", soft_wrap=True, highlight=False)
    if len(left) > limit:
        err.print(f"left out: {len(left) - limit} more files")
    if left:
        err.print(f"fitted to {len(source.facts)} traces, left out {len(left)} files")


def tune(
    predictor: Annotated[str, typer.Argument(help="A kind, with the arguments that are not to be tried.")],
    traces: FitTraces = None,
    options: Options = None,
    trials: Annotated[int, typer.Option(help="Trials in all, with those of earlier calls.")] = 20,
    jobs: Annotated[int, typer.Option(help="Trials at once, each in a process of its own.")] = 1,
    hold_out: Annotated[float, typer.Option(help="Share of the workers on which trials are compared.")] = 0.3,
    journal: Annotated[Path, typer.Option(help="Journal of trials: called again, it goes on.")] = Path("tune.journal"),
    epochs: Annotated[int | None, typer.Option(help="Most passes of a network's training.")] = None,
    as_json: AsJson = False,
) -> None:
    """Try arguments of a predictor on validation workers, and print the best ones and what mattered.

    Example: [cyan]paceline tune narx -f traces/ --trials 30 --jobs 2[/]
    """
    from paceline._require import require
    from paceline.cli import options as sources
    from paceline.cli.output import print_frames
    from paceline.eval.tune import tune
    from paceline.predictors import Training

    engine: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if jobs > 1:
        require("joblib", needed_by="tuning in several processes", extra="scale")
        import joblib

        engine = joblib.parallel_config(n_jobs=jobs)
    source = sources.source(traces, "fit", options=options)
    with engine:
        tuned = tune(
            predictor,
            source,
            trials=trials,
            at_once=jobs,
            hold_out=hold_out,
            storage=journal,
            training=None if epochs is None else Training(epochs=epochs),
            on_trial=lambda number, score: err.print(f"trial {number}: {score:.4f}"),
        )
    _report_skipped(source)
    print_frames({"trials, best first": tuned.trials.head(10), "what mattered": tuned.mattered}, as_json)
    if not as_json:
        best = {str(name): value for name, value in tuned.trials.iloc[0].items() if name != "score"}
        if epochs is not None:
            best["epochs"] = epochs
        # Python's own numbers: whole ones of a table's row may have become floats.
        plain = {name: value.item() if hasattr(value, "item") else value for name, value in best.items()}
        plain = {n: int(v) if isinstance(v, float) and v.is_integer() else v for n, v in plain.items()}
        text = predictor + ("," if ":" in predictor else ":") + ",".join(f"{k}={v!r}" for k, v in plain.items())
        files = [word for name in traces or () for word in ("-f", name)]
        command = ["paceline", "fit", text, *files, "-o", "model.safetensors"]
        out.print(f"fit the best with:\n{shlex.join(command)}", markup=False, highlight=False, soft_wrap=True)
