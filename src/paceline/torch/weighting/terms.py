"""Weights by loss terms for loaders of one's own: nothing is balanced, but every term of the loss counts the same."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist

from paceline.torch.exchange import Exchange
from paceline.torch.optimizers import Optimizers
from paceline.torch.weighting.batch import Batch, Turn
from paceline.torch.weighting.doubts import beside, guessed
from paceline.torch.weighting.graph import Pass, behind
from paceline.torch.weighting.handed import Handed
from paceline.torch.weighting.hooks import ddp_of, tensors_in
from paceline.torch.weighting.listener import Loss, Warnings
from paceline.torch.weighting.rank_batch import RankBatch
from paceline.torch.weighting.recognition import Recognition, lengths
from paceline.torch.weighting.weighting import Weighting

TermCount = Callable[[Any], Any]
"""Returns how many terms the loss of a batch has: a number, or a tensor of one."""


class Terms:
    """Weights each rank's gradients by its share of the loss terms of a step. :func:`weight_terms` makes it.

    Loop over it in place of the loader, or say :meth:`count` before every forward pass.

    Parameters
    ----------
    model
        The model, in ``DistributedDataParallel``.
    loader
        What the loop takes batches from; None where the loop says the terms itself.
    count
        Returns the terms of a batch; None likewise.
    loss
        ``"mean"`` for losses that are means over their terms, ``"sum"`` for sums.
    accumulate
        By how many micro-batches the loop divides its losses: the most that it sums. Sums are not divided.
    """

    weights_loss = adds_parts = sums_shares = True

    def __init__(
        self,
        model: torch.nn.Module,
        loader: Iterable[Any] | None,
        count: TermCount | None,
        *,
        loss: Loss = "mean",
        accumulate: int = 1,
    ) -> None:
        ddp = ddp_of(model)
        assert ddp is not None, "attach has looked"
        self.loss: Loss = loss
        self.micro_batches = math.inf if loss == "sum" else float(accumulate)
        self.loader = loader
        self._count = count
        self._said: float | None = None
        self.warn = Warnings()
        group = ddp.process_group
        assert isinstance(group, dist.ProcessGroup), "a wrapped model has one"
        self._exchange = Exchange(group)
        self._handed = Handed(self._exchange.rank, 1, counts=True, behind=behind)
        self.look = self._handed.look
        self._weighting = Weighting(model, self, self._exchange)
        self._optimizers = Optimizers(self, [self._weighting], counts_all=False, uneven=True)
        self._end = weakref.finalize(self, self._optimizers.watch())
        self._end.atexit = False

    def count(self, terms: float) -> None:
        """Say how many terms the loss of the next forward pass has, on this rank; 0 where all are ignored.

        Raises
        ------
        RuntimeError
            If that was said already, and no forward pass came: then it would be about another batch.
        ValueError
            If it is not a finite number of at least 0.
        """
        if self._said is not None:
            raise RuntimeError(
                "count(n) was called twice before a forward pass, so numbers of loss terms would be mixed up: call it "
                "just before every forward pass, or loop over what attach(..., loss_terms=count) returns"
            )
        self._said = checked_terms(terms)

    def __iter__(self) -> Iterator[Any]:
        """Yield the loader's batches, and count the terms of each."""
        if self.loader is None or self._count is None:
            raise TypeError(
                "there is no loader to loop over, or no loss_terms= to count by: call count(n) in your loop"
            )
        self._handed.clear()
        for batch in self.loader:
            rows = (lengths([batch], {})[0] or [1])[1 if isinstance(batch, (list, tuple)) else 0]
            self._handed.add(np.array([rows]), self._rank_batch(checked_terms(self._count(batch)), rows), batch)
            yield batch

    def _rank_batch(self, terms: float, rows: int = 1) -> RankBatch:
        return RankBatch(np.array([rows]), terms if self.loss == "mean" else 1.0, terms, rows=rows)

    def __len__(self) -> int:
        """Return the loader's length."""
        return len(self.loader)  # type: ignore[arg-type]

    def close(self) -> None:
        """Take the weights off: gradients are averaged plainly from now on."""
        if not self._end.alive:  # twice is once
            return
        self._end()
        self._weighting.close()
        self._exchange.close()

    # -- what the hooks of the model report --------------------------------------------------------------------------

    def given(self, one: Pass, recognition: Recognition) -> Turn | None:
        """Return the turn of a forward pass, with the terms counted last, or those of its batch."""
        handed = self._handed
        if self._count is None:
            terms, self._said = self._said, None
            return None if terms is None else Batch(self._rank_batch(terms), 0, 0, None).turn
        turn = handed.given(one.seen, recognition)
        if handed.guessed or (not turn.known and handed.in_flight):
            one.doubt = [guessed(handed)]
        elif handed.beside:
            one.doubt = [beside(handed)]
        return turn if turn.known else handed.turn

    def trained(self, passes: Sequence[Pass]) -> None:
        """Refuse a pass whose terms are not known, and warn of one that may have been given another batch."""
        if any(one.turn is None for one in passes):
            raise RuntimeError(
                "how many terms has the loss of this batch? Call count(n) before every forward pass in training, or "
                "loop over what attach(..., loss_terms=) returned"
            )
        for about, sentence in (doubt for one in passes for doubt in one.doubt):
            self.warn(about, sentence)

    def noted(self, turn: Turn, inputs: Sequence[Any], made: Sequence[torch.Tensor]) -> None:
        """Remember the tensors that a model got of a batch, and made of it."""
        self._handed.note(turn, tensors_in(inputs))
        self._handed.note(turn, made, made=True)

    def work_of(self, turn: Turn) -> float:
        """Return NaN: costs of samples are not known here."""
        return math.nan

    def ready(self, gradients: torch.Tensor | None, turn: Turn | None) -> None:
        """Do nothing: nothing is measured."""

    def sent(self) -> None:
        """Do nothing."""

    def summed(self, waiting: Any) -> None:
        """Do nothing."""

    def backward_ended(self) -> None:
        """Do nothing."""

    def backward_ends(self) -> None:
        """Do nothing: nothing is planned."""


def checked_terms(counted: Any) -> float:
    """Return a number of loss terms as a float.

    Raises
    ------
    ValueError
        If it is not a finite number of at least 0.
    """
    terms = float(counted)
    if not 0 <= terms < math.inf:
        raise ValueError(f"loss_terms must be a finite number that is not negative for every batch, got {terms:g}")
    return terms


def weight_terms(
    model: torch.nn.Module,
    loader: Iterable[Any] | None = None,
    loss_terms: TermCount | None = None,
    *,
    loss: Literal["mean", "sum"] = "mean",
    accumulate: int = 1,
) -> Terms:
    """Weight every rank's gradients by its share of the loss terms of a step; batches stay as your loader makes them.

    Parameters
    ----------
    model
        The model, in ``DistributedDataParallel``.
    loader
        What the loop takes batches from, such as a ``DataLoader`` with a ``batch_sampler``; None where the loop
        says the terms of every batch itself.
    loss_terms
        A function of a batch that returns how many terms its loss has; None likewise.
    loss
        ``"mean"`` for a loss that is a mean over the batch's terms, ``"sum"`` for one that is their sum.
    accumulate
        By how many micro-batches the loop divides its losses.

    Returns
    -------
    Terms
        Loop over it in place of the loader, or call its ``count(n)`` before every forward pass.

    Raises
    ------
    TypeError, ValueError
        If the model is not in ``DistributedDataParallel``, the loader is a balanced one, or an option is out of range.

    Examples
    --------
    >>> batches = weight_terms(model, dataloader, lambda batch: (batch["labels"] != -100).sum())  # doctest: +SKIP
    """
    if ddp_of(model) is None:
        raise TypeError(
            f"weight_terms needs DistributedDataParallel, got {type(model).__name__}: its hook sums the "
            "terms of all ranks beside the gradients"
        )
    if hasattr(loader, "position"):
        raise TypeError(
            "weight_terms is for a loader of your own: use attach(model, loader, loss_terms=) for a BalancedLoader"
        )
    if loss not in ("mean", "sum"):
        raise ValueError(f'loss must be "mean" or "sum" with a loader of your own, got {loss!r}')
    if accumulate < 1:
        raise ValueError(f"accumulate must be at least 1 micro-batch, got {accumulate}")
    return Terms(model, loader, loss_terms, loss=loss, accumulate=accumulate)
