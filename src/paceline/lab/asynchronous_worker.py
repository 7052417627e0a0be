"""One rank of a live experiment with asynchronous schemes; the first one also runs the server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed
from torch.utils.data import TensorDataset

from paceline.coordinator.asynchronous.server import WASTED, Account, Verdict
from paceline.lab.asynchronous import AsyncSetting, AsyncTurn, write_turns
from paceline.lab.disturbance import DISTURBANCES, Bursts
from paceline.lab.experiment_worker import join_ranks, start_disturbance, work_for
from paceline.lab.setting import live_task
from paceline.parameter_server import AsyncJob
from paceline.parameter_server.service import Service


class Snapshots:
    """Copies the server's parameters at most 12 times a turn; called with each push result, under the server's lock.

    The losses at these parameters are computed after the turn.
    """

    def __init__(self, seconds: float) -> None:
        self.every, self.due = seconds / 12, 0.0
        self.service: Service | None = None
        self.applied: list[int] = []
        self.rows: list[torch.Tensor] = []
        self.staleness: list[int] = []
        self.wasted = 0.0
        self.finished = False

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of the gradients that were applied; 0 if there are none."""
        return sum(self.staleness) / max(len(self.staleness), 1)

    def __call__(self, verdict: Verdict) -> None:
        """Process the result of a push."""
        if self.service is None or self.finished:
            return
        self.wasted = self.service.server.ledger.wasted_share
        if verdict.outcome not in WASTED:
            self.staleness.append(verdict.staleness)
        applied = self.service.server.sampler.applied
        if time.monotonic() >= self.due and (not self.applied or applied > self.applied[-1]):
            self.copy()

    def copy(self) -> None:
        """Copy the parameters now."""
        assert self.service is not None
        self.applied.append(self.service.server.sampler.applied)
        self.rows.append(torch.from_numpy(self.service.server.parameters))
        self.due = time.monotonic() + self.every


def train_turn(
    setting: AsyncSetting, scheme: str, seed: int, between: float, bursts: Bursts | None
) -> AsyncTurn | None:
    """Train from the start for the seconds of a turn; return the results on the rank with the server."""
    torch.manual_seed(setting.seed)
    task = live_task(setting.model)
    dataset, snapshots = TensorDataset(task.inputs, task.targets), Snapshots(setting.seconds)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=2e-3)  # as the synchronous contestants
    job = AsyncJob(
        task.model,
        optimizer,
        dataset,
        batch=setting.batch,
        epochs=2**30,
        scheme=scheme,
        seed=setting.seed,
        on_verdict=[snapshots],
    )
    snapshots.service = job.service
    if job.service is not None:
        snapshots.copy()
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
            snapshots.finished = True  # steps that the end of the turn abandons are not the scheme's waste
            break
    job.close()
    seconds = time.monotonic() - began
    if bursts:
        bursts.stop()
    distributed.barrier()
    if job.service is None:
        return None
    snapshots.copy()
    service, server = job.service, job.service.server
    workers = [f"rank{rank}" for rank in range(distributed.get_world_size())]
    return AsyncTurn(
        scheme=scheme,
        seed=seed,
        seconds=seconds,
        applied=snapshots.applied,
        losses=[_loss(job, row, dataset, task.loss) for row in snapshots.rows],
        samples=[server.ledger.accounts.get(worker, Account()).applied for worker in workers],
        waited=[service.waited.get(worker, 0.0) for worker in workers],
        staleness=snapshots.mean_staleness,
        largest=server.ledger.largest_staleness,
        bound=-1 if server.scheme.bound is None else server.scheme.bound,
        wasted=snapshots.wasted,
    )


def _loss(job: AsyncJob, row: torch.Tensor, dataset: TensorDataset, loss: Callable[..., torch.Tensor]) -> float:
    job.flat.row.copy_(row)
    with torch.no_grad():
        inputs, targets = dataset.tensors
        return float(loss(job.flat.model(inputs), targets))


def main() -> None:
    """Run one rank of asynchronous training."""
    task = join_ranks()
    rank, folder, setting = task["rank"], Path(task["folder"]), AsyncSetting(**task["setting"])
    between = DISTURBANCES[setting.contention].between if task["disturbed"] else 0.0
    bursts = start_disturbance(task, setting)
    turns = [train_turn(setting, scheme, seed, between, bursts) for scheme, seed in setting.turns]
    write_turns([turn for turn in turns if turn is not None], folder / f"result{rank}.json")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    os._exit(0)  # a thread of one of the many groups may otherwise end the process as the interpreter closes
