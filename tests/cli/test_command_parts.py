"""Parts of commands: names of traces, numbers of a page, a silent run, the progress of a fit."""

import io
import time

import numpy as np
import pytest
from rich.console import Console

from paceline.cli.data_command import _summary
from paceline.cli.named_sources import find_traces
from paceline.cli.watching.short_numbers import samples
from paceline.cli.watching.watch_command import Watched
from paceline.datasets import recorded
from paceline.predictors.fitting import Moment
from paceline.training.fit_progress import Bar


@pytest.mark.parametrize(
    ("name", "kind"),
    [("gone.parquet", FileNotFoundError), ("folder/gone", FileNotFoundError), ("gone", ValueError)],
)
def test_what_looks_like_a_path_is_no_file_and_anything_else_no_name(name, kind):
    with pytest.raises(kind, match="gone"):
        next(find_traces(name))


def test_the_variation_of_a_trace_is_the_mean_of_its_workers_deviations_by_their_means():
    trace = recorded.load(recorded.names()[0])
    each = [np.nanstd(speed) / np.nanmean(speed) for speed in trace.speed.T if np.isfinite(speed).any()]
    assert _summary(trace)["variation of speed"] == pytest.approx(np.mean(each))


def test_samples_beyond_ten_millions_are_in_millions():
    assert [samples(number) for number in (9_999_999.0, 1e7, 1e15)] == ["9999999", "10 M", "1000000000 M"]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_fit_shows_a_bar_on_a_terminal_only(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    with Bar(console) as bar:
        bar(Moment("training", 512, 1024, rate=256.0, loss=0.5))
        bar._bars.refresh()
    assert ("\x1b" in console.file.getvalue()) is terminal


def test_until_a_line_arrives_a_run_is_silent_by_the_writers_clock_and_never_less_than_0(tmp_path):
    watched = Watched(tmp_path)
    assert watched._silent(time.time() + 100.0) == 0.0
    assert watched._silent(time.time() - 0.25) == pytest.approx(0.25, abs=0.2)
    watched._arrived = time.monotonic() - 5.0
    assert watched._silent(time.time() + 100.0) == pytest.approx(5.0, abs=0.2)
