"""The kind of a loss, found out from the gradients of unequal batches. Axis: W ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from paceline._arrays import Array, Sizes
from paceline.torch.norms import Norms
from paceline.torch.weighting.batch import Turn
from paceline.torch.weighting.listener import Loss

UNEVEN = 1.2
"""Steps whose sizes differ by less than this ratio say too little about how gradients grow with the size."""

MOST = 60
"""Most steps to look at: the kind of a loss does not change, and every norm takes time."""

FEWEST = 6
"""Fewest steps before a warning (the standard error from fewer is too uncertain), and from one look to the next."""

SURE, CLEAR = 3.0, 0.15
"""Standard errors by which the growth of gradients must be on the wrong side of the border, and the largest standard
error at which to warn at all. A correct loss lies a quarter (0.25) on the right side, so a false alarm takes nearly 5
standard errors."""

LARGEST_LOG = 750.0
"""No float64 but 0 has a logarithm farther from 0."""

BORDERS = {"mean": 0.25, "sum": 0.25, "scaled": 1.25}
"""Border between right and wrong losses, as the power of a rank's samples n with which its gradients grow. The norm of
gradients summed over the rows of the model's output is constant for a mean loss (power 0), and grows with n for a sum
(power 1). If a model's output has no rows, the norm of its parameters' gradients is used: for a mean loss its power is
between -0.5 (all noise) and 0 (all signal), for a sum one more. ``scale()`` adds one power."""

SENTENCES = {
    "mean": (
        "The gradients of a rank grow with its number of samples, as for a loss that is a sum, or that is divided by a "
        "count over all ranks. attach(...) expects means: take the mean over the batch of the rank, or say "
        'attach(..., loss="sum"), which averages gradients plainly.'
    ),
    "sum": (
        "The gradients of a rank do not grow with its number of samples, as for a mean loss. "
        'attach(..., loss="sum") averages them plainly, so that samples count more on a rank with few of them: say '
        'loss="mean", the default.'
    ),
    "scaled": (
        "The gradients of a rank grow faster than its number of samples: the loss given to balance.scale() seems to be "
        'a sum. Give it the mean over the batch of the rank, or say attach(..., loss="sum").'
    ),
}


class LossKind:
    """Finds out from gradients of unequal batches whether the loss is of the kind that the weighting assumes.

    Parameters
    ----------
    loss
        Kind of the loss, as given to ``attach``.
    late
        Whether a device computes the gradients: then what is said of a step is known one step later.

    Attributes
    ----------
    full
        Whether enough was looked at.
    looks
        Whether gradients of the batch under way are worth a look.
    norms
        How large they are: those of the rank's rows all together; of several micro-batches, the mean.

    Examples
    --------
    >>> kind = LossKind("mean")
    >>> for step in range(20):  # a summed loss
    ...     sizes = np.array([8.0, 24.0]) if step % 2 else np.array([16.0, 6.0])
    ...     if sentence := kind.learn(sizes, np.log(sizes) + 0.1 * np.sin([step, 2 * step])):
    ...         print(step, sentence[:56])
    5 The gradients of a rank grow with its number of samples,
    """

    def __init__(self, loss: Loss, *, late: bool = False) -> None:
        self.loss = loss
        self.looks = self.full = False
        self.norms = Norms(late)
        self._x: list[Array] = []
        self._y: list[Array] = []

    def wants(self, sizes_W: Sizes | None) -> bool:
        """Return whether the gradients of a batch of these sizes can show the kind of the loss."""
        if sizes_W is None or self.full:
            return False
        sizes = sizes_W.tolist()  # runs in every step, and plain numbers are several times as fast as numpy here
        return bool(max(sizes) >= UNEVEN * min(sizes))

    def watch(self, made: Sequence[torch.Tensor], turn: Turn) -> None:
        """Look at the gradients of what a model has made of the batch."""
        for tensor in made:
            if tensor.requires_grad:
                tensor.register_hook(partial(self._look, turn.samples))

    def look_at_parameters(self, gradients: torch.Tensor) -> None:
        """Look at the gradients of the parameters, where a model that returns its loss has shown no rows."""
        self.norms.add(gradients.norm())

    def _look(self, samples: int, gradient: torch.Tensor) -> None:
        if self.looks and gradient.dim() and gradient.shape[0] % samples == 0:
            self.norms.add(gradient.abs().mean() * samples)

    def learn(self, samples_W: Array, log_norm_W: Array) -> str:
        """Take the log norms of each rank's gradients; return a warning once it is certain that they do not fit."""
        known = np.isfinite(samples_W).all() and np.abs(log_norm_W).max() <= LARGEST_LOG  # NaN is not
        if self.full or not known or samples_W.min() <= 0:
            return ""
        # Only differences between ranks of one step count: gradients also change from step to step as training goes on.
        x = np.log(samples_W)
        self._x.append(x - x.mean())
        self._y.append(log_norm_W - log_norm_W.mean())
        self.full = len(self._x) >= MOST
        if len(self._x) % FEWEST:
            return ""
        power, error = self._growth()
        above = power - BORDERS[self.loss]
        wrong = -above if self.loss == "sum" else above
        if error < CLEAR and wrong > SURE * error:
            self.full = True  # the warning comes only once
            return SENTENCES[self.loss]
        return ""

    def _growth(self) -> tuple[float, float]:
        """Return the power of n with which gradients grow, and its standard error (infinite at first)."""
        x, y = np.concatenate(self._x), np.concatenate(self._y)
        known = len(x) - len(self._x)  # subtracting each step's mean takes one degree of freedom
        if len(self._x) < FEWEST or not (spread := float(x @ x)):
            return 0.0, np.inf
        power = float(x @ y) / spread
        rest = y - power * x
        # The small constant keeps the error above zero for gradients without any noise.
        return power, float(np.sqrt((rest @ rest + 1e-3) / max(known - 1, 1) / spread))
