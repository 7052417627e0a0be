"""The tasks of a live experiment: small real models on real data that comes with scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline._require import require

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Task:
    """A model with its inputs, targets and loss."""

    model: torch.nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor
    loss: Callable[[Any, torch.Tensor], torch.Tensor]


def digits_cnn() -> Task:
    """Classify a digit from an 8 x 8 image, with two convolutions."""
    from torch import nn

    pixels, digit = _digits()
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
    return Task(model, pixels, digit, nn.functional.cross_entropy)


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

    pixels, _ = _digits()
    return Task(Halves(), pixels, torch.arange(len(pixels)), loss)


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images as rows of 64 pixels, and the digits that they show."""
    import torch
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    inputs, targets = np.asarray(pixels / 16.0, dtype=np.float32), np.asarray(digit, dtype=np.int64)
    return torch.from_numpy(inputs), torch.from_numpy(targets)


TASKS: dict[str, Callable[[], Task]] = {"digits-cnn": digits_cnn, "digits-contrastive": _contrastive}
"""The tasks by name."""


def require_models(needed_by: str) -> None:
    """Raise ``ImportError`` that names the extra to install if torch or scikit-learn is missing."""
    require("torch", needed_by=needed_by, extra="lab")
    require("sklearn", needed_by=needed_by, extra="lab")
