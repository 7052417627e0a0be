"""Competitors beside a command's workers, stress-ng's processes, and what a recording says of itself."""

import json
import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from paceline.lab import Contention, Job
from paceline.lab.collect import record_job
from paceline.lab.collect.machine import machine
from paceline.lab.contention import beside as beside_module
from paceline.lab.contention import competitor, stress
from paceline.recording.place import Place


@pytest.mark.slow
def test_each_planned_competitor_is_told_its_place_and_its_times_and_ends_with_the_block(monkeypatch):
    started, asked = [], []

    class Started:
        def __init__(self, module, number, folder, told):
            self.seen = [module, number, told, folder.is_dir()]
            started.append(self)

        def tell(self, line):
            self.seen.append(line)

        def end(self):
            self.seen.append("ended")

    @contextmanager
    def given(workers, quota):
        asked.append((workers, quota))
        yield [Place(cores=[10 + w]) for w in range(workers)]

    monkeypatch.setattr(beside_module, "Process", Started)
    monkeypatch.setattr(beside_module, "places", given)
    contention = Contention(workers=4, pattern="bursty", competitors=2, kind="disk", quota=0.3, seed=4)
    planned = contention.planned(4 * 3600.0)
    with beside_module.beside(contention) as where:
        assert [place.cores for place in where] == [[10], [11], [12], [13]]
        assert [one.seen[-1] for one in started] == ["begin"] * 8
    assert asked == [(4, 0.3)]
    for number, (one, plan) in enumerate(zip(started, planned, strict=True)):
        told = {"place": asdict(Place(cores=[10 + plan.worker])), "spans": plan.spans, "kind": "disk"}
        assert one.seen == ["paceline.lab.contention.competitor", number, told, True, "begin", "ended"]


def test_signals_reach_children_first_and_the_end_reaches_parents_first(monkeypatch):
    sent, waited = [], []

    def kill(pid, number):
        sent.append((pid, number))
        if pid == 2:
            raise ProcessLookupError  # it has just ended

    monkeypatch.setattr(stress, "_family", lambda pid: [pid, 2, 3])
    monkeypatch.setattr(stress.os, "kill", kill)
    one = stress.Stressor(SimpleNamespace(pid=1, wait=lambda: waited.append("waited")))
    one.signal(signal.SIGSTOP)
    assert sent == [(3, signal.SIGSTOP), (2, signal.SIGSTOP), (1, signal.SIGSTOP)]
    sent.clear()
    one.end()
    assert sent == [(1, signal.SIGKILL), (2, signal.SIGKILL), (3, signal.SIGKILL)]
    assert waited == ["waited"]


def test_stress_ng_stands_still_until_it_is_told_and_is_ended_whatever_happens(monkeypatch):
    told = []
    monkeypatch.setattr(stress.shutil, "which", lambda name: "/bin/stress-ng")
    monkeypatch.setattr(stress.subprocess, "Popen", lambda command, **how: told.append((command, how)))
    monkeypatch.setattr(stress.time, "sleep", told.append)
    monkeypatch.setattr(stress.Stressor, "signal", lambda one, number: told.append(number))
    monkeypatch.setattr(stress.Stressor, "end", lambda one: told.append("ended"))
    with suppress(KeyError), stress.stress_ng("stress-ng-memory"):
        told.append("runs")
        raise KeyError
    command = (["stress-ng", "--stream", "1"], {"stdout": subprocess.DEVNULL})
    assert told == [command, stress.SETTLE_SECONDS, signal.SIGSTOP, "runs", "ended"]


@pytest.mark.processes
def test_a_family_is_a_process_with_its_descendants():
    process = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True)
    try:
        child = int(process.stdout.readline())
        assert stress._family(process.pid) == [process.pid, child]
        assert stress._family(child) == [child]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_a_competitor_works_during_its_spans_and_sleeps_between(monkeypatch):
    clock, worked = [50.0], []
    monkeypatch.setattr(competitor.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(competitor.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))

    def work():
        worked.append(round(clock[0] - 50, 6))
        clock[0] += 0.5

    competitor.compete([(1.0, 2.0), (3.0, 3.6), (3.6, 3.7)], work)
    assert worked == [1.0, 1.5, 3.0, 3.5]


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 40])
def test_a_recording_says_what_was_trained_where_and_how_well(tmp_path, count):
    losses = [2.0 ** (count - k) for k in range(count)]
    (tmp_path / "losses0.json").write_text(json.dumps(losses))
    job = Job(name="tiny", model="digits-mlp", batch_size=(8, 16), workers=2, pattern="steady", seed=3)
    place = Place(cores=[0])
    found = record_job._meta(job, job.contention(), place, tmp_path)
    tenth = max(1, count // 10)
    first, last = sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth
    assert found == {
        "job": "tiny",
        "source": "recorded by paceline collect",
        "licence": "Apache-2.0",
        "split": "fit",
        **job.contention().meta(place),
        "model": "digits-mlp",
        "data": "scikit-learn digits",
        "batch_size": "8 16",
        "loss": f"{first:.4g} in the first tenth, {last:.4g} in the last",
        **machine(),
    }


@pytest.mark.parametrize(
    ("lines", "count"), [(b"", 0), (b"header\n", 0), (b"header\none\n", 1), (b"header\none\ntwo", 1)]
)
def test_the_iterations_recorded_so_far_are_the_whole_lines_behind_the_header(tmp_path, lines, count):
    (tmp_path / "rank0.jsonl").write_bytes(lines)
    assert record_job._recorded(tmp_path / "rank0.jsonl") == count
