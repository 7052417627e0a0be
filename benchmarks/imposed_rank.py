"""One rank of benchmarks/imposed.py: trains for every scheme in turn, at speeds that are imposed. Axes: T, W."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from paceline._arrays import Array

FEATURES = 64
SAMPLES = 4096


@dataclass(frozen=True)
class Told:
    """What a rank is told: who it is, and at which speeds, ``[T, W]``, each cell's schemes train, in blocks."""

    rank: int
    world_size: int
    store: str
    cells: list[Array]
    share: int
    schemes: tuple[str, ...]
    block: int


@dataclass
class Seen:
    """What one scheme did: sizes of every iteration, ``[T, W]``, and wall seconds of every block."""

    sizes_TW: list[list[int]]
    wall_seconds: list[float]


def run(told: Told, tell: Callable[[dict[str, Seen]], None]) -> None:
    """Train through all cells, the schemes in turn, and tell what each did."""
    with joined(told):
        for speed_TW in told.cells:
            in_turns(told, speed_TW, tell)


@contextmanager
def joined(told: Told) -> Iterator[None]:
    """Join the other ranks, on one thread and without warnings, and leave when all are done."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    place = {"rank": told.rank, "world_size": told.world_size, "timeout": timedelta(seconds=120)}
    dist.init_process_group("gloo", init_method=f"file://{told.store}", **place)
    warnings.simplefilter("ignore")
    yield
    dist.barrier()
    dist.destroy_process_group()


def in_turns(told: Told, speed_TW: Array, tell: Callable[[dict[str, Seen]], None]) -> None:
    """Train for every scheme at these speeds, in blocks, and let the first rank tell what each did."""
    jobs = {scheme: Job(scheme, told, speed_TW) for scheme in told.schemes}
    for _ in range(len(speed_TW) // told.block):
        for job in jobs.values():
            job.block()
    for job in jobs.values():
        job.close()
    if told.rank == 0:
        tell({scheme: job.seen for scheme, job in jobs.items()})


class Job:
    """One training, balanced by a scheme, or plain."""

    def __init__(self, scheme: str, told: Told, speed_TW: Array) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

        torch.manual_seed(0)
        self.told, self.speed_TW, self.iteration = told, speed_TW, 0
        samples = told.share * told.world_size
        self.seen = Seen([], [])
        self.model = DistributedDataParallel(sleeper(self))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        data = TensorDataset(torch.randn(SAMPLES, FEATURES), torch.randint(10, (SAMPLES,)))
        self.balance: Any = None
        if scheme == "equal":
            sampler: Any = DistributedSampler(data, told.world_size, told.rank)
            self.loader: Any = DataLoader(data, told.share, sampler=sampler, drop_last=True)
        else:
            from paceline.predictors import named
            from paceline.torch import BalancedLoader, attach

            self.loader = BalancedLoader(data, samples, drop_last=True)
            self.balance = attach(self.model, self.loader, predictor=named(scheme))
        self.batches = self._forever()

    def _forever(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def block(self) -> None:
        """Train for a block of iterations; the ranks begin it together."""
        import torch.distributed as dist
        from torch.nn.functional import cross_entropy

        dist.barrier()
        began = time.perf_counter()
        for _ in range(self.told.block):
            inputs, targets = next(self.batches)
            if self.balance is not None:
                self.seen.sizes_TW.append(self.loader.batch_sizes.tolist())
            loss = cross_entropy(self.model(inputs), targets)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.seen.wall_seconds.append(time.perf_counter() - began)

    def close(self) -> None:
        """Let go of the processes' groups."""
        if self.balance is not None:
            self.balance.close()


def sleeper(job: Job) -> Any:
    """Return a small network whose forward pass sleeps as long as the samples take at the imposed speed."""
    import torch

    class Sleeper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            time.sleep(len(inputs) / job.speed_TW[job.iteration, job.told.rank])
            job.iteration += 1
            return self.layers(inputs)

    return Sleeper()
