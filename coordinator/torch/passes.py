"""What a balanced model's passes show: which batch it is given, how long its own computing takes, what is wrong."""

from __future__ import annotations

import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from paceline._arrays import Sizes
from paceline.coordinator.torch import audit
from paceline.coordinator.torch.clock import Clock
from paceline.coordinator.torch.protocol import KnowsWork, Loader
from paceline.coordinator.torch.reporting.reports import LEAST
from paceline.coordinator.torch.weighing.dealt import Dealt
from paceline.coordinator.torch.weighing.handed import FAR_AHEAD, Handed, Turn
from paceline.coordinator.torch.weighing.listener import BalanceWarning, Weigh
from paceline.coordinator.torch.weighing.sight import Sight, lengths
from paceline.coordinator.torch.weighing.terms import Items

TINY = 1e-300
"""A gradient of which even the logarithm is finite."""


class Passes(ABC):
    """Listens to the hooks of the models that train on one loader: what :class:`Balance` knows of this rank alone.

    Parameters
    ----------
    loader
        Hands out the batches.
    clock
        Measures own time.
    weigh
        What carries the weights.
    count
        Returns how many terms the loss of a batch has, where only the batch shows it.
    """

    def __init__(self, loader: Loader, clock: Clock, weigh: Weigh, count: Items | None = None) -> None:
        self.weigh: Weigh = weigh
        self.adds_parts = count is not None
        self._count = count
        self._loader = loader
        # Asked once: to look at a protocol's attributes takes 10 us, and batches are handed out often.
        self._knows = loader if isinstance(loader, KnowsWork) else None
        self._costs = self._knows is not None and self._knows.coefficients is not None
        self._clock = clock
        self._handed = Handed(loader.rank, loader.global_batch)
        self._losses = audit.LossKind(weigh)
        self._micro_batch = None if self._knows is None else self._knows.micro_batch
        self._index = -1
        self._unreported = 0
        self._micro_batches = 0
        self._foreign = False
        self._fresh = False
        self._looks = False
        self._unscaled = False
        self._batch_turn: Turn | None = None
        self._taken = self._computed = 0  # batches of the loop under way, and those that a model was given
        # The thread's own time: by the clock, what the network does for the gradients meanwhile would count as ours.
        self._spent = 0.0
        self._log_norm = math.nan
        self._warned: set[str] = set()

    @property
    @abstractmethod
    def sums_shares(self) -> bool:
        """Whether weights are summed over the ranks: equal on all ranks, and constant during a backward pass."""

    @abstractmethod
    def _after_sum(self) -> None:
        """Send what was measured, if it is time for a report."""

    @property
    def micro_batches(self) -> float:
        """By how many micro-batches loops divide a loss; infinite where they do not."""
        return math.inf if self._micro_batch or self.weigh == "sum" else self._loader.accumulate

    @property
    def _steps_end(self) -> bool:
        return self._knows is None or self._knows.step_ends

    # -- in the loader ---------------------------------------------------------------------------------------------

    def hand_out(self, sizes_W: Sizes, batch: object) -> None:
        """Note a batch that the loop is given."""
        known = None if self._knows is None else self._knows.dealt
        dealt = known if known is not None and known.sizes is sizes_W else Dealt.plain(sizes_W, self._loader.rank)
        if self._count is not None:
            terms = _checked_terms(self._count(batch))
            dealt = replace(dealt, weight=1.0 if self.weigh == "sum" else terms, part=terms, whole=1.0)
        self._handed.add(sizes_W, dealt, batch)
        self._taken += 1
        if self._taken == FAR_AHEAD:
            self._say_what_is_skipped()

    def start_loop(self) -> None:
        """Forget batches of a loop that is over."""
        self._say_what_is_skipped()
        self._taken = self._computed = 0
        self._handed.clear()
        self._micro_batches = 0

    def say_what_is_fetched(self) -> None:
        """Warn, when a state is saved, of batches that a job would miss that resumes from it."""
        if self._handed.in_flight:
            self.warn(
                "state",
                f"{self._handed.in_flight} batches have been fetched but not computed when this state was saved: a job "
                "that resumes from it goes on after them. Save it where the loop has computed all that it fetched.",
            )

    # -- in the model's hooks ----------------------------------------------------------------------------------------

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any], sight: Sight) -> Turn:
        """Find out which batch a model is given, and start the clock if it is a new one.

        ``sight`` is how this model's batches can be seen, found out at its first.
        """
        began = time.thread_time()
        rows, second = lengths(args, kwargs)
        turn = self._handed.given(rows, second, sight, [*args, *kwargs.values()])
        if turn.fresh:
            self._require_scaled()
            self._fresh = self._unscaled = True
            self._looks = not (self._costs or self.adds_parts) and self._losses.wants(self._handed.sizes)
            self._micro_batches += 1
            self._computed += 1
            counts = turn.total >= LEAST * self._loader.global_batch
            self._clock.forward(turn.samples, counts=counts, features=turn.features)
        self._foreign = self._foreign or self._handed.disordered
        if turn.known:
            self._batch_turn = turn
        elif self.adds_parts:
            raise RuntimeError(
                f"the model was given {rows[0] if rows else 'unknown'} rows in training, which the balanced loader did "
                "not hand out, and with attach(..., items=) their number of loss terms is not known"
            )
        else:
            self._foreign = True
            if turn.fresh:  # in a form in which it cannot be seen: it is the next in order, which is warned about
                self._batch_turn = replace(turn, share=self._handed.weight)
        self._say_what_is_unseen(turn, rows)
        self._spent += time.thread_time() - began
        return turn

    def work_of(self, turn: Turn) -> float:
        """Return what this rank's samples of a turn cost, in average samples."""
        coefficients = None if self._knows is None else self._knows.coefficients
        assert coefficients is not None, "its samples have costs"
        return float(sum(part * each for part, each in zip(turn.features, coefficients.tolist(), strict=True)))

    def look(self, gradient: torch.Tensor, turn: Turn) -> None:
        """Note how large the gradients of the rank's rows are, all together."""
        if self._wants_look() and gradient.dim() and gradient.shape[0] % turn.samples == 0:
            self._log_norm = math.log(max(float(gradient.abs().mean()) * turn.samples, TINY))

    def _wants_look(self) -> bool:
        return self._fresh and self._looks and math.isnan(self._log_norm)

    def ready(self, gradients: torch.Tensor | None) -> Any:
        """Stop the clock: this rank's last gradients are ready."""
        if self._micro_batch and self._batch_turn is not None and not self._batch_turn.last:
            raise RuntimeError(audit.SUMMED_TOO_EARLY)
        began = time.thread_time()
        waiting = self._clock.ready()
        if gradients is not None and self._wants_look():  # a model that returns its loss shows no rows
            self._log_norm = math.log(max(float(gradients.norm()), TINY))
        self._spent += time.thread_time() - began
        return waiting

    def sent(self) -> None:
        """Note that gradients were handed to the network, and count the step if it had a new batch."""
        if self._fresh:
            self._require_scaled()
            self._fresh, self._micro_batches = False, 0
            self._index += 1
            self._unreported += 1
        self._after_sum()

    def summed(self, waiting: Any) -> None:
        """Start the clock again: the gradients of all ranks are summed."""
        self._clock.summed(waiting)

    def backward_ended(self) -> None:
        """Do all three for a model whose gradients nobody sums in a hook, after its step's last backward pass."""
        if self._micro_batches >= self._loader.accumulate and self._steps_end:
            self.summed(self.ready(None))
            self.sent()

    def wait_begins(self) -> None:
        """Stop the clock: a collective waits for other ranks."""
        if self.weigh in ("gradients", "sum") and self._fresh and torch._C._current_graph_task_id() != -1:
            raise RuntimeError(audit.COLLECTIVE_IN_BACKWARD)
        self._clock.wait_begins()

    def wait_ends(self) -> None:
        """Start it again."""
        self._clock.wait_ends()

    # -- what would be silently wrong ------------------------------------------------------------------------------

    def _require_scaled(self) -> None:
        if self.weigh == "loss" and self._unscaled:
            raise RuntimeError(
                'attach(..., weigh="loss") needs balance.scale(loss) before backward(): without it ranks with few '
                "samples count as much as those with many"
            )

    def _say_what_is_unseen(self, turn: Turn, rows: Sequence[int]) -> None:
        if self._handed.disordered:
            self.warn(
                "disordered",
                "A batch is computed after one that was fetched later. The gradients are those of equal batches where "
                "all ranks compute them in the same order, and nowhere else.",
            )
        if not turn.known and self.weigh == "gradients":
            self.warn(
                "rows",
                f"The model was given {rows[0] if rows else 'unknown'} rows in training, which the balanced loader did "
                "not hand out. Their gradients are weighed by the number of rows on each rank: right for the mean over "
                'all rows, and for nothing else. With other losses use attach(..., weigh="loss") and balance.scale().',
            )
        elif turn.fresh and not turn.known and self.weigh == "loss":
            self.warn(
                "unseen",
                f"The model was given {rows[0] if rows else 'unknown'} rows in training, in which no batch of the "
                "balanced loader can be seen. Losses are weighed as if batches were computed in the order in which "
                "they were fetched.",
            )
        elif self._handed.guessed:
            self.warn(
                "order",
                "Batches are fetched ahead or skipped, and the data that the model is given does not tell which it is: "
                "they are taken to be computed in the order in which they were fetched, none left out.",
            )

    def _say_what_is_skipped(self) -> None:
        """Warn of a loop that trains on the lesser part of its batches; one that trains on none looks at data only."""
        if 0 < 2 * self._computed < self._taken:
            self.warn(
                "skipped",
                f"The loop took {self._taken} batches, and gave the model {self._computed} of them. If it leaves out "
                "batches of another size than one it expects, it leaves out nearly all: balanced batches differ in "
                "size. To leave out an epoch's last, incomplete one, give the loader drop_last=True.",
            )

    def warn(self, about: str, sentence: str) -> None:
        """Warn, once about each thing."""
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(sentence, BalanceWarning, stacklevel=3)


def _checked_terms(counted: Any) -> float:
    terms = float(counted)
    if not 0 <= terms < math.inf:
        raise ValueError(f"items must return a finite number that is not negative for every batch, got {terms:g}")
    return terms
