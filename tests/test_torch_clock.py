"""Own computing is told apart from waiting: by the clocks themselves, and with a real slow rank."""

import contextlib
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.coordinator.torch import BalancedLoader, attach
from paceline.coordinator.torch.clock import EventClock, WallClock
from paceline.predictors import EWMA


class Device:
    """A device that reaches marks later than they are made, as a GPU does."""

    def __init__(self):
        self.time = 0.0
        self.reached = 0
        self.marks = []

    def mark(self):
        self.marks.append(Mark(self, len(self.marks), self.time))
        return self.marks[-1]


class Mark:
    def __init__(self, device, place, time):
        self.device, self.place, self.time = device, place, time

    def query(self):
        return self.place < self.device.reached

    def elapsed_time(self, later):
        assert later.query(), "the time of a mark that was not reached must not be asked for"
        return 1e3 * (later.time - self.time)


def one_iteration(device, clock, seconds, comm, samples):
    clock.begin()
    device.time += seconds
    measure = clock.ready(samples, 1)
    device.time += comm
    clock.summed()
    return measure


def test_a_device_is_asked_one_iteration_later_and_never_waited_for():
    device = Device()
    clock = EventClock(device.mark)
    assert np.isnan(one_iteration(device, clock, 0.5, 0.25, 64).seconds)
    device.reached = 3
    assert one_iteration(device, clock, 0.25, 0.25, 32) == (64, 1, 0.5, 0.25)


def test_a_device_that_lags_behind_reports_its_newest_finished_iteration_once():
    device = Device()
    clock = EventClock(device.mark)
    for seconds in (0.5, 0.25, 0.125):
        assert np.isnan(one_iteration(device, clock, seconds, 0.0, 8).seconds)
    device.reached = 6
    assert one_iteration(device, clock, 1.0, 0.0, 8).seconds == 0.25
    assert np.isnan(one_iteration(device, clock, 1.0, 0.0, 8).seconds)


def test_a_sum_that_has_not_arrived_leaves_communication_unknown():
    device = Device()
    clock = EventClock(device.mark)
    one_iteration(device, clock, 0.5, 0.25, 64)
    device.reached = 2
    measure = one_iteration(device, clock, 0.5, 0.25, 64)
    assert measure.seconds == 0.5
    assert np.isnan(measure.comm_seconds)


def test_an_iteration_without_gradients_is_not_measured():
    device = Device()
    clock = EventClock(device.mark)
    clock.begin()
    device.time, device.reached = 9.0, 99
    assert np.isnan(one_iteration(device, clock, 0.5, 0.0, 8).seconds)
    assert one_iteration(device, clock, 0.5, 0.0, 8).seconds == 0.5


def test_time_in_collectives_is_left_out_on_a_cpu():
    now = iter([10.0, 10.5, 11.5, 12.0])
    clock = WallClock(now=lambda: next(now))
    clock.begin()
    with clock.waiting():
        pass
    assert clock.ready(8).seconds == 1.0


# -- a rank that is really slowed down ---------------------------------------------------------------------------


@contextlib.contextmanager
def quota(share):
    """Hold this process to a share of a core, where control groups of version 1 can be written."""
    group = Path(f"/sys/fs/cgroup/cpu/paceline-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text("10000")
        (group / "cpu.cfs_quota_us").write_text(str(round(10000 * share)))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        yield False
        return
    try:
        yield True
    finally:
        (group.parent / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def burn():
    while True:
        pass


@contextlib.contextmanager
def slowed():
    """Slow this process down: by a quota, else by three processes on the one core that it may use."""
    with quota(0.25) as held:
        rivals = [] if held else [multiprocessing.Process(target=burn, daemon=True) for _ in range(3)]
        if rivals:
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        for rival in rivals:
            rival.start()
        try:
            yield
        finally:
            for rival in rivals:
                rival.kill()
                rival.join()


def with_a_slow_rank(rank, way):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512))
    model, weigh = DistributedDataParallel(net), "gradients"
    if way == "fsdp":
        from torch.distributed.fsdp import fully_shard

        net = torch.nn.Sequential(*(fully_shard(layer) for layer in net))
        model, weigh = fully_shard(net), "loss"
    data = torch.utils.data.TensorDataset(torch.randn(5120, 256))
    loader = BalancedLoader(data, 256)
    balance = attach(model, loader, predictor=EWMA(), policy=Policy(warmup=1000), weigh=weigh, timeout=30, every=1)
    own, wall = [], []
    balance.on_iteration.append(lambda one: (own.append(one.seconds), wall.append(one.wall_seconds)))
    with slowed() if rank == 1 else contextlib.nullcontext():
        for (inputs,) in loader:
            loss = model(inputs).square().mean()
            (loss if way == "ddp" else balance.scale(loss)).backward()
            model.zero_grad()
    return np.median(own, axis=0), np.median(wall)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="both ranks would be slowed down")
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_slow_rank_is_told_by_its_own_time_while_the_wall_time_of_a_step_is_blind(way):
    (own, wall), (own_too, other_wall) = run_ranks(2, with_a_slow_rank, way)
    assert own.tolist() == own_too.tolist()
    assert own[1] > 1.5 * own[0]
    assert 0.8 < other_wall / wall < 1.25
