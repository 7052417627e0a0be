"""The demo on recorded jobs: fit to some jobs, compare and replay on others, and report it on one page."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from paceline.cli.live import print_outcome
from paceline.cli.options import DEFAULT_PREDICTORS
from paceline.cli.output import print_frames
from paceline.datasets import Trace, recorded
from paceline.eval import Balanced, leaderboard, replay_all
from paceline.lab import (
    DISTURBANCES,
    EQUAL,
    GLOBAL_BATCH,
    ExperimentOutcome,
    ExperimentSetting,
    can_set_quotas,
    experiment,
)
from paceline.predictors import FleetPredictor, named
from paceline.report import evaluation_page, replay_page, write_page
from paceline.report.drawing import answer, as_text
from paceline.report.page import ChartLine, lines_block, require_page, section, table
from paceline.training import fit, save_model

if TYPE_CHECKING:
    import pandas as pd

    from paceline.report.page import Page


def run_demo(folder: Path, console: Console) -> None:
    """Run the demo and write its models and its report into a folder."""
    began = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    require_page(folder / "report.html")
    fitting, held_out = recorded.load_split("fit"), recorded.load_split("held-out")
    console.print(
        f"[bold]1  Recorded jobs[/]: fitting to {_join_trace_names(fitting)}; scoring on {_join_trace_names(held_out)}"
    )

    console.print("[bold]2  Fitting[/]")
    models = {text: _fit_or_create(text, fitting, folder, console) for text in DEFAULT_PREDICTORS}

    console.print("[bold]3  How well is the next speed predicted?[/] RMSE and MAE relative to those of the last value")
    with console.status("scoring ..."):
        board = leaderboard(models, held_out)
    rmse = _pivot_by_job(board.per_trace, "predictor", "rmse")
    print_frames({"All held-out jobs": board.overall, "RMSE per job": rmse}, as_json=False)

    console.print("[bold]4  What would balancing have gained?[/] The same recorded speeds, other batch sizes")
    with console.status("replaying ..."):
        replays = replay_all({text: Balanced(model) for text, model in models.items()}, held_out)
    gains = _pivot_by_job(replays.per_trace, "scheme", "speed-up")
    print_frames({"All held-out jobs": replays.overall, "Speed-up over equal batches, per job": gains}, as_json=False)

    live = _run_live(console)
    settings = [("fitted to", _join_trace_names(fitting)), ("scored and replayed on", _join_trace_names(held_out))]
    with console.status("writing the report ..."):
        page = demo_page(
            replay_page(replays, held_out, settings=settings, command="paceline demo"),
            evaluation_page(board, models, held_out),
            live,
        )
        write_page(page, folder / "report.html")
    written = ", ".join(sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")))
    console.print(f"[bold]6  Written to {folder}/[/]: {written}  ({time.perf_counter() - began:.0f} s)")
    console.print(f"Next: open [cyan]{folder}/report.html[/]; [cyan]paceline evaluate {folder}/narx.safetensors[/]")


def demo_page(replay_report: Page, evaluation_report: Page, live_outcome: ExperimentOutcome | None) -> Page:
    """Return one page of the demo: what a replay and an evaluation found, and a training on this machine."""
    *found, advice = replay_report["verdict"]
    sections = [*replay_report["sections"][:-1], *evaluation_report["sections"][:-1]]
    if live_outcome is not None:
        sections.append(_live_section(live_outcome))
        row = live_outcome.rows[0]
        speed_up, half = as_text(row.speed_up, "times"), as_text(row.half_width, "ratio")
        if abs(row.speed_up - 1.0) < row.half_width:
            text = f"{speed_up} ± {half} (95%) in a real training here, with two ranks: too noisy a machine to tell."
            found.append(answer("And for real?", "Not clear", text))
        else:
            text = f"as fast as equal batches in a real training here, with two ranks, one disturbed: ± {half} (95%)."
            found.append(answer("And for real?", speed_up, text))
    about = {
        "kind": "demo",
        "title": "Paceline on recorded jobs",
        "verdict": [*found, evaluation_report["verdict"][0], advice],
    }
    return {**replay_report, **about, "sections": [*sections, replay_report["sections"][-1]]}


def _live_section(outcome: ExperimentOutcome) -> dict[str, Any]:
    """Return the experiment as a section: how fast, and that the model learns the same."""
    columns = [("balanced by", "text"), ("speed-up over equal batches", "range"), ("oracle", "times")]
    columns += [("waiting", "percent"), ("added time", "seconds")]
    rows = []
    for one in outcome.rows:
        gain = (one.speed_up - one.half_width, one.speed_up, one.speed_up + one.half_width)
        rows.append((one.scheme, gain, one.oracle, one.waiting_share, one.overhead))
    losses = {name: outcome.losses(name) for name in (EQUAL, *outcome.setting.schemes)}
    last = min(map(len, losses.values()))
    chart_lines = [ChartLine(name, loss[:last], 5 if name == EQUAL else 1) for name, loss in losses.items()]
    chart = lines_block(
        "Loss after as many samples",
        "The lines coincide: sizes change who computes what, and not what is learned.",
        np.arange(1, last + 1) * GLOBAL_BATCH / 1000,
        chart_lines,
        x_label="thousand samples",
        unit="loss",
    )
    about = f"{DISTURBANCES[outcome.setting.contention]}. They took turns; the range is a 95% interval."
    return section("A real training on this machine", about, table("Schemes", columns, rows), chart)


def _run_live(console: Console) -> ExperimentOutcome | None:
    """Balance a real training on this machine, with one of its two ranks disturbed."""
    if len(os.sched_getaffinity(0)) < 2:
        console.print("[bold]5  A real training, balanced[/]: left out, as two ranks need two cores")
        return None
    contention = "quota" if can_set_quotas() else "hogs"
    console.print("[bold]5  A real training, balanced[/] Two ranks, equal batches and balanced ones in turns")
    with console.status("training ..."):
        outcome = experiment(ExperimentSetting(contention=contention, rounds=3, seconds=2.0))
    print_outcome(outcome)
    return outcome


def _fit_or_create(predictor_name: str, traces: list[Trace], folder: Path, console: Console) -> FleetPredictor:
    predictor = named(predictor_name)
    # comes fitted, to these jobs among others
    if predictor_name == "auto":
        console.print(f"   {predictor_name}: as shipped")
        return predictor
    path = folder / f"{predictor_name.replace(':', '-').replace('=', '-').replace('()', 'none')}.safetensors"
    with console.status(f"   fitting {predictor_name} ..."):
        began = time.perf_counter()
        predictor = fit(predictor, traces)
        save_model(predictor, path, fitted_on=_join_trace_names(traces))
    console.print(f"   {predictor_name}: {time.perf_counter() - began:.1f} s, {path}")
    return predictor


def _join_trace_names(traces: list[Trace]) -> str:
    return ", ".join(trace.name for trace in traces)


def _pivot_by_job(table: pd.DataFrame, row_column: str, value_column: str) -> pd.DataFrame:
    """Pivot a tidy table: one row per predictor or scheme, and one column per job."""
    wide = table.pivot(index=row_column, columns="trace", values=value_column)
    return wide.sort_values(list(wide.columns)[:1], ascending=value_column == "rmse").reset_index()
