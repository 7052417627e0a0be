"""A small classifier and its local training, in numpy, so that a thousand clients train on one core.

Axes: B samples of a batch, F features, H hidden units, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array

HIDDEN = 32


@dataclass(frozen=True, eq=False)
class SmallNetwork:
    """One hidden layer of rectified units and a softmax.

    Parameters
    ----------
    weights
        ``[F, H]``, ``[H]``, ``[H, K]`` and ``[K]``.
    """

    weights: tuple[Array, ...]

    @classmethod
    def drawn(cls, features: int, classes: int, seed: int) -> Self:
        """Return a network with random first weights (He et al., 2015)."""
        generator = np.random.default_rng(seed)
        into = generator.normal(0.0, np.sqrt(2.0 / features), (features, HIDDEN))
        out = generator.normal(0.0, np.sqrt(2.0 / HIDDEN), (HIDDEN, classes))
        return cls((into, np.zeros(HIDDEN), out, np.zeros(classes)))

    def accuracy(self, inputs: Array, labels: NDArray[np.int64]) -> float:
        """Return the share of these samples that it classifies correctly."""
        into, into_bias, out, out_bias = self.weights
        score = np.maximum(inputs @ into + into_bias, 0.0) @ out + out_bias
        return float(np.mean(score.argmax(axis=1) == labels))

    def trained(
        self,
        inputs: Array,
        labels: NDArray[np.int64],
        *,
        batch: int,
        steps: int,
        rate: float,
        generator: np.random.Generator,
    ) -> Self:
        """Return the network after local steps of plain gradient descent on batches of these samples.

        Batches are cut from shuffled passes over the samples, so a pass uses each once.
        """
        weights = [each.copy() for each in self.weights]
        passes = -(-steps * batch // len(labels))
        order = np.concatenate([generator.permutation(len(labels)) for _ in range(passes)])
        for k in range(steps):
            rows = order[k * batch : (k + 1) * batch]
            for each, gradient in zip(weights, _gradients(weights, inputs[rows], labels[rows]), strict=True):
                each -= rate * gradient
        return type(self)(tuple(weights))

    def moved(self, changes: Sequence[Self], shares: Sequence[float]) -> Self:
        """Return the network moved by the sum of changes times shares."""
        moved = [each.copy() for each in self.weights]
        for change, share in zip(changes, shares, strict=True):
            for each, part in zip(moved, change.weights, strict=True):
                each += share * part
        return type(self)(tuple(moved))

    def minus(self, other: Self) -> Self:
        """Return the change from another network to this one."""
        return type(self)(tuple(mine - theirs for mine, theirs in zip(self.weights, other.weights, strict=True)))


def _gradients(weights: Sequence[Array], inputs: Array, labels: NDArray[np.int64]) -> tuple[Array, ...]:
    """Return the gradients of the mean cross-entropy of a batch, in the order of the weights."""
    into, into_bias, out, out_bias = weights
    hidden_BH = np.maximum(inputs @ into + into_bias, 0.0)
    score_BK = hidden_BH @ out + out_bias
    chance_BK = np.exp(score_BK - score_BK.max(axis=1, keepdims=True))
    chance_BK /= chance_BK.sum(axis=1, keepdims=True)
    chance_BK[np.arange(len(labels)), labels] -= 1.0
    error_BK = chance_BK / len(labels)
    error_BH = (error_BK @ out.T) * (hidden_BH > 0)
    return inputs.T @ error_BH, error_BH.sum(axis=0), hidden_BH.T @ error_BK, error_BK.sum(axis=0)
