"""The kind of a loss, found out from the gradients of unequal batches. Axis: W ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from paceline._arrays import Array, Sizes
from paceline.recording.torch.busy_time import AsyncScalar


class LossReductionCheck:
    """Finds out from gradients of unequal batches whether the loss is of the kind that the weighting assumes.

    ``watches_outputs`` is whether gradients of the batch under way are worth a look. With ``is_delayed`` a device
    computes them: nothing waits for it, so norms are those of the step before.
    """

    def __init__(self, *, is_delayed: bool = False) -> None:
        self.watches_outputs = self.has_enough = False
        self.is_delayed = is_delayed
        self._log_norms: list[Any] = []  # of the step under way, one of each micro-batch
        self._previous = AsyncScalar()
        self._x: list[Array] = []
        self._y: list[Array] = []

    def is_informative(self, sizes_W: Sizes) -> bool:
        """Return whether the gradients of a batch of these sizes can show the kind of the loss."""
        if self.has_enough:
            return False
        sizes = sizes_W.tolist()  # runs in every step, and plain numbers are several times as fast as numpy here
        # sizes that hardly differ say too little about how gradients grow with them
        return bool(max(sizes) >= 1.2 * min(sizes))

    def watch(self, outputs: Sequence[torch.Tensor], samples: int, parameter: torch.Tensor | None) -> None:
        """Watch the gradients of a model's outputs, or else of one of its parameters."""
        shown = [one for one in outputs if one.requires_grad and one.dim() and one.shape[0] % samples == 0]
        for tensor in shown:
            tensor.register_hook(partial(self._on_gradient, samples))
        if not shown and parameter is not None:

            def add_norm_once(gradient: torch.Tensor) -> None:
                handle.remove()
                self._add(gradient.norm())

            handle = parameter.register_hook(add_norm_once)

    def _on_gradient(self, samples: int, gradient: torch.Tensor | None) -> None:
        if gradient is not None:  # None for an output that the loss does not use
            self._add(gradient.abs().mean() * samples)

    def _add(self, norm: torch.Tensor) -> None:
        if self.watches_outputs and norm.dtype.is_floating_point:
            norm = norm.detach()
            self._log_norms.append(
                norm.double().clamp(min=1e-300).log() if self.is_delayed else math.log(max(float(norm), 1e-300))
            )

    def take_log_norm(self) -> float:
        """Return the mean log norm of the rank's gradients in a step, which ends here; NaN if it is not known."""
        logs, self._log_norms = self._log_norms, []
        if not self.is_delayed:
            return sum(logs) / len(logs) if logs else math.nan
        before = self._previous.take()
        self._previous.forget()  # what has not arrived is too late: all ranks tell of the same step
        if logs:
            self._previous.fetch(torch.stack(logs).mean())
        return math.nan if before is None else before

    def learn(self, samples_W: Array, log_norm_W: Array) -> str:
        """Take the log norms of each rank's gradients; return a warning once it is certain that they do not fit."""
        # no float64 but 0 has a logarithm farther from 0
        known = np.isfinite(samples_W).all() and np.abs(log_norm_W).max() <= 750.0  # NaN is not
        if self.has_enough or not known or samples_W.min() <= 0:
            return ""
        # Only differences between ranks of one step count: gradients also change from step to step as training goes on.
        x = np.log(samples_W)
        self._x.append(x - x.mean())
        self._y.append(log_norm_W - log_norm_W.mean())
        # 60 steps are enough: the kind of a loss does not change, and every norm takes time
        self.has_enough = len(self._x) >= 60
        if len(self._x) % 6:
            return ""
        power, error = self._fit_growth()
        # The border lies between the powers of a mean's gradients and of a sum's. A correct loss lies a quarter on the
        # right side, so a false alarm takes nearly 5 standard errors.
        if error < 0.15 and power - 1.25 > 3.0 * error:
            self.has_enough = True  # the warning comes only once
            return (
                "The gradients of a rank grow with its number of samples, as for a loss that is a sum, or that is "
                "divided by a count over all ranks, but losses must be means over the rank's batch: use a mean, or "
                "write loss = balance.scale(loss, count), where count is what the loss is a mean over. If the loss "
                "is already divided by a count over all ranks, write loss = balance.scale(loss)."
            )
        return ""

    def _fit_growth(self) -> tuple[float, float]:
        """Return the power of n with which gradients grow, and its standard error (infinite at first)."""
        x, y = np.concatenate(self._x), np.concatenate(self._y)
        known = len(x) - len(self._x)  # subtracting each step's mean takes one degree of freedom
        if len(self._x) < 6 or not (spread := float(x @ x)):
            return 0.0, np.inf
        power = float(x @ y) / spread
        rest = y - power * x
        # The small constant keeps the error above zero for gradients without any noise.
        return power, float(np.sqrt((rest @ rest + 1e-3) / max(known - 1, 1) / spread))
