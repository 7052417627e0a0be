"""The demo on recorded jobs: fit to some jobs, compare and replay on others, and draw the result."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from paceline.cli.live_command import outcome_table
from paceline.cli.named_sources import DEFAULT_PREDICTORS
from paceline.cli.show import print_frames
from paceline.datasets import Trace, recorded
from paceline.eval import Balanced, leaderboard, leaderboard_figure, replay_all, replay_figure
from paceline.lab.experiment import Setting, can_set_quotas, experiment
from paceline.predictors import FleetPredictor, named
from paceline.training import describe_model, fit, load_model, save_model

if TYPE_CHECKING:
    import pandas as pd

SHOWN = "narx"
"""The predictor whose replay is drawn."""
READY = "auto"
"""The predictor that comes fitted, to these jobs among others."""


def run(folder: Path, out: Console) -> None:
    """Run the demo and write its tables, models and figures into a folder."""
    began = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    fitting, held_out = recorded.load_split("fit"), recorded.load_split("held-out")
    out.print(f"[bold]1  Recorded jobs[/]: fitting to {_names(fitting)}; scoring on {_names(held_out)}")

    out.print("[bold]2  Fitting[/]")
    models = {text: _fitted(text, fitting, folder, out) for text in DEFAULT_PREDICTORS}

    out.print("[bold]3  How well is the next speed predicted?[/] RMSE and MAE relative to those of the last value")
    with out.status("scoring ..."):
        board = leaderboard(models, held_out)
    rmse = _by_job(board.per_trace, "predictor", "rmse")
    print_frames({"All held-out jobs": board.overall, "RMSE per job": rmse}, as_json=False)

    out.print("[bold]4  What would balancing have gained?[/] The same recorded speeds, other batch sizes")
    with out.status("replaying ..."):
        replays = replay_all({text: Balanced(model) for text, model in models.items()}, held_out)
    gains = _by_job(replays.per_trace, "scheme", "speed-up")
    print_frames({"All held-out jobs": replays.overall, "Speed-up over equal batches, per job": gains}, as_json=False)

    for name, table in {"leaderboard": board.per_trace, "replay": replays.per_trace}.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    shown = max(held_out, key=lambda trace: gains[trace.name][gains["scheme"] == SHOWN].item())
    replay_figure(replays.replays[shown.name], shown, folder / "replay.png", scheme=SHOWN)
    leaderboard_figure(board, folder / "leaderboard.png")
    _live(folder, out)
    written = ", ".join(sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")))
    out.print(f"[bold]6  Written to {folder}/[/]: {written}  ({time.perf_counter() - began:.0f} s)")
    out.print(f"Next: [cyan]paceline evaluate {folder}/narx.safetensors[/], [cyan]paceline collect --list[/]")


def _live(folder: Path, out: Console) -> None:
    """Balance a real training on this machine, with one of its two ranks disturbed."""
    from paceline.lab.experiment.figure import loss_figure

    if len(os.sched_getaffinity(0)) < 2:
        out.print("[bold]5  A real training, balanced[/]: left out, as two ranks need two cores")
        return
    contention = "quota" if can_set_quotas() else "hogs"
    out.print("[bold]5  A real training, balanced[/] Two ranks, equal batches and balanced ones in turns")
    with out.status("training ..."):
        outcome = experiment(Setting(contention=contention, rounds=3, seconds=2.0))
    out.print(outcome_table(outcome))
    loss_figure(outcome, folder / "live.png")


def _fitted(text: str, traces: list[Trace], folder: Path, out: Console) -> FleetPredictor:
    """Return a fitted predictor: fitted now, by an earlier run to the same traces, or one that needs no fitting."""
    predictor = named(text)
    if text == READY:
        out.print(f"   {text}: as shipped")
        return predictor
    path = folder / f"{text.replace(':', '-').replace('=', '-').replace('()', 'none')}.safetensors"
    if path.is_file() and describe_model(path)["fitted_on"] == _names(traces):
        kept = load_model(path)
        if repr(kept) == repr(predictor):
            out.print(f"   {text}: fitted by an earlier run, {path}")
            return kept
    with out.status(f"   fitting {text} ..."):
        began = time.perf_counter()
        predictor = fit(predictor, traces)
        save_model(predictor, path, fitted_on=_names(traces))
    out.print(f"   {text}: {time.perf_counter() - began:.1f} s, {path}")
    return predictor


def _names(traces: list[Trace]) -> str:
    return ", ".join(trace.name for trace in traces)


def _by_job(table: pd.DataFrame, row: str, value: str) -> pd.DataFrame:
    """Pivot a tidy table: one row per predictor or scheme, and one column per job."""
    wide = table.pivot(index=row, columns="trace", values=value)
    return wide.sort_values(list(wide.columns)[:1], ascending=value == "rmse").reset_index()
