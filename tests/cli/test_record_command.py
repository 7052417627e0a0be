"""`paceline record`: commands that record themselves here without torch, as its start-up would have them do."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.datasets import Trace, load
from paceline.lab import JOBS, Contention
from paceline.lab.record.command import record_command

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
def test_the_command_line_records_a_command_and_ends_with_its_status(tmp_path, script):
    with script.open("a") as file:
        file.write("sys.exit(5)\n")
    done = CliRunner().invoke(
        app, ["record", "--out", str(tmp_path / "out"), "--", *python(script, "rank0=4", "rank1=4")]
    )
    assert done.exit_code == 5
    trace = load(tmp_path / "out" / "train.parquet")
    assert (len(trace), trace.workers, trace.meta["status"]) == (4, ("0", "1"), "5")
    assert trace.meta["job"] == "train"


@pytest.mark.processes
def test_the_last_attempt_that_recorded_anything_counts(tmp_path, script):
    attempts = ["rank0=2", "rank1=2", "rank0.1=3", "rank1.1=3", "rank0.2=0", "rank1.2=0"]
    recorded = record_command(python(script, *attempts), tmp_path / "job.parquet")
    assert [file.name for file in recorded.files] == ["rank0.1.jsonl", "rank1.1.jsonl"]
    assert len(recorded.trace) == 3


@pytest.mark.processes
def test_ranks_are_in_their_order_also_when_there_are_more_than_ten(tmp_path, script):
    recorded = record_command(python(script, "rank10=1", "rank2=1", "rank9=1"), tmp_path / "job.parquet")
    assert recorded.trace.workers == ("2", "9", "10")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_recording_is_merged_and_its_command_is_ended(tmp_path, script, number):
    with script.open("a") as file:
        file.write('Path("over").write_text(str(os.getpid()))\ntime.sleep(60)\n')
    command = ["record", "--out", str(tmp_path / "out"), "--", *python(script, "rank0=4", "rank1=4")]
    collecting = subprocess.Popen(python("-m", "paceline", *command), cwd=tmp_path, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (over := tmp_path / "over").exists() or not over.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    collecting.send_signal(number)
    assert collecting.wait(30) != 0
    assert len(load(tmp_path / "out" / "train.parquet")) == 4
    assert not Path(f"/proc/{over.read_text()}").exists()


@pytest.mark.processes
def test_a_command_that_recorded_nothing_is_an_error_that_says_what_is_needed(tmp_path):
    done = CliRunner().invoke(app, ["record", "--out", str(tmp_path / "out"), "--", *python("-c", "pass")])
    assert isinstance(done.exception, RuntimeError)
    assert "DistributedDataParallel" in str(done.exception)


@pytest.mark.slow
def test_the_job_under_usage_is_left_out_unless_there_is_usage_to_replay(tmp_path, monkeypatch):
    """Collecting itself is replaced: only what would be collected is looked at."""
    asked = []

    def pretended(job, path, *, usage, progress):
        asked.append((job.name, usage))
        return Trace([[8]], [[1]])

    monkeypatch.setattr("paceline.lab.record_job", pretended)
    CliRunner().invoke(app, ["record", "--out", str(tmp_path)], catch_exceptions=False)
    assert len(asked) == 8
    assert {usage for _, usage in asked} == {None}
    nothing = np.full((2, 1), np.nan)
    usage = Trace(nothing, nothing, covariates=[[[0.5]], [[1.0]]], covariate_names=["busy"])
    usage.save(tmp_path / "usage.parquet")
    told = ["--usage", str(tmp_path / "usage.parquet"), "--covariate", "busy", "--slot", "2"]
    CliRunner().invoke(app, ["record", "--out", str(tmp_path), *told], catch_exceptions=False)
    given = {name: usage for name, usage in asked[8:] if usage is not None}
    assert list(given) == ["digits-attention-usage"]
    assert given["digits-attention-usage"].slot_seconds == 2


@pytest.mark.slow
def test_contention_beside_a_command_is_as_its_options_say(tmp_path, monkeypatch):
    """Recording itself is replaced: only what it would be given is looked at."""
    asked = []

    def pretended(command, path, *, contention, probe_steps):
        asked.append((command, path, contention))
        return SimpleNamespace(trace=None, status=3, missing=())

    monkeypatch.setattr(sys.modules["paceline.lab.record.command"], "record_command", pretended)
    told = ["--workers", "2", "--competitors", "3", "--kind", "memory", "--quota", "0.7", "--seed", "5"]
    plain, name = ["python", "a/first.py", "second.py"], ["--name", "mine"]
    for options in ([], ["--pattern", "steady"], ["--pattern", "moving", *told, *name], [*told, *name]):
        done = CliRunner().invoke(app, ["record", "--out", str(tmp_path / "x"), *options, "--", *plain])
        assert "python ended with status 3" in str(done.exception)
    CliRunner().invoke(app, ["record", "--out", str(tmp_path), "--", "ls", "-l"])
    first, mine, ls = (tmp_path / file for file in ("x/first.parquet", "x/mine.parquet", "ls.parquet"))
    moving = Contention(workers=2, pattern="moving", competitors=3, kind="memory", quota=0.7, seed=5)
    assert asked == [
        (plain, first, None),
        (plain, first, Contention(workers=0, pattern="steady", competitors=1, kind="cpu", quota=0.4, seed=0)),
        (plain, mine, moving),
        (plain, mine, None),
        (["ls", "-l"], ls, None),
    ]


@pytest.mark.slow
def test_named_jobs_are_collected_in_their_order_and_told_how_long_they_are(tmp_path, monkeypatch):
    asked = []

    def pretended(job, path, *, usage, progress):
        asked.append((job.name, job.iterations, path))
        return Trace([[8, 8]] * 3, [[1, 1]] * 3)

    monkeypatch.setattr("paceline.lab.record_job", pretended)
    names = ["digits-cnn-bursty", "digits-attention-usage"]
    usage = Trace(
        np.full((2, 1), np.nan), np.full((2, 1), np.nan), covariates=[[[0.5]], [[1.0]]], covariate_names=["b"]
    )
    usage.save(tmp_path / "usage.parquet")
    options = ["--usage", str(tmp_path / "usage.parquet"), "--covariate", "b", "--slot", "1", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, ["record", *options, "--iterations", "7", *names[::-1]], catch_exceptions=False)
    paths = [tmp_path / f"{name}.parquet" for name in names]
    assert asked == [(name, 7, path) for name, path in zip(names[::-1], paths[::-1], strict=True)]
    said = done.stdout.replace("\n", "")
    assert [f"{path}: 3 iterations of 2 workers" in said for path in paths] == [True, True]
    asked.clear()
    CliRunner().invoke(app, ["record", "--out", str(tmp_path), names[0]], catch_exceptions=False)
    assert asked == [(names[0], JOBS[names[0]].iterations, paths[0])]
    refused = CliRunner().invoke(app, ["record", names[0], "no-such-job", "nor-such"])
    assert "'no-such-job' is neither a command on the PATH nor a job" in str(refused.exception)
