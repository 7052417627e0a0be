"""Torch trains, numpy serves: fit recurrent networks by gradient descent through time.

Axes: N sequences, F inputs, H hidden units, G gates of a cell times H. Imported only when a network is fitted.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from paceline._arrays import Array
from paceline.predictors.fitting import Fitting
from paceline.predictors.networks.descent import Batch, descend, tensor
from paceline.predictors.networks.neural import Training
from paceline.predictors.networks.training_windows import Windows


def fit_recurrent(
    kind: str,
    windows: Windows,
    hidden: int,
    training: Training,
    fitting: Fitting,
    start: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Fit a recurrent layer of torch and a linear output to windows of :class:`Sequences` under Huber loss.

    Every sequence starts from a zero state. Returns the layer's weights, transposed for numpy: ``weight_ih [F, G]``,
    ``weight_hh [H, G]``, ``bias_ih [G]``, ``bias_hh [G]``, and ``out [H]``, ``out_bias []``.
    """
    generator = torch.Generator().manual_seed(training.seed)
    # torch draws the layer's first weights from its global generator. They are replaced below, and fork_rng restores
    # the generator, because fitting must not touch global random state.
    with torch.random.fork_rng():
        layer = {"SimpleRNN": torch.nn.RNN, "LSTM": torch.nn.LSTM}[kind](
            windows.width("inputs"), hidden, batch_first=True
        )
    with torch.no_grad():
        for weight in layer.parameters():
            weight.uniform_(-(hidden**-0.5), hidden**-0.5, generator=generator)
    weights = {name.removesuffix("_l0"): weight for name, weight in layer.named_parameters()}
    weights |= {"out": torch.zeros(hidden), "out_bias": torch.zeros(())}
    if start:
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(tensor(start[name].T).reshape(weight.shape))

    def loss(inputs: torch.Tensor, gaps: torch.Tensor) -> torch.Tensor:
        known, targets = torch.isfinite(gaps).float(), torch.nan_to_num(gaps)
        forecasts = layer(inputs)[0] @ weights["out"] + weights["out_bias"]
        # errors beyond 2 running scales count linearly
        errors = torch.nn.functional.huber_loss(forecasts, targets, reduction="none", delta=2.0)
        return (errors * known).sum() / known.sum().clamp(min=1.0)

    def known(batch: Batch) -> float:
        return float(torch.isfinite(batch[1]).sum())

    fitted = descend(weights, loss, ("inputs", "targets"), windows, training, fitting, generator, weight=known)
    # ascontiguousarray would give the single number of out_bias an axis.
    return {name: np.array(weight.T, order="C") for name, weight in fitted.items()}
