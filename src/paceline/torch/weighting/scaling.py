"""Scaled losses: the loop scales each by the weight of the batch that it was computed from."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.torch.weighting.batch import Turn
from paceline.torch.weighting.graph import Pass, behind, number_now
from paceline.torch.weighting.handed import Handed
from paceline.torch.weighting.weighting import Weighting

TWO_BATCHES = (
    "the loss given to balance.scale() is of two batches, which count {} on this rank: scale the loss of each by itself"
)


class Scaling:
    """Scales losses, and remembers up to which forward pass losses were scaled.

    Parameters
    ----------
    weightings
        The hooks on the attached models.
    handed
        The batches of the loader.
    ranks
        How many ranks average their gradients.
    """

    def __init__(self, weightings: Sequence[Weighting], handed: Handed, ranks: int) -> None:
        self._weightings, self._handed, self._ranks = weightings, handed, ranks
        self._all_before = 0  # by autograd's numbers, as those of passes

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss times ``x_i W / X`` of its batch, or of the last batch if no attached model made it.

        One of two batches, which one rank alone may find, is refused by the backward pass, on all ranks.
        """
        passes = [] if loss.grad_fn is None else behind([loss])
        known: dict[float, Turn] = {}
        for one in passes:
            if (owner := one.owner()) is not None and owner in self._weightings:
                turn = owner.settle(one)
                one.scaled = True
                if turn is not None and turn.known:
                    known[turn.share] = turn
                if len(known) > 1:
                    owner.refuse(RuntimeError(TWO_BATCHES.format(" and ".join(f"{share:.3g}" for share in known))))
        if not passes:  # a weight that is asked for by itself
            for weighting in self._weightings:
                weighting.trains()
            self._all_before = number_now()
        turn_now = next(iter(known.values()), None) or self._handed.turn
        if turn_now is None:
            raise RuntimeError("scale() needs a forward pass of the attached model before it: call model(x)")
        return loss * (turn_now.share * self._ranks)

    def require(self, passes: Sequence[Pass]) -> None:
        """Refuse a backward pass through a batch of the loader whose loss was not scaled."""
        if any(one.scaled or one.begin < self._all_before for one in passes):
            return
        if any(one.turn is not None and one.turn.known for one in passes):
            raise RuntimeError(
                'attach(..., loss="scaled") needs balance.scale(loss) before backward(): without it ranks with few '
                "samples count as much as those with many"
            )
