"""The balance of a running job: what is measured goes out, what all measured comes in, and new sizes are set.

Axes: W workers, F numbers in a report, D drivers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.coordinator.balancer import LoadBalancer
from paceline.coordinator.plan import Plan, seconds_of
from paceline.coordinator.record import Iteration
from paceline.coordinator.torch.clock import Clock, Measure
from paceline.coordinator.torch.exchange import Exchange
from paceline.coordinator.torch.pace import Pace
from paceline.coordinator.torch.protocol import Loader
from paceline.coordinator.torch.reports import COLUMNS, Learnt, report_of
from paceline.coordinator.torch.state import from_torch, to_torch
from paceline.datasets.drivers import Driver

Array = NDArray[np.float64]
Sizes = NDArray[np.int64]

logger = logging.getLogger(__name__)


class Balance:
    """Keeps the ranks of one training job in step. :func:`attach` makes it.

    While gradients travel, the next plan is made by a thread: the loop finds it ready when it asks for a batch.

    Attributes
    ----------
    on_iteration
        Called with an :class:`paceline.coordinator.record.Iteration` after each plan, on every rank.
    overhead_seconds
        Time that balancing took of the training loop, per iteration since the plan before: measuring, sending the
        report, and waiting for the plan; observers left out.
    balancer
        The load balancer: the same on every rank.
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
        scales_loss: bool = False,
        backward_ends_iteration: bool = False,
        pace: Pace | None = None,
    ) -> None:
        self.balancer = balancer
        self.on_iteration: list[Callable[[Iteration], None]] = []
        self.overhead_seconds = 0.0
        self._loader = loader
        self._exchange = exchange
        self._clock = clock
        self._workers = tuple(workers)
        self._drivers = tuple(drivers)
        self._drivers_before = np.full((len(workers), len(drivers)), np.nan)
        self._scales_loss = scales_loss
        self._backward_ends_iteration = backward_ends_iteration
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="paceline")
        self._learning: Future[Learnt] | None = None
        self._pace = pace or Pace()
        self._index = -1
        self._unplanned = 0
        self._micro_batches = 0
        self._reported = True
        self._unsummed = False
        self._weight = 1.0
        self._started = self._wall_seconds = float("nan")
        self._spent = 0.0
        self._measured: float | None = None
        self._out_of_memory = False
        self._take_order()
        self._take_sizes()

    @property
    def plan(self) -> Plan:
        """The plan of the iteration under way. Its arrays are in the order of ``plan.workers``."""
        return self._plan

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the ranks, in their order."""
        return self._workers

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss of a micro-batch times ``x_i W / X``, so that plain averaging over ranks is exact.

        Raises
        ------
        RuntimeError
            If the gradients are weighed already, as they are unless ``attach`` was told ``weigh="loss"``.
        """
        if not self._scales_loss:
            raise RuntimeError('the gradients are weighed already: leave the loss alone, or attach(..., weigh="loss")')
        self._micro_batches += 1
        scaled = loss * (self._loader.weight * self._loader.world_size)
        if self._backward_ends_iteration and self._micro_batches >= self._loader.accumulate:
            scaled.register_hook(self._at_end_of_backward)
        return scaled

    def measured(self, seconds: float) -> None:
        """Let the next report carry these seconds of own computing in place of the clock's."""
        self._measured = seconds

    def ran_out_of_memory(self) -> None:
        """Let the next report say that this rank's batch did not fit; from then on it gets less."""
        self._out_of_memory = True

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return everything learnt and decided, and where the data stands: the same on every rank, save it once."""
        self._finish_learning()
        return {"balancer": to_torch(self.balancer.state_dict()), "loader": to_torch(self._loader.state_dict())}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Resume, on every rank, from what ``state_dict`` returned, also with other ranks than were saved.

        What was learnt of a worker follows its name; workers without a saved state start afresh.

        Raises
        ------
        ValueError
            If the state is another global batch's or other data's.
        """
        self._finish_learning()
        self._learning = None
        self._loader.load_state_dict(from_torch(state["loader"]))
        self.balancer.load_state_dict(from_torch(state["balancer"]))
        for worker in self._workers:
            if worker not in self.balancer.workers:
                self.balancer.join(worker)
        for worker in self.balancer.workers:
            if worker not in self._workers:
                self.balancer.leave(worker)
        self._drivers_before = np.full_like(self._drivers_before, np.nan)
        self._take_order()
        self._take_sizes()

    # -- at the start of an iteration, in the loader --------------------------------------------------------------

    def start_iteration(self) -> None:
        """Take the plan made of the reports of the iteration before, set the sizes, and start the clock."""
        began = time.perf_counter()
        self._wall_seconds, self._started = began - self._started, began
        learnt, used = self._finish_learning(), self._plan
        if learnt is not None:
            self._learning = None
            if not learnt.agreed:
                self._loader.adopt(self._exchange.from_first(self._loader.state_dict()))
            self._take_sizes()
            self.overhead_seconds = (self._spent + time.perf_counter() - began) / self._unplanned
            self._tell(learnt, used)
            self._spent, self._unplanned = 0.0, 0
        self._index += 1
        self._unplanned += 1
        self._micro_batches = 0
        self._reported = False
        self._clock.begin()

    def _finish_learning(self) -> Learnt | None:
        return None if self._learning is None else self._learning.result()

    def _learn(self) -> Learnt:
        """Receive the reports and plan the next iteration; run by the planning thread."""
        report_WF = self._exchange.receive()[self._order]
        columns: dict[str, Array] = dict(zip(COLUMNS, report_WF.T, strict=False))
        drivers_WD = report_WF[:, len(COLUMNS) :]
        agreed = bool((columns["checksum"] == columns["checksum"][0]).all())
        if not agreed:
            self._settle()
        before_WD, now_WD = (self._drivers_before, drivers_WD) if self._drivers else (None, None)
        self.balancer.step(report_of(columns, before_WD, self._loader.global_batch), now_WD)
        self._drivers_before = drivers_WD
        self._checksum = self.balancer.plan.checksum
        self._pace.learn(float(np.fmax.reduce(columns["seconds"])))
        return Learnt(columns, self._order, agreed)

    def _tell(self, learnt: Learnt, used: Plan) -> None:
        """Tell the observers of the iteration that is over."""
        if not self.on_iteration:
            return
        columns = learnt.columns
        known_W = np.isfinite(columns["samples"])  # a device may not have finished yet
        sizes_W = np.where(known_W, columns["samples"], self._samples_W[learnt.order]).astype(np.int64)
        parts_W = np.where(known_W, columns["micro_batches"], self._parts)
        iteration = Iteration(
            index=self._index,
            time=time.time(),
            worker=self._workers[self._loader.rank],
            sizes=sizes_W,
            seconds=columns["seconds"],
            forecast_seconds=seconds_of(used.forecast.curves, sizes_W / parts_W) * parts_W,
            comm_seconds=columns["comm_seconds"],
            wall_seconds=self._wall_seconds,
            overhead_seconds=self.overhead_seconds,
            agreed=learnt.agreed,
            plan=self._plan,
        )
        for observe in self.on_iteration:
            observe(iteration)

    def _settle(self) -> None:
        """Let all ranks go on from what the first has learnt, and so with its sizes."""
        logger.warning(
            "The ranks did not agree on the sizes of iteration %d: all go on with those of the first. A few samples of "
            "that iteration came twice or not at all. Do the ranks run on different hardware or libraries?",
            self._index,
        )
        self.balancer.load_state_dict(self._exchange.from_first(self.balancer.state_dict()))

    def _take_sizes(self) -> None:
        """Hand the plan to the loader."""
        self._plan = self.balancer.plan
        self._loader.sizes = self._plan.sizes[self._rank_order]

    def _take_order(self) -> None:
        """Find the ranks in the balancer's order of workers, and the workers in the order of ranks."""
        self._order = np.array([self._workers.index(worker) for worker in self.balancer.workers])
        self._rank_order = np.argsort(self._order)
        self._checksum = self.balancer.plan.checksum

    # -- inside an iteration, in the hooks ------------------------------------------------------------------------

    def gradient_weight(self) -> float:
        """Return the factor of this rank's gradients before they are summed."""
        return 1 / self._loader.world_size if self._scales_loss else self._loader.weight

    def start_forward(self, model: torch.nn.Module) -> None:
        """Count a micro-batch; weigh gradients that wait for it as if they were its own.

        Gradients accumulated under ``no_sync`` are weighed when they are summed, by the weight of the last
        micro-batch. An epoch's last batch may be split in other proportions.
        """
        if self._scales_loss or not (model.training and torch.is_grad_enabled()):
            return
        weight = self._loader.weight
        if self._unsummed and weight != self._weight:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self._weight / weight)
        self._weight = weight
        self._unsummed = True
        self._micro_batches += 1

    def stop_clock(self) -> None:
        """Take this rank's own time: its last gradients are ready."""
        began = time.perf_counter()
        self._unsummed = False
        if self._reported:
            return
        if self._scales_loss and not self._micro_batches:
            raise RuntimeError('attach(..., weigh="loss") needs balance.scale(loss) before backward()')
        self._parts = min(max(self._micro_batches, 1), self._loader.accumulate)
        # Sizes are kept while micro-batches accumulate; only the last may differ, at an epoch's end.
        self._samples_W = (self._parts - 1) * self._loader.sizes + self._loader.batch_sizes
        own = int(self._samples_W[self._loader.rank])
        self._measure = self._clock.ready(own, self._parts)
        if self._measured is not None:
            self._measure = Measure(own, self._parts, self._measured, self._measure.comm_seconds)
            self._measured = None
        self._spent += time.perf_counter() - began

    def send_report(self) -> None:
        """Send what was measured, and let the next plan be made, if it is time for one."""
        began = time.perf_counter()
        if self._reported:
            return
        self._reported = True
        if self._unplanned < self._pace.every:
            return
        drivers = [driver.sample() for driver in self._drivers]
        self._exchange.send([*self._measure, self._out_of_memory, self._checksum, *drivers])
        self._learning = self._planner.submit(self._learn)
        self._out_of_memory = False
        self._spent += time.perf_counter() - began

    def _at_end_of_backward(self, gradient: torch.Tensor) -> None:
        def report() -> None:
            self.stop_clock()
            self.send_report()

        torch.autograd.Variable._execution_engine.queue_callback(report)
