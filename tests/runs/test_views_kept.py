"""What a terminal shows of made runs is what it was: every word, every column, every colour, wide and narrow."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kept import require_kept
from made_runs import ASYNC_RUNS, RUNS
from rich.console import Console

from paceline.cli.watching.async_view import async_view
from paceline.cli.watching.view import SILENT_SECONDS, SILENT_TIMES, is_long, view

KEPT = Path(__file__).parent / "views.json"


def drawn(panel, width):
    console = Console(
        width=width, file=io.StringIO(), force_terminal=True, color_system="standard", legacy_windows=False
    )
    console.print(panel)
    return console.file.getvalue().split("\n")


@pytest.mark.parametrize(("silent", "width"), [(0.0, 80), (240.0, 110)])
@pytest.mark.parametrize("name", RUNS)
def test_the_view_of_a_run_is_what_it_was(name, silent, width):
    found = view(RUNS[name], done=1000 + len(RUNS[name]), silent=silent)
    require_kept(KEPT, f"{name}, silent for {silent}, {width} wide", drawn(found, width))


def refused(run, samples):
    fleet = run.of_fleet | {"refused": np.full(len(run), float(samples))}
    return replace(run, of_fleet=fleet)


ALARMING = {
    "refused": refused(ASYNC_RUNS["small"], 3),
    "in peace": replace(refused(ASYNC_RUNS["small"], 0), skipped=0, lost=0),
    "one lost": replace(refused(ASYNC_RUNS["small"], 0), skipped=0, lost=1),
}


@pytest.mark.parametrize(("silent", "width"), [(0.0, 80), (240.0, 110)])
@pytest.mark.parametrize("name", [*ASYNC_RUNS, *ALARMING])
def test_the_view_of_an_asynchronous_run_is_what_it_was(name, silent, width):
    run = (ASYNC_RUNS | ALARMING)[name]
    require_kept(
        KEPT,
        f"asynchronous {name}, silent for {silent}, {width} wide",
        drawn(async_view(run, done=1, silent=silent), width),
    )


@pytest.mark.parametrize("usual", [0.0, 0.5, 1.0, 60.0, float("nan")])
def test_a_silence_is_long_beyond_five_usual_times_and_three_seconds(usual):
    limit = max(3.0, 5.0 * usual) if usual == usual else 3.0
    assert (SILENT_SECONDS, SILENT_TIMES) == (3.0, 5.0)
    assert not is_long(limit, usual)
    assert is_long(np.nextafter(limit, np.inf), usual)
