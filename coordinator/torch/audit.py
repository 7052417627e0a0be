"""What would be silently wrong, found by looking: losses that are no means, models that nobody weighs.

Axes: W ranks.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from paceline._arrays import Array, Sizes
from paceline.coordinator.torch.weighting import Weigh, ddp_of

UNEVEN = 1.2
"""Sizes that differ by less than this ratio say too little about how gradients grow with them."""

MOST = 60
"""Steps that are looked at: a loss does not change its kind, and a norm takes time."""

FEWEST = 6
"""Steps before anything is said."""

SURE, CLEAR = 3.0, 0.15
"""Standard errors by which the growth of gradients must lie on the wrong side of the border, and the largest such error
with which anything is said: what is right lies a quarter beyond the border, and so nearly 5 errors away."""

BORDERS = {"gradients": 0.25, "none": 0.25, "loss": 1.25}
"""How a rank's gradients grow with its samples n, as a power of n. Summed over the rows of the model's output they stay
as large for a mean loss, and grow with n for a sum. Where a model shows no rows, the norm of its parameters' gradients
is taken: of a mean loss it falls, between n ** -0.5 (all noise) and n ** 0 (all signal), and a sum has one power more.
``scale()`` puts one power on top."""

SENTENCES = {
    "gradients": (
        "The gradients of a rank grow with its number of samples, as those of a loss do that is a sum, or that is "
        'divided by a number of all ranks. attach(..., weigh="gradients") weighs means: take the mean over the '
        'batch of the rank, or attach(..., weigh="none"), under which gradients are averaged plainly.'
    ),
    "none": (
        "The gradients of a rank do not grow with its number of samples, as those of a mean loss. "
        'attach(..., weigh="none") averages them plainly, so that samples on a rank with few count more: use the '
        'default, weigh="gradients".'
    ),
    "loss": (
        "The gradients of a rank grow faster than its number of samples: the loss given to balance.scale() seems to be "
        'a sum. Give it the mean over the batch of the rank, or use attach(..., weigh="none").'
    ),
}

COLLECTIVE_IN_BACKWARD = (
    "a collective inside the backward pass carries gradients from rank to rank (gathered features, synchronised batch "
    "normalisation and the like): gradients that are weighed afterwards would not be those of equal batches. Use "
    'attach(..., weigh="loss") and balance.scale(loss), which is exact for them'
)


SUMMED_TOO_EARLY = (
    'with accumulate="balance" ranks have different numbers of micro-batches, and gradients were about to be summed '
    "before this rank's last: put forward and backward into `with balance.accumulating():`, and step where "
    "loader.step_ends is true"
)
"""What is raised in place of a hang."""


class LossKind:
    """Finds out whether the loss is of the kind that the weighing is for, from gradients of unequal batches.

    Parameters
    ----------
    weigh
        How gradients are weighed.

    Examples
    --------
    >>> kind = LossKind("gradients")
    >>> for step in range(20):  # a summed loss
    ...     sizes = np.array([8.0, 24.0]) if step % 2 else np.array([16.0, 6.0])
    ...     if sentence := kind.learn(sizes, np.log(sizes) + 0.1 * np.sin([step, 2 * step])):
    ...         print(step, sentence[:56])
    5 The gradients of a rank grow with its number of samples,
    """

    def __init__(self, weigh: Weigh) -> None:
        self.weigh = weigh
        self._x: list[Array] = []
        self._y: list[Array] = []

    def wants(self, sizes_W: Sizes | None) -> bool:
        """Whether the gradients of such a batch are worth a look."""
        if sizes_W is None or len(self._x) >= MOST:
            return False
        sizes = sizes_W.tolist()  # asked in every step: plain numbers are several times as fast
        return bool(max(sizes) >= UNEVEN * min(sizes))

    def learn(self, samples_W: Array, log_norm_W: Array) -> str:
        """Take in how large the gradients of each rank were; return a sentence once it is sure that they do not fit."""
        if len(self._x) >= MOST or not np.isfinite([samples_W, log_norm_W]).all() or samples_W.min() <= 0:
            return ""
        x = np.log(samples_W)
        self._x.append(x - x.mean())
        self._y.append(log_norm_W - log_norm_W.mean())
        power, error = self._growth()
        wrong = power - BORDERS[self.weigh] if self.weigh != "none" else BORDERS["none"] - power
        if error < CLEAR and wrong > SURE * error:
            self._x = [x] * MOST  # once is enough
            return SENTENCES[self.weigh]
        return ""

    def _growth(self) -> tuple[float, float]:
        """Return the power of n with which gradients grow, and its standard error: infinite while few are seen."""
        x, y = np.concatenate(self._x), np.concatenate(self._y)
        known = len(x) - len(self._x)  # each step has one mean taken off
        if len(self._x) < FEWEST or not (spread := float(x @ x)):
            return 0.0, np.inf
        power = float(x @ y) / spread
        rest = y - power * x
        return power, float(np.sqrt((rest @ rest + 1e-3) / max(known - 1, 1) / spread))


def refuse_mixing_layers(model: torch.nn.Module, weigh: Weigh) -> None:
    """Refuse layers that mix the samples of all ranks, unless the loss carries the weights.

    Raises
    ------
    ValueError
        If the model has synchronised batch normalisation.
    """
    mixing = [name for name, module in model.named_modules() if isinstance(module, torch.nn.SyncBatchNorm)]
    if mixing and weigh == "gradients":
        raise ValueError(
            f"synchronised batch normalisation ({mixing[0]}) carries gradients from rank to rank, so they cannot be "
            'weighed afterwards: use attach(..., weigh="loss") and balance.scale(loss).backward(), which is exact'
        )


def apart(workers: Sequence[str], places: Array) -> str:
    """Return what to say when ranks are at different epochs and batches, ``[W, 2 or more]``."""
    said = [
        f"{worker} is at batch {place[1]:.0f} of epoch {place[0]:.0f}"
        for worker, place in zip(workers, places, strict=True)
    ]
    return (
        f"the ranks are not at the same place of the data: {', '.join(said)}, or had other batches on the way. Every "
        "rank must loop over the loader alike. A look at a batch on one rank alone takes it out of the epoch: for "
        "that, use loader.dataset[0]"
    )


def refuse_for(balance: Callable[[], Any]) -> Callable[..., None]:
    """Return a hook of all optimisers that refuses one which evaluates the loss several times a step."""

    def refuse(optimizer: torch.optim.Optimizer, *arguments: object) -> None:
        known = balance()
        if known is None or not isinstance(optimizer, torch.optim.LBFGS):
            return
        ours = {id(parameter) for model in known.models for parameter in model.parameters()}
        if any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"]):
            raise RuntimeError(
                "LBFGS chooses its step by the loss, which is that of each rank's own batch: the ranks part ways, with "
                "equal batches too. Use an optimiser that evaluates the loss once a step"
            )

    return refuse


def of_the_process(models: Sequence[torch.nn.Module], weigh: Weigh) -> Iterator[str]:
    """Yield what stands beside the balanced models in this process and will not fit unequal batches."""
    balanced = {id(ddp_of(model)) for model in models}
    others = [ddp for ddp in _living(DistributedDataParallel) if id(ddp) not in balanced and _trains(ddp)]
    if others and weigh != "none":
        yield (
            f"A further model in DistributedDataParallel ({type(others[0].module).__name__}) trains in this process "
            "and is not balanced: if its batches are those of the balanced loader, its gradients are averaged with "
            "wrong weights. Attach it to the same loader too: attach(model, loader)."
        )
    scheduler = getattr(sys.modules.get("accelerate.scheduler"), "AcceleratedScheduler", None)
    if scheduler is not None and any(not one.split_batches for one in _living(scheduler)):
        yield (
            "Accelerate steps a prepared scheduler once for every process, as it takes the loader for that of one "
            "rank. A balanced loader counts batches of all ranks: use Accelerator(split_batches=True), or do not "
            "prepare the scheduler."
        )


def _living(kind: type) -> list[Any]:
    return [thing for thing in gc.get_objects() if type(thing) is kind]  # isinstance would wake lazy proxies


def _trains(ddp: DistributedDataParallel) -> bool:
    return ddp.training and any(parameter.grad is not None for parameter in ddp.parameters())
