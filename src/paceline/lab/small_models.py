"""Small real models on real data that comes with scikit-learn, so nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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


def digits_mlp() -> Task:
    """Classify a digit from 64 pixels, with three dense layers."""
    from torch import nn

    return _digits(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)))


def digits_cnn() -> Task:
    """Classify a digit from an 8 x 8 image, with two convolutions."""
    from torch import nn

    return _digits(
        nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 24, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(48 * 16, 10),
        )
    )


def digits_attention() -> Task:
    """Classify a digit from its eight rows, with one attention layer."""
    from torch import nn

    return _digits(
        nn.Sequential(
            nn.Unflatten(1, (8, 8)),
            nn.Linear(8, 64),
            nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=128, dropout=0.0, batch_first=True),
            nn.Flatten(),
            nn.Linear(64 * 8, 10),
        )
    )


MODELS: dict[str, Callable[[], Task]] = {
    "digits-attention": digits_attention,
    "digits-cnn": digits_cnn,
    "digits-mlp": digits_mlp,
}
"""The models by name."""


def _digits(model: torch.nn.Module) -> Task:
    import torch

    pixels, digit = _digit_images()
    inputs, targets = torch.from_numpy(pixels), torch.from_numpy(digit)
    return Task(model, inputs, targets, torch.nn.functional.cross_entropy)


def _digit_images() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    return np.asarray(pixels / 16.0, dtype=np.float32), np.asarray(digit, dtype=np.int64)


def require_models(needed_by: str) -> None:
    """Raise ``ImportError`` that names the extra to install if torch or scikit-learn is missing."""
    require("torch", needed_by=needed_by, extra="lab")
    require("sklearn", needed_by=needed_by, extra="lab")
