"""Steps of a job: each rank's measurements are sent, those of all are received, and new sizes are set.

Axis: W workers.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from paceline._arrays import Array, Sizes
from paceline.recording.records import Iteration
from paceline.recording.torch.busy_clock import Clock
from paceline.torch.buffers import Buffers
from paceline.torch.checked import OTHER_THREAD
from paceline.torch.exchange import Exchange
from paceline.torch.loader_protocol import Loader
from paceline.torch.optimizers import Optimizers
from paceline.torch.passes import Passes
from paceline.torch.planning import Planning
from paceline.torch.records import record
from paceline.torch.reports import RankReports
from paceline.torch.sampled import Sampled

TRUSTED = 3
"""Exchanges in which every rank trained on the loader's batches alone, before weights are taken to sum to one. They
also show how often this loop sums gradients in a step."""


class Steps:
    """Exchanges reports once in a step, and plans the next.

    Parameters
    ----------
    loader
        Hands out the batches.
    planning
        Learns from reports, and plans.
    exchange
        Carries the reports between ranks.
    passes
        Observes the passes of this rank's models.
    clock
        Measures this rank's busy time.
    covariates
        Samples this rank's covariates.

    Attributes
    ----------
    observers
        Called with the record of every iteration.
    overhead_seconds
        Seconds that balancing took of the last iteration.
    optimizers
        Checks before every step of an optimizer.
    out_of_memory
        Whether this rank's batch did not fit.
    rows
        Reports that have arrived since the loader was last asked for a batch; None before.
    handle
        The balance, kept alive by the model's hooks even if the script has dropped it.
    """

    def __init__(
        self, loader: Loader, planning: Planning, exchange: Exchange, passes: Passes, clock: Clock, covariates: Sampled
    ) -> None:
        self.observers: list[Callable[[Iteration], None]] = []
        self.overhead_seconds = 0.0
        self.optimizers = Optimizers(passes, passes.weightings, counts_all=getattr(loader, "counts_all", True))
        self.out_of_memory = False
        self.rows: RankReports | None = None
        self.handle: object = None
        self._loader, self._planning, self._exchange = loader, planning, exchange
        self._passes, self._clock, self._covariates, self._buffers = passes, clock, covariates, Buffers()
        self._thread = threading.get_ident()
        self._foreign = False
        self._exchanges = 0
        self._sizes: deque[Sizes | None] = deque([None, None], maxlen=2)  # of the last two steps
        self._first_sizes = planning.plan.sizes
        self._started = self._wall_seconds = math.nan

    def begin(self) -> None:
        """Let the loader cut the next batch by the newest plan, and call the observers of the iteration before it."""
        if threading.get_ident() != self._thread:
            raise RuntimeError(OTHER_THREAD)
        passes, began = self._passes, time.perf_counter()
        self._wall_seconds, self._started = began - self._started, began
        if self._exchanges < TRUSTED:
            passes.usual_sums = max(passes.usual_sums, passes.sums)
        passes.sums = 0
        self.finish()

    def send(self) -> None:
        """Send what this rank has measured."""
        measure, began = self._clock.report(), time.perf_counter()
        passes, planning, buffers = self._passes, self._planning, self._buffers
        if self._loader.micro_batch:  # plans are about steps, whose micro-batches differ in number
            measure = measure.by_steps()
        computed = passes.handed.sizes
        total = 0 if computed is None else sum(computed.tolist())  # a call of numpy takes longer here
        if began >= self._covariates.next:
            self._covariates.take()
        features = (self._clock.features or [math.nan] * planning.features) if planning.features else []
        place = (self.out_of_memory, planning.checksum, *self._loader.position)
        summed = math.nan if buffers.apart else buffers.sum(self.optimizers.models, self._exchanges)
        norms = passes.kind.norms
        log_norm = norms.take() if norms.logs or norms.late else math.nan
        seen = (log_norm, total, passes.foreign, summed)
        self._sizes.append(computed)
        self._exchange.send([*measure, *place, *seen, *self._covariates.values, *features])
        passes.spent += time.perf_counter() - began
        if began >= self._clock.next_look:
            self._clock.look()  # now, while the other ranks are awaited
        self.out_of_memory, passes.foreign = False, False

    def backward_ends(self) -> None:
        """Plan the next iteration: the reports arrive with the gradients, for which the backward pass waits anyway."""
        if self._exchange.under_way and not self._clock.delay:
            self._receive()

    def _receive(self) -> None:
        """Receive the reports of all ranks, and plan, unless the ranks have diverged."""
        self._clock.wait_begins()  # for the slowest rank, if its report is not there yet
        report_WF = self._exchange.receive()
        self._clock.wait_ends()
        began, planning = time.perf_counter(), self._planning
        self.rows = rows = RankReports(report_WF if planning.in_order else report_WF[planning.order], planning.features)
        self._used = planning.plan
        self._exchanges += 1
        self._foreign = self._foreign or rows.any_foreign
        self._passes.mixes = self._foreign or self._exchanges < TRUSTED
        if rows.together:
            planning.learn(rows)
        else:  # all ranks step next: one that has fetched its next batch would wait for others that are refused theirs
            self.optimizers.accepted = lambda: planning.require_one_place(rows)
        self.overhead_seconds = self._passes.spent + time.perf_counter() - began

    def finish(self) -> None:
        """Make all ranks continue from one plan, check their reports, and call the observers."""
        if self._exchange.under_way:
            self._receive()
        rows, self.rows = self.rows, None
        if rows is None:
            return
        planning = self._planning
        if not rows.together:
            self.optimizers.accepted = None
            planning.settle(rows, self._passes.index)
            planning.learn(rows)
        planning.hand_over()
        if not rows.together:  # whatever ranks would plan from the same state, all use the first one's sizes
            self._loader.adopt(self._exchange.from_first(self._loader.place()))
        if rows.has_norms and (sentence := self._passes.kind.learn(self._normed(rows), rows["log_norm"])):
            self._passes.warn(sentence, sentence)
        if rows.has_buffers and (parted := self._buffers.learn(rows["buffers"], uneven=bool(np.ptp(rows["samples"])))):
            self._passes.warn(parted, parted)
        if not self.optimizers.uneven:
            self.look_at_process()
        self._passes.spent = 0.0
        if self.observers:
            self.tell(rows)

    def _normed(self, rows: RankReports) -> Array:
        """Return the samples whose gradients' norms were reported, ``[W]``."""
        before_W = self._sizes[0]
        if before_W is None or not self._clock.delay:
            return rows["samples"]
        # A device's norms are those of the step before, and its report may be of several steps.
        samples_W: Array = before_W[self._planning.order].astype(np.float64)
        return samples_W

    def tell(self, rows: RankReports) -> None:
        """Call the observers with the iteration that is over."""
        handed_W, used, planning = self._passes.handed.sizes, self._used, self._planning
        iteration = record(
            rows,
            used,
            used.sizes if handed_W is None else handed_W[planning.order],
            self._loader.accumulate,
            planning.work,
            index=self._passes.index,
            worker=planning.workers[self._loader.rank],
            wall_seconds=self._wall_seconds,
            overhead_seconds=self.overhead_seconds,
            plan=planning.plan if self._loader.accumulate == 1 else planning.plan.of_step(self._loader.accumulate),
        )
        for observe in self.observers:
            observe(iteration)

    def look_at_process(self) -> None:
        """Warn of what nothing weights; with equal batches nothing can be weighted wrongly, so later is soon enough."""
        if not (self.optimizers.uneven or np.array_equal(self._planning.plan.sizes, self._first_sizes)):
            self.optimizers.uneven = True
            self.optimizers.look_at_process()
