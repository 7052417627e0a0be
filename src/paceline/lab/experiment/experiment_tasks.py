"""Tasks of a live experiment: three small models, and three whose ranks communicate inside forward or backward.

The latter broadcast the buffers of batch normalization, normalize over all ranks, or compare their samples with those
of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.lab.small_models import MODELS, Task

if TYPE_CHECKING:
    import torch

    from paceline.torch.weighting.listener import Loss


@dataclass(frozen=True)
class LiveTask:
    """A task, and the kind of its loss for a balancer."""

    task: Task
    loss: Loss = "mean"


def live_task(name: str) -> LiveTask:
    """Return the task of this name, a key of ``TASKS``."""
    if name in MODELS:
        return LiveTask(MODELS[name]())
    return _COMMUNICATING[name]()


def _batch_norm() -> LiveTask:
    from torch import nn

    return LiveTask(_convolutional(nn.BatchNorm2d))


def _sync_batch_norm() -> LiveTask:
    return LiveTask(_convolutional(_synchronized), loss="scaled")


def _contrastive() -> LiveTask:
    """CLIP's loss: find the upper half of an image that belongs to a lower half, among those of all ranks."""
    import torch
    from torch import nn

    from paceline.torch import gather_rows

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.upper, self.lower = (
                nn.Sequential(nn.Linear(32, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 64))
                for _ in range(2)
            )

        def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return nn.functional.normalize(self.upper(pixels[:, :32])), nn.functional.normalize(
                self.lower(pixels[:, 32:])
            )

    def loss(halves: tuple[torch.Tensor, torch.Tensor], number: torch.Tensor) -> torch.Tensor:
        upper, lower = halves
        all_lower, all_numbers = gather_rows(lower), gather_rows(number)
        target = (number[:, None] == all_numbers[None, :]).float().argmax(dim=1)
        return nn.functional.cross_entropy(20 * upper @ all_lower.T, target)

    digits = MODELS["digits-mlp"]()
    numbers = torch.arange(len(digits.inputs))
    return LiveTask(Task(Halves(), digits.inputs, numbers, loss), loss="scaled")


def _convolutional(norm: Callable[[int], torch.nn.Module]) -> Task:
    """Return the convolutional task, with a normalization behind every convolution."""
    from torch import nn

    task = MODELS["digits-cnn"]()
    layers: list[torch.nn.Module] = []
    for layer in task.model.children():
        layers.append(layer)
        if isinstance(layer, nn.Conv2d):
            layers.append(norm(layer.out_channels))
    return replace(task, model=nn.Sequential(*layers))


def _synchronized(channels: int) -> torch.nn.Module:
    """Return batch normalization over all ranks, in training: torch's own runs on GPUs only."""
    import torch
    from torch.distributed.nn.functional import all_reduce

    class SyncBatchNorm(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            count = images.new_full((1,), images.numel() / images.shape[1])
            sums = torch.cat([count, images.sum((0, 2, 3)), images.square().sum((0, 2, 3))])
            total: torch.Tensor = all_reduce(sums)
            mean, square = total[1 : 1 + channels] / total[0], total[1 + channels :] / total[0]
            scale = (square - mean.square() + 1e-5).rsqrt()
            normal: torch.Tensor = (images - mean[:, None, None]) * scale[:, None, None]
            return normal

    return SyncBatchNorm()


_COMMUNICATING: dict[str, Callable[[], LiveTask]] = {
    "digits-batch-norm": _batch_norm,
    "digits-sync-batch-norm": _sync_batch_norm,
    "digits-contrastive": _contrastive,
}

TASKS = (*MODELS, *_COMMUNICATING)
"""The names of the tasks."""
