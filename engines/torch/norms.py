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

    Examples
    --------
    >>> norms = Norms(late=False)
    >>> norms.add(torch.tensor(1.0)), norms.add(torch.tensor(math.e))
    (None, None)
    >>> round(norms.take(), 3), norms.take()
    (0.5, nan)
    """

    def __init__(self, late: bool) -> None:
        self._late = late
        self._logs: list[Any] = []
        self._before = Late()

    @property
    def known(self) -> bool:
        """True if the step under way has a norm already."""
        return bool(self._logs)

    def add(self, norm: torch.Tensor) -> None:
        """Add the norm of a micro-batch's gradients."""
        self._logs.append(norm.double().clamp(min=TINY).log() if self._late else math.log(max(float(norm), TINY)))

    def take(self) -> float:
        """Return the mean log norm of the step, or of the step before if late; NaN if it is not known."""
        logs, self._logs = self._logs, []
        if not self._late:
            return sum(logs) / len(logs) if logs else math.nan
        before = self._before.take()
        self._before.forget()  # what has not arrived is too late: all ranks tell of the same step
        if logs:
            self._before.fetch(torch.stack(logs).mean())
        return math.nan if before is None else before
