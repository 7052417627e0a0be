"""Own computing is separated from waiting, however a loop waits, and with a rank that is really slow."""

import contextlib
import multiprocessing
import os
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
from paceline.recording import Recorder, merge, watch
from paceline.torch import BalancedLoader, attach

WAYS = {
    "all_reduce": lambda tensor, rank: dist.all_reduce(tensor),
    "all_gather": lambda tensor, rank: dist.all_gather([torch.zeros(2), torch.zeros(2)], tensor),
    "broadcast": lambda tensor, rank: dist.broadcast(tensor, 1),
    "barrier": lambda tensor, rank: dist.barrier(),
    "receive": lambda tensor, rank: dist.send(tensor, 0) if rank else dist.recv(tensor, 1),
    "asynchronous": lambda tensor, rank: dist.all_reduce(tensor, async_op=True).wait(),
    "buffers": lambda tensor, rank: dist._broadcast_coalesced(dist.group.WORLD, [tensor], 1000, 1),
    "functional": lambda tensor, rank: functional.all_reduce(tensor, "sum", dist.group.WORLD) + 1,
}


def waits(rank, folder):
    """Record loops in which rank 0 waits for rank 1 in each of these ways, and return rank 0's own times in each."""
    own = {}
    for name, wait in WAYS.items():
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Recorder(f"{folder}/{name}{rank}.jsonl", str(rank)) as recorder, watch(model, optimizer, recorder):
            for _ in range(3):
                loss = model(torch.ones(8, 2)).sum()
                time.sleep(0.06 * rank)
                wait(torch.ones(2), rank)
                loss.backward()
                optimizer.step()
        own[name] = merge([recorder.path]).seconds.min()
    return own


def test_waiting_is_not_own_time_in_any_way(tmp_path):
    waiting, slow = run_ranks(2, waits, str(tmp_path))
    assert {name: seconds < 0.03 for name, seconds in waiting.items()} == dict.fromkeys(WAYS, True)
    assert min(slow.values()) >= 0.06


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
    # of FSDP, threads of gloo take part of the fast rank's core: on a busy machine they are less far apart
    assert own[1] > (1.15 if way == "fsdp" else 1.5) * own[0]
    assert 1 / 1.5 < other_wall / wall < 1.5  # a busy machine parts them too, and less than their busy times are apart
