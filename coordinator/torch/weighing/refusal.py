"""A refusal that every rank hears of: one rank alone may see what is wrong, while the others wait for its gradients."""

from __future__ import annotations

from contextlib import suppress

import torch.distributed as dist


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
        What is to be raised; None if no step is refused.
    step
        The sum of gradients that is refused, counted alike on all ranks.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self.error: RuntimeError | None = None
        self.step = 0

    def refuse(self, error: RuntimeError) -> None:
        """Refuse the step under way: the others find out when gradients are summed, for which they wait."""
        self.error = self.error or error
        with suppress(RuntimeError, ValueError):
            dist.distributed_c10d._get_default_store().set(self._key, str(error))

    def cause(self) -> str:
        """Return the cause that another rank has left; nothing if none has."""
        with suppress(RuntimeError, ValueError):
            store = dist.distributed_c10d._get_default_store()
            if store.check([self._key]):
                return str(store.get(self._key).decode())
        return ""

    def hear(self) -> None:
        """Refuse the step as well if another rank has done so."""
        if self.error is None and (cause := self.cause()):
            self.error = RuntimeError(f"another rank refused this step: {cause}")

    def raise_error(self) -> None:
        """Raise the error, once."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    @property
    def _key(self) -> str:
        return f"paceline/{self._group}/{self.step}"
