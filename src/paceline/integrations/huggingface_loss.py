"""Kind of the Trainer's loss, and so of the weighting that it needs, found by trying: no signature shows it.

The Trainer passes the number of tokens of all ranks to every model whose ``forward`` takes ``**kwargs``. Language
models divide by it. Many others, such as classifiers, accept it but still return the mean over their batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from paceline.torch import BalanceWarning

HALVED, SAME = 0.505, 0.95
"""Bounds of the ratio of the losses with twice the number of tokens and with the number itself: below the first the
loss is divided by tokens, above the second it ignores them, and in between a part is divided. The tolerance of a
hundredth is the rounding of ratios in bfloat16."""


def loss_of(trainer: Any, batch: Any) -> str:
    """Return the kind of the loss for such batches, ``"mean"`` or ``"sum"``: the same on all ranks.

    Losses divided by the number of tokens of all ranks suit any sizes and are averaged plainly. Means over the rank's
    own batch are weighted by its samples.

    Parameters
    ----------
    trainer
        The Trainer, its model on every rank.
    batch
        This rank's first batch. Its loss is computed twice, without gradients and in evaluation mode.
    """
    if not takes_count(trainer) or not has_labels(batch):
        return "mean"
    ratio = _ratio(trainer, batch)
    if ratio > SAME:
        return "mean"
    if ratio > HALVED:
        _warn(
            "A part of the loss is divided by the number of tokens of all ranks and a part is not, such as the loss of "
            "a router. Gradients are averaged plainly, as the Trainer does: in the second part, samples count more on "
            "ranks with few of them"
        )
    return "sum"


def takes_count(trainer: Any) -> bool:
    """Return whether the loss gets a number of tokens."""
    return bool(trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None)


def has_labels(batch: Any) -> bool:
    """Return whether the Trainer can count the tokens of a batch."""
    return isinstance(batch, Mapping) and isinstance(batch.get("labels"), torch.Tensor)


def _ratio(trainer: Any, batch: Any) -> float:
    """Return the ratio of the losses with twice the number of tokens and with the number itself, over all ranks."""
    training = trainer.model.training
    trainer.model.eval()  # no dropout, and no update of batch normalization's running statistics
    try:
        # a loss divided by the number of tokens halves with twice the number
        losses = torch.stack([_loss(trainer, batch, count) for count in (64.0, 2 * 64.0)]).nan_to_num()
    finally:
        trainer.model.train(training)
    once, twice = trainer.accelerator.gather(losses[None]).sum(0).tolist()
    return float(twice / once) if once else 0.5  # a zero loss shows nothing: assume what the Trainer assumes


def _loss(trainer: Any, batch: Any, count: float) -> torch.Tensor:
    inputs = trainer._prepare_inputs({**batch})  # a copy, because the Trainer removes labels from it
    items = torch.tensor(count, device=trainer.args.device)
    with torch.no_grad(), trainer.compute_loss_context_manager():
        loss: torch.Tensor = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=items)
    return loss.detach().double().mean()


def _warn(sentence: str) -> None:
    warnings.warn(sentence, BalanceWarning, stacklevel=2)
