"""What commands print: whole sentences to a file or a pipe, and nothing that acts on a terminal."""

import io
import os
import subprocess
import sys

import pytest
from recorded_runs import iterations, written

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
