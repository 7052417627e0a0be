"""The place of a loader in the course of epochs: which comes next, and what is left of one that was resumed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.torch.assigner import Assigner, State


class Progress:
    """Counts epochs, and lets the rest of a resumed one come in place of the whole.

    Epochs count up by themselves. One that was resumed begins where it was resumed, and again there after no more
    than a peek: what came before belongs to a job that is over. If nothing is left of it, the next one comes; where
    the script sets the resumed epoch nevertheless, as ``for epoch in range(saved_epoch, epochs)`` does, its loop is
    empty.

    Attributes
    ----------
    assigner
        Assigns the samples of the epoch under way.
    next_epoch
        The epoch that the next loop begins.
    """

    def __init__(self, assigner: Assigner) -> None:
        self.assigner = assigner
        self.next_epoch = 0
        self._rest: State | None = None
        self._left = ""

    def start(self) -> None:
        """Begin the next epoch, or the rest of it if it was resumed."""
        epoch = self.next_epoch
        if self._rest is not None and epoch == self._rest["epoch"]:
            self.assigner.load_state_dict(self._rest)
        else:
            self._warn_of_rest(epoch)
            self.assigner.start(epoch)
        self.next_epoch = epoch + 1

    def finish(self) -> None:
        """Note that the epoch is over: if a resumed epoch is set again, all of it comes."""
        self._rest = None

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the place in the data."""
        return {**self.assigner.state_dict(), "next_epoch": np.array(self.next_epoch)}

    def resume(self, state: State, *, skip_rest: bool = False) -> None:
        """Continue with the rest of the interrupted epoch, or skip it with a warning."""
        self.assigner.check(state, with_rest=not skip_rest)
        self.assigner.load_state_dict(state)
        self.next_epoch, epoch, self._left = int(state["next_epoch"]), self.assigner.epoch, ""
        if not self.assigner.over:
            left = self.assigner.remaining
            self._left = f"{'some' if left is None else left} samples"
            if skip_rest:
                warnings.warn(f"{self._left} of epoch {epoch} are skipped, as skip_rest=True requests", stacklevel=3)
                self.assigner.end()
                self.next_epoch, self._left = max(self.next_epoch, epoch + 1), ""
            else:
                self.next_epoch = epoch
        begun = self._left or self.assigner.batches
        self._rest = self.assigner.state_dict() if begun else None

    def adopt(self, state: State) -> None:
        """Move to the place of another rank, in the middle of a loop."""
        self.assigner.adopt(state)
        self.next_epoch = int(state["next_epoch"])

    def _warn_of_rest(self, epoch: int) -> None:
        """Warn if an epoch was resumed, and another one begins before more than a peek was taken of its rest."""
        if self._rest is None or not self._left:
            return
        resumed, rest, self._rest = int(self._rest["epoch"]), int(self._rest["batches"]), None
        if self.assigner.batches <= rest + 1:
            warnings.warn(
                f"epoch {epoch} begins, but the loader was resumed in epoch {resumed}, of which {self._left} are left "
                f"out now: to go on with them, call set_epoch({resumed}) before the loop",
                stacklevel=6,  # the loop itself
            )
