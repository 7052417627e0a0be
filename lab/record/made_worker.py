"""One worker of a recorded job: trains on its share of each batch and records every iteration.

The gradient is the mean over all samples of the global batch. A barrier before the all-reduce separates waiting for
the others from communication.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.lab.processes.orphan import die_with_parent
from paceline.lab.record.jobs import Job
from paceline.lab.small_models import MODELS
from paceline.recording.covariates import default_covariates
from paceline.recording.place import Place
from paceline.recording.recorder import Recorder

if TYPE_CHECKING:
    import torch

WARM_UP = 5  # iterations before recording, because the first ones allocate memory and choose kernels


def record(job: Job, rank: int, folder: Path) -> list[float]:
    """Train as the worker of this rank, record it in the folder, and return the loss of every iteration."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)  # a worker has less than one core
    torch.manual_seed(job.seed)
    task = MODELS[job.model]()
    optimiser = torch.optim.Adam(task.model.parameters(), lr=2e-3)
    rng = np.random.default_rng([job.seed, rank])
    size = job.batch_sizes[rank]
    weight = size / sum(job.batch_sizes)
    losses: list[float] = []

    def iterate(recorder: Recorder) -> None:
        with recorder.iteration(samples=size) as step:
            rows = torch.from_numpy(rng.integers(len(task.inputs), size=size))
            loss = task.loss(task.model(task.inputs[rows]), task.targets[rows])
            optimiser.zero_grad()
            loss.backward()
            gradient = _flat_gradient(task.model) * weight
            with step.waiting():
                distributed.barrier()
            with step.communicating():
                distributed.all_reduce(gradient)
            _set_gradient(task.model, gradient)
            optimiser.step()
            losses.append(loss.item())

    covariates = default_covariates()
    with Recorder(folder / f"warm-up-{rank}.jsonl", str(rank), covariates) as warm_up:
        for _ in range(WARM_UP):
            iterate(warm_up)
    with Recorder(folder / f"rank{rank}.jsonl", str(rank), covariates) as recorder:
        for _ in range(job.iterations):
            iterate(recorder)
    return losses


def _flat_gradient(model: torch.nn.Module) -> torch.Tensor:
    import torch

    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _set_gradient(model: torch.nn.Module, flat: torch.Tensor) -> None:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def main() -> None:
    """Run one worker: the first line of the standard input holds job, rank, place and folder."""
    import sklearn.datasets  # noqa: F401 - loaded before the quota applies, as it takes seconds
    import torch.optim  # noqa: F401 - the same
    from torch import distributed

    told = json.loads(sys.stdin.readline())
    die_with_parent()
    job, rank, folder = Job(**told["job"]), told["rank"], Path(told["folder"])
    Place(**told["place"]).enter()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=job.workers)
    losses = record(job, rank, folder)
    (folder / f"losses{rank}.json").write_text(json.dumps(losses))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    # All files are closed. An immediate exit avoids a race: torch's threads that are still alive while the interpreter
    # shuts down sometimes abort a process whose work is done.
    os._exit(0)
