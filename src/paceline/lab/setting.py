"""Setting of a live experiment: the schemes it compares, and how one rank is disturbed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.lab.disturbance import DISTURBANCES
from paceline.lab.small_models import MODELS, Task, require_models
from paceline.predictors import named

if TYPE_CHECKING:
    import torch


def live_task(name: str) -> Task:
    """Return the task of this name, a key of ``TASKS``."""
    if name in MODELS:
        return MODELS[name]()
    return _COMMUNICATING[name]()


def _batch_norm() -> Task:
    from torch import nn

    return _convolutional(nn.BatchNorm2d)


def _sync_batch_norm() -> Task:
    return _convolutional(_synchronized)


def _contrastive() -> Task:
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
    return Task(Halves(), digits.inputs, numbers, loss)


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


_COMMUNICATING: dict[str, Callable[[], Task]] = {
    "digits-batch-norm": _batch_norm,
    "digits-sync-batch-norm": _sync_batch_norm,
    "digits-contrastive": _contrastive,
}

TASKS = (*MODELS, *_COMMUNICATING)
"""The names of the tasks."""

EQUAL = "equal"
"""Plain DistributedDataParallel with equal batches: what every scheme is compared with."""
CONTROL = "control"
"""Equal batches with measuring and forecasting: shows the overhead of balancing."""

DISTURBED = 1
"""The rank that is disturbed."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One live experiment.

    Parameters
    ----------
    contention
        A key of ``DISTURBANCES``.
    schemes
        Predictors by name, such as ``"auto"`` or ``"ewma:smoothing=0.5"``, or ``"control"``.
    model
        Name of the task: one of ``paceline.lab.TASKS``.
    global_batch
        Samples of all ranks in an iteration.
    rounds
        Turns of every scheme, each between two turns of equal batches.
    seconds
        Length of a turn.
    seed
        Seed of the model, of the order of the data, and of the bursts.
    device
        ``"cpu"``, or ``"cuda"``: a device that both ranks share.
    precision
        ``"single"``, or ``"mixed"``: autocast to bfloat16.

    Raises
    ------
    ValueError
        If there is no such contention, model or predictor, or a number is not above 0.
    """

    contention: str = "quota"
    schemes: tuple[str, ...] = ("auto",)
    model: str = "digits-cnn"
    global_batch: int = 896
    rounds: int = 4
    seconds: float = 3.0
    seed: int = 0
    device: str = "cpu"
    precision: str = "single"

    def __post_init__(self) -> None:
        if self.contention not in DISTURBANCES:
            raise ValueError(f"contention must be one of {list(DISTURBANCES)}, got {self.contention!r}")
        if self.model not in TASKS:
            raise ValueError(f"model must be one of {list(TASKS)}, got {self.model!r}")
        for scheme in self.schemes:
            if scheme != CONTROL:
                named(scheme)
        for name in ("rounds", "seconds", "global_batch"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.precision not in ("single", "mixed"):
            raise ValueError(f"precision must be 'single' or 'mixed', got {self.precision!r}")
        self._require_device()

    def _require_device(self) -> None:
        """Raise if there is no such device, or the contention needs another one."""
        if self.device == "cpu":
            if DISTURBANCES[self.contention].kernels:
                raise ValueError(f"the contention {self.contention!r} needs a CUDA device: set device='cuda'")
            return
        require_models("a live experiment")
        import torch

        if self.device != "cuda" or not torch.cuda.is_available():
            raise ValueError(f"device must be 'cpu', or 'cuda' where torch finds a device, got {self.device!r} here")

    @property
    def turns(self) -> list[tuple[str, int]]:
        """Turns in order: the scheme that trains, and the seed of the bursts, the same for all turns of a round."""
        order: list[tuple[str, int]] = []
        for seed in range(self.rounds):
            order.append((EQUAL, seed))
            # Every other round runs backwards, so that the order favors no scheme.
            for scheme in self.schemes[:: -1 if seed % 2 else 1]:
                order += [(scheme, seed), (EQUAL, seed)]
        return order
