"""Checks for what would be silently wrong: losses that are not means, models whose gradients nothing weights.

Axis: W ranks.
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
from paceline.coordinator.torch.weighing.hooks import ddp_of, was_attached
from paceline.coordinator.torch.weighing.listener import Loss

UNEVEN = 1.2
"""Steps whose sizes differ by less than this ratio say too little about how gradients grow with the size."""

MOST = 60
"""Most steps to look at: the kind of a loss does not change, and every norm takes time."""

FEWEST = 6
"""Fewest steps before a warning."""

SURE, CLEAR = 3.0, 0.15
"""Standard errors by which the growth of gradients must be on the wrong side of the border, and the largest standard
error at which to warn at all. A correct loss lies a quarter (0.25) on the right side, so a false alarm takes nearly 5
standard errors."""

BORDERS = {"mean": 0.25, "sum": 0.25, "scaled": 1.25}
"""Border between right and wrong losses, as the power of a rank's samples n with which its gradients grow. The norm of
gradients summed over the rows of the model's output is constant for a mean loss (power 0), and grows with n for a sum
(power 1). If a model's output has no rows, the norm of its parameters' gradients is used: for a mean loss its power is
between -0.5 (all noise) and 0 (all signal), for a sum one more. ``scale()`` adds one power."""

SENTENCES = {
    "mean": (
        "The gradients of a rank grow with its number of samples, as for a loss that is a sum, or that is divided by a "
        "count over all ranks. attach(...) expects means: take the mean over the batch of the rank, or say "
        'attach(..., loss="sum"), which averages gradients plainly.'
    ),
    "sum": (
        "The gradients of a rank do not grow with its number of samples, as for a mean loss. "
        'attach(..., loss="sum") averages them plainly, so that samples count more on a rank with few of them: say '
        'loss="mean", the default.'
    ),
    "scaled": (
        "The gradients of a rank grow faster than its number of samples: the loss given to balance.scale() seems to be "
        'a sum. Give it the mean over the batch of the rank, or say attach(..., loss="sum").'
    ),
}

COLLECTIVE_IN_BACKWARD = (
    "a collective inside the backward pass carries gradients from rank to rank (gathered features, synchronised batch "
    "normalisation and the like): weighting them afterwards would not give the gradients of equal batches. Use "
    'attach(..., loss="scaled") and balance.scale(loss), which is exact for them'
)


SUMMED_TOO_EARLY = (
    "with micro_batch= ranks have different numbers of micro-batches, and gradients were about to be summed "
    "before this rank's last: put forward and backward into `with balance.accumulating():`, and step where "
    "loader.step_ends is true"
)
"""What is raised in place of a hang."""

OTHER_THREAD = (
    "the balanced loader is read by another thread than the one that called attach(): fetch batches in the thread that "
    "trains, and use num_workers= to load them ahead"
)
"""When such a thread takes a batch is chance, and so would be the plan it gets."""

STEP_ALONE = (
    "the optimiser steps on gradients of this rank alone, so the ranks' models part, even with equal batches: call the "
    "model that was given to attach() (not model.module), and let each step's last backward pass sum gradients (not in "
    "no_sync(), nor with a hook that steps within it)"
)

BY_HAND = (
    "An optimiser steps on gradients that no backward pass of its model has summed since its last step. Those that are "
    "taken by torch.autograd.grad and averaged by hand are weighed by nobody: samples count more on a rank with few of "
    'them. Call backward(), or use attach(..., loss="scaled") and average gradients of balance.scale(loss).'
)

BESIDE = (
    "An optimiser steps {names} that belong to no attached model, and nothing weighs their gradients: averaged "
    "plainly, samples count more on a rank with few of them. Make them part of the model, wrap them in "
    'DistributedDataParallel and attach them too, or use attach(..., loss="scaled") and balance.scale(loss).'
)

DISORDERED = (
    "A batch is computed after one that was fetched later. The gradients are those of equal batches where all ranks "
    "compute them in the same order, and nowhere else."
)

FOREIGN = (
    "The model was given {rows} rows in training, which the balanced loader did not hand out. Their gradients are "
    "weighed by the number of rows on each rank: right for the mean over all rows where steps on them come beside "
    "those on the loader's batches. A step that has them in place of a batch, or mixed with one, is so only once the "
    'ranks have exchanged their next reports. With other losses use attach(..., loss="scaled") and balance.scale().'
)

UNSEEN = (
    "The model was given {rows} rows in training, in which no batch of the balanced loader can be seen. Losses are "
    "weighed as if batches were computed in the order in which they were fetched."
)

GUESSED = (
    "Several batches are in use at once (fetched ahead, computed again or skipped), and the data that the model is "
    "given does not tell which it is, as copies and what is computed from a batch do not. It is taken for the {which} "
    "one: gradients of another have a wrong weight. Fetch the next batch after the last forward pass over this one, or "
    "give the model what the loader handed out."
)

BESIDE_A_BATCH = (
    "The model was given {rows} rows beside a batch, which look like samples, and which the loader did not hand out. "
    "Their gradients weigh by this rank's share of the batch. If the loss has terms of them, use "
    'attach(..., loss="scaled"), and balance.scale() for the terms of the balanced batch alone.'
)


class LossKind:
    """Finds out from gradients of unequal batches whether the loss is of the kind that the weighting assumes.

    Parameters
    ----------
    loss
        What the loss was said to be.

    Examples
    --------
    >>> kind = LossKind("mean")
    >>> for step in range(20):  # a summed loss
    ...     sizes = np.array([8.0, 24.0]) if step % 2 else np.array([16.0, 6.0])
    ...     if sentence := kind.learn(sizes, np.log(sizes) + 0.1 * np.sin([step, 2 * step])):
    ...         print(step, sentence[:56])
    5 The gradients of a rank grow with its number of samples,
    """

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self._x: list[Array] = []
        self._y: list[Array] = []

    def wants(self, sizes_W: Sizes | None) -> bool:
        """Whether the gradients of a batch of these sizes are worth a look."""
        if sizes_W is None or len(self._x) >= MOST:
            return False
        sizes = sizes_W.tolist()  # runs in every step, and plain numbers are several times as fast as numpy here
        return bool(max(sizes) >= UNEVEN * min(sizes))

    def learn(self, samples_W: Array, log_norm_W: Array) -> str:
        """Take the log norms of each rank's gradients; return a warning once it is certain that they do not fit."""
        if len(self._x) >= MOST or not np.isfinite([samples_W, log_norm_W]).all() or samples_W.min() <= 0:
            return ""
        # Only differences between ranks of one step count: gradients also change from step to step as training goes on.
        x = np.log(samples_W)
        self._x.append(x - x.mean())
        self._y.append(log_norm_W - log_norm_W.mean())
        power, error = self._growth()
        wrong = power - BORDERS[self.loss] if self.loss != "sum" else BORDERS["sum"] - power
        if error < CLEAR and wrong > SURE * error:
            self._x = [x] * MOST  # full, so that the warning comes only once
            return SENTENCES[self.loss]
        return ""

    def _growth(self) -> tuple[float, float]:
        """Return the power of n with which gradients grow, and its standard error (infinite at first)."""
        x, y = np.concatenate(self._x), np.concatenate(self._y)
        known = len(x) - len(self._x)  # subtracting each step's mean takes one degree of freedom
        if len(self._x) < FEWEST or not (spread := float(x @ x)):
            return 0.0, np.inf
        power = float(x @ y) / spread
        rest = y - power * x
        # The small constant keeps the error above zero for gradients without any noise.
        return power, float(np.sqrt((rest @ rest + 1e-3) / max(known - 1, 1) / spread))


def refuse_mixing_layers(model: torch.nn.Module) -> None:
    """Refuse layers that mix the samples of all ranks where gradients carry the weights.

    Raises
    ------
    ValueError
        If the model has synchronised batch normalisation.
    """
    mixing = [name for name, module in model.named_modules() if isinstance(module, torch.nn.SyncBatchNorm)]
    if mixing:
        raise ValueError(
            f"synchronised batch normalisation ({mixing[0]}) carries gradients from rank to rank, so they cannot be "
            'weighted afterwards: use attach(..., loss="scaled") and balance.scale(loss).backward(), which is exact'
        )


def apart(workers: Sequence[str], places: Array) -> str:
    """Return the error message for ranks at different epochs and batches, ``[W, 2 or more]``."""
    epoch, batches = places[0, :2]
    if (places[:, :2] == places[0, :2]).all():
        return (
            f"the ranks had different samples by batch {batches:.0f} of epoch {epoch:.0f}. The cause is a sampler= "
            "that orders them differently on each rank (seed its generator alike, and leave out a DistributedSampler, "
            "which yields one rank's part), a stream that is divided among the ranks, or a loop that differs"
        )
    said = [
        f"{worker} is at batch {place[1]:.0f} of epoch {place[0]:.0f}"
        for worker, place in zip(workers, places, strict=True)
    ]
    return (
        f"the ranks are not at the same place of the data: {', '.join(said)}. "
        "Every rank must loop over the loader in the same way. Taking a batch on one rank only removes it from the "
        "epoch: to look at a sample, use loader.dataset[0]"
    )


def refuse_for(balance: Callable[[], Any]) -> Callable[..., None]:
    """Return an optimiser hook that refuses steps which part the ranks, with equal batches too, or are not weighed."""

    def refuse(optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
        known = balance()
        if known is None or known.closed:
            return
        known.require_accepted()
        if isinstance(optimizer, torch.optim.LBFGS) and _steps(optimizer, known.models):
            raise RuntimeError(
                "LBFGS chooses its step by the loss of each rank's own batch, so the ranks diverge, even with equal "
                "batches. Use an optimiser that evaluates the loss once per step"
            )
        # A closure computes gradients within the step. To look at the parameters takes long, and nearly no step does.
        if not _closure_in(arguments):
            if (models := known.unsummed()) and _steps(optimizer, models):
                raise RuntimeError(STEP_ALONE)
            if (models := known.not_summed_for(optimizer)) and _steps(optimizer, models):
                known.warn("by hand", BY_HAND)
        if known.audits(optimizer):
            for sentence in (
                *of_the_process(known.models, known.averages, known.counts_all),
                *_beside(optimizer, known.models),
            ):
                known.warn(sentence, sentence)

    return refuse


def _steps(optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module]) -> bool:
    """Whether the optimiser steps parameters of these models that have a gradient."""
    ours = {id(parameter) for model in models for parameter in model.parameters()}
    return any(id(parameter) in ours for parameter in _stepped(optimizer))


def _beside(optimizer: torch.optim.Optimizer, models: Sequence[torch.nn.Module]) -> Iterator[str]:
    """Yield a warning if the optimiser steps parameters of no model whose gradients are summed."""
    stepped = {id(one): one for one in _stepped(optimizer)}
    ours = {id(one) for model in models for one in model.parameters()}
    # DistributedDataParallel sums other models' gradients, of which another warning tells.
    summed = {id(one) for ddp in _living(DistributedDataParallel) for one in ddp.parameters()}
    beside = [one for number, one in stepped.items() if number not in ours and number not in summed]
    if beside:
        yield BESIDE.format(names=f"{len(beside)} parameters (such as one of shape {list(beside[0].shape)})")


def _stepped(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]


def _closure_in(arguments: tuple[Any, ...]) -> bool:
    """Whether a step, of these positional and named arguments, was given a closure."""
    positional, named = arguments
    return any(map(callable, [*positional, *named.values()]))


def of_the_process(models: Sequence[torch.nn.Module], averages: bool, counts_all: bool = True) -> Iterator[str]:
    """Yield warnings about other objects in this process that do not suit unequal batches."""
    balanced = {id(ddp_of(model)) for model in models}
    living = [ddp for ddp in _living(DistributedDataParallel) if id(ddp) not in balanced]
    others = [ddp for ddp in living if _trains(ddp) and not was_attached(ddp)]
    if others and not averages:
        yield (
            f"A further model in DistributedDataParallel ({type(others[0].module).__name__}) trains in this process "
            "and is not balanced: if it trains on batches of the balanced loader, its gradients are averaged with "
            "wrong weights. Attach it to the same loader too: attach(model, loader)."
        )
    scheduler = getattr(sys.modules.get("accelerate.scheduler"), "AcceleratedScheduler", None)
    if counts_all and scheduler is not None and any(not one.split_batches for one in _living(scheduler)):
        yield (
            "Accelerate steps a prepared scheduler once per process, because it expects a loader that counts the "
            "batches of one rank, but this one counts batches of all ranks. Use prepare() and BalancedLoader of "
            "paceline.coordinator.trainers.accelerate, or Accelerator(split_batches=True)."
        )


def _living(kind: type) -> list[Any]:
    # DistributedDataParallel keeps no list of its instances. `isinstance` would trigger lazy proxies to load.
    return [thing for thing in gc.get_objects() if type(thing) is kind]


def _trains(ddp: DistributedDataParallel) -> bool:
    return ddp.training and any(parameter.grad is not None for parameter in ddp.parameters())
