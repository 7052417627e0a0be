"""What the Trainer's loss is, and so how it is to be weighed: found by trying, as the model's signature does not tell.

The Trainer hands a number of tokens, that of all ranks, to every model whose ``forward`` takes ``**kwargs``. Language
models divide by it. Many others, such as classifiers, take it and return the mean over their batch all the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from paceline.coordinator.torch import BalanceWarning
from paceline.coordinator.torch.weighting import Weigh

COUNT = 64.0
"""A number of tokens to try; a loss that is divided by it is half as large with twice as many."""

HALVED, SAME = 0.505, 0.95
"""Ratios of the losses of twice as many and as many tokens below which a loss is divided by them, and above which it
leaves them out. In between, a part is divided: one of a hundredth is let pass, as ratios are rounded so in bfloat16."""


def weigh_of(trainer: Any, batch: Any) -> Weigh:
    """Return how gradients are to be weighed, on all ranks alike, for the loss of such batches.

    Losses divided by the number of tokens of all ranks suit any sizes and are averaged plainly. Means over the rank's
    own batch are weighed by its samples.

    Parameters
    ----------
    trainer
        The Trainer, its model on every rank.
    batch
        This rank's first batch. The loss of it is computed twice, without gradients and not in training mode.
    """
    if not takes_count(trainer) or not has_labels(batch):
        return "gradients"
    ratio = _ratio(trainer, batch)
    if ratio > SAME:
        return "gradients"
    if not trainer.args.average_tokens_across_devices:
        _warn(
            "average_tokens_across_devices=False divides the loss by the tokens of the rank's own batch. Ranks are "
            "weighed by samples, so that is exact only where all samples have as many tokens: leave it True"
        )
        return "gradients"
    if ratio > HALVED:
        _warn(
            "A part of the loss is divided by the number of tokens of all ranks and a part is not, such as the loss of "
            "a router. Gradients are averaged plainly, as the Trainer does: in the second part samples on ranks with "
            "few count more"
        )
    return "none"


def takes_count(trainer: Any) -> bool:
    """Return whether the loss is told a number of tokens."""
    return bool(trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None)


def has_labels(batch: Any) -> bool:
    """Return whether the Trainer can count the tokens of a batch."""
    return isinstance(batch, Mapping) and isinstance(batch.get("labels"), torch.Tensor)


def _ratio(trainer: Any, batch: Any) -> float:
    """Return how large the loss is with twice as many tokens, relative to that with as many, over all ranks."""
    training = trainer.model.training
    trainer.model.eval()  # without dropout, and without a trace in batch normalisation
    try:
        losses = torch.stack([_loss(trainer, batch, count) for count in (COUNT, 2 * COUNT)]).nan_to_num()
    finally:
        trainer.model.train(training)
    once, twice = trainer.accelerator.gather(losses[None]).sum(0).tolist()
    return float(twice / once) if once else 0.5  # a loss of nothing is taken to be what the Trainer takes it for


def _loss(trainer: Any, batch: Any, count: float) -> torch.Tensor:
    inputs = trainer._prepare_inputs({**batch})  # a copy: the Trainer takes labels out of it
    told = torch.tensor(count, device=trainer.args.device)
    with torch.no_grad(), trainer.compute_loss_context_manager():
        loss: torch.Tensor = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=told)
    return loss.detach().double().mean()


def _warn(sentence: str) -> None:
    warnings.warn(sentence, BalanceWarning, stacklevel=2)
