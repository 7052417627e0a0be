"""Own computing is separated from waiting: with the clocks alone, and with a real slow rank."""

import contextlib
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.predictors import EWMA
from paceline.recording.torch.busy_clock import Clock
from paceline.recording.torch.collective_time import GATHERS, WAITS, listen, unheard
from paceline.recording.torch.marks import CPUMarks
from paceline.torch import BalancedLoader, attach


class Ticking(CPUMarks):
    """A CPU whose time the test sets."""

    time = 0.0

    def mark(self):
        return self.time


class Device:
    """A device that reaches marks later than they are made, as a GPU does."""

    def __init__(self):
        self.time = 0.0
        self.reached = 0
        self.made = 0

    def mark(self):
        self.made += 1
        return self.made - 1, self.time

    def passed(self, mark):
        return mark[0] < self.reached

    def seconds(self, start, stop):
        assert self.passed(stop), "the time of a mark that was not reached must not be asked for"
        return stop[1] - start[1]


def one_step(device, clock, seconds, comm, samples, between=0.0):
    device.time += between
    clock.forward(samples)
    device.time += seconds
    waiting = clock.ready()
    measure = clock.report()
    device.time += comm
    clock.summed(waiting)
    return measure


def test_device_asked_one_iteration_later():
    device = Device()
    clock = Clock(device)
    assert np.isnan(one_step(device, clock, 0.5, 0.25, 64).seconds)
    device.reached = 3
    assert one_step(device, clock, 0.25, 0.25, 32) == (64, 1, 1, 0.5, 0.25)


def test_finished_device_times_reported_once():
    device = Device()
    clock = Clock(device)
    for seconds in (0.5, 0.25, 0.125):
        assert np.isnan(one_step(device, clock, seconds, 0.0, 8).seconds)
    device.reached = 6
    assert one_step(device, clock, 1.0, 0.0, 8)[:4] == (16, 2, 2, 0.75)
    assert np.isnan(one_step(device, clock, 1.0, 0.0, 8).seconds)


def test_late_sum_leaves_communication_unknown():
    device = Device()
    clock = Clock(device)
    one_step(device, clock, 0.5, 0.25, 64)
    device.reached = 2
    measure = one_step(device, clock, 0.5, 0.25, 64)
    assert measure.seconds == 0.5
    assert np.isnan(measure.comm_seconds)


def test_time_in_collectives_is_left_out():
    cpu = Ticking()
    clock = Clock(cpu)
    clock.forward(8)
    cpu.time = 0.5
    clock.wait_begins()
    cpu.time = 1.5
    clock.wait_ends()
    cpu.time = 2.0
    clock.ready()
    assert clock.report().seconds == 1.0


def test_a_step_of_the_last_few_samples_is_left_out():
    cpu = Ticking()
    clock = Clock(cpu)
    clock.forward(1, counts=False)
    cpu.time = 0.5
    clock.ready()
    assert np.isnan(clock.report().samples)


@pytest.mark.parametrize("place", [*WAITS, *GATHERS], ids=lambda place: place[2])
def test_torch_wait_places_exist(place):
    module, holder, name = place
    found = sys.modules.get(module) or __import__(module, fromlist=["_"])
    assert callable(getattr(getattr(found, holder) if holder else found, name))


class Counting:
    def __init__(self):
        self.waits = 0

    def wait_begins(self):
        self.waits += 1

    def wait_ends(self):
        pass


def waits(rank):
    """Return how many waits a listener hears for each way to wait, and how many after it stopped listening."""
    counting = Counting()
    stop = listen(counting)
    heard = {}
    tensor = torch.ones(2)
    ways = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "all_gather": lambda: dist.all_gather([torch.zeros(2), torch.zeros(2)], tensor),
        "broadcast": lambda: dist.broadcast(tensor, 0),
        "barrier": dist.barrier,
        "send and receive": lambda: dist.recv(tensor, 1) if rank == 0 else dist.send(tensor, 0),
        "asynchronous": lambda: dist.all_reduce(tensor, async_op=True).wait(),
        "buffers": lambda: dist._broadcast_coalesced(dist.group.WORLD, [tensor], 1000, 0),
        "functional": lambda: functional.all_reduce(tensor, "sum", dist.group.WORLD) + 1,
        "unheard": lambda: unheard_barrier(),
        "of a thread": lambda: of_a_thread(dist.barrier),
    }
    for name, way in ways.items():
        before = counting.waits
        way()
        heard[name] = counting.waits - before
    stop()
    before = counting.waits
    dist.barrier()
    heard["after the end"] = counting.waits - before
    return heard


def gathers(rank):
    """Return what is looked at before tensors are gathered, and whether gathering works after the end."""
    looked, counting, own = [], Counting(), torch.full((2,), float(rank))
    stop = listen(counting, lambda group, rows: looked.append((group.size(), rows.tolist())))
    parts, whole = [torch.zeros(2), torch.zeros(2)], torch.zeros(4)
    dist.all_gather(parts, own)
    dist.all_gather_single(whole, own)
    with unheard():
        dist.all_gather(parts, own)
    stop()
    dist.all_gather(parts, own)
    dist.all_gather_single(whole, own)
    return looked, [part.tolist() for part in parts], whole.tolist()


def test_gathers_watched_until_the_end():
    for rank, (looked, parts, whole) in enumerate(run_ranks(2, gathers)):
        assert looked == [(2, [rank, rank])] * 2
        assert (parts, whole) == ([[0, 0], [1, 1]], [0, 0, 1, 1])


def unheard_barrier():
    with unheard():
        dist.barrier()


def of_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_every_wait_is_heard_once():
    for heard in run_ranks(2, waits):
        silent = {"unheard", "of a thread", "after the end"}
        assert heard == {name: 0 if name in silent else 1 for name in heard}


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
    """Slow this process down: by a quota, or by three processes on the one core that it may use."""
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


def slow_rank(rank, way):
    """Train with equal batches while rank 1 is slowed down; return the median busy time of both, and the wall's."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)]
    if way == "buffers":  # DistributedDataParallel waits for the others in forward, to broadcast them
        layers.insert(1, torch.nn.BatchNorm1d(512))
    net = torch.nn.Sequential(*layers)
    if way == "fsdp":
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(torch.nn.Sequential(*(fully_shard(layer) for layer in net)))
    else:
        model = DistributedDataParallel(net)
    data = torch.utils.data.TensorDataset(torch.randn(5120, 256))
    loader = BalancedLoader(data, 256)
    balance = attach(model, loader, predictor=EWMA(), policy=Policy(warmup=1000), timeout=30)
    own, wall = [], []
    balance.on_iteration.append(lambda one: (own.append(one.seconds), wall.append(one.wall_seconds)))
    with slowed() if rank == 1 and way != "between" else contextlib.nullcontext():
        for (inputs,) in loader:
            loss = model(inputs).square().mean()
            if way == "gathered":
                dist.all_reduce(loss.detach())
            loss.backward()
            model.zero_grad()
            if rank == 1 and way == "between":
                burn_for(0.02)
    return np.median(own, axis=0), np.median(wall)


def burn_for(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.mark.alone
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="both ranks would be slowed down")
@pytest.mark.parametrize("way", ["plain", "buffers", "gathered", "between", "fsdp"])
def test_slow_rank_known_by_busy_time(way):
    (own, wall), (own_too, other_wall) = run_ranks(2, slow_rank, way)
    assert own.tolist() == own_too.tolist()
    assert own[1] > 1.5 * own[0]
    assert 1 / 1.5 < other_wall / wall < 1.5  # a busy machine parts them too, and less than their busy times are apart
