"""Balanced training with Lightning: a callback that attaches the balancer once Lightning has wrapped the model."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from paceline._require import require
from paceline.recording import Target, sinks
from paceline.torch import Balance, BalancedLoader, attach

__all__ = ["balance_callback"]


def balance_callback(*, metrics: str | Iterable[Target] = (), **options: Any) -> Any:
    """Return a callback for a Lightning ``Trainer`` that lets every rank's batch size follow its speed.

    The module's ``train_dataloader`` must return a :class:`BalancedLoader`, and the Trainer's strategy must wrap the
    module in ``DistributedDataParallel``, or be ``ModelParallelStrategy`` with the network in ``fully_shard``
    (FSDP2). A step equals that of one process on the global batch, and checkpoints resume exactly.

    Parameters
    ----------
    metrics
        Where to write metrics, as :func:`paceline.recording.sink` takes it: ``"run.jsonl"``, or a list.
    **options
        Options of :func:`paceline.torch.attach`, such as ``predictor`` or ``policy``. A training step whose loss is no
        mean over the rank's samples calls ``scale(loss, count)`` of the callback's ``balance``.

    Returns
    -------
    lightning.pytorch.Callback
        Its attribute ``balance`` is the handle that ``attach`` returns, from the start of training on.

    Raises
    ------
    ImportError
        If lightning is missing.

    Examples
    --------
    >>> callback = balance_callback(metrics="run.jsonl")  # doctest: +SKIP
    >>> trainer = lightning.Trainer(devices=2, strategy="ddp", callbacks=[callback])  # doctest: +SKIP
    """
    require("lightning", needed_by="balance_callback", extra="lightning")
    base: Any = import_module("lightning.pytorch").Callback
    targets = [metrics] if isinstance(metrics, str) else list(metrics)

    class BalanceCallback(base):  # type: ignore[misc]  # lightning is imported when it is needed
        """Attaches the balancer at the start of training, and keeps its state in checkpoints."""

        balance: Balance | None = None
        saved_state: dict[str, Any] | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Attach the balancer, and resume if a checkpoint was loaded."""
            model, loader = _find_model(trainer), _configure_loader(trainer)
            self.balance = balance = attach(model, loader, **options)
            if pl_module.automatic_optimization:
                balance.loss_divisor = loader.accumulate
            balance.on_iteration.extend(sinks(*targets))
            if self.saved_state is not None:
                balance.load_state_dict(self.saved_state)

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            """Use Lightning's epoch number, which continues when a module is fitted a second time."""
            if self.balance is not None:
                trainer.train_dataloader.set_epoch(trainer.current_epoch)

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            """Set the wrapper to training mode: validation leaves it in evaluation mode."""
            if self.balance is not None:
                trainer.strategy.model.training = True

        def state_dict(self) -> dict[str, Any]:
            """Return the balancer's state; empty before training."""
            return {} if self.balance is None else dict(self.balance.state_dict())

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            """Keep a state until the balancer is attached."""
            self.saved_state = state_dict or None

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            """Detach the balancer, because Lightning unwraps the model; its state can still be saved."""
            if self.balance is not None:
                self.balance.close()
                self.saved_state = None  # it belongs to the checkpoint that this training began with

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            """Detach the balancer too after an error: a script may continue."""
            self.teardown(trainer, pl_module, "fit")

    return BalanceCallback()


class SingleDeviceWrapper(torch.nn.Module):
    """A module on one device that is called as in DistributedDataParallel: Lightning calls its steps."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Return what the module returns."""
        return self.module(*arguments, **options)


def _find_model(trainer: Any) -> torch.nn.Module:
    """Return the model that Lightning calls, if DistributedDataParallel or FSDP2 averages its gradients."""
    strategy = trainer.strategy
    model = strategy.model
    if model is trainer.lightning_module and trainer.world_size == 1:
        model = strategy.model = SingleDeviceWrapper(model)
    if isinstance(model, DistributedDataParallel | SingleDeviceWrapper):
        return model
    sharded = _outermost_modules(model, FSDPModule)
    if len(sharded) != 1:
        raise ValueError(
            f"strategy must be a ddp strategy, or ModelParallelStrategy with one network in fully_shard, got "
            f"{type(trainer.strategy).__name__} with {len(sharded)} such networks: use strategy='ddp', or call "
            "fully_shard on the complete network in configure_model, after its layers"
        )
    return sharded[0]


def _outermost_modules(module: torch.nn.Module, module_class: type) -> list[torch.nn.Module]:
    if isinstance(module, module_class):
        return [module]
    return [found for child in module.children() for found in _outermost_modules(child, module_class)]


def _configure_loader(trainer: Any) -> BalancedLoader:
    """Return the module's loader with the Trainer's accumulation; refuse options that do not suit it."""
    loader, micro_batches = trainer.train_dataloader, trainer.accumulate_grad_batches
    if not isinstance(loader, BalancedLoader):
        raise TypeError(f"train_dataloader must return a BalancedLoader, got {type(loader).__name__}")
    if trainer.overfit_batches:
        raise ValueError("overfit_batches needs the same batches in every epoch: pass BalancedLoader a small dataset")
    if trainer.reload_dataloaders_every_n_epochs:
        raise ValueError("reload_dataloaders_every_n_epochs would replace the balanced loader: change its dataset")
    if loader.micro_batch or loader.packs:
        raise ValueError(
            "Lightning steps the optimizer after the same number of batches on every rank, but with "
            "micro_batch= or pack= these differ: remove it, and set accumulate_grad_batches"
        )
    if loader.length_varies:
        raise ValueError(
            "Lightning reads the number of batches once, but with global_tokens it differs from epoch to epoch: set "
            "global_batch instead, with cap= to limit a rank's tokens"
        )
    loader.set_accumulate(micro_batches, f"the Trainer has accumulate_grad_batches={micro_batches}")
    return loader
