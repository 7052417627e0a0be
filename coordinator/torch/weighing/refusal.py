"""A refusal that every rank hears of: one rank alone may see what is wrong, while the others wait for its gradients."""

from __future__ import annotations

from contextlib import suppress

import torch.distributed as dist


def leave(key: str, sentence: str) -> None:
    """Leave the cause of a refusal where the other ranks find it."""
    with suppress(RuntimeError, ValueError):
        dist.distributed_c10d._get_default_store().set(f"paceline/{key}", sentence)


def cause_of(key: str) -> str:
    """Return the cause that another rank has left; nothing if none has."""
    with suppress(RuntimeError, ValueError):
        store = dist.distributed_c10d._get_default_store()
        if store.check([f"paceline/{key}"]):
            return str(store.get(f"paceline/{key}").decode())
    return ""
