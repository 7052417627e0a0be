"""Balanced training with Lightning: a callback that attaches the balancer once Lightning has wrapped the model."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from paceline.coordinator.metrics import Target, sinks
from paceline.coordinator.torch import Balance, BalancedLoader, attach
from paceline.predictors.extras import require


def balance_callback(*, metrics: str | Iterable[Target] = (), **options: Any) -> Any:
    """Return a callback for a Lightning ``Trainer`` that lets every rank's batch size follow its speed.

    The module's ``train_dataloader`` returns a :class:`BalancedLoader`, and the Trainer's strategy wraps the module in
    ``DistributedDataParallel``. Gradients are weighed so that a step is that of one process on the global batch.
    Checkpoints hold the balancer's state and the place in the data. Without other ranks it does nothing.

    Parameters
    ----------
    metrics
        Where to write metrics, as :func:`paceline.coordinator.metrics.sinks` takes it: ``"run.jsonl"``, or a list.
    **options
        Options of :func:`paceline.coordinator.torch.attach`, such as ``predictor`` or ``policy``.

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
        saved: dict[str, Any] | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Attach, and resume where a checkpoint was loaded."""
            if trainer.world_size == 1:
                return
            self.balance = attach(trainer.strategy.model, _loader_of(trainer), **options)
            self.balance.on_iteration.extend(sinks(*targets))
            if self.saved is not None:
                self.balance.load_state_dict(self.saved)

        def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
            """Leave out Lightning's own copy of the place in the data: it holds arrays, which it would not load."""
            checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {}).pop("combined_loader", None)

        def state_dict(self) -> dict[str, Any]:
            """Return the balancer's state; empty without other ranks."""
            return {} if self.balance is None else dict(self.balance.state_dict())

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            """Keep a state until the balancer is there."""
            self.saved = state_dict or None

    return BalanceCallback()


def _loader_of(trainer: Any) -> BalancedLoader:
    """Return the loader that the module gave, if all about it suits."""
    loader, micro_batches = trainer.train_dataloader, trainer.accumulate_grad_batches
    if not isinstance(loader, BalancedLoader):
        raise TypeError(f"train_dataloader must return a BalancedLoader, got {type(loader).__name__}")
    if loader.accumulate != micro_batches:
        raise ValueError(
            f"the loader must know how many micro-batches a step has: the Trainer has accumulate_grad_batches="
            f"{micro_batches}, so give BalancedLoader(accumulate={micro_batches}), got {loader.accumulate}"
        )
    return loader
