"""Checks before every step of an optimizer: for gradients that let ranks diverge, or that nothing weighs."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from paceline.torch.counting import LoopError, was_attached
from paceline.torch.weighting import AttachedModel, Weighting


class OptimizerChecks:
    """Checks before steps of optimizers; while the plan's sizes stay, by ``get_sizes``, nothing is weighed wrongly."""

    def __init__(self, weighting: Weighting, get_sizes: Callable[[], Any] = lambda: None) -> None:
        self.had_uneven_sizes = weighting.loader is None
        self._weighting, self._get_sizes, self._first_sizes = weighting, get_sizes, get_sizes()
        self._counts_all = getattr(weighting.loader, "counts_all", True)
        self._checked_optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def watch(self) -> Callable[[], None]:
        """Look at all steps from now on, until the returned function is called or this object is garbage."""
        known = weakref.ref(self)

        def check_step(optimizer: torch.optim.Optimizer, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
            if (alive := known()) is not None:
                alive.before_step(optimizer, has_closure=any(map(callable, [*args, *kwargs.values()])))

        stop: Callable[[], None] = register_optimizer_step_pre_hook(check_step).remove
        return stop

    def before_step(self, optimizer: torch.optim.Optimizer, *, has_closure: bool) -> None:
        """Refuse a step that makes ranks diverge, even with equal batches, or on gradients that nothing weighs."""
        weighting = self._weighting
        if weighting.error is not None and not any(one.is_in_backward for one in weighting.models):
            weighting.raise_error()
        models = [] if has_closure else weighting.models  # a closure computes gradients within the step
        alone = [one for one in models if one.ddp is not None and (one.is_in_backward or one.has_unsummed)]
        unsummed = [one for one in models if not one.mark_step(optimizer)]
        weighting.before_optimizer_step()
        if isinstance(optimizer, torch.optim.LBFGS) and _updates_any(optimizer, weighting.models):
            raise RuntimeError(
                "LBFGS chooses its step by the loss of each rank's own batch, so the ranks diverge, even with equal "
                "batches. Use an optimizer that evaluates the loss once per step"
            )
        # Scanning the parameters is slow, and almost no step needs it.
        if alone and _updates_any(optimizer, alone):
            raise RuntimeError(
                "the optimizer steps on gradients of this rank alone, so the ranks' models diverge, even with "
                "equal batches: call the model that was passed to attach() (not model.module), and let each "
                "step's last backward pass sum gradients (not in no_sync(), nor with a hook that steps within it)"
            )
        self.had_uneven_sizes = self.had_uneven_sizes or self._get_sizes() is not self._first_sizes
        again = _reuses_gradients(optimizer)
        if unsummed and self.had_uneven_sizes and not again and _updates_any(optimizer, unsummed):
            raise LoopError(
                "an optimizer steps on gradients that no backward pass of its model has summed since its last step. "
                "Gradients of torch.autograd.grad are not weighted, so that samples count more on a rank with few of "
                "them: call loss.backward() instead of torch.autograd.grad(loss, parameters)"
            )
        if self.had_uneven_sizes and optimizer not in self._checked_optimizers:
            self._checked_optimizers.add(optimizer)
            if weighting.timer is not None:
                weighting.timer.wait_begins()  # it takes as long as an iteration, right after the first change of sizes
            self._check_other_objects()
            if weighting.timer is not None:
                weighting.timer.wait_ends()
        for one in weighting.models:
            one.require_summed_parameters()

    def _check_other_objects(self) -> None:
        models = self._weighting.models  # composable replicate makes a wrapper of its own around their parameters
        for ddp in _instances_of(DistributedDataParallel):
            trains = ddp.training and any(parameter.grad is not None for parameter in ddp.parameters())
            if trains and not was_attached(ddp) and not any(one.owns_any(ddp.parameters()) for one in models):
                self._weighting.warn(
                    "further",
                    f"A further model in DistributedDataParallel ({type(ddp.module).__name__}) trains in this process "
                    "and is not balanced: if it trains on batches of the balanced loader by itself, its gradients are "
                    "averaged with wrong weights. Attach it to the same loader too: attach(model, loader).",
                )
        scheduler = getattr(sys.modules.get("accelerate.scheduler"), "AcceleratedScheduler", None)
        schedulers = _instances_of(scheduler) if self._counts_all and scheduler is not None else []
        if any(not one.split_batches for one in schedulers):
            self._weighting.warn(
                "scheduler",
                "Accelerate steps a prepared scheduler once per process, because it expects a loader that counts "
                "the batches of one rank, but this one counts batches of all ranks. Use prepare() and "
                "BalancedLoader of paceline.integrations.accelerate, or Accelerator(split_batches=True).",
            )


def _updates_any(optimizer: torch.optim.Optimizer, models: Sequence[AttachedModel]) -> bool:
    stepped = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
    return any(model.owns_any(stepped) for model in models)


def _reuses_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the gradients are those of the step before, and note that they are stepped on now."""
    stepped = (one.grad for group in optimizer.param_groups for one in group["params"])
    first: Any = next((gradient for gradient in stepped if gradient is not None), None)
    if first is None:
        return False
    again: bool = getattr(first, "stepped_at", None) == first._version
    first.stepped_at = first._version
    return again


def _instances_of(cls: type) -> list[Any]:
    # DistributedDataParallel keeps no list of its instances. `isinstance` would trigger lazy proxies to load.
    return [thing for thing in gc.get_objects() if type(thing) is cls]
