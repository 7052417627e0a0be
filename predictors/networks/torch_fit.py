"""Torch trains, numpy serves: fit networks by gradient descent. Axes: F inputs, H hidden units, R references.

No other file that serves imports torch at its top; this one is imported only when a network is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from paceline._arrays import Array
from paceline.predictors.fitting import Fitting
from paceline.predictors.networks.descent import Batch, Weights, descend, tensor
from paceline.predictors.networks.neural import Training, residual_layer
from paceline.predictors.networks.training_windows import Windows

huber = torch.nn.functional.huber_loss


def fit_residual(
    windows: Windows,
    past: int,
    hidden: int,
    training: Training,
    fitting: Fitting,
    linear: Array,
    start: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Fit the weights of :func:`residual_layer` to windows of :class:`Examples` under Huber loss.

    The output layer and the direct path start at zero, so that an untrained network leaves the linear forecast as it
    is. Returns ``linear [L]`` as given, ``w1 [F, H]``, ``b1 [H]``, ``w2 [H]``, ``b2 []``, ``direct [F]``.
    """
    generator = torch.Generator().manual_seed(training.seed)
    width = 2 * (past + 1) + windows.width("inputs") - len(linear)
    weights = {
        "w1": torch.randn(width, hidden, generator=generator) / width**0.5,
        "b1": torch.zeros(hidden),
        "w2": torch.zeros(hidden),
        "b2": torch.zeros(()),
        "direct": torch.zeros(width),
    }
    weights |= {name: tensor(value) for name, value in (start or {}).items() if name != "linear"}
    path = tensor(linear)

    def loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return huber(residual_layer(torch, weights | {"linear": path.to(inputs.device)}, past, inputs), targets)

    return {"linear": linear} | descend(weights, loss, ("inputs", "targets"), windows, training, fitting, generator)


def fit_gates(
    windows: Windows,
    covariate_columns: Array,
    hidden: int,
    training: Training,
    fitting: Fitting,
    start: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Fit the weights of :func:`gated_layer` to windows of :class:`GateExamples` under Huber loss, hiding covariates.

    A hidden covariate looks like one that was never sampled, so that the network learns to do without it. Returns
    ``w1 [F, H]``, ``b1 [H]``, ``w2 [H, R + 2]``, ``b2 [R + 2]``.
    """
    generator = torch.Generator().manual_seed(training.seed)
    weights = (
        {name: tensor(value) for name, value in start.items()} if start else _new_gates(windows, hidden, generator)
    )
    hides = _hider(tensor(covariate_columns), generator)

    def loss(inputs: torch.Tensor, references: torch.Tensor, units: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        # errors beyond 2 running scales count linearly
        return huber(gated_change(weights, inputs, references, units), target, delta=2.0)

    columns = ("inputs", "references", "unit", "targets")
    return descend(weights, loss, columns, windows, training, fitting, generator, hides)


HIDDEN_ALL, HIDDEN_EACH = 0.15, 0.1
"""Probability that an example hides all of its covariates, and that it hides any single one."""


def gated_change(weights: Weights, inputs: torch.Tensor, references: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
    """Return the same as :func:`paceline.predictors.networks.neural.gated_layer`, in torch, to be differentiated."""
    output = torch.tanh(inputs @ weights["w1"] + weights["b1"]) @ weights["w2"] + weights["b2"]
    gates = torch.softmax(torch.nn.functional.pad(output[:, :-2], (1, 0)), dim=1)[:, 1:]
    return (gates * references).sum(dim=1) + output[:, -2] + unit * output[:, -1]


def _new_gates(windows: Windows, hidden: int, generator: torch.Generator) -> Weights:
    width, outputs = windows.width("inputs"), windows.width("references") + 2
    return {
        "w1": torch.randn(width, hidden, generator=generator) / width**0.5,
        "b1": torch.zeros(hidden),
        "w2": torch.zeros(hidden, outputs),
        "b2": torch.zeros(outputs),
    }


def _hider(covariate_columns_DF: torch.Tensor, generator: torch.Generator) -> Callable[[Batch], Batch]:
    """Return a function that hides covariates: it sets all inputs derived from one to zero, as if it were unknown."""
    covariates = len(covariate_columns_DF)

    def hide(batch: Batch) -> Batch:
        inputs, *others = batch
        if not covariates:
            return batch
        hidden = torch.rand(*inputs.shape[:-1], covariates, generator=generator) < HIDDEN_EACH
        hidden |= torch.rand(*inputs.shape[:-1], 1, generator=generator) < HIDDEN_ALL
        return (inputs * (1.0 - hidden.float() @ covariate_columns_DF), *others)

    return hide
