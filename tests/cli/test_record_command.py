"""`paceline record`: commands that record themselves here without torch, as its start-up would have them do."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.datasets import Trace

RECORDING = """
import os, sys, time
from pathlib import Path
from paceline.recording import Recorder
for word in sys.argv[1:]:
    name, iterations = word.split("=")
    rank = name.removeprefix("rank").partition(".")[0]
    with Recorder(Path(os.environ["PACELINE_RECORD"]) / f"{name}.jsonl", rank) as recorder:
        for k in range(int(iterations)):
            with recorder.iteration(samples=8):
                pass
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    path = tmp_path / "train.py"
    path.write_text(RECORDING)
    return path


def python(*words):
    return [sys.executable, *map(str, words)]


@pytest.mark.processes
def test_record_returns_the_command_status(tmp_path, script):
    with script.open("a") as file:
        file.write("sys.exit(5)\n")
    done = CliRunner().invoke(
        app, ["record", "--out", str(tmp_path / "out"), "--", *python(script, "rank0=4", "rank1=4")]
    )
    assert done.exit_code == 5
    trace = Trace.load(tmp_path / "out" / "train.parquet")
    assert (len(trace), trace.workers, trace.meta["status"]) == (4, ("0", "1"), "5")
    assert trace.meta["job"] == "train"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "iterations", "workers"),
    [
        (["rank0=2", "rank1=2", "rank0.1=3", "rank1.1=3", "rank0.2=0", "rank1.2=0"], 3, ("0", "1")),
        (["rank10=1", "rank2=1", "rank9=1"], 1, ("2", "9", "10")),
    ],
    ids=["last attempt", "ten ranks"],
)
def test_last_attempt_of_all_ranks_is_merged(tmp_path, script, words, iterations, workers):
    CliRunner().invoke(app, ["record", "--out", str(tmp_path), "--", *python(script, *words)], catch_exceptions=False)
    trace = Trace.load(tmp_path / "train.parquet")
    assert (len(trace), trace.workers) == (iterations, workers)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_recording_is_merged(tmp_path, script, number):
    with script.open("a") as file:
        file.write('Path("over").write_text(str(os.getpid()))\ntime.sleep(60)\n')
    command = ["record", "--out", str(tmp_path / "out"), "--", *python(script, "rank0=4", "rank1=4")]
    collecting = subprocess.Popen(python("-m", "paceline", *command), cwd=tmp_path, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (over := tmp_path / "over").exists() or not over.read_text("utf-8"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    collecting.send_signal(number)
    assert collecting.wait(30) != 0
    assert len(Trace.load(tmp_path / "out" / "train.parquet")) == 4
    assert not Path(f"/proc/{over.read_text('utf-8')}").exists()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("pass", "must take more than one optimizer step"),
        ("exit(3)", "failed with status 3"),
    ],
)
def test_command_recording_nothing_is_an_error(tmp_path, code, sentence):
    done = CliRunner().invoke(app, ["record", "--out", str(tmp_path / "out"), "--", *python("-c", code)])
    assert isinstance(done.exception, RuntimeError)
    assert sentence in str(done.exception)


PHASES = """
import os
from pathlib import Path
from paceline.recording import Recorder
for rank, backward in enumerate([0.02, 0.05]):
    with Recorder(Path(os.environ["PACELINE_RECORD"]) / f"rank{rank}.jsonl", str(rank)) as recorder:
        recorder.phases = ("forward_seconds", "backward_seconds")
        for k in range(20):
            step = recorder.begin()
            step.seconds = 0.1 + backward
            step.phases = {"forward_seconds": 0.1, "backward_seconds": backward}
            recorder.write(step, samples=8)
"""


@pytest.mark.processes
def test_slow_phase_is_the_one_that_differs(tmp_path, script):
    """And not the longest, which is as long on every worker."""
    script.write_text(PHASES)
    done = CliRunner().invoke(app, ["record", "--out", str(tmp_path / "out"), "--", *python(script)])
    assert "worker 1 is slow: it takes 150 ms per iteration without waits, worker 0 takes 120 ms" in done.stderr
    assert "30 ms of the difference in the backward pass" in done.stderr
