"""Balanced training with Fabric: ``attach`` for a model that Fabric set up."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.torch import Balance, BalancedLoader
from paceline.torch import attach as attach_module

__all__ = ["attach"]


def attach(model: torch.nn.Module, loader: BalancedLoader, **options: Any) -> Balance:
    """Balance every rank's batch size by its speed: :func:`paceline.torch.attach`, for a Fabric model.

    The loop stays as it is, including ``fabric.backward(loss)``. Do not pass the loader to
    ``fabric.setup_dataloaders``, which accepts only a ``DataLoader``: the balanced loader assigns samples to ranks by
    itself, and ``fabric.to_device(batch)`` moves its batches.

    Parameters
    ----------
    model
        The model that ``fabric.setup`` or ``fabric.setup_module`` returned; a model that Fabric did not wrap is
        attached as it is.
    loader
        A :class:`BalancedLoader`, made after ``fabric.launch()``.
    **options
        Options of :func:`paceline.torch.attach`.

    Returns
    -------
    Balance
        The handle. ``fabric.save(path, {"balance": balance, ...})`` and ``fabric.load`` keep its state.

    Raises
    ------
    TypeError, ValueError
        As :func:`paceline.torch.attach` does.

    Examples
    --------
    >>> model, optimizer = fabric.setup(model, optimizer)  # doctest: +SKIP
    >>> loader = BalancedLoader(dataset, global_batch=256, seed=0)  # doctest: +SKIP
    >>> balance = attach(model, loader)  # doctest: +SKIP
    >>> for batch in loader:  # doctest: +SKIP
    ...     loss = model(fabric.to_device(batch))
    ...     fabric.backward(loss)
    """
    balance: Balance = attach_module(_unwrap_fabric_module(model), loader, **options)
    return balance


def _unwrap_fabric_module(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside Fabric's wrapper: the DistributedDataParallel, if the strategy made one."""
    if type(model).__name__ != "_FabricModule":
        return model
    inside = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
    return inside[0] if inside else cast("torch.nn.Module", model.module)
