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
    """A model with its data, inputs, targets and loss."""

    data: str
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


def digits_lstm() -> Task:
    """Classify a digit from its eight rows, read one after the other."""
    from torch import nn

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.decide = nn.LSTM(8, 96, batch_first=True), nn.Linear(96, 10)

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            rows, _ = self.read(pixels.unflatten(1, (8, 8)))
            return self.decide(rows[:, -1])  # type: ignore[no-any-return]

    return _digits(Reader())


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


def digits_autoencoder() -> Task:
    """Compress 64 pixels into 16 numbers and restore them."""
    import torch
    from torch import nn

    pixels, _ = _digit_images()
    model = nn.Sequential(
        nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 16), nn.Linear(16, 1024), nn.ReLU(), nn.Linear(1024, 64)
    )
    inputs = torch.from_numpy(pixels)
    return Task("scikit-learn digits", model, inputs, inputs, nn.functional.mse_loss)


def photo_denoiser() -> Task:
    """Remove noise from patches of two photographs."""
    import torch
    from torch import nn

    clean = _photo_patches()
    noisy = clean + np.random.default_rng(1).normal(0.0, 0.1, clean.shape).astype(np.float32)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 3, 3, padding=1),
    )
    inputs, targets = (torch.from_numpy(images) for images in (noisy, clean))
    return Task("scikit-learn sample images", model, inputs, targets, nn.functional.mse_loss)


def photo_upscaler() -> Task:
    """Restore patches of two photographs from every second pixel."""
    import torch
    from torch import nn

    patches = _photo_patches()
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 12, 3, padding=1), nn.PixelShuffle(2)
    )
    inputs, targets = torch.from_numpy(patches[:, :, ::2, ::2].copy()), torch.from_numpy(patches)
    return Task("scikit-learn sample images", model, inputs, targets, nn.functional.mse_loss)


def photo_cnn() -> Task:
    """Classify which of two photographs a patch comes from."""
    import torch
    from torch import nn

    patches = _photo_patches()
    photo = np.repeat([0, 1], len(patches) // 2)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 16, 2),
    )
    inputs, targets = torch.from_numpy(patches), torch.from_numpy(photo)
    return Task("scikit-learn sample images", model, inputs, targets, nn.functional.cross_entropy)


MODELS: dict[str, Callable[[], Task]] = {
    "digits-attention": digits_attention,
    "digits-autoencoder": digits_autoencoder,
    "digits-cnn": digits_cnn,
    "digits-lstm": digits_lstm,
    "digits-mlp": digits_mlp,
    "photo-cnn": photo_cnn,
    "photo-denoiser": photo_denoiser,
    "photo-upscaler": photo_upscaler,
}
"""The models a job can train, by name."""


def _digits(model: torch.nn.Module) -> Task:
    import torch

    pixels, digit = _digit_images()
    inputs, targets = torch.from_numpy(pixels), torch.from_numpy(digit)
    return Task("scikit-learn digits", model, inputs, targets, torch.nn.functional.cross_entropy)


def _digit_images() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    return np.asarray(pixels / 16.0, dtype=np.float32), np.asarray(digit, dtype=np.int64)


def _photo_patches(each: int = 1000) -> NDArray[np.float32]:
    # Patches of 16 x 16 pixels at random places of two photographs, the same in every call, [2 * each, 3, 16, 16].
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(0)
    patches = []
    for photo in load_sample_images().images:
        height, width, _ = photo.shape
        corners = zip(rng.integers(height - 16, size=each), rng.integers(width - 16, size=each), strict=True)
        patches += [photo[y : y + 16, x : x + 16].transpose(2, 0, 1) / 255.0 for y, x in corners]
    return np.stack(patches).astype(np.float32)


def require_models(needed_by: str) -> None:
    """Raise an error that says what to install, unless these models can be trained here."""
    require("torch", needed_by=needed_by, extra="lab")
    require("sklearn", needed_by=needed_by, extra="lab")
