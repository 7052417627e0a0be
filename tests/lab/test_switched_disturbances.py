"""Disturbances that are turned on and off: quotas, hogs, bursts and kernels; and places that are entered."""

import itertools
import os
import signal
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paceline.lab.contention import kernels
from paceline.lab.contention.disturbance import CALM_SECONDS, DISTURBANCES, Bursts, Disturbance, Hogs, Quota
from paceline.recording.place import Place


def test_a_quota_of_version_1_is_a_share_of_its_period_and_none_is_minus_one(tmp_path):
    (tmp_path / "cpu.cfs_quota_us").write_text("-1")
    (tmp_path / "cpu.cfs_period_us").write_text("3000\n")
    for on, told in ((True, "2000"), (False, "-1")):
        Quota(str(tmp_path), 2 / 3).turn(on)
        assert (tmp_path / "cpu.cfs_quota_us").read_text() == told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cpu.cfs_period_us", "cpu.cfs_quota_us"]


def test_all_hogs_go_on_or_stop(monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda *told: sent.append(told))
    Hogs([5, 6]).turn(True)
    Hogs([5]).turn(False)
    assert sent == [(5, signal.SIGCONT), (6, signal.SIGCONT), (5, signal.SIGSTOP)]


class Over:
    """An event that is set after so many waits."""

    def __init__(self, waits):
        self.left, self.log = waits, []

    def wait(self, seconds):
        self.log.append(seconds)
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("waits", [0, 1, 4])
def test_bursts_begin_calm_and_last_as_long_as_their_seed_says(waits):
    turned = []
    bursts = Bursts(SimpleNamespace(turn=turned.append), mean=0.5)
    bursts._over = over = Over(waits)
    bursts._run(7)
    assert turned == [bool(k % 2) for k in range(waits + 1)]
    chance = np.random.default_rng(7)
    drawn = [chance.exponential(0.5) for _ in range(waits + 1)]
    assert over.log == [CALM_SECONDS + drawn[0], *drawn[1:]]
    assert list(itertools.islice(bursts.spans(7), waits + 1)) == over.log


def test_bursts_that_never_began_are_off_after_a_stop_and_may_begin_again():
    turned = []
    bursts = Bursts(SimpleNamespace(turn=turned.append), mean=60.0)
    bursts.stop()
    assert turned == [False]
    for _ in range(2):
        bursts.start(seed=3)
        assert not bursts._over.is_set()
        bursts.stop()
        assert not bursts._thread.is_alive()
    assert set(turned) == {False}


def test_the_kinds_of_disturbance_are_these():
    plain = {"quota": None, "hogs": 0, "kernels": False, "between": 0.0, "bursts": None}
    changes = {
        "none": {},
        "quota": {"quota": 0.5},
        "hogs": {"hogs": 3},
        "bursty": {"quota": 0.25, "bursts": 2.0},
        "between": {"between": 0.04},
        "bursty-hogs": {"hogs": 3, "bursts": 2.0},
        "kernels": {"kernels": True},
        "bursty-kernels": {"kernels": True, "bursts": 2.0},
    }
    assert {name: vars(one) for name, one in DISTURBANCES.items()} == {k: plain | v for k, v in changes.items()}
    assert str(Disturbance(hogs=2, kernels=True, quota=0.5)).startswith("rank 1 has kernels that compete")


def test_matrices_are_multiplied_on_a_device_while_the_switch_is_on(monkeypatch):
    log, threads = [], []

    class Matrix:
        def __matmul__(self, other):
            assert other is self
            log.append("product")

    class Done:
        def record(self):
            log.append("record")

        def synchronize(self):
            log.append("synchronise")

    @contextmanager
    def stream(one):
        log.append(one)
        yield

    thread = lambda **told: threads.append(told) or SimpleNamespace(start=lambda: threads.append("started"))  # noqa: E731
    monkeypatch.setattr(kernels.threading, "Thread", thread)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: ("stream of", device))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "Event", Done)
    monkeypatch.setattr(torch, "ones", lambda *shape, device: log.append((shape, device)) or Matrix())
    one = kernels.Kernels("cuda:1", side=4)
    assert threads == [{"target": one._run, "daemon": True}, "started"]
    assert kernels.Kernels("cuda").side == kernels.SIDE == 2048
    one.turn(True)
    assert one._on.is_set()
    one.turn(False)
    assert not one._on.is_set()
    answers = [True, True, False]
    one._on = SimpleNamespace(wait=lambda: answers.pop(0))
    one._run()
    once = [*["product"] * 4, "record", "synchronise"]
    assert log == [("stream of", "cuda:1"), ((4, 4), "cuda:1"), *once, *once]
    assert one.products == 8


def test_a_place_is_entered_by_its_groups_and_its_cores(tmp_path, monkeypatch):
    pinned = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda *told: pinned.append(told))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    Place(folders=[str(tmp_path / "a"), str(tmp_path / "b")]).enter()
    assert [(Path(tmp_path) / name / "cgroup.procs").read_text() for name in "ab"] == [str(os.getpid())] * 2
    assert pinned == []
    Place(cores=[2, 3]).enter()
    assert pinned == [(0, [2, 3])]
