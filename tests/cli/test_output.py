"""What commands print: whole sentences to a file or a pipe, and nothing that acts on a terminal."""

import os
import subprocess
import sys

import pytest
from recorded_runs import iterations, written


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
