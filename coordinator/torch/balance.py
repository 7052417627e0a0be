"""The balance of a running job: what is measured goes out, what all measured comes in, and new sizes are set.

Axis: W workers.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from paceline._arrays import Sizes
from paceline.coordinator.balancer import LoadBalancer
from paceline.coordinator.iteration import Iteration
from paceline.coordinator.plan import Plan
from paceline.coordinator.torch import audit
from paceline.coordinator.torch.clock import Clock
from paceline.coordinator.torch.equal_shapes import EqualShapes
from paceline.coordinator.torch.passes import Passes
from paceline.coordinator.torch.planning import Planning
from paceline.coordinator.torch.protocol import Loader
from paceline.coordinator.torch.reporting.buffers import Buffers
from paceline.coordinator.torch.reporting.exchange import Exchange
from paceline.coordinator.torch.reporting.reports import RankReports
from paceline.coordinator.torch.weighing.hooks import CommHook, ddp_of, ignored
from paceline.coordinator.torch.weighing.listener import Weigh
from paceline.coordinator.torch.weighing.terms import Items
from paceline.coordinator.torch.weighing.weighting import Weighting
from paceline.coordinator.work import WorkModel
from paceline.recording.drivers import Driver
from paceline.recording.torch.waiting import listen

TRUSTED = 3
"""Exchanges in which every rank trained on the loader's batches alone, before weights are taken to sum to one."""

SAMPLING = 0.004
"""Largest share of the time that sampling covariates may take: where it takes longer, a sample serves for several
iterations. Files of the kernel are read, at an iteration's end, when all others may be waiting for this rank."""


class Balance(Passes):
    """Keeps the ranks of one training job in step. :func:`attach` makes it.

    Attributes
    ----------
    on_iteration
        Called with an :class:`paceline.coordinator.iteration.Iteration` after each exchange of reports, on every rank.
    overhead_seconds
        Time that balancing took of the training loop, per iteration since the exchange before: measuring, exchanging
        reports and planning; observers left out. Measuring is counted in CPU time, as other threads run meanwhile.
    weigh
        What carries the weights: see :func:`attach`.
    """

    def __init__(
        self,
        balancer: LoadBalancer,
        loader: Loader,
        exchange: Exchange,
        clock: Clock,
        *,
        workers: Sequence[str],
        drivers: Sequence[Driver] = (),
        weigh: Weigh = "gradients",
        count: Items | None = None,
    ) -> None:
        super().__init__(loader, clock, weigh, count)
        self.on_iteration: list[Callable[[Iteration], None]] = []
        self.overhead_seconds = 0.0
        self._exchange = exchange
        self._workers = tuple(workers)
        self._drivers = tuple(drivers)
        self._covariates: list[float] = []
        self._buffers = Buffers()
        self._next_sample = 0.0
        self._models: list[torch.nn.Module] = []
        self._thread = threading.get_ident()
        self._mixes = False
        self._exchanges = 0
        self._sums_since = self._usual_sums = 0  # since the loader was last asked for a batch
        self._reported = False  # whether this rank has sent a report since then
        self._rows: RankReports | None = None  # what has arrived since then
        self._used: Plan | None = None
        self._started = self._wall_seconds = math.nan
        self._out_of_memory = False
        self._sizes: deque[Sizes | None] = deque([None, None], maxlen=2)  # of the last two steps
        self._audited: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._planning = Planning(balancer, loader, exchange, workers, len(self._drivers))
        self._first_sizes = self.plan.sizes
        # Ended with it: a job that drops its model and loader drops the balance too.
        stop_listening = listen(self, EqualShapes(loader, dist.get_process_group_ranks(exchange.group)))
        refusal = register_optimizer_step_pre_hook(audit.refuse_for(weakref.ref(self)))
        self._end = weakref.finalize(self, _call_all, stop_listening, refusal.remove, exchange.close)
        self._end.atexit = False  # when the interpreter ends, torch has taken its groups down

    @property
    def balancer(self) -> LoadBalancer:
        """The load balancer: the same on every rank."""
        return self._planning.balancer

    @property
    def work(self) -> WorkModel | None:
        """What samples cost, learned or given; None where they have no costs."""
        return self._planning.work

    @property
    def plan(self) -> Plan:
        """The plan of the iteration under way. Its arrays are in the order of ``plan.workers``."""
        return self._planning.plan

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the ranks, in their order."""
        return self._workers

    @property
    def models(self) -> tuple[torch.nn.Module, ...]:
        """The models that are balanced."""
        return tuple(self._models)

    @property
    def counts_all(self) -> bool:
        """Whether the loader's length is in batches of all ranks."""
        return getattr(self._loader, "counts_all", True)

    @property
    def closed(self) -> bool:
        """Whether it was taken off."""
        return not self._end.alive

    def audits(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it is time to look at what an optimiser steps: once, and not while batches are equal."""
        if not self._looked or self.weigh not in ("gradients", "sum") or optimizer in self._audited:
            return False
        self._audited.add(optimizer)
        return True

    def add(self, model: torch.nn.Module, average: CommHook | None = None) -> None:
        """Balance a further model that trains on the same batches, with a communication hook of its own."""
        self._models.append(model)
        self._weightings.append(Weighting(model, self, self._exchange, average))

    def accumulating(self) -> AbstractContextManager[object]:
        """Return the context for a forward and backward pass of a loader with ``micro_batch=``.

        Gradients are summed over the ranks after the step's last micro-batch alone: ranks have different numbers of
        them, and one that summed after each would wait for ever.
        """
        if self._steps_end:
            return nullcontext()
        stack = ExitStack()
        for model in self.models:
            if (ddp := ddp_of(model)) is not None:
                stack.enter_context(ddp.no_sync())
        return stack

    def measured(self, seconds: float) -> None:
        """Let the next report carry these seconds of own computing in place of the clock's."""
        self._clock.measured(seconds)

    def ran_out_of_memory(self) -> None:
        """Let the next report say that this rank's batch did not fit; from then on it gets less."""
        self._out_of_memory = True

    def close(self) -> None:
        """Take everything off the models and the loader; sizes stay as they are, and gradients are averaged plainly.

        Every rank calls it. The job may go on without balancing, or be attached anew.
        """
        if self.closed:
            return
        if self._rows is not None and self._rows.together and self.on_iteration:
            self._tell(self._rows)  # the last iteration, which no other follows
        for observe in self.on_iteration:
            getattr(observe, "close", ignored)()
        for weighting in self._weightings:
            weighting.close()
        self._weightings.clear()  # a cycle with this object, in which the model would wait for the garbage collector
        loader = self._loader
        loader.before_batch = loader.after_batch = loader.on_start = loader.before_state = None
        self._end()
        self._drivers = ()  # each keeps a kernel file open, and this object may wait long for the garbage collector

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return everything learnt and decided, and where the data stands: the same on every rank, save it once."""
        self._finish()
        return {**self._planning.state_dict(), "loader": self._loader.state_dict()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]], *, skip_rest: bool = False) -> None:
        """Resume, on every rank, from what ``state_dict`` returned, also with other ranks than were saved.

        What was learnt of a worker follows its name; workers without a saved state start afresh. ``skip_rest`` leaves
        out what remains of the saved epoch, where that is too little for these ranks.

        Raises
        ------
        ValueError
            If the state is another global batch's or other data's.
        """
        self._finish()
        self._loader.load_state_dict(state["loader"], skip_rest=skip_rest)
        self._planning.load_state_dict(state)
        self._look_at_process()

    # -- in the loop -----------------------------------------------------------------------------------------------

    def start_step(self) -> None:
        """Let the loader cut the next batch by the newest plan, and tell observers of the iteration before it."""
        if threading.get_ident() != self._thread:
            raise RuntimeError(audit.OTHER_THREAD)
        began = time.perf_counter()
        self._wall_seconds, self._started = began - self._started, began
        if self._exchanges < TRUSTED:
            self._usual_sums = max(self._usual_sums, self._sums_since)
        self._sums_since, self._reported = 0, False
        self._finish()

    def _after_sum(self) -> None:
        """Send what was measured, once in an iteration.

        When that is must not depend on what this rank has seen: the others would wait for ever for a report that they
        alone send. Gradients are summed by all ranks alike, so sums are what is counted.
        """
        self._sums_since += 1
        if not self._reported:
            self._reported = True
            self._send()

    def _send(self) -> None:
        measure, began = self._clock.report(), time.perf_counter()
        if self._micro_batch:  # plans are about steps, whose micro-batches differ in number
            measure = measure.by_steps()
        computed, planning = self._handed.sizes, self._planning
        total = 0 if computed is None else sum(computed.tolist())  # a call of numpy takes longer here
        if began >= self._next_sample:
            self._covariates = [driver.sample() for driver in self._drivers]
            ended = time.perf_counter()
            self._next_sample = ended + (ended - began) / SAMPLING
        features = (self._clock.features or [math.nan] * planning.features) if planning.features else []
        place = (self._out_of_memory, planning.checksum, *self._loader.position)
        seen = (self._norms.take(), total, self._foreign, self._buffers.sum(self._models, self._exchanges))
        self._sizes.append(computed)
        self._exchange.send([*measure, *place, *seen, *self._covariates, *features])
        self._spent += time.perf_counter() - began
        self._clock.look()
        self._out_of_memory, self._foreign = False, False

    def backward_ends(self) -> None:
        """Plan the next iteration: the reports arrive with the gradients, for which the backward pass waits anyway."""
        if self._exchange.under_way and not self._clock.delay:
            self._receive()

    def _receive(self) -> None:
        """Take in the reports of all ranks, and plan, unless they have parted ways."""
        self._clock.wait_begins()  # for the slowest rank, if its report is not there yet
        report_WF = self._exchange.receive()
        self._clock.wait_ends()
        began = time.perf_counter()
        self._exchanges += 1
        self._rows, self._used = self._planning.in_order(report_WF), self.plan
        self._mixes = self._mixes or self._rows.any_foreign
        if self._rows.together:
            self._planning.learn(self._rows)
        self.overhead_seconds = self._spent + time.perf_counter() - began

    def _finish(self) -> None:
        """Let all ranks go on from one plan, look at what they reported, and tell observers of it."""
        if self._exchange.under_way:
            self._receive()
        rows, self._rows = self._rows, None
        if rows is None:
            return
        if not rows.together:
            self._planning.settle(rows, self._index)
            self._planning.learn(rows)
        self._planning.hand_over()
        if not rows.together:  # whatever each rank would plan from the same state, all go on with the first one's sizes
            self._loader.adopt(self._exchange.from_first(self._loader.place()))
        self._look_at_losses(rows)
        self._look_at_process()
        if parted := self._buffers.learn(rows["buffers"], uneven=bool(np.ptp(rows["samples"]))):
            self.warn(parted, parted)
        self._spent = 0.0
        if self.on_iteration:
            self._tell(rows)

    @property
    def sums_shares(self) -> bool:
        """Whether weights are summed over the ranks: equal on all ranks, and constant during a backward pass.

        It stops once it shows that the loop trains on the loader's batches alone. Then they sum to one by the plan, and
        a collective less in every step is a millisecond for small models. A loop that takes up other data later sums
        gradients more often than it asks for batches, and all ranks see that alike, at once.
        """
        if self.weigh != "gradients" or self.adds_parts:
            return self.weigh in ("gradients", "sum")
        return self._mixes or self._exchanges < TRUSTED or self._sums_since >= self._usual_sums

    def _tell(self, rows: RankReports) -> None:
        """Tell the observers of the iteration that is over."""
        used = self._used
        assert used is not None, "rows arrived under a plan"
        steps_W, known_W = rows["steps"], np.isfinite(rows["samples"])  # a device may not have finished yet
        handed_W = self._handed.sizes
        planned_W = used.sizes if handed_W is None else handed_W[self._planning.order]
        sizes_W = np.where(known_W, rows["samples"] / steps_W, planned_W)
        parts_W = np.where(known_W, rows["micro_batches"] / steps_W, self._loader.accumulate)
        work_W = sizes_W if self.work is None else self.work.work(rows.features_WF) / steps_W
        iteration = Iteration(
            index=self._index,
            time=time.time(),
            worker=self._workers[self._loader.rank],
            sizes=np.rint(sizes_W).astype(np.int64),
            seconds=rows["seconds"] / steps_W,
            forecast_seconds=used.forecast.curves.busy_seconds(work_W / parts_W) * parts_W,
            comm_seconds=rows["comm_seconds"],
            wall_seconds=self._wall_seconds,
            overhead_seconds=self.overhead_seconds,
            agreed=rows.together,
            plan=self.plan,
            work=None if self.work is None else work_W,
        )
        for observe in self.on_iteration:
            observe(iteration)

    def _look_at_losses(self, rows: RankReports) -> None:
        """Warn of a loss of the wrong kind; where costs divide, a rank's number of samples tells nothing of it."""
        log_norm_W, samples_W = rows["log_norm"], rows["samples"]
        if self.work is not None or math.isnan(log_norm_W[0]):
            return
        if self._clock.delay:  # the norms are those of the step before, and a report may be of several steps
            before_W = self._sizes[0]
            assert before_W is not None, "norms were taken then"
            samples_W = before_W[self._planning.order].astype(np.float64)
        if sentence := self._losses.learn(samples_W, log_norm_W):
            self.warn(sentence, sentence)

    def _look_at_process(self) -> None:
        """Warn of what nothing weights; with equal batches nothing can be weighed wrongly, so later is soon enough."""
        if not (self._looked or np.array_equal(self.plan.sizes, self._first_sizes)):
            self._looked = True
            for sentence in audit.of_the_process(self.models, self.weigh, self.counts_all):
                self.warn(sentence, sentence)


def _call_all(*calls: Callable[[], object]) -> None:
    for call in calls:
        call()
