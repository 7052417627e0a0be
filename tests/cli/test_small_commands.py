"""Commands with what takes long replaced: what they ask for, say meanwhile, print and refuse."""

import importlib
import io
import json
import signal
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from paceline.cli import collect_command, live_command, main, profile_command, simulate_command
from paceline.cli.show import SafeConsole
from paceline.datasets import Trace
from paceline.lab import JOBS


def job(name="a", iterations=3, **meta):
    shape = (iterations, 2)
    return Trace(np.full(shape, 8.0), np.full(shape, 0.5), meta={"job": name, **meta})


def run(*words):
    return CliRunner().invoke(main.app, [str(word) for word in words], catch_exceptions=False)


def refused(*words):
    return str(CliRunner().invoke(main.app, [str(word) for word in words]).exception)


class Narrow(SafeConsole):
    """A console that says when a spinner begins, what it shows, and when it ends."""

    @contextmanager
    def status(self, words):
        self.print(f"<{words}>", markup=False, soft_wrap=True)
        yield SimpleNamespace(update=lambda text: self.print(f"<{text}>", markup=False))
        self.print("<>")


@pytest.fixture
def streams(monkeypatch):
    """Consoles in the place of those of all commands."""
    files = [io.StringIO(), io.StringIO()]
    for room in (collect_command, live_command, profile_command):
        for name, file in zip(("out", "err"), files, strict=True):
            monkeypatch.setattr(room, name, Narrow(file=file, width=60))
    return SimpleNamespace(out=lambda: files[0].getvalue().splitlines(), err=lambda: files[1].getvalue().splitlines())


# -- live ----------------------------------------------------------------------------------------------------------


def columns_of(table):
    return [(column.header, column.justify, *column.cells) for column in table.columns]


def test_the_table_of_a_training_has_a_column_for_each_number():
    row = SimpleNamespace(
        scheme="ewma", speed_up=1.234, half_width=0.056, oracle=1.5, reached=0.823, waiting=0.1, overhead=0.00012345
    )
    table = live_command.outcome_table(SimpleNamespace(setting=SimpleNamespace(contention="none"), rows=[row]))
    assert (table.title_justify, bool(table.title)) == ("left", True)
    assert columns_of(table) == [
        ("balanced by", "left", "ewma"),
        ("speed-up over equal batches", "right", "1.23 ± 0.06"),
        ("oracle", "right", "1.50"),
        ("reached", "right", "82%"),
        ("waiting", "right", "10%"),
        ("added time", "right", "123 us"),
    ]


def test_the_table_of_asynchronous_schemes_has_a_column_for_each_number():
    row = SimpleNamespace(
        scheme="asp", samples_per_second=12345.6, spread=(999.6, 20000.0), loss=0.12345, staleness=1.25, largest=7,
        bound=-1, waiting=0.25, wasted=0.0123, slow_share=0.333,
    )  # fmt: skip
    rows = [row, SimpleNamespace(**(vars(row) | {"bound": 0}))]
    outcome = SimpleNamespace(setting=SimpleNamespace(contention="none"), rows=rows, equal_samples=98765)
    table = live_command.async_table(outcome)
    assert table.title_justify == "left"
    assert columns_of(table) == [
        ("scheme", "left", "asp", "asp"),
        ("samples/s", "right", *["12,346"] * 2),
        ("all turns", "right", *["1,000-20,000"] * 2),
        ("loss after 98,765", "right", *["0.123"] * 2),
        ("stale", "right", *["1.2"] * 2),
        ("largest", "right", *["7"] * 2),
        ("bound", "right", "none", "0"),
        ("waits", "right", *["25%"] * 2),
        ("wasted", "right", *["1.2%"] * 2),
        ("slow rank's", "right", *["33%"] * 2),
    ]


def test_a_figure_of_asynchronous_schemes_is_refused_before_anything_is_trained(monkeypatch):
    monkeypatch.setattr(live_command, "_watched", lambda setting: pytest.fail("it trained"))
    said = refused("live", "ewma", "saps", "asp", "--figure", "a.png")
    assert said == "--figure draws balanced schemes only: leave out saps, asp"


# -- collect -------------------------------------------------------------------------------------------------------


def test_jobs_are_listed_and_nothing_is_collected(monkeypatch, streams):
    monkeypatch.setattr(signal, "signal", lambda *given: pytest.fail("only a recording is to be ended"))
    monkeypatch.setattr(collect_command, "_job", lambda *given: pytest.fail("it collected"))
    assert run("collect", "--list").exit_code == 0


def test_a_recording_says_what_it_holds_and_ends_with_the_status_of_its_command(monkeypatch, streams, tmp_path):
    handled = []
    monkeypatch.setattr(signal, "signal", lambda *given: handled.append(given))
    recorded = SimpleNamespace(trace=job(), status=5)
    module = importlib.import_module("paceline.lab.collect.command")
    monkeypatch.setattr(module, "collect_command", lambda *given, **how: recorded)
    assert run("collect", "-o", tmp_path, "--", "ls", "x").exit_code == 5
    assert handled == [(signal.SIGTERM, signal.default_int_handler)]
    assert "".join(streams.err()) == f"{tmp_path}/ls.parquet: 3 iterations of 2 workers; status 5"


def test_a_job_shows_how_far_it_is_and_says_what_it_holds(monkeypatch, streams, tmp_path):
    shown = []

    class Progress:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            shown.append("over")

        def add_task(self, name, total):
            shown.append((name, total))
            return 3

        def update(self, task, completed):
            shown.append((task, completed))

    def collect(one, path, *, usage, progress):
        progress(7)
        return job(iterations=9)

    monkeypatch.setattr(signal, "signal", lambda *given: None)
    monkeypatch.setattr(collect_command, "_progress", Progress)
    monkeypatch.setattr("paceline.lab.collect", collect)
    folder = tmp_path / "in" / "new"
    run("collect", "digits-cnn-bursty", "-o", folder, "--iterations", "9")
    assert shown == [("digits-cnn-bursty", 9), (3, 7), "over"]
    assert "".join(streams.out()) == f"{folder}/digits-cnn-bursty.parquet: 9 iterations of 2 workers"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_bar_of_jobs_is_beside_the_results_and_on_a_terminal_alone(monkeypatch, terminal):
    console = SafeConsole(file=io.StringIO(), force_terminal=terminal)
    monkeypatch.setattr(collect_command, "err", console)
    bar = collect_command._progress()
    assert (bar.console, bar.disable, len(bar.columns)) == (console, not terminal, 4)


def test_a_word_that_is_a_job_and_no_command_is_a_job(monkeypatch):
    monkeypatch.setattr(collect_command.shutil, "which", lambda word: "/bin/x" if word != "nothing" else None)
    collected = []
    monkeypatch.setattr(signal, "signal", lambda *given: None)
    monkeypatch.setattr(collect_command, "_job", lambda one, folder, usage: collected.append(one.name))
    monkeypatch.setattr(collect_command, "_command", lambda command, *more: collected.append(command))
    monkeypatch.setattr(Path, "mkdir", lambda *given, **how: None)
    name = next(iter(JOBS))
    run("collect", name)
    run("collect", "other", name)
    assert collected == [name, ["other", name]]
    assert "there is no job 'nothing'" in refused("collect", "nothing")
    assert collect_command._name(["/usr/bin/python3.11", "x"]) == "python3"
    assert collect_command._name(["python", "a/b.py", "c.py"]) == "b"


# -- profile and simulate ------------------------------------------------------------------------------------------


def test_a_profile_says_which_size_is_measured_and_is_written_before_it_is_described(monkeypatch, streams, tmp_path):
    measured, done = pd.DataFrame({"batch": [8.0], "seconds": [0.5]}), []

    def profile(make_step, sizes, *, progress, **how):
        for size in sizes:
            progress(size)
        return measured

    monkeypatch.setattr("paceline.training.make_step.load_make_step", str)
    monkeypatch.setattr("paceline.training.profile.profile", profile)
    monkeypatch.setattr("paceline.datasets.profiles.save_profile", lambda *given: done.append(given))
    monkeypatch.setattr(profile_command, "_described", lambda given: ["[a]", "b"])
    monkeypatch.setattr(profile_command, "_written", lambda given, target: f"{target} and more")
    run("profile", "m:f", "--sizes", "4,16", "-o", "x.csv")
    words = ["measuring ...", "measuring a batch of 4 ...", "measuring a batch of 16 ..."]
    assert streams.err() == [*(f"<{one}>" for one in words), "<>"]
    assert streams.out() == ["[a]", "b", "written to x.csv and more"]
    assert [(one is measured, target) for one, target in done] == [(True, Path("x.csv"))]
    for sizes in ("8,x", "", "8.5"):
        assert refused("profile", "m:f", "--sizes", sizes) == (
            f"--sizes must be whole numbers like 8,16,32, got {sizes!r}"
        )


def test_profiles_are_counted_by_the_number_behind_their_name(monkeypatch):
    asked = []
    module = importlib.import_module("paceline.eval.simulate")
    monkeypatch.setattr(module, "from_profiles", lambda counts, **how: asked.append((counts, how)))
    simulate_command._of_profiles(["a.csv=2", "b=c.csv=3", "d.csv"], 64, 0.5)
    assert asked == [({"a.csv": 2, "b=c.csv": 3, "d.csv": 1}, {"global_batch": 64, "noise": 0.5})]
    for text in ("a.csv=", "a.csv=-1", "a.csv=x"):
        with pytest.raises(ValueError, match=f"a number of workers like t4.csv=2, got '{text}'$"):
            simulate_command._of_profiles([text], 64, 0.5)


def test_several_simulations_are_told_apart_and_one_stands_alone(monkeypatch):
    file, words = io.StringIO(), []
    one = SimpleNamespace(sentences=("first \x1b [x]", "second"), pays=False, to_dict=lambda: {"saving": 0.5})
    simulations = [("a", one), ("b", one)]

    @contextmanager
    def working(doing):
        words.append(doing)
        yield

    monkeypatch.setattr(simulate_command, "working", working)
    monkeypatch.setattr(simulate_command, "out", SafeConsole(file=file, width=20))
    monkeypatch.setattr(simulate_command, "_of_traces", lambda *given: simulations)
    lines = [r"first \x1b [x]", "second", "Next: leave the script as it is."]
    run("simulate", "x")
    assert file.getvalue().splitlines() == ["a:", *lines, "b:", *lines]
    file.truncate(0)
    file.seek(0)
    simulations.pop()
    run("simulate", "x")
    assert file.getvalue().splitlines() == lines
    assert words == ["replaying"] * 2
    assert json.loads(run("simulate", "x", "--json").stdout) == [{"job": "a", "saving": 0.5}]


def test_a_source_without_traces_is_refused(monkeypatch):
    monkeypatch.setattr("paceline.cli.named_sources.find_traces", lambda *given, **how: iter([]))
    assert refused("simulate", "x") == "x holds no trace"
