"""One rank of a live experiment among asynchronous schemes; the first one also holds the server, and writes it down."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed
from torch.utils.data import TensorDataset

from paceline.coordinator.asynchronous.ledger import WASTED, Account
from paceline.coordinator.asynchronous.verdict import Verdict
from paceline.engines.parameter_server.service import Service
from paceline.engines.torch_async import AsyncJob
from paceline.lab.contention.disturbance import DISTURBANCES, Bursts
from paceline.lab.experiment.asynchronous import AsyncSetting, AsyncTurn, write_turns
from paceline.lab.experiment.experiment_tasks import live_task
from paceline.lab.experiment.experiment_worker import disturbed, joined, work_for

ENDLESS = 2**30
"""Epochs of a turn, which its seconds end."""

LOOKS = 12
"""Snapshots of the parameters in a turn, at most; their losses are computed after it, outside its time."""


class Looks:
    """Keeps copies of the server's parameters now and then; listens to verdicts, under the server's lock."""

    def __init__(self, seconds: float) -> None:
        self.every, self.due = seconds / LOOKS, 0.0
        self.service: Service | None = None
        self.applied: list[int] = []
        self.rows: list[torch.Tensor] = []
        self.staleness: list[int] = []
        self.wasted = 0.0
        self.over = False

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of the gradients that were applied; 0 if there are none."""
        return sum(self.staleness) / max(len(self.staleness), 1)

    def __call__(self, verdict: Verdict) -> None:
        """Take note of a verdict."""
        if self.service is None or self.over:
            return
        self.wasted = self.service.server.ledger.wasted_share
        if verdict.outcome not in WASTED:
            self.staleness.append(verdict.staleness)
        applied = self.service.server.sampler.applied
        if time.monotonic() >= self.due and (not self.applied or applied > self.applied[-1]):
            self.look()

    def look(self) -> None:
        """Keep a copy now."""
        assert self.service is not None
        self.applied.append(self.service.server.sampler.applied)
        self.rows.append(torch.from_numpy(self.service.server.parameters))
        self.due = time.monotonic() + self.every


def take_turn(setting: AsyncSetting, scheme: str, seed: int, between: float, bursts: Bursts | None) -> AsyncTurn | None:
    """Train from the start for so many seconds; return what the rank with the server saw."""
    torch.manual_seed(setting.seed)
    task = live_task(setting.model).task
    dataset, looks = TensorDataset(task.inputs, task.targets), Looks(setting.seconds)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=2e-3)  # as the synchronous contestants
    job = AsyncJob(
        task.model,
        optimizer,
        dataset,
        batch=setting.batch,
        epochs=ENDLESS,
        scheme=scheme,
        seed=setting.seed,
        on_verdict=[looks],
    )
    looks.service = job.service
    if job.service is not None:
        looks.look()
    distributed.barrier()
    if bursts:
        bursts.start(seed)
    began = time.monotonic()
    for inputs, targets in job:
        optimizer.zero_grad()
        task.loss(task.model(inputs), targets).backward()
        work_for(between)
        job.push()
        if time.monotonic() - began > setting.seconds:
            looks.over = True  # the last steps of the others are given up because the turn ends, not by the scheme
            break
    job.close()
    took = time.monotonic() - began
    if bursts:
        bursts.stop()
    distributed.barrier()
    if job.service is None:
        return None
    looks.look()
    service, server = job.service, job.service.server
    workers = [f"rank{rank}" for rank in range(distributed.get_world_size())]
    return AsyncTurn(
        scheme=scheme,
        seed=seed,
        seconds=took,
        applied=looks.applied,
        losses=[_loss(job, row, dataset, task.loss) for row in looks.rows],
        samples=[server.ledger.accounts.get(worker, Account()).applied for worker in workers],
        waited=[service.waited.get(worker, 0.0) for worker in workers],
        staleness=looks.mean_staleness,
        largest=server.ledger.largest_staleness,
        bound=-1 if server.scheme.bound is None else server.scheme.bound,
        wasted=looks.wasted,
    )


def _loss(job: AsyncJob, row: torch.Tensor, dataset: TensorDataset, loss: Callable[..., torch.Tensor]) -> float:
    job.flat.row.copy_(row)
    with torch.no_grad():
        inputs, targets = dataset.tensors
        return float(loss(job.flat.model(inputs), targets))


def main() -> None:
    """Run one rank of asynchronous training."""
    told = joined()
    rank, folder, setting = told["rank"], Path(told["folder"]), AsyncSetting(**told["setting"])
    between = DISTURBANCES[setting.contention].between if told["disturbed"] else 0.0
    bursts = disturbed(told, setting)
    turns = [take_turn(setting, scheme, seed, between, bursts) for scheme, seed in setting.turns]
    write_turns([turn for turn in turns if turn is not None], folder / f"result{rank}.json")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    os._exit(0)  # a thread of one of the many groups may otherwise end the process as the interpreter closes
