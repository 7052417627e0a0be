"""Steps of a job: batches are yielded, this rank's time is measured, reports are exchanged, and new sizes are set.

Axis: W workers.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from paceline._arrays import Array, Sizes
from paceline.recording.records import Iteration
from paceline.recording.torch.busy_time import BusyTimer
from paceline.recording.torch.watch import set_forward_work
from paceline.torch.counting import ForwardPass
from paceline.torch.covariates import CovariateSampler
from paceline.torch.exchange import Exchange
from paceline.torch.global_batch import RankBatch
from paceline.torch.loss_reduction import LossReductionCheck
from paceline.torch.planning import Planning
from paceline.torch.rank_loader import RankLoader
from paceline.torch.reports import MIN_BATCH_SHARE, RankReports, make_iteration
from paceline.torch.shared_buffers_check import SharedBuffersCheck
from paceline.torch.weighting import AttachedModel, Weighting


class StepWeighting(Weighting):
    """The weighting of models on a balanced loader, which also reports and plans once in a step.

    ``observers`` are called with the record of every iteration. ``reports`` have arrived since the loader was last
    asked for a batch.
    """

    def __init__(
        self, loader: RankLoader, planning: Planning, exchange: Exchange, timer: BusyTimer, covariates: CovariateSampler
    ) -> None:
        super().__init__(exchange, loader, timer)
        self.observers: list[Callable[[Iteration], None]] = []
        self.overhead_seconds = 0.0
        self.out_of_memory = False
        self.index = -1  # of the iteration under way
        self.reports: RankReports | None = None
        self.pending_sums = PendingAllReduces(loader.accumulate)
        self.handle: object = None  # the balance, kept alive by the model's hooks even if the script has dropped it
        self.is_delayed = bool(timer.delay)
        self._planning, self._timer, self._covariates = planning, timer, covariates
        self._buffers_check = SharedBuffersCheck()
        self._loss_check = LossReductionCheck(is_delayed=self.is_delayed)
        # Samples of unequal cost say nothing by their number; micro-batches of ranks are all of one size.
        self._checks_loss = not (loader.coefficients is not None or loader.micro_batch)
        self._min_samples = MIN_BATCH_SHARE * loader.global_batch
        self._thread = threading.get_ident()
        self._exchanges = 0
        self._sizes: deque[Sizes | None] = deque([None, None], maxlen=2)  # of the last two steps
        self._batch: RankBatch | None = None  # computed last
        self._has_new_batch = self._has_reported = False
        self._sent_reports = False  # whether what is under way holds reports
        self._diverged_rows: RankReports | None = None
        self._spent_seconds = 0.0
        self._start_time = self._wall_seconds = math.nan

    # -- in the loader -----------------------------------------------------------------------------------------------

    def begin_iteration(self) -> None:
        """Apply the newest plan to the next batch, and call the observers of the previous iteration."""
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                "the balanced loader is read by another thread than the one that called attach(): fetch batches in "
                "the thread that trains, and use num_workers= to load them ahead"
            )
        began = time.perf_counter()
        self._wall_seconds, self._start_time = began - self._start_time, began
        self._has_reported = False
        self.finish_iteration()

    def on_batch_yielded(self, sizes_W: Sizes, batch: object) -> None:
        """Note a batch that the loop is given."""
        rank_batch = self.loader.rank_batch
        self.batches.add(rank_batch)
        self._timer.add_batch(rank_batch.local_samples(self.loader.rank))
        if self.loader.step_ends or not self.loader.counts_differ:
            self.pending_sums.count_batch()

    def start_loop(self) -> None:
        """Forget the batches of a loop that is over; warn if it trained on the lesser part of them."""
        delivered, computed = self.batches.num_delivered, self.batches.passes
        if 0 < 2 * computed < delivered:
            self.warn(
                "skipped",
                f"The loop fetched {delivered} batches, but passed only {computed} of them to the model. If it skips "
                "batches that do not have an expected size, it skips nearly all, as balanced batches differ in size. "
                "To skip only an epoch's last, incomplete batch, pass drop_last=True to the loader.",
            )
        self.pending_sums.start()
        self.batches.clear()
        self._timer.forget_batches()

    def before_state_dict(self) -> None:
        """Warn, when a state is saved, of batches that a resumed job would miss."""
        if self.pending_sums.is_pending:
            self.warn(
                "state",
                "Batches had been fetched but not computed when this state was saved: a job that resumes from it "
                "skips them. Save it after the loop has computed every batch that it fetched.",
            )

    # -- in the model's hooks ----------------------------------------------------------------------------------------

    def forward(self, forward_pass: ForwardPass) -> None:
        """Find the batch that a model is given, and start the timer if it is a new one."""
        began = time.thread_time()
        self.batches.passes += 1
        batches, model = self.batches, forward_pass.owner()
        in_order = self.has_scaled_counts or self.loader.packs
        forward_pass.batch, new = batches.next_batch(model) if in_order else batches.find(forward_pass.rows, model)
        if forward_pass.batch is None and self.finds_by_order:
            forward_pass.batch, new = batches.next_batch(model)
        if (batch := forward_pass.batch) is not None:
            if new:
                self._begin_batch(batch)
            if batch.features:
                coefficients = self.loader.coefficients.tolist()  # a recorder's hook on the module inside comes next
                set_forward_work(sum(part * each for part, each in zip(batch.features, coefficients, strict=True)))
        self._spent_seconds += time.thread_time() - began

    def _begin_batch(self, batch: RankBatch) -> None:
        self._has_new_batch = True
        if self._checks_loss:
            self.watches_outputs = self._loss_check.watches_outputs = self._loss_check.is_informative(batch.sizes)
        self._batch = batch
        count = batch.local_samples(self.loader.rank)
        self._timer.forward_begins(count, in_report=batch.total >= self._min_samples, features=batch.features)

    def watch_outputs(self, outputs: Sequence[torch.Tensor], model: AttachedModel) -> None:
        """Watch the gradients of a model's outputs."""
        if self._batch is not None:
            self._loss_check.watch(outputs, self._batch.local_samples(self.loader.rank), model.first_parameter)

    # -- in the backward pass ----------------------------------------------------------------------------------------

    def send(self, counts: list[float]) -> None:
        """Send counts, at the first sum since the loader was asked for a batch with what this rank has measured.

        Reports are sent at a moment that must not depend on what this rank alone has seen: a rank that sends none
        leaves the others waiting forever. All ranks sum gradients alike, so sums are counted.
        """
        began = time.perf_counter()
        self.pending_sums.count_sum()
        if self._has_new_batch:
            self._has_new_batch = self.watches_outputs = self._loss_check.watches_outputs = False
            self.index += 1
        if self._has_reported:
            self.exchange.send(counts)
            return
        self._has_reported = True
        measure, planning = self._timer.report(), self._planning
        if self.loader.micro_batch or self.loader.packs:  # plans are about steps, whose micro-batches differ in number
            measure = measure._replace(micro_batches=measure.steps)
        if began >= self._covariates.next:
            self._covariates.sample_all()
        features = (self._timer.features or [math.nan] * planning.features) if planning.features else []
        place = (self.out_of_memory, planning.checksum, *self.loader.position)
        summed = self._buffers_check.sum_buffers([one.model for one in self.models], self._exchanges)
        log_norm = self._loss_check.take_log_norm()
        self._sizes.append(None if self._batch is None else self._batch.sizes)
        self._sent_reports = True
        gauges = (log_norm, summed, planning.seconds)
        self.exchange.send([*measure, *place, *gauges, *self._covariates.newest_values, *features, *counts])
        self._spent_seconds += time.perf_counter() - began
        if began >= self._timer.next_refresh:
            self._timer.refresh()  # now, while the other ranks are awaited
        self.out_of_memory = False

    def receive(self) -> None:
        """Receive the counts of all ranks, and their reports; plan, unless the ranks have diverged."""
        self._timer.wait_begins()  # for the slowest rank, if its row is not there yet
        row_WF = self.exchange.receive()
        began, counts = time.perf_counter(), row_WF.shape[1] - 2 * len(self.models)
        reports, self._sent_reports = self._sent_reports, False
        if reports:
            self._plan(row_WF[:, :counts])
        self._timer.wait_ends()  # after planning, which takes all ranks as long and is no work on the batch
        self.check_counts(row_WF[:, counts:])
        self.overhead_seconds = self._spent_seconds + time.perf_counter() - began

    def _plan(self, report_WF: Array) -> None:
        planning = self._planning
        self.reports = reports = RankReports(planning.reports_by_worker(report_WF), planning.features)
        self._used_plan = planning.plan
        self._exchanges += 1
        self.renormalizes_shares = not reports.has_same_plan  # batches are cut by different plans
        if reports.is_consistent:
            planning.learn(reports)
        else:  # all ranks step next: one that has fetched its next batch would wait for others that are refused theirs
            self._diverged_rows = reports

    # -- at the end of a step ----------------------------------------------------------------------------------------

    def before_optimizer_step(self) -> None:
        """Raise an error before an optimizer's step if ranks have looped differently."""
        if self._diverged_rows is not None:
            self._planning.require_same_position(self._diverged_rows)

    def finish_iteration(self) -> None:
        """Make all ranks continue from one plan, check their reports, and call the observers."""
        if self.exchange.under_way:
            self.receive()
        if self.error is not None and not any(one.has_unsummed for one in self.models):
            self.raise_error()
        reports, self.reports = self.reports, None
        if reports is None:
            return
        planning = self._planning
        if not reports.is_consistent:
            self._diverged_rows = None
            planning.adopt_first_rank_state(reports, self.index)
            planning.learn(reports)
        planning.apply_to_loader()
        if not reports.is_consistent:  # whatever ranks would plan from the same state, all use the first one's sizes
            self.loader.sync_from(self.exchange.broadcast_from_first(self.loader.position_state()))
        warnings = []
        if reports.has_norms:
            warnings.append(self._loss_check.learn(self._samples_of_norms(reports), reports["log_norm"]))
        if reports.has_buffers:
            is_uneven = bool(np.ptp(reports["samples"]))
            warnings.append(self._buffers_check.learn(reports["buffers"], is_uneven=is_uneven))
        for sentence in filter(None, warnings):
            self.warn(sentence, sentence)
        self._spent_seconds = 0.0
        if self.observers:
            self.notify(reports)

    def _samples_of_norms(self, reports: RankReports) -> Array:
        before_W = self._sizes[0]
        if before_W is None or not self.is_delayed:
            return reports["samples"]
        # A device's norms are those of the step before, and its report may be of several steps.
        samples_W: Array = before_W[self._planning.order].astype(np.float64)
        return samples_W

    def notify(self, reports: RankReports) -> None:
        """Call the observers with the iteration that is over."""
        used, planning, accumulate = self._used_plan, self._planning, self.loader.accumulate
        plan = planning.plan if planning.plan is not used else used.as_unchanged()
        iteration = make_iteration(
            reports,
            used,
            used.sizes if self._batch is None else self._batch.sizes[planning.order],
            accumulate,
            planning.work,
            index=self.index,
            worker=planning.workers[self.loader.rank],
            wall_seconds=self._wall_seconds,
            overhead_seconds=self.overhead_seconds,
            plan=plan if accumulate == 1 else plan.as_step_plan(accumulate),
        )
        for observe in self.observers:
            observe(iteration)

    def connect(self) -> None:
        """Connect the loader's callbacks by weak references.

        The balance holds the loader: if that held the balance too, the loader's worker processes would end only with
        the next garbage collection.
        """

        def weak_callback(method: Any) -> Callable[..., None]:
            known, function = weakref.ref(method.__self__), method.__func__  # WeakMethod is Python, for every batch

            def call(*arguments: Any) -> None:
                if (alive := known()) is not None:
                    function(alive, *arguments)

            return call

        loader, timer = self.loader, self._timer
        loader.before_batch = weak_callback(self.begin_iteration)
        loader.after_batch = weak_callback(self.on_batch_yielded)
        loader.on_start, loader.before_state = weak_callback(self.start_loop), weak_callback(self.before_state_dict)
        loader.before_load, loader.after_load = weak_callback(timer.load_begins), weak_callback(timer.load_ends)

    def disconnect(self) -> None:
        """Take the callbacks off the loader."""
        loader = self.loader
        loader.before_batch = loader.after_batch = loader.on_start = loader.before_state = None
        loader.before_load = loader.after_load = None


class PendingAllReduces:
    """Compares how often gradients were summed with how often a loop of so many batches sums them.

    Both are the same on every rank at the same place of a script. What a rank sees of its own passes is not, and ranks
    that disagree here wait for each other forever. ``batches`` are those of a step, until the loop shows how many it
    takes from one sum to the next.

    Examples
    --------
    >>> sums = PendingAllReduces(batches=1)
    >>> sums.count_batch(); sums.count_batch(); sums.count_sum()  # a loop of two batches that fetches one ahead
    >>> sums.is_pending
    True
    >>> sums.count_sum()
    >>> sums.is_pending
    False
    """

    def __init__(self, batches: int) -> None:
        self._batches, self._max_batches_between = batches, 0
        self._sums_in_a_row = 1  # how often gradients are summed in a row, as where two models train on a batch
        self.start()

    def start(self) -> None:
        """Begin a loop; what was learned of its kind is kept."""
        self._batches_seen = self._sums = self._since_sum = self._sums_since = 0

    def count_batch(self) -> None:
        """Count a batch that the loop is given."""
        self._sums_in_a_row = max(self._sums_in_a_row, self._sums_since)
        self._sums_since = 0
        self._batches_seen += 1
        self._since_sum += 1

    def count_sum(self) -> None:
        """Count a sum of gradients over the ranks."""
        if self._sums:  # before the first come also the batches that are fetched ahead
            self._max_batches_between = max(self._max_batches_between, self._since_sum)
        self._since_sum = 0
        self._sums += 1
        self._sums_since += 1

    @property
    def is_pending(self) -> bool:
        """True if sums are to come, by the batches taken so far; False before the first sum: the loop may only read."""
        return 0 < self._sums * (self._max_batches_between or self._batches) < self._batches_seen * self._sums_in_a_row
