"""Observation of a balanced model's passes: the batch of each, the busy time, and errors of the loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from paceline._arrays import Sizes
from paceline.recording.torch.busy_clock import Clock
from paceline.torch.checked import COLLECTIVE_IN_BACKWARD, SUMMED_TOO_EARLY
from paceline.torch.loader_protocol import Loader
from paceline.torch.reports import LEAST
from paceline.torch.sums_to_come import SumsToCome
from paceline.torch.weighting.batch import Turn
from paceline.torch.weighting.doubts import beside, doubts
from paceline.torch.weighting.graph import Pass, behind
from paceline.torch.weighting.handed import FAR_AHEAD, Handed
from paceline.torch.weighting.hooks import ignored, tensors_in
from paceline.torch.weighting.listener import Loss, Warnings, weights_loss
from paceline.torch.weighting.loss_kind import LossKind
from paceline.torch.weighting.rank_batch import RankBatch
from paceline.torch.weighting.recognition import Recognition
from paceline.torch.weighting.scaling import Scaling
from paceline.torch.weighting.terms import TermCount, checked_terms
from paceline.torch.weighting.weighting import Weighting


class Passes:
    """Listens to the hooks of the models that train on one loader: everything that one rank sees by itself.

    Parameters
    ----------
    loader
        Hands out the batches.
    clock
        Measures busy time.
    loss
        What the loss of a rank is.
    count
        Returns how many terms the loss of a batch has, where only the batch shows it.

    Attributes
    ----------
    report
        Called when gradients were first handed to the network since the loader was asked for a batch.
    backward_ends
        Called when a backward pass is about to wait for the gradients of all ranks.
    weightings
        The hooks on the models.
    handed
        The batches of the loader.
    kind
        What gradients show of the kind of the loss.
    index
        The iteration under way.
    foreign
        Whether a model trained on data from elsewhere since the last report.
    spent
        Seconds that measuring took since the last report. They are the thread's own: by the clock, what the network
        does for the gradients meanwhile would count as ours.
    sums, usual_sums
        How often gradients were summed since the loader was last asked for a batch, and how often they usually are.
    mixes
        Whether ranks train on other data too, or may do so.
    to_come
        Whether the loop, after its end, has gradients still to be summed.
    """

    def __init__(self, loader: Loader, clock: Clock, loss: Loss, count: TermCount | None) -> None:
        self.loss: Loss = loss
        self.weights_loss = weights_loss(loss, count)
        self.adds_parts = count is not None
        self.warn = Warnings()
        self.weightings: list[Weighting] = []
        self.handed = Handed(loader.rank, loader.global_batch, counts=self.adds_parts, behind=behind)
        self.kind = LossKind(loss, late=bool(clock.delay))
        self.scaling = Scaling(self.weightings, self.handed, loader.world_size) if loss == "scaled" else None
        self.index = -1
        self.foreign = False
        self.spent = 0.0
        self.sums = self.usual_sums = 0
        self.mixes = True
        self.look, self.summed, self.wait_ends = self.handed.look, clock.summed, clock.wait_ends
        self.report: Callable[[], None] = ignored
        self.backward_ends: Callable[[], None] = ignored
        self._loader, self._clock, self._count = loader, clock, count
        # Samples of unequal cost say nothing by their number; micro-batches of ranks are all of one size.
        self._tells = not (loader.coefficients is not None or self.adds_parts or loader.micro_batch)
        self._least = LEAST * loader.global_batch
        self._micro_batches = 0
        self._fresh = self._wanted = False
        self._judged: Sizes | None = None
        self._taken = self._computed = 0  # batches of the loop under way, and those that a model was given
        self.to_come = SumsToCome(loader.accumulate)

    @property
    def sums_shares(self) -> bool:
        """True if weights are summed over the ranks: equal on all ranks, and constant during a backward pass.

        The sums end once the loop has shown that it trains on the loader's batches alone: weights then sum to one by
        the plan, and one collective less in every step saves a millisecond for small models. A loop that turns to other
        data later sums gradients more often than it asks for batches, which all ranks see alike, at once.
        """
        return self.adds_parts or self.mixes or self.sums >= self.usual_sums

    @property
    def micro_batches(self) -> float:
        """By how many micro-batches loops divide a loss; infinite where they do not."""
        return math.inf if self._loader.micro_batch or self.loss == "sum" else self._loader.accumulate

    # -- in the loader -----------------------------------------------------------------------------------------------

    def hand_out(self, sizes_W: Sizes, batch: object) -> None:
        """Note a batch that the loop is given."""
        rank_batch = self._loader.rank_batch
        if rank_batch.sizes is not sizes_W:
            rank_batch = RankBatch.plain(sizes_W, self._loader.rank)
        if self._count is not None:
            terms = checked_terms(self._count(batch))
            rank_batch = replace(rank_batch, weight=1.0 if self.loss == "sum" else terms, part=terms, whole=1.0)
        self.handed.add(sizes_W, rank_batch, batch)
        self._clock.batch(rank_batch.own(self._loader.rank))
        self._taken += 1
        if self._loader.step_ends:
            self.to_come.hand_out()
        if self._taken == FAR_AHEAD:
            self._say_what_is_skipped()

    def start_loop(self) -> None:
        """Forget batches of a loop that is over."""
        self._say_what_is_skipped()
        self._taken = self._computed = self._micro_batches = 0
        self.to_come.start()
        self.handed.clear()
        self._clock.forget_batches()

    def say_what_is_fetched(self) -> None:
        """Warn, when a state is saved, of batches that a job would miss that resumes from it."""
        if self.handed.in_flight:
            self.warn(
                "state",
                f"{self.handed.in_flight} batches have been fetched but not computed when this state was saved: a job "
                "that resumes from it goes on after them. Save it where the loop has computed all that it fetched.",
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

    # -- in the model's hooks ----------------------------------------------------------------------------------------

    def given(self, one: Pass, recognition: Recognition) -> Turn:
        """Find out which batch a model is given, and start the clock if it is a new one.

        ``recognition`` is how this model's batches can be seen, found out at its first.
        """
        began = time.thread_time()
        handed, rows = self.handed, one.seen.rows
        turn = handed.given(one.seen, recognition)
        if handed.fresh:
            self._fresh = True
            if self._tells and not self.kind.full:
                if handed.sizes is not self._judged:  # the same object until sizes change
                    self._judged, self._wanted = handed.sizes, self.kind.wants(handed.sizes)
                self.kind.looks = self._wanted
            self._micro_batches += 1
            self._computed += 1
            self._clock.forward(turn.samples, counts=turn.total >= self._least, features=turn.features)
        if not turn.known or handed.disordered or handed.guessed or handed.beside:
            if self.weights_loss or self.scaling is not None:
                one.doubt = doubts(handed, turn, rows, scaled=self.scaling is not None)
            elif handed.beside and self._loader.micro_batch:  # counts as often as a rank has micro-batches
                one.doubt = [beside(handed)]
        self.spent += time.thread_time() - began
        return turn

    def noted(self, turn: Turn, inputs: Sequence[Any], made: Sequence[torch.Tensor]) -> None:
        """Remember the tensors that a model got of a batch, and made of it; look at the gradients of its output."""
        if not self.handed.whole:
            self.handed.note(turn, tensors_in(inputs))
        self.handed.note(turn, made, made=True)
        if self.kind.looks:
            self.kind.watch(made, turn)

    def trained(self, passes: Sequence[Pass]) -> None:
        """Refuse or warn of passes whose gradients are about to be computed, if their weight is not certain."""
        for one in passes:
            if one.turn is not None and not one.turn.known:
                self.foreign = True
                if self.adds_parts:
                    raise RuntimeError(
                        f"the model was given {one.turn.samples} rows in training, which the balanced loader did not "
                        "hand out, and with attach(..., loss_terms=) their number of loss terms is not known"
                    )
            for about, sentence in one.doubt:
                self.foreign = self.foreign or about == "disordered"
                self.warn(about, sentence)
        if self.scaling is not None:
            self.scaling.require(passes)

    def work_of(self, turn: Turn) -> float:
        """Return the cost of this rank's samples of a turn, in average samples."""
        coefficients = self._loader.coefficients
        assert coefficients is not None, "its samples have costs"
        return float(sum(part * each for part, each in zip(turn.features, coefficients.tolist(), strict=True)))

    def ready(self, gradients: torch.Tensor | None, turn: Turn | None) -> Any:
        """Stop the clock: this rank's last gradients are ready."""
        if turn is not None and not turn.last and self._loader.micro_batch:
            raise RuntimeError(SUMMED_TOO_EARLY)
        began = time.thread_time()
        waiting = self._clock.ready()  # first: the look below is not part of the model's busy time
        if gradients is not None and self.kind.looks and not self.kind.norms.logs:
            self.kind.look_at_parameters(gradients)
        self.spent += time.thread_time() - began
        return waiting

    def sent(self) -> None:
        """Note that gradients were handed to the network, and count the step if it had a new batch.

        Reports are sent once in an iteration, at a moment that must not depend on what this rank alone has seen: a rank
        that sends none leaves the others waiting for ever. All ranks sum gradients alike, so sums are counted.
        """
        self.to_come.sent()
        if self._fresh:
            self._fresh = self.kind.looks = False
            self._micro_batches = 0
            self.index += 1
        self.sums += 1
        if self.sums == 1:
            self.report()

    def backward_ended(self) -> None:
        """Call `ready`, `summed` and `sent` after a step's last backward pass, for a model whose hook sums nothing."""
        if self._micro_batches >= self._loader.accumulate and self._loader.step_ends:
            self.summed(self.ready(None, None))
            self.sent()

    def wait_begins(self) -> None:
        """Stop the clock: a collective waits for other ranks."""
        if self.weights_loss:
            for weighting in self.weightings:
                if weighting.in_backward:
                    raise RuntimeError(COLLECTIVE_IN_BACKWARD)
        self._clock.wait_begins()
