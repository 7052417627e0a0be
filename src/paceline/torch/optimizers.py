"""Checks before every step of an optimizer: for gradients that let ranks diverge, or that nothing weights."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from paceline.torch.checked import living, of_the_process
from paceline.torch.weighting.listener import Listener
from paceline.torch.weighting.weighting import Weighting

STEP_ALONE = (
    "the optimizer steps on gradients of this rank alone, so the ranks' models part, even with equal batches: call the "
    "model that was given to attach() (not model.module), and let each step's last backward pass sum gradients (not in "
    "no_sync(), nor with a hook that steps within it)"
)

BY_HAND = (
    "An optimizer steps on gradients that no backward pass of its model has summed since its last step. Those that are "
    "taken by torch.autograd.grad and averaged by hand are weighted by nobody: samples count more on a rank with few "
    "of "
    'them. Call backward(), or use attach(..., loss="scaled") and average gradients of balance.scale(loss).'
)

BESIDE = (
    "An optimizer steps {names} that belong to no attached model, and nothing weights their gradients: averaged "
    "plainly, samples count more on a rank with few of them. Make them part of the model, wrap them in "
    'DistributedDataParallel and attach them too, or use attach(..., loss="scaled") and balance.scale(loss).'
)


class Optimizers:
    """Checks the optimizers of this process before each of their steps.

    Parameters
    ----------
    listener
        Says how gradients are weighted, and warns.
    weightings
        The hooks on the models that are weighted; the list may grow.
    counts_all
        Whether the loader's length is in batches of all ranks.

    Attributes
    ----------
    uneven
        Whether batches may differ in size: before, nothing can be weighted wrongly.
    accepted
        Raises an error if the step under way is refused for another reason; None if there is no such check.
    """

    def __init__(
        self, listener: Listener, weightings: Sequence[Weighting], *, counts_all: bool, uneven: bool = False
    ) -> None:
        self.uneven = uneven
        self.accepted: Callable[[], None] | None = None
        self._listener, self._weightings, self._counts_all = listener, weightings, counts_all
        self._averages = listener.loss == "sum" and not listener.weights_loss
        self._audited: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def watch(self) -> Callable[[], None]:
        """Look at all steps from now on, until the returned function is called or nobody holds this object."""
        known = weakref.ref(self)

        def look(optimizer: torch.optim.Optimizer, positional: Sequence[Any], named: dict[str, Any]) -> None:
            if (alive := known()) is not None:
                alive.before_step(optimizer, closure=any(map(callable, [*positional, *named.values()])))

        stop: Callable[[], None] = register_optimizer_step_pre_hook(look).remove
        return stop

    def before_step(self, optimizer: torch.optim.Optimizer, *, closure: bool) -> None:
        """Refuse a step that makes ranks diverge, even with equal batches; warn of gradients that nothing weights."""
        alone, unsummed = [], []
        for weighting in self._weightings:
            if weighting.refusal.error is not None and not weighting.in_backward:
                weighting.refusal.raise_error()
            if weighting.refusal.waits:
                weighting.refusal.raise_of_device()
            if not closure:  # it computes gradients within the step
                if weighting.alone:
                    alone.append(weighting.model)
                if not weighting.summed_for(optimizer):
                    unsummed.append(weighting.model)
        if self.accepted is not None:
            self.accepted()
        if isinstance(optimizer, torch.optim.LBFGS) and _steps(optimizer, self.models):
            raise RuntimeError(
                "LBFGS chooses its step by the loss of each rank's own batch, so the ranks diverge, even with equal "
                "batches. Use an optimizer that evaluates the loss once per step"
            )
        # To look at the parameters takes long, and nearly no step does.
        if alone and _steps(optimizer, alone):
            raise RuntimeError(STEP_ALONE)
        if unsummed and self.uneven and not self._averages and _steps(optimizer, unsummed):
            self._listener.warn("by hand", BY_HAND)
        if self.uneven and self._listener.weights_loss and optimizer not in self._audited:
            self._audited.add(optimizer)
            self.look_at_process()
            for sentence in _beside(optimizer, self.models):
                self._listener.warn(sentence, sentence)

    def look_at_process(self) -> None:
        """Warn of other objects in this process that do not suit unequal batches."""
        for sentence in of_the_process(self.models, averages=self._averages, counts_all=self._counts_all):
            self._listener.warn(sentence, sentence)

    @property
    def models(self) -> tuple[torch.nn.Module, ...]:
        """The models that are weighted."""
        return tuple(weighting.model for weighting in self._weightings)


def _steps(optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module]) -> bool:
    """Return whether the optimizer steps parameters of these models that have a gradient."""
    ours = {id(parameter) for model in models for parameter in model.parameters()}
    return any(id(parameter) in ours for parameter in _stepped(optimizer))


def _beside(optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module]) -> Iterator[str]:
    """Yield a warning if the optimizer steps parameters of no model whose gradients are summed."""
    stepped = {id(one): one for one in _stepped(optimizer)}
    ours = {id(one) for model in models for one in model.parameters()}
    # Other models' gradients are summed by DistributedDataParallel: another warning covers these.
    summed = {id(one) for ddp in living(DistributedDataParallel) for one in ddp.parameters()}
    beside = [one for number, one in stepped.items() if number not in ours and number not in summed]
    if beside:
        yield BESIDE.format(names=f"{len(beside)} parameters (such as one of shape {list(beside[0].shape)})")


def _stepped(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
