"""Refusals that reach every rank: one rank alone may see an error, while the others wait for its gradients."""

from __future__ import annotations

import math
from contextlib import suppress

import torch
import torch.distributed as dist

from paceline.recording.torch.late import Late


class Refusal:
    """Refuses a step of one model on all ranks.

    The rank that sees the cause leaves it where the others find it, and sends gradients that are no numbers. All raise
    an error once the gradients are summed.

    Parameters
    ----------
    group
        Name of the process group.

    Attributes
    ----------
    error
        The error to raise; None if no step is refused.
    step
        The sum of gradients that is refused, counted alike on all ranks.
    waits
        Whether a device may still tell that another rank refused a step: asked in every step, and never so on a CPU.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self.error: RuntimeError | None = None
        self.step = 0
        self._late, self._late_key = Late(), ""  # of a device's gradients, which are looked at later
        self.waits = False

    def refuse(self, error: RuntimeError) -> None:
        """Refuse the step under way; the other ranks learn of it when gradients are summed, for which they wait."""
        self.error = self.error or error
        # Through the store, not a collective: the other ranks are on their way into the sum of gradients.
        with suppress(RuntimeError, ValueError):
            dist.distributed_c10d._get_default_store().set(self._key, str(error))

    def cause(self, key: str = "") -> str:
        """Return the cause that another rank has left, for this step or under another key; empty if there is none."""
        key = key or self._key
        with suppress(RuntimeError, ValueError):
            store = dist.distributed_c10d._get_default_store()
            if store.check([key]):
                return str(store.get(key).decode())
        return ""

    def hear(self) -> None:
        """Refuse the step as well if another rank has done so."""
        if self.error is None and (cause := self.cause()):
            self.error = RuntimeError(f"another rank refused this step: {cause}")

    def look_later(self, gradients: torch.Tensor) -> None:
        """Look at summed gradients once a device has computed them: to look now would wait for it."""
        if not self._late.under_way:
            self._late_key, self.waits = self._key, True
            self._late.fetch(gradients[:1].sum())  # a number without axes; 0 of an empty bucket

    def raise_of_device(self) -> None:
        """Raise another rank's refusal, as soon as the device shows it: that rank sums no more gradients."""
        if math.isnan(self._late.take() or 0.0) and (cause := self.cause(self._late_key)):
            raise RuntimeError(f"another rank refused an earlier step: {cause}")

    def raise_error(self) -> None:
        """Raise the error, once."""
        error, self.error = self.error, None
        self._late.forget()  # this rank knows
        if error is not None:
            raise error

    @property
    def _key(self) -> str:
        return f"paceline/{self._group}/{self.step}"
