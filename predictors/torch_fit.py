"""Torch trains, numpy serves: fit one tanh layer by gradient descent. Axes: F inputs, H hidden units.

Nothing else imports torch; this file is imported only when a network is fitted.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.predictors.neural import Examples, Training

Array = NDArray[np.float64]


def fit_tanh_layer(examples: Examples, hidden: int, training: Training) -> dict[str, Array]:
    """Fit the weights of :func:`tanh_layer` to the examples under Huber loss.

    The output layer and the direct path start at zero, so that an untrained network says zero. Returns ``w1 [F, H]``,
    ``b1 [H]``, ``w2 [H]``, ``b2 []``, ``direct [F]``.
    """
    generator = torch.Generator().manual_seed(training.seed)
    width = examples.inputs.shape[1]
    weights = {
        "w1": torch.randn(width, hidden, generator=generator) / width**0.5,
        "b1": torch.zeros(hidden),
        "w2": torch.zeros(hidden),
        "b2": torch.zeros(()),
        "direct": torch.zeros(width),
    }
    for weight in weights.values():
        weight.requires_grad_()

    def loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(inputs @ weights["w1"] + weights["b1"])
        output = inputs @ weights["direct"] + hidden @ weights["w2"] + weights["b2"]
        return torch.nn.functional.huber_loss(output, targets)

    learns = ~examples.validates
    fitting = _tensors(examples.inputs[learns], examples.targets[learns])
    held_out = _tensors(examples.inputs[~learns], examples.targets[~learns])
    optimiser = torch.optim.AdamW(weights.values(), lr=training.learning_rate, weight_decay=training.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=training.epochs)
    best, best_loss, waited = _copy(weights), float("inf"), 0
    for _ in range(training.epochs):
        order = torch.randperm(len(fitting[0]), generator=generator)
        for rows in order.split(training.batch_size):
            optimiser.zero_grad()
            loss(fitting[0][rows], fitting[1][rows]).backward()
            optimiser.step()
        schedule.step()
        with torch.no_grad():
            now = float(loss(*held_out))
        best, best_loss, waited = (_copy(weights), now, 0) if now < best_loss else (best, best_loss, waited + 1)
        if waited >= training.patience:
            break
    return best


def _tensors(inputs: Array, targets: Array) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.as_tensor(inputs, dtype=torch.float32), torch.as_tensor(targets, dtype=torch.float32)


def _copy(weights: dict[str, torch.Tensor]) -> dict[str, Array]:
    return {name: weight.detach().numpy().astype(np.float64) for name, weight in weights.items()}
