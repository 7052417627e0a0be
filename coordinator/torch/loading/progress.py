"""Where the data stands: which epoch is under way, how far, and which comes next."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.coordinator.torch.loading.dealer import Dealer

State = Mapping[str, NDArray[Any]]


class Progress:
    """Keeps a dealer's place in the course of epochs.

    Epochs count up by themselves. One that was resumed begins where it was resumed, and again there after no more
    than a peek: what came before belongs to a job that is over.

    Parameters
    ----------
    dealer
        Deals the samples of the epoch under way.
    least
        Samples that must be left of an epoch for another batch.

    Attributes
    ----------
    batches
        Batches handed out in the epoch under way.
    next_epoch
        The epoch that the next loop begins.
    """

    def __init__(self, dealer: Dealer, least: int) -> None:
        self.dealer = dealer
        self.least = least
        self.batches = 0
        self.next_epoch = 0
        self._rest: State | None = None

    @property
    def more(self) -> bool:
        """Whether the epoch under way has another batch."""
        return self.dealer.remaining >= self.least

    def start(self) -> None:
        """Begin the next epoch, or the rest of it if it was resumed."""
        epoch = self.next_epoch
        if self._rest is not None and epoch == self._rest["epoch"]:
            self.adopt(self._rest)
        else:
            self._warn_of_rest(epoch)
            self._rest = None
            self.dealer.start(epoch)
            self.batches = 0
        self.next_epoch = epoch + 1

    def finish(self) -> None:
        """Take note that the epoch is over: should it come again, it comes as a whole."""
        self._rest = None

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return where the data stands."""
        return {
            **self.dealer.state_dict(),
            "batches": np.array(self.batches),
            "next_epoch": np.array(self.next_epoch),
        }

    def resume(self, state: State, *, skip_rest: bool = False) -> None:
        """Let the rest of the epoch that was under way come next; or leave it out, and say so.

        Raises
        ------
        ValueError
            If the state is that of other samples, or of another order of them, or the rest of the epoch is too small
            for so many ranks. Nothing has changed then.
        """
        self.dealer.require_same(state)
        left, epoch, next_epoch = (int(state[name]) for name in ("remaining", "epoch", "next_epoch"))
        under_way = left >= self.least
        if under_way and not skip_rest and left < self.dealer.world_size:
            raise ValueError(
                f"{left} samples are left of epoch {epoch}, too few for {self.dealer.world_size} ranks, as none may go "
                f"without: resume with at most {left} ranks, or leave them out with load_state_dict(state, "
                "skip_rest=True)"
            )
        self.adopt(state)
        self._rest = None
        if under_way and skip_rest:
            warnings.warn(f"{left} samples of epoch {epoch} are left out, as skip_rest says", stacklevel=3)
            self.dealer.end()
            self.next_epoch = max(next_epoch, epoch + 1)
        elif under_way:
            self._rest, self.next_epoch = dict(state), epoch

    def adopt(self, state: State) -> None:
        """Stand where the state says."""
        self.dealer.load_state_dict(state)
        self.batches = int(state["batches"])
        self.next_epoch = int(state["next_epoch"])

    def _warn_of_rest(self, epoch: int) -> None:
        """Warn if an epoch was resumed, and another one begins before more than a peek was taken of it."""
        if self._rest is not None and self.batches <= self._rest["batches"] + 1:
            resumed, left = int(self._rest["epoch"]), int(self._rest["remaining"])
            warnings.warn(
                f"epoch {epoch} begins, but the loader was resumed in epoch {resumed}, of which {left} samples are "
                f"left out now: to go on with them, call set_epoch({resumed}) before the loop",
                stacklevel=5,  # the loop itself
            )
