"""One rank of a live experiment: trains with every scheme in turn and writes the results.

Ranks end a turn at the same iteration without a message: the first rank writes the last iteration to shared memory.
The others are at most one iteration ahead of it, as they need its gradients.
"""

from __future__ import annotations

import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from paceline._arrays import Sizes
from paceline.coordinator.policy import Policy
from paceline.lab.disturbance import DISTURBANCES, Bursts, Disturbance, set_quota, set_running
from paceline.lab.experiment import (
    CONTROL,
    DISTURBED_RANK,
    EQUAL,
    GLOBAL_BATCH,
    ExperimentSetting,
    IterationResult,
    RankResult,
    TurnResult,
)
from paceline.lab.processes import join_control_group
from paceline.predictors import LastValue, named
from paceline.recording.records import Iteration
from paceline.torch import BalancedLoader, attach


class TrainingJob:
    """A training job of its own, which can pause between any two iterations."""

    def __init__(self, scheme: str) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 24, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(48 * 16, 10),
        )
        pixels, digits = load_digits(return_X_y=True)
        samples = len(pixels) // GLOBAL_BATCH * GLOBAL_BATCH
        data = TensorDataset(
            torch.from_numpy(np.asarray(pixels[:samples] / 16.0, dtype=np.float32)),
            torch.from_numpy(np.asarray(digits[:samples], dtype=np.int64)),
        )
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        self.loader = BalancedLoader(data, GLOBAL_BATCH)
        self.losses: list[float] = []  # of every iteration: the rank's mean, times its share of the samples
        self.records: list[Iteration] = []  # of a balanced scheme
        if scheme != EQUAL:
            predictor = LastValue() if scheme == CONTROL else named(scheme)
            policy = Policy(warmup=2**40) if scheme == CONTROL else None  # sizes stay equal forever
            balance = attach(self.model, self.loader, predictor=predictor, policy=policy)
            balance.on_iteration.append(self.records.append)
        self._steps = self._train()

    def step(self) -> None:
        """Train for one iteration."""
        next(self._steps)

    def _train(self) -> Iterator[None]:
        while True:
            for inputs, targets in self.loader:
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(inputs), targets)
                loss.backward()
                self.optimizer.step()
                sizes_W = self.loader.batch_sizes
                self.losses.append(loss.item() * float(sizes_W[self.loader.rank] / sizes_W.sum()))
                yield


UNKNOWN_END = 2**62  # the last iteration of a turn, while it is not known


def shared_end_iteration(folder: Path) -> Sizes:
    """Return the iteration after the turn, one number in memory that the ranks of this machine share."""
    return np.memmap(folder / "finish", np.int64, "r+", shape=1)


def run_turns(
    setting: ExperimentSetting, rank: int, end_iteration: Sizes, bursts: Bursts | None, is_disturbed: bool
) -> RankResult:
    """Train with every scheme in its turns, and return the results of this rank."""
    between = DISTURBANCES[setting.contention].between_seconds if is_disturbed else 0.0
    contestants = {scheme: TrainingJob(scheme) for scheme in (EQUAL, *setting.schemes)}
    for contestant in contestants.values():
        for _ in range(5):  # warm-up: the first iterations allocate memory and choose kernels
            contestant.step()
    turns = [
        train_turn(contestants[scheme], scheme, seed, setting.seconds, rank, end_iteration, bursts, between)
        for scheme, seed in setting.turns
    ]
    return RankResult(
        turns=turns,
        losses={scheme: job.losses for scheme, job in contestants.items()},
        records={
            scheme: [
                IterationResult(one.index, one.sizes.tolist(), one.seconds.tolist(), one.overhead_seconds)
                for one in job.records
            ]
            for scheme, job in contestants.items()
        },
    )


def train_turn(
    job: TrainingJob,
    scheme: str,
    seed: int,
    seconds: float,
    rank: int,
    end_iteration: Sizes,
    bursts: Bursts | None,
    between_seconds: float = 0.0,
) -> TurnResult:
    """Train for this many seconds by the clock of the first rank."""
    distributed.barrier()
    if rank == 0:
        end_iteration[0] = UNKNOWN_END
    distributed.barrier()
    first = len(job.losses)
    walls: list[float] = []
    machine, rank_cpu = machine_cpu_seconds(), time.process_time()
    if bursts:
        bursts.start(seed)
    begin = now = time.perf_counter()
    while len(job.losses) < end_iteration[0]:
        job.step()
        until = time.perf_counter() + between_seconds
        while time.perf_counter() < until:  # something unrelated
            pass
        previous, now = now, time.perf_counter()
        walls.append(now - previous)
        if rank == 0 and now - begin > seconds and end_iteration[0] == UNKNOWN_END:
            end_iteration[0] = len(job.losses) + 1
    if bursts:
        bursts.stop()
    return TurnResult(scheme, seed, first, walls, machine_cpu_seconds() - machine, time.process_time() - rank_cpu)


def machine_cpu_seconds() -> float:
    """Return CPU seconds of all processes of this machine so far; 0 where the system does not report them."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _idle, _io, irq, softirq, *_ = map(int, stat.read_text().split()[1:9])
    return float((user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK"))


def run_rank(
    rank: int,
    cores: Sequence[int],
    folder: Path,
    setting: ExperimentSetting,
    place: Sequence[str] | None,
    hog_pids: Sequence[int],
) -> None:
    """Run one rank, on a core of its own, and write its results to the folder."""
    is_disturbed = rank == DISTURBED_RANK
    os.sched_setaffinity(0, [cores[rank]])
    torch.set_num_threads(1)
    threadpool_limits(1)
    warnings.filterwarnings("ignore", message="A further model")  # each scheme has one
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    bursts = None
    if is_disturbed:
        if place is not None:
            join_control_group(place)  # only now, because libraries load slowly under a quota
        bursts = start_disturbance(DISTURBANCES[setting.contention], place, hog_pids)
    result = run_turns(setting, rank, shared_end_iteration(folder), bursts, is_disturbed)
    (folder / f"result{rank}").write_bytes(pickle.dumps(result))
    distributed.destroy_process_group()
    os._exit(0)  # a thread of one of the many groups may otherwise end the process as the interpreter closes


def start_disturbance(disturbance: Disturbance, place: Sequence[str] | None, hog_pids: Sequence[int]) -> Bursts | None:
    """Start a permanent disturbance of this rank, or return its bursts, which each turn starts."""
    switch: Callable[[bool], None] = partial(set_running, hog_pids)
    if disturbance.quota:
        assert place is not None
        switch = partial(set_quota, place[0], disturbance.quota)
    switch(disturbance.burst_seconds is None)
    return None if disturbance.burst_seconds is None else Bursts(switch, disturbance.burst_seconds)


def compete(number: int, core: int) -> None:
    """Take CPU time from the worker on a core."""
    os.sched_setaffinity(0, [core])
    while True:
        sum(range(5_000))
