"""Logarithms of how large a step's gradients are, for the check of the loss: on a device read one step late."""

from __future__ import annotations

import math
from typing import Any

import torch

from paceline.recording.torch.late import Late

TINY = 1e-300
"""A gradient of which even the logarithm is finite."""


class Norms:
    """The norms of the step under way; :meth:`take` ends it.

    Parameters
    ----------
    late
        Whether a device computes them. Then :meth:`take` returns those of the step before, and NaN if the device has
        not passed that one yet: nothing waits for it.

    Attributes
    ----------
    late
        Whether a device computes them.
    logs
        Those of the step under way, one of each micro-batch.

    Examples
    --------
    >>> norms = Norms(late=False)
    >>> norms.add(torch.tensor(1.0)), norms.add(torch.tensor(math.e))
    (None, None)
    >>> round(norms.take(), 3), norms.take()
    (0.5, nan)
    """

    def __init__(self, late: bool) -> None:
        self.late = late
        self.logs: list[Any] = []
        self._before = Late()

    def add(self, norm: torch.Tensor) -> None:
        """Add the norm of a micro-batch's gradients."""
        self.logs.append(norm.double().clamp(min=TINY).log() if self.late else math.log(max(float(norm), TINY)))

    def take(self) -> float:
        """Return the mean log norm of the step, or of the step before if late; NaN if it is not known."""
        logs, self.logs = self.logs, []
        if not self.late:
            return sum(logs) / len(logs) if logs else math.nan
        before = self._before.take()
        self._before.forget()  # what has not arrived is too late: all ranks tell of the same step
        if logs:
            self._before.fetch(torch.stack(logs).mean())
        return math.nan if before is None else before
