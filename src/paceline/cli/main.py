"""The command line ``paceline``: all commands together; the larger ones have their own files."""

from __future__ import annotations

import inspect
import io
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from paceline._text import count, to_printable
from paceline.cli import options as sources
from paceline.cli.audit import audit
from paceline.cli.data import data_app
from paceline.cli.fit import FitTraces, fit
from paceline.cli.live import live
from paceline.cli.output import (
    AsJson,
    Options,
    ReportPath,
    RunSource,
    command_line,
    err,
    out,
    print_frames,
    show_activity,
)
from paceline.cli.profile import profile
from paceline.cli.record import record
from paceline.cli.simulate import simulate
from paceline.cli.watch import watch
from paceline.datasets import Trace
from paceline.predictors import NAMES, FleetPredictor
from paceline.training import describe_model
from paceline.training.fit import fit as fit_to
from paceline.training.fit import progress_line

if TYPE_CHECKING:
    import pandas as pd

    from paceline.eval import Replay
    from paceline.report.page import Page

app = typer.Typer(name="paceline", no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)
app.add_typer(data_app, name="data")
for _function in (record, simulate, audit, watch, live, profile, fit):
    app.command()(_function)


def _print_version(value: bool) -> None:
    if value:
        from paceline import __version__

        print(f"paceline {__version__}")
        raise typer.Exit


@app.callback()
def paceline(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Forecast each training worker's speed and size its next batch, so that workers do not wait for each other.

    Start with [cyan]paceline record -- torchrun ... train.py[/], which needs no change to the script.
    """


Traces = Annotated[
    list[str] | None,
    typer.Option(
        "--trace",
        "-t",
        help="Name of a recorded job, or a file or folder of traces; repeat for several. "
        "\\[default: the recorded held-out jobs]",
    ),
]
Warmup = Annotated[int, typer.Option(help="Iterations to skip at the start of each trace before scoring.")]
PREDICTOR_HELP = (
    "Predictors such as [cyan]narx[/] or [cyan]ewma:smoothing=0.5[/], model files, or your own [cyan]file.py:Class[/]. "
)
Predictors = Annotated[
    list[str] | None, typer.Argument(help=f"{PREDICTOR_HELP}\\[default: last-value, ewma, narx, arima, mixture, auto]")
]
EvaluatedPredictors = Annotated[list[str] | None, typer.Argument(help=f"{PREDICTOR_HELP}\\[default: every predictor]")]


@app.command()
def evaluate(
    predictors: EvaluatedPredictors = None,
    traces: Traces = None,
    fit_on: FitTraces = None,
    options: Options = None,
    warmup: Warmup = 50,
    report_path: ReportPath = None,
    as_json: AsJson = False,
) -> None:
    """Compare the one-step forecasts of predictors on held-out traces.

    [cyan]rmse[/] and [cyan]mae[/] are relative to the last value: below 1 is better. [cyan]coverage[/] is the share of
    speeds inside the 90% interval. [cyan]overhead[/] is how much longer an iteration of 16 workers takes than with
    known speeds. [cyan]microseconds[/] is the time of one update and forecast of all workers. Predictors are fitted
    first; model files are used as they are.

    The table [cyan]leads[/] compares each predictor with the last value and with the best one. A difference is
    [cyan]not significant[/] if chance alone gives one of that size in more than 5% of cases.
    """
    from paceline.eval import leaderboard

    _require_page(report_path)
    scored, models, skipped = _traces_and_models(predictors or list(NAMES), traces, fit_on, options)
    with show_activity(f"scoring {len(models)} predictors on {len(scored)} traces"):
        board = leaderboard(models, scored, warmup=warmup)
    if report_path:
        from paceline.report import evaluation_page

        with show_activity(f"forecasting once more with {board.overall['predictor'][0]}"):
            page = evaluation_page(
                board, models, scored, warmup=warmup, settings=_fit_settings(traces, fit_on), command=command_line()
            )
    tables = {"overall": board.overall, "leads": board.leads(), "per trace": board.per_trace}
    print_frames({**tables, "skipped": skipped}, as_json)
    if report_path:
        _write_page(page, report_path)


@app.command()
def replay(
    predictors: Predictors = None,
    traces: Traces = None,
    fit_on: FitTraces = None,
    options: Options = None,
    warmup: Warmup = 50,
    batch: Annotated[int | None, typer.Option("--global-batch", help="Samples per iteration over all workers.")] = None,
    report_path: ReportPath = None,
    as_json: AsJson = False,
) -> None:
    """Replay recorded jobs with equal batches, with batches sized by each predictor, and with known speeds.

    Each predictor drives the same load balancer as in a live job. [cyan]waiting[/] is the share of time that workers
    wait, [cyan]regret[/] the extra time relative to [cyan]oracle[/], which knows future speeds.
    """
    from paceline.eval import Balanced, Replays
    from paceline.eval import replay as replay_trace
    from paceline.eval.backtest import traces_by_name

    _require_page(report_path)
    scored, models, skipped = _traces_and_models(
        predictors or list(sources.DEFAULT_PREDICTORS), traces, fit_on, options
    )
    schemes = {name: Balanced(model) for name, model in models.items()}
    done: dict[str, Replay] = {}  # trace by trace, as replay_all does, to show how far it is
    with show_activity("replaying") as update:
        for name, trace in traces_by_name(scored).items():
            update(f"replaying {name}, {len(done)} of {len(scored)} traces done")
            done[name] = replay_trace(schemes, trace, global_batch=batch, warmup=warmup)
    result = Replays(done)
    for note in result.notes:
        err.print(escape(note))
    print_frames({"overall": result.overall, "per trace": result.per_trace, "skipped": skipped}, as_json)
    if report_path:
        from paceline.report import replay_page

        settings = [("warm-up, not scored", f"{warmup} iterations"), *_fit_settings(traces, fit_on)]
        _write_page(replay_page(result, scored, settings=settings, command=command_line()), report_path)


def _require_page(path: Path | None) -> None:
    from paceline.report.page import require_page

    if path is not None:
        require_page(path)


def _write_page(page: Page, path: Path) -> None:
    from paceline.report import write_page

    err.print(f"written to {escape(to_printable(str(write_page(page, path))))}", soft_wrap=True)


def _fit_settings(traces: list[str] | None, fit_on: list[str] | None) -> list[tuple[str, str]]:
    return [
        ("traces", ", ".join(traces or ["the recorded held-out jobs"])),
        ("fitted to", ", ".join(fit_on or ["the recorded jobs for fitting"])),
    ]


@app.command()
def report(
    source: RunSource,
    target: Annotated[Path, typer.Option("--out", "-o", help="The .html file to write.")] = Path("report.html"),
) -> None:
    """Write an HTML report of a run: slow workers, the cost of waiting, what balancing saved, and what to do next.

    The page is a single file and needs no network. [cyan]paceline evaluate[/] and [cyan]paceline replay[/] write such a
    page with [cyan]--report[/].
    """
    from paceline.recording import newest_run_file, read_run
    from paceline.report import page, run_page

    page.require_page(target)
    run = read_run(newest_run_file(source))
    page.write_page(run_page(run, command=command_line()), target)
    skipped = f"; {count(run.skipped_lines, 'line')} could not be read and were skipped" if run.skipped_lines else ""
    holds = f"{len(run)} iterations of {len(run.workers)} workers{skipped}"
    out.print(f"written to {escape(to_printable(str(target)))}: {holds}", soft_wrap=True)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")] = Path("demo-output"),
) -> None:
    """Fit, compare and replay predictors on the recorded jobs, and write one report."""
    from paceline.cli.demo import run_demo

    run_demo(folder, out)


def _join_lines(text: str) -> str:
    """Return a text with each paragraph on one line, so that it is wrapped at the terminal's width only."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(re.sub(r"\n(?![ -])", " ", paragraph) for paragraph in paragraphs)


for _command in [*app.registered_commands, *data_app.registered_commands]:
    if _command.callback is not None and _command.callback.__doc__:
        _command.help = _join_lines(_command.callback.__doc__)


def main() -> None:
    """Run the command line; a user's mistake ends in one sentence, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal of the C locale shows no block characters
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app(_repeat_option_names(sys.argv[1:]))
    except Exception as error:
        place = sources.user_location(error)
        if not place and not isinstance(error, ValueError | OSError | ImportError | RuntimeError):
            raise
        text = f"{type(error).__name__}: {error} ({place})" if place else str(error)
        lines = "\n".join(map(to_printable, text.split("\n")))  # an example in an error keeps its lines
        err.print(f"[bold red]error:[/] {escape(lines)}", soft_wrap=True, highlight=False)
        sys.exit(2)


def _repeat_option_names(arguments: list[str]) -> list[str]:
    """Return the words of a command line with ``--with a=1 b=2`` written as ``--with a=1 --with b=2``."""
    written: list[str] = []
    for place, word in enumerate(arguments):
        if word == "--":  # what follows is another command
            return written + arguments[place:]
        if len(written) > 1 and written[-2] == "--with" and re.match(r"[A-Za-z_]\w*=", word):
            written.append("--with")
        written.append(word)
    return written


def _show_warning(message: Warning | str, *where: object, **more: object) -> None:
    """Print a warning as one sentence: the line of code that gave it says nothing to a user."""
    err.print(f"[yellow]warning:[/] {escape(to_printable(str(message)))}", soft_wrap=True, highlight=False)


# -- inputs --------------------------------------------------------------------------------------------------


def _traces_and_models(
    predictor_names: list[str], traces: list[str] | None, fit_on: list[str] | None, options: list[str] | None = None
) -> tuple[list[Trace], dict[str, FleetPredictor], pd.DataFrame]:
    """Return the traces to score, the fitted predictors, and skipped ones with reasons."""
    import pandas as pd

    scored, fitted_on = (
        sources.load_traces(names, split, options) for names, split in ((traces, "held-out"), (fit_on, "fit"))
    )
    both = sorted({trace.name for trace in scored} & {trace.name for trace in fitted_on})
    if both and not fit_on:
        raise ValueError(
            f"predictors would be evaluated on traces {both}, to which they are fitted by default: choose other traces "
            "to fit to with --fit-on"
        )
    models: dict[str, FleetPredictor] = {}
    missing: dict[str, ImportError] = {}
    for text in predictor_names:
        with show_activity(f"fitting {text}") as update:
            model = sources.load_predictor(text)
            try:
                models[text] = _fit_unless_saved(text, model, scored, fitted_on, update)
            except ImportError as error:
                missing[text] = error
    if not models:
        raise next(iter(missing.values()))
    skipped = [{"predictor": text, "reason": str(error)} for text, error in missing.items()]
    return scored, models, pd.DataFrame(skipped, columns=["predictor", "reason"])


def _fit_unless_saved(
    predictor_name: str,
    model: FleetPredictor,
    scored_traces: list[Trace],
    fit_traces: list[Trace],
    update_status: Callable[[str], None],
) -> FleetPredictor:
    """Return a fitted predictor; that of a model file as it is, with a warning if it was fitted to a scored trace."""
    # Covariates that no trace has would silently change nothing.
    there = sorted({name for trace in scored_traces for name in trace.covariate_names})
    if lacks := [name for name in getattr(model, "covariates", None) or () if name not in there]:
        raise ValueError(f"{predictor_name} names covariates {lacks}, which no trace has: choose from {there}")
    if not predictor_name.endswith(".safetensors"):
        return fit_to(
            model, fit_traces, progress=lambda done: update_status(f"fitting {predictor_name}, {progress_line(done)}")
        )
    fitted = set(str(describe_model(predictor_name)["fitted_on"]).split(", "))
    if same := sorted(fitted & {trace.name for trace in scored_traces}):
        err.print(
            f"{escape(predictor_name)} was fitted to traces called {escape(to_printable(str(same)))}; a model file "
            "stores only names, so if these are the same traces, its scores here are too good"
        )
    return model
