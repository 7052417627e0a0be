"""What competitors do and when: their first lines, their work on disk and memory, and stress-ng."""

import json
import os
import signal
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.lab.collect import command, record_job
from paceline.lab.contention import competitor, stress
from paceline.recording.place import Place


class EndedError(Exception):
    """Raised where a competitor would sleep for ever."""


@pytest.fixture
def calls(monkeypatch):
    """What a competitor calls, in order; its last sleep ends it."""
    found = []

    def sleep(seconds):
        found.append(("sleep", seconds))
        raise EndedError

    monkeypatch.setattr(Place, "enter", lambda place: found.append(("enter", place)))
    monkeypatch.setattr(competitor, "die_with_parent", lambda *given, **named: found.append(("die", given, named)))
    monkeypatch.setattr(competitor.time, "sleep", sleep)

    def told(kind):
        lines = [json.dumps({"place": {"cores": [3]}, "kind": kind, "spans": [[0.0, 2.0]]}), "begin"]
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(readline=lambda: found.append("read") or lines.pop(0)))
        with pytest.raises(EndedError):
            competitor.main()
        return found

    return told, found


def test_a_competitor_prepares_its_work_before_it_is_told_to_begin_and_stays_afterwards(calls, monkeypatch):
    told, found = calls
    monkeypatch.setitem(competitor.KINDS, "cpu", lambda: found.append("prepared") or "work")
    monkeypatch.setattr(competitor, "compete", lambda spans, work: found.append((spans, work)))
    assert told("cpu") == [
        "read",
        ("enter", Place(cores=[3])),
        "prepared",
        "read",
        ("die", (), {}),
        ([[0.0, 2.0]], "work"),
        ("sleep", 60),
    ]


def test_stress_ng_is_started_when_it_is_told_to_and_ends_with_the_parent(calls, monkeypatch):
    told, found = calls
    stressor = SimpleNamespace(end="its end", compete=lambda spans: found.append(spans))

    @contextmanager
    def started(kind):
        found.append(kind)
        yield stressor
        found.append("ended")

    monkeypatch.setattr(competitor, "stress_ng", started)
    assert told("stress-ng-disk") == [
        "read",
        ("enter", Place(cores=[3])),
        "read",
        "stress-ng-disk",
        ("die", (), {"last": "its end"}),
        [[0.0, 2.0]],
        "ended",
        ("sleep", 60),
    ]


def test_each_kind_of_work_uses_what_it_is_named_for(monkeypatch):
    assert {name: make.__name__ for name, make in competitor.KINDS.items()} == {
        "cpu": "counting",
        "memory": "streaming",
        "disk": "storing",
    }
    assert competitor.counting()() == sum(range(5_000))
    copied = []
    monkeypatch.setattr(competitor.np, "copyto", lambda target, source: copied.append((target, source)))
    move = competitor.streaming()
    for _ in range(2):
        move()
    ((target, source), other) = copied
    assert (len(target), target.dtype, len(source), source.dtype) == (16 * 2**20, np.uint8, 16 * 2**20, np.uint8)
    assert (source.min(), source.max()) == (1, 1)
    assert other[0] is target


def test_a_megabyte_is_written_to_the_disk_kept_out_of_the_cache_and_read(monkeypatch):
    done = []

    def note(name):
        return lambda *given: done.append((name, *given))

    file = SimpleNamespace(seek=note("seek"), write=note("write"), read=note("read"), fileno=lambda: 9)
    monkeypatch.setattr(competitor.tempfile, "TemporaryFile", lambda **told: done.append(told) or file)
    monkeypatch.setattr(os, "fsync", note("fsync"))
    monkeypatch.setattr(os, "posix_fadvise", note("advise"))
    store = competitor.storing()
    assert done == [{"dir": "/var/tmp", "buffering": 0}]
    done.clear()
    store()
    forget = ("advise", 9, 0, 0, os.POSIX_FADV_DONTNEED)
    assert done == [("seek", 0), ("write", bytes(2**20)), ("fsync", 9), forget, ("seek", 0), ("read",)]


def test_without_stress_ng_its_competitors_are_refused(monkeypatch):
    monkeypatch.setattr(stress.shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="kind 'stress-ng-cpu' need stress-ng, which is not installed"):
        stress.stress_ng("stress-ng-cpu").__enter__()
    assert stress.STRESSORS == {
        "stress-ng-cpu": ("--cpu", "1"),
        "stress-ng-memory": ("--stream", "1"),
        "stress-ng-disk": ("--hdd", "1", "--hdd-bytes", "16m", "--temp-path", "/var/tmp"),
    }


def test_times_that_others_are_given_are_short():
    assert stress.SETTLE_SECONDS == 0.3
    assert (command.GRACE_SECONDS, record_job.LONGEST_ITERATION) == (30.0, 1.0)


def test_a_stressor_runs_in_its_spans_and_is_late_for_none(monkeypatch):
    clock, done = [10.0], []

    def sleep(seconds):
        clock[0] += seconds
        done.append(round(seconds, 6))

    def sent(one, number):
        done.append(number)
        clock[0] += 0.25  # signals take a while

    monkeypatch.setattr(stress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(stress.time, "sleep", sleep)
    monkeypatch.setattr(stress.Stressor, "signal", sent)
    stress.Stressor(None).compete([(1.0, 2.0), (2.125, 4.0)])
    go, stop = signal.SIGCONT, signal.SIGSTOP
    assert done == [1.0, go, 0.75, stop, 0.0, go, 1.5, stop]


def test_a_family_is_read_from_the_kernel_and_who_is_gone_has_no_children(monkeypatch):
    families = {1: ["2 3", "4"], 2: [], 3: [OSError(), "5"], 4: [], 5: []}

    class Listed:
        def __init__(self, path):
            self.pid = int(path.split("/")[2])
            assert path == f"/proc/{self.pid}/task"

        def glob(self, pattern):
            assert pattern == "*/children"
            return [SimpleNamespace(read_text=lambda one=one: self.read(one)) for one in families[self.pid]]

        @staticmethod
        def read(one):
            if isinstance(one, OSError):
                raise one
            return one

    monkeypatch.setattr(stress, "Path", Listed)
    assert stress._family(1) == [1, 2, 3, 5, 4]
