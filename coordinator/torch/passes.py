"""What a balanced model's passes show: which batch it is given, how long its own computing takes, what is wrong."""

from __future__ import annotations

import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from paceline._arrays import Sizes
from paceline.coordinator.torch import audit
from paceline.coordinator.torch.clock import Clock
from paceline.coordinator.torch.norms import Norms
from paceline.coordinator.torch.protocol import Loader
from paceline.coordinator.torch.reporting.reports import LEAST
from paceline.coordinator.torch.weighing.dealt import Dealt
from paceline.coordinator.torch.weighing.graph import Pass, behind, number_now
from paceline.coordinator.torch.weighing.handed import FAR_AHEAD, Handed, Seen, Turn
from paceline.coordinator.torch.weighing.hooks import tensors_in
from paceline.coordinator.torch.weighing.listener import BalanceWarning, Weigh
from paceline.coordinator.torch.weighing.sight import Sight
from paceline.coordinator.torch.weighing.terms import Items, checked_terms
from paceline.coordinator.torch.weighing.weighting import Weighting


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
        self._costs = loader.coefficients is not None
        self._clock = clock
        self._handed = Handed(loader.rank, loader.global_batch, counts=self.adds_parts, behind=behind)
        self._losses = audit.LossKind(weigh)
        self._micro_batch = loader.micro_batch
        self._index = -1
        self._micro_batches = 0
        self._foreign = False
        self._fresh = False
        self._looks = False
        self._looked = False  # whether batches have become uneven
        self._scaled_before = 0  # by autograd's numbers, as those of passes
        self._weightings: list[Weighting] = []
        self._taken = self._computed = 0  # batches of the loop under way, and those that a model was given
        # The thread's own time: by the clock, what the network does for the gradients meanwhile would count as ours.
        self._spent = 0.0
        self._norms = Norms(late=bool(clock.delay))
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
        return self._loader.step_ends

    # -- in the loader ---------------------------------------------------------------------------------------------

    def hand_out(self, sizes_W: Sizes, batch: object) -> None:
        """Note a batch that the loop is given."""
        known = self._loader.dealt
        dealt = known if known.sizes is sizes_W else Dealt.plain(sizes_W, self._loader.rank)
        if self._count is not None:
            terms = checked_terms(self._count(batch))
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

    def look(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Seen:
        """Return what the inputs of a forward pass show of its batch."""
        return self._handed.look(args, kwargs)

    def given(self, one: Pass, sight: Sight) -> Turn:
        """Find out which batch a model is given, and start the clock if it is a new one.

        ``sight`` is how this model's batches can be seen, found out at its first.
        """
        began = time.thread_time()
        handed, seen = self._handed, one.seen
        turn = handed.given(seen, sight)
        if handed.fresh:
            self._fresh = True
            # Micro-batches of ranks that have different numbers of them are all of one size.
            looks = not (self._costs or self.adds_parts or self._micro_batch)
            self._looks = looks and self._losses.wants(handed.sizes)
            self._micro_batches += 1
            self._computed += 1
            counts = turn.total >= LEAST * self._loader.global_batch
            self._clock.forward(turn.samples, counts=counts, features=turn.features)
        one.doubt = self._doubt(turn, seen.rows)
        self._spent += time.thread_time() - began
        return turn

    def noted(self, turn: Turn, inputs: Sequence[Any], output: Any) -> None:
        """Remember what a model was given of a batch, and made of it; look at the gradients of its output."""
        if not self._handed.whole:
            self._handed.note(turn, inputs)
        self._handed.note(turn, output, made=True)
        if self._looks and self._fresh:
            for tensor in tensors_in(output):
                if tensor.requires_grad:
                    tensor.register_hook(partial(self._look, turn=turn))

    def trained(self, passes: Sequence[Pass]) -> None:
        """Refuse or warn of passes whose gradients are about to be computed, if their weight is not certain."""
        scaled, known = self.weigh != "loss", False
        for one in passes:
            scaled = scaled or one.scaled or one.begin < self._scaled_before
            turn = one.turn
            if turn is not None and turn.known:
                known = True
            elif turn is not None:
                self._foreign = True
                if self.adds_parts:
                    raise RuntimeError(
                        f"the model was given {turn.samples} rows in training, which the balanced loader did not "
                        "hand out, and with attach(..., items=) their number of loss terms is not known"
                    )
            for about, sentence in one.doubt:
                self._foreign = self._foreign or about == "disordered"
                self.warn(about, sentence)
        if known and not scaled:
            raise RuntimeError(
                'attach(..., weigh="loss") needs balance.scale(loss) before backward(): without it ranks with few '
                "samples count as much as those with many"
            )

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a micro-batch times ``x_i W / X``, so that plain averaging over ranks is exact.

        It is the weight of the batch that the loss was computed from. A loss that no attached model took part in gets
        that of the last batch of the loader that one was given.

        Raises
        ------
        RuntimeError
            If the gradients are weighed already, as they are unless ``attach`` was told ``weigh="loss"``; or if the
            loss is one of two batches.
        """
        if self.weigh != "loss":
            raise RuntimeError('the gradients are weighed already: leave the loss alone, or attach(..., weigh="loss")')
        passes = [] if loss.grad_fn is None else behind([loss])
        known: dict[float, Turn] = {}
        for one in passes:
            if (owner := one.owner()) in self._weightings:
                turn = owner.settle(one)
                one.scaled = True
                if turn is not None and turn.known:
                    known[turn.share] = turn
        if len(known) > 1:
            raise RuntimeError(
                "the loss given to balance.scale() is of two batches, which weigh "
                f"{' and '.join(f'{share:.3g}' for share in known)} on this rank: scale the loss of each by itself"
            )
        if not passes:  # a weight that is asked for by itself
            for weighting in self._weightings:
                weighting.trains()
            self._scaled_before = number_now()
        turn_now = next(iter(known.values()), None) or self._handed.turn
        if turn_now is None:
            raise RuntimeError("scale() needs a forward pass of the attached model before it: call model(x)")
        return loss * (turn_now.share * self._loader.world_size)

    def require_accepted(self) -> None:
        """Refuse an optimiser's step on gradients that were refused when they were computed."""
        for weighting in self._weightings:
            weighting.require_accepted()

    def unsummed(self) -> list[torch.nn.Module]:
        """Return the models whose gradients, if they have any, are those of this rank alone."""
        return [weighting.model for weighting in self._weightings if weighting.alone]

    def not_summed_for(self, optimizer: torch.optim.Optimizer) -> list[torch.nn.Module]:
        """Return the models whose gradients were not summed since an optimiser's last step; while sizes differ."""
        found = [weighting.model for weighting in self._weightings if not weighting.summed_for(optimizer)]
        return found if self._looked and self.weigh != "none" else []

    def work_of(self, turn: Turn) -> float:
        """Return what this rank's samples of a turn cost, in average samples."""
        coefficients = self._loader.coefficients
        assert coefficients is not None, "its samples have costs"
        return float(sum(part * each for part, each in zip(turn.features, coefficients.tolist(), strict=True)))

    def _look(self, gradient: torch.Tensor, turn: Turn) -> None:
        """Note how large the gradients of the rank's rows are, all together; of several micro-batches, the mean."""
        if self._wants_look() and gradient.dim() and gradient.shape[0] % turn.samples == 0:
            self._norms.add(gradient.abs().mean() * turn.samples)

    def _wants_look(self) -> bool:
        return self._fresh and self._looks

    def ready(self, gradients: torch.Tensor | None, turn: Turn | None) -> Any:
        """Stop the clock: this rank's last gradients are ready."""
        if self._micro_batch and turn is not None and not turn.last:
            raise RuntimeError(audit.SUMMED_TOO_EARLY)
        began = time.thread_time()
        waiting = self._clock.ready()
        # A model that returns its loss shows no rows.
        if gradients is not None and self._wants_look() and not self._norms.known:
            self._norms.add(gradients.norm())
        self._spent += time.thread_time() - began
        return waiting

    def sent(self) -> None:
        """Note that gradients were handed to the network, and count the step if it had a new batch."""
        if self._fresh:
            self._fresh, self._micro_batches = False, 0
            self._index += 1
        self._after_sum()

    def summed(self, waiting: Any) -> None:
        """Start the clock again: the gradients of all ranks are summed."""
        self._clock.summed(waiting)

    def backward_ended(self) -> None:
        """Do all three for a model whose gradients nobody sums in a hook, after its step's last backward pass."""
        if self._micro_batches >= self._loader.accumulate and self._steps_end:
            self.summed(self.ready(None, None))
            self.sent()

    def wait_begins(self) -> None:
        """Stop the clock: a collective waits for other ranks."""
        if self.weigh in ("gradients", "sum") and any(weighting.in_backward for weighting in self._weightings):
            raise RuntimeError(audit.COLLECTIVE_IN_BACKWARD)
        self._clock.wait_begins()

    def wait_ends(self) -> None:
        """Start it again."""
        self._clock.wait_ends()

    # -- what would be silently wrong ------------------------------------------------------------------------------

    def _doubt(self, turn: Turn, rows: Sequence[int]) -> Sequence[tuple[str, str]]:
        """Return what to warn of once gradients of a pass are computed: subjects and sentences."""
        handed = self._handed
        if turn.known and not (handed.disordered or handed.guessed or handed.beside):
            return ()
        if self.weigh == "none":  # what comes with every micro-batch counts as often as a rank has some
            return [("beside", audit.BESIDE_A_BATCH.format(rows=handed.beside))] * bool(
                handed.beside and self._micro_batch
            )
        found = []
        number = rows[0] if rows else "unknown"
        if handed.disordered:
            found.append(("disordered", audit.DISORDERED))
        if not turn.known and self.weigh == "loss":
            found += [("unseen", audit.UNSEEN.format(rows=number))] * handed.fresh
        elif not turn.known:
            found.append(("rows", audit.FOREIGN.format(rows=number)))
        elif handed.guessed:
            found.append(("order", audit.GUESSED.format(which="next" if handed.fresh else "last")))
        if handed.beside:
            found.append(("beside", audit.BESIDE_A_BATCH.format(rows=handed.beside)))
        return found

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
