"""A CPU quota makes single steps lie: what counts is how long work takes if the quota lasts."""

import importlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_files import NESTED_1, NESTED_2, made
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.recording.control_group import CPUSnapshot, QuotaTracker, sustained_seconds
from paceline.recording.torch.busy_time import BusyTimer, CPUEvents
from paceline.torch import BalancedLoader, attach

positive = st.floats(1e-6, 1e3)
PERIOD = 0.1


def throttled_run(cpu, cores, spent_before):
    """Return wall and throttled seconds of computing on one core, beginning at a period's start."""
    wall = throttled = 0.0
    left = max(cores * PERIOD - spent_before, 0.0)
    while cpu > left:
        wall += PERIOD - (wall % PERIOD)
        throttled = wall
        cpu, left = cpu - left, cores * PERIOD
    return wall + cpu, throttled


@given(positive, positive, positive, st.integers(1, 64))
def test_without_a_quota_time_is_what_was_measured(seconds, cpu, cores, threads):
    assert sustained_seconds(seconds, CPUSnapshot(cpu), math.inf, threads) == seconds
    assert sustained_seconds(seconds, CPUSnapshot(cpu, 1.0), math.nan, threads) == seconds


@given(positive, positive, st.integers(1, 64))
def test_who_spends_nothing_is_not_slowed_by_a_quota(seconds, cores, threads):
    assert sustained_seconds(seconds, CPUSnapshot(), cores, threads) == seconds


@given(positive, positive, st.floats(0, 1e3), st.floats(0.01, 64), st.floats(1, 8), st.integers(1, 64))
def test_smaller_quota_never_shortens_work(seconds, cpu, throttled, cores, more, threads):
    spent = CPUSnapshot(cpu, throttled)
    assert sustained_seconds(seconds, spent, cores, threads) >= sustained_seconds(seconds, spent, cores * more, threads)
    assert sustained_seconds(seconds, spent, cores, threads) >= cpu / cores


@settings(derandomize=True)
@given(st.floats(0.001, 0.02), st.floats(0.05, 0.9), st.floats(0, 1), st.integers(1, 8))
def test_work_independent_of_period_start(cpu, cores, spent_before, threads):
    """Threads that share the work each spend so much, and are throttled at the same time, each on a core of its own."""
    wall, throttled = throttled_run(cpu, cores, spent_before * cores * PERIOD)
    spent = CPUSnapshot(threads * cpu, threads * throttled)
    assert sustained_seconds(wall, spent, threads * cores, threads) == pytest.approx(cpu / cores)
    assert sustained_seconds(wall, spent, math.inf, threads) == pytest.approx(cpu)


@pytest.mark.parametrize(
    ("files", "quota", "values"),
    [
        pytest.param(NESTED_1, "groups/cpu/pod/cpu.cfs_quota_us", ("2500\n", "-1\n"), id="version 1"),
        pytest.param(NESTED_2, "groups/pod/cpu.max", ("2500 10000\n", "max 10000\n"), id="version 2"),
    ],
)
def test_changed_quota_is_seen(tmp_path, files, quota, values):
    allowance = QuotaTracker(made(tmp_path, files))
    told = []
    for value in (None, *values):
        if value:
            (tmp_path / quota).write_text(value)
        allowance.refresh()
        told.append(allowance.cores)
    assert told == [0.4, 0.25, math.inf]


class Ticking(CPUEvents):
    time = 0.0

    def record(self):
        return self.time


class Granted:
    """An allowance that the test sets."""

    cores = 0.25
    cpu = throttled = 0.0

    def refresh(self):
        pass

    def snapshot(self):
        return CPUSnapshot(self.cpu, self.throttled)


def test_rank_reports_work_under_quota():
    cpu, granted = Ticking(), Granted()
    timer = BusyTimer(cpu, granted)

    def step(wall, used, throttled, between):
        cpu.time, granted.cpu = cpu.time + between, granted.cpu + between
        timer.forward_begins(8)
        cpu.time, granted.cpu, granted.throttled = cpu.time + wall, granted.cpu + used, granted.throttled + throttled
        timer.gradients_summed(timer.gradients_ready())
        return timer.report().seconds

    walls = [(0.011, 0.0), (0.086, 0.075), (0.011, 0.0)]
    seconds = [step(wall, 0.011, throttled, between=0.002) for wall, throttled in walls]
    assert seconds == pytest.approx([0.044, 0.052, 0.052])
    granted.cores = math.inf
    assert step(0.086, 0.011, 0.075, between=0.002) == pytest.approx(0.013), "the quota has just been removed"


def busy_time_with_a_quota_on_the_second_rank(rank):
    torch.manual_seed(0)
    attaching = importlib.import_module("paceline.torch.attach")
    if rank == 1:
        attaching.QuotaTracker = Tiny
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    loader = BalancedLoader(torch.utils.data.TensorDataset(torch.randn(640, 64)), 64)
    balance = attach(model, loader, policy=Policy(warmup=1000), timeout=60)
    own = []
    balance.on_iteration.append(lambda one: own.append(one.seconds))
    for (inputs,) in loader:
        model(inputs).square().mean().backward()
    return np.median(own, axis=0)


class Tiny(QuotaTracker):
    """A thousandth of a core."""

    def refresh(self):
        self.cores = 0.001


def test_attach_reports_by_the_quota_of_the_rank():
    own, _ = run_ranks(2, busy_time_with_a_quota_on_the_second_rank)
    assert own[1] > 20 * own[0], "no machine is so busy that a step takes twenty times its CPU time"
