"""What neural predictors share without torch: how to train, what to learn from, and the layer they serve.

Axes: N examples, F inputs of the network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a network is trained.

    Parameters
    ----------
    epochs
        The most passes over the examples.
    patience
        Passes without a better validation loss after which training stops and the best weights are kept.
    batch_size
        Examples per optimiser step.
    learning_rate, weight_decay
        Those of AdamW; the learning rate falls to zero along a half cosine.
    validation
        Share of each trace, at its end, that is held out to decide when to stop, in (0, 1).
    seed
        Of the initial weights and of the order of examples. The global random state is never touched.
    """

    epochs: int = 60
    patience: int = 10
    batch_size: int = 256
    learning_rate: float = 4e-3
    weight_decay: float = 0.3
    validation: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 < self.validation < 1.0:
            raise ValueError(f"validation must lie in (0, 1), got {self.validation}")


@dataclass(frozen=True)
class Examples:
    """What a network learns from: inputs ``[N, F]``, targets ``[N]``, and which rows validate, ``[N]`` of bool."""

    inputs: Array
    targets: Array
    validates: NDArray[np.bool_]


def tanh_layer(weights: dict[str, Array], inputs: Array) -> Array:
    """Return ``inputs @ direct + tanh(inputs @ w1 + b1) @ w2 + b2``, ``[N]``: what a fitted network serves."""
    hidden = np.tanh(inputs @ weights["w1"] + weights["b1"])
    return np.asarray(inputs @ weights["direct"] + hidden @ weights["w2"] + weights["b2"])
