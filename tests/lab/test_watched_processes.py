"""Processes of a job, told with those that the test pretends: how they start, are watched, and end."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.lab.processes import orphan, places, process
from paceline.lab.processes.process import Process, require_alive, wait

LATE, PIPE = [subprocess.TimeoutExpired], subprocess.PIPE  # named here, as no test of these starts a process


class Pretended:
    """A started process: what is asked of it is noted."""

    def __init__(self, command, **options):
        self.command, self.options, self.log, self.status, self.slow, self.broken = (
            command,
            options,
            [],
            None,
            False,
            "",
        )
        self.pid = 4321
        self.stdin = SimpleNamespace(write=self.write, flush=self.note("flush"), close=self.note("close"))
        self.options["stdout"].write(b"its own words\n")

    def note(self, name):
        def noted(*given):
            self.log.append((name, *given))
            if name == self.broken:
                raise BrokenPipeError

        return noted

    def write(self, line):
        self.note("write")(line)

    def poll(self):
        return self.status

    def wait(self, timeout=None):
        self.log.append(("wait", timeout))
        if timeout and self.slow:
            raise LATE[0]("x", timeout)

    def kill(self):
        self.log.append("kill")

    def __exit__(self, *error):
        self.note("exit")(*error)


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A process of a role, and the pretended one within."""
    monkeypatch.setattr("paceline.lab.processes.process.subprocess.Popen", Pretended)
    monkeypatch.setattr(sys, "path", ["/a", "/b"])
    monkeypatch.setenv("MINE", "stays")
    one = Process("some.where.worker_of_mine", 3, tmp_path, {"rank": 1})
    return one, one._popen


def test_a_process_is_started_apart_with_its_task_in_its_first_line(started, tmp_path):
    one, inner = started
    assert (one.title, one.pid) == ("worker_of_mine 3", 4321)
    assert inner.command == [sys.executable, "-m", "some.where.worker_of_mine"]
    assert inner.options["stdin"] == PIPE
    assert inner.options["stdout"] is inner.options["stderr"]
    assert inner.options["start_new_session"] is True
    env = inner.options["env"]
    assert (env["PYTHONPATH"], env["OMP_NUM_THREADS"], env["MINE"]) == (os.pathsep.join(["/a", "/b"]), "1", "stays")
    assert inner.log == [("write", b'{"rank": 1}\n'), ("flush",)]
    assert one.log == tmp_path / "worker_of_mine3.log"
    assert one.log.read_bytes() == b"its own words\n"
    one.tell("begin")
    assert inner.log[2:] == [("write", b"begin\n"), ("flush",)]
    for inner.broken in ("write", "flush"):
        one.tell("nobody listens")
    assert json.loads(inner.log[0][1]) == {"rank": 1}


@pytest.mark.parametrize(
    ("status", "ended", "failed"), [(None, False, False), (0, True, False), (1, False, True), (-9, False, True)]
)
def test_a_process_has_ended_or_failed_by_its_status(started, status, ended, failed):
    one, inner = started
    inner.status = status
    assert (one.ended(), one.failed()) == (ended, failed)


def test_the_last_words_are_the_status_and_the_last_fifteen_lines(started):
    one, inner = started
    inner.status = 2
    lines = [f"line {k}" for k in range(20)]
    one.log.write_bytes("\n".join(lines).encode() + b"\n\xff")
    said = ["worker_of_mine 3 ended with status 2:", *lines[6:], "\ufffd"]
    assert one.last_words() == "\n  ".join(said)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("broken", ["", "close", "exit"])
def test_a_process_may_end_by_itself_for_a_second_and_is_killed_then(started, slow, broken):
    one, inner = started
    inner.slow, inner.broken = slow, broken
    inner.log.clear()
    one.end()
    assert inner.log == [("close",), ("wait", 1.0), "kill", ("wait", None), ("exit", None, None, None)]


class Watched:
    """A process of this status."""

    def __init__(self, name, failed=False):
        self.name, self.has_failed = name, failed

    def failed(self):
        return self.has_failed

    def last_words(self):
        return f"{self.name} is gone"


def test_processes_are_looked_at_until_a_condition_holds_and_all_that_failed_are_told(monkeypatch):
    slept, processes = [], [Watched("a"), Watched("b"), Watched("c")]
    monkeypatch.setattr(process.time, "sleep", slept.append)
    wait(processes, until=lambda: len(slept) == 3)
    assert slept == [0.1] * 3
    require_alive(processes)
    processes[0].has_failed = processes[2].has_failed = True
    with pytest.raises(RuntimeError) as raised:
        wait(processes, until=lambda: False)
    assert str(raised.value) == "a is gone\nc is gone"
    assert len(slept) == 3
    wait(processes, until=lambda: True)


class ExitedError(Exception):
    """The process would have ended."""


@pytest.fixture
def input_of(monkeypatch):
    """A standard input that the test holds, and what is done in the end."""
    reading, writing = os.pipe()
    done = []

    def leave(status):
        done.append(status)
        raise ExitedError

    with os.fdopen(reading) as file:
        monkeypatch.setattr(sys, "stdin", file)
        monkeypatch.setattr(orphan.os, "_exit", leave)
        yield writing, done


def test_an_orphan_is_ended_at_once_where_its_input_is_closed_already(input_of):
    writing, done = input_of
    os.close(writing)
    with pytest.raises(ExitedError):
        orphan.die_with_parent(lambda: done.append("last"))
    assert done == ["last", 1]


def test_a_thread_that_keeps_nothing_alive_waits_for_the_end_of_the_input(input_of, monkeypatch):
    writing, done = input_of
    threads = []
    monkeypatch.setattr(
        orphan.threading,
        "Thread",
        lambda **told: threads.append(told) or SimpleNamespace(start=lambda: threads.append("started")),
    )
    orphan.die_with_parent(last := lambda: done.append("last"))
    assert threads == [{"target": orphan._watch, "args": (last,), "daemon": True}, "started"]
    os.write(writing, b"more words")
    os.close(writing)
    with pytest.raises(ExitedError):
        orphan._watch(last)
    assert done == ["last", 1]


def test_a_group_is_removed_once_the_kernel_lets_go_of_it(monkeypatch):
    slept, tries = [], []

    class Folder:
        def __init__(self, *errors):
            self.errors = list(errors)

        def rmdir(self):
            tries.append("rmdir")
            if self.errors:
                raise self.errors.pop(0)

    monkeypatch.setattr(places.time, "sleep", slept.append)
    for errors, seconds in (([], 0), ([OSError()] * 3, 3), ([FileNotFoundError()], 0), ([OSError()] * 100, 100)):
        slept.clear(), tries.clear()
        assert places._remove(Folder(*errors)) is None
        assert slept == [0.02] * seconds
        assert len(tries) == seconds + 1
    with pytest.raises(OSError, match="busy"):
        places._remove(Folder(*[OSError("busy")] * 101))


def test_quotas_that_fill_all_cores_are_allowed_and_more_are_told_how_many_fit(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    places._check(6, 0.5)
    said = "quota must leave room for all workers on 3 cores, got 6 workers with 0.6 cores each; "
    said += "choose at most 0.5, or fewer workers$"
    with pytest.raises(ValueError, match=said):
        places._check(6, 0.6)


def test_a_machine_with_version_2_alone_lets_groups_have_quotas(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "mounted", lambda root: {"": tmp_path / "groups"})
    (tmp_path / "groups").mkdir()
    (tmp_path / "proc").mkdir()
    with places.places(1, 0.4, root=tmp_path) as (place,):
        folder = Path(place.folders[0])
        assert (tmp_path / "groups/cgroup.subtree_control").read_text() == "+cpu"
        assert (folder / "cpu.max").read_text() == "2000 5000"
        (folder / "cpu.max").unlink()
    assert not folder.exists()
    monkeypatch.setattr(places, "mounted", lambda root: {"memory": tmp_path / "groups"})
    with places.places(1, 0.4, root=tmp_path) as (place,):
        assert not place.folders
        assert place.cores
