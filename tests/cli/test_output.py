"""What commands print: whole sentences to a file or a pipe, and nothing that acts on a terminal."""

import io
import json
import os
import subprocess
import sys

import pandas as pd
import pytest
from recorded_runs import iterations, written
from rich.control import Control
from rich.text import Text

from paceline.cli import show

SENTENCE = "a [note] of 12 words, " * 30


@pytest.mark.parametrize("settings", [{}, {"COLUMNS": "40"}, {"FORCE_COLOR": "1", "COLUMNS": "300"}])
def test_console_wraps_nothing_in_a_file(monkeypatch, settings):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    console = show.SafeConsole(file=io.StringIO(), color_system=None)
    console.print(SENTENCE, markup=False)
    assert console.file.getvalue() == f"{SENTENCE}\n"


@pytest.mark.processes
@pytest.mark.parametrize("settings", [{"COLUMNS": "40"}, {"FORCE_COLOR": "1", "NO_COLOR": "1"}])
def test_commands_wrap_nothing_in_a_pipe(tmp_path, settings):
    folder = tmp_path / ("long " * 40) / "run.jsonl"
    folder.parent.mkdir()
    written(folder, iterations(40)).close()

    def printed(*words):
        command = [sys.executable, "-m", "paceline", *map(str, words)]
        environment = os.environ | settings | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=True)
        return done.stdout

    target = folder.with_name("report.html")
    assert f"written to {target}: " in printed("report", folder, "--out", target)
    watched = printed("watch", folder)
    assert "the next iteration is expected to take 40 ms instead of 60 ms." in watched
    assert max(map(len, watched.splitlines())) < 160  # as wide as its longest sentence, not as the console


def test_console_escapes_text_and_keeps_its_own_control_codes():
    console = show.SafeConsole(file=io.StringIO(), force_terminal=True, color_system=None, width=20)
    console.print(Control.home(), Text("a\x1b[Hb"), end="")
    assert console.file.getvalue() == "\x1b[Ha\\x1b[Hb"


def test_print_frames_leaves_out_empty_tables(monkeypatch, capsys):
    frames = {
        "first": pd.DataFrame({"name": ["a", "[b]"], 7: [1.23456, float("nan")]}),
        "none": pd.DataFrame({"x": []}),
        "second": pd.DataFrame({"x": [12]}),
    }
    show.print_frames(frames, False)
    printed = capsys.readouterr().out
    assert "none" not in printed
    parts = ["first", "1.235", "[b]", "-", "second", "12"]
    assert [printed.index(part) for part in parts] == sorted(printed.index(part) for part in parts)
    show.print_frames(frames, True)
    rows = [{"name": "a", "7": 1.23456}, {"name": "[b]", "7": None}]
    assert json.loads(capsys.readouterr().out) == {"first": rows, "none": [], "second": [{"x": 12}]}
