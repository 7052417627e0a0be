"""How a command is recorded, with processes that the test pretends."""

import json
import os
import signal
import subprocess
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from paceline import _version
from paceline.datasets import load
from paceline.lab import Contention
from paceline.lab.collect import command
from paceline.lab.collect.machine import machine
from paceline.recording import Recorder
from paceline.recording.automatic import startup_folder
from paceline.recording.place import Place


class Pretended:
    """A process whose waits end in these ways, one after the other."""

    def __init__(self, command, env):
        self.log.append((command, env))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.log.append("left")

    def wait(self, timeout=None):
        self.log.append(("wait", timeout))
        ending = self.endings.pop(0)
        if isinstance(ending, int):
            return ending
        raise ending

    def send_signal(self, number):
        self.log.append(number)

    def kill(self):
        self.log.append("kill")


@pytest.mark.parametrize("path", [None, "/mine"])
@pytest.mark.parametrize("endings", [[3], [KeyboardInterrupt(), -15], [KeyboardInterrupt(), "late", -9]])
def test_a_command_is_told_where_to_record_and_is_ended_after_an_interrupt(tmp_path, monkeypatch, endings, path):
    log, late = [], subprocess.TimeoutExpired("x", 1)
    ends = [late if ending == "late" else ending for ending in endings]
    monkeypatch.setattr(command.subprocess, "Popen", type("Kind", (Pretended,), {"log": log, "endings": ends}))
    monkeypatch.setenv("PYTHONPATH", path) if path else monkeypatch.delenv("PYTHONPATH", raising=False)
    assert command._run(["train"], tmp_path, [Place(cores=[2])]) == endings[-1]
    told = {
        "PACELINE_RECORD": str(tmp_path.resolve()),
        "PACELINE_PLACES": json.dumps([asdict(Place(cores=[2]))]),
        "PACELINE_HOME": str(Path(_version.__file__).parent.parent),
        "PYTHONPATH": os.pathsep.join([str(startup_folder()), *([path] if path else [])]),
    }
    interrupted = [signal.SIGTERM, ("wait", command.GRACE_SECONDS), "kill", ("wait", None)]
    assert log == [(["train"], os.environ | told), ("wait", None), *interrupted[: [0, 2, 4][len(endings) - 1]], "left"]


@pytest.mark.parametrize("contention", [None, Contention(workers=2, pattern="none", quota=0.1)])
def test_the_trace_of_a_command_says_what_it_was_and_how_it_ended(tmp_path, monkeypatch, contention):
    asked, where = [], [Place(cores=[0])]

    @contextmanager
    def beside(given):
        asked.append(given)
        yield where

    def run(words, folder, places):
        asked.append((words, folder, places))
        meta = {"own": "x", "job": "its"}
        with Recorder(folder / "rank0.jsonl", "0", meta=meta) as recorder, recorder.iteration(samples=8):
            pass
        return 9

    monkeypatch.setattr(command, "beside", beside)
    monkeypatch.setattr(command, "_run", run)
    words, path = ["torchrun", "a.py"], tmp_path / "new" / "a.parquet"
    recorded = command.collect_command(words, path, contention=contention)
    ran = (words, path.with_suffix(""), where if contention else [])
    assert asked == ([contention, ran] if contention else [ran])
    assert (recorded.status, recorded.files) == (9, [path.with_suffix("") / "rank0.jsonl"])
    known = {"job": "a", "source": "recorded by paceline collect", "command": "torchrun a.py", **machine()}
    known |= {"status": "9", "own": "x"} | (contention.meta(where[0]) if contention else {})
    assert {name: recorded.trace.meta.get(name) for name in known} == known
    assert load(path).meta == recorded.trace.meta
