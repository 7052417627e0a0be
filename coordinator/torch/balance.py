"""The balance of a running job: what is measured goes out, what all measured comes in, and new sizes are set.

Axes: W workers, D drivers.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import warnings
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from paceline._arrays import Sizes
from paceline.coordinator.balancer import LoadBalancer
from paceline.coordinator.iteration import Iteration
from paceline.coordinator.plan import Plan
from paceline.coordinator.torch import audit
from paceline.coordinator.torch.clock import Clock
from paceline.coordinator.torch.exchange import Exchange
from paceline.coordinator.torch.handed import Handed, Sight, Turn, lengths
from paceline.coordinator.torch.pace import Pace
from paceline.coordinator.torch.protocol import KnowsWork, Loader
from paceline.coordinator.torch.reports import LEAST, PLACE, RankReports, ReportTally
from paceline.coordinator.torch.state import from_torch, to_torch
from paceline.coordinator.torch.weighting import BalanceWarning, Weigh, Weighting, ddp_of
from paceline.coordinator.work import WorkModel
from paceline.recording.drivers import Driver
from paceline.recording.torch.waiting import listen

logger = logging.getLogger(__name__)

TRUSTED = 3
"""Exchanges in which every rank trained on the loader's batches alone, before weights are taken to sum to one."""

TINY = 1e-300
"""A gradient of which even the logarithm is finite."""

PLAN_SMOOTHING = 0.3
"""Weight of the newest plan in what a plan costs: one that met a busy machine says little about the next."""


class Balance:
    """Keeps the ranks of one training job in step. :func:`attach` makes it.

    Attributes
    ----------
    on_iteration
        Called with an :class:`paceline.coordinator.iteration.Iteration` after each exchange of reports, on every rank.
    overhead_seconds
        Time that balancing took of the training loop, per iteration since the exchange before: measuring, exchanging
        reports and planning; observers left out.
    balancer
        The load balancer: the same on every rank.
    weigh
        What carries the weights: see :func:`attach`.
    work
        What samples cost, learned or given; None where they have no costs.
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
        pace: Pace | None = None,
    ) -> None:
        self.balancer = balancer
        self.on_iteration: list[Callable[[Iteration], None]] = []
        self.overhead_seconds = 0.0
        self.weigh: Weigh = weigh
        self.sums_shares = weigh == "gradients"
        self._loader = loader
        self._exchange = exchange
        self._clock = clock
        self._workers = tuple(workers)
        self._drivers = tuple(drivers)
        self._drivers_before = np.full((len(workers), len(drivers)), np.nan)
        self._handed = Handed(loader.rank, loader.global_batch)
        self._tally = ReportTally()
        self._pace = pace or Pace()
        self._losses = audit.LossKind(weigh)
        self.work = _work_of(loader)
        self._micro_batch = loader.micro_batch if isinstance(loader, KnowsWork) else None
        self._features = 0 if self.work is None else len(self.work.coefficients)
        self._weightings: list[Weighting] = []
        self._thread = threading.get_ident()
        self._index = -1
        self._unreported = self._sums = 0
        self._micro_batches = 0
        self._foreign = False
        self._mixes = False
        self._exchanges = 0
        self._fresh = False
        self._looks = False
        self._unscaled = False
        self._batch_turn: Turn | None = None
        self._started = self._wall_seconds = math.nan
        self._spent = 0.0
        self._plan_seconds = 0.001  # about what it takes, until the first plans have shown it
        self._log_norm = math.nan
        self._out_of_memory = False
        self._first_sizes = balancer.plan.sizes
        self._looked = False
        self._warned: set[str] = set()
        self._take_order()
        self._take_sizes()
        # Ended with it: a job that drops its model and loader drops the balance too.
        stop_listening = listen(self)
        refusal = register_optimizer_step_pre_hook(audit.refuse_for(weakref.ref(self)))
        self._end = weakref.finalize(self, _call_all, stop_listening, refusal.remove, exchange.close)
        self._end.atexit = False  # when the interpreter ends, torch has taken its groups down

    @property
    def plan(self) -> Plan:
        """The plan of the iteration under way. Its arrays are in the order of ``plan.workers``."""
        return self._plan

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the ranks, in their order."""
        return self._workers

    @property
    def models(self) -> tuple[torch.nn.Module, ...]:
        """The models that are balanced."""
        return tuple(weighting.model for weighting in self._weightings)

    @property
    def closed(self) -> bool:
        """Whether it was taken off."""
        return not self._end.alive

    def add(self, model: torch.nn.Module) -> None:
        """Balance a further model that trains on the same batches; :func:`attach` calls it."""
        self._weightings.append(Weighting(model, self, self._exchange))

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a micro-batch times ``x_i W / X``, so that plain averaging over ranks is exact.

        It is the weight of the last batch of the loader that the model was given.

        Raises
        ------
        RuntimeError
            If the gradients are weighed already, as they are unless ``attach`` was told ``weigh="loss"``.
        """
        if self.weigh != "loss":
            raise RuntimeError('the gradients are weighed already: leave the loss alone, or attach(..., weigh="loss")')
        if self._batch_turn is None:
            raise RuntimeError("scale() needs a forward pass of the attached model in training mode before it")
        self._unscaled = False
        return loss * (self._batch_turn.share * self._loader.world_size)

    def accumulating(self) -> AbstractContextManager[object]:
        """Return the context for a forward and backward pass of a loader with ``accumulate="balance"``.

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

    @property
    def _steps_end(self) -> bool:
        return not isinstance(self._loader, KnowsWork) or self._loader.step_ends

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
        for weighting in self._weightings:
            weighting.close()
        self._loader.before_batch = self._loader.after_batch = self._loader.on_start = None
        self._end()
        self._drivers = ()  # each keeps a kernel file open, and this object may wait long for the garbage collector

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return everything learnt and decided, and where the data stands: the same on every rank, save it once."""
        self._receive()
        if self._handed.in_flight:
            self.warn(
                "state",
                f"{self._handed.in_flight} batches have been fetched but not computed when this state was saved: a job "
                "that resumes from it goes on after them. Save it where the loop has computed all that it fetched.",
            )
        work = {} if self.work is None else {"work": to_torch(self.work.state_dict())}
        return {"balancer": to_torch(self.balancer.state_dict()), "loader": to_torch(self._loader.state_dict()), **work}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]], *, skip_rest: bool = False) -> None:
        """Resume, on every rank, from what ``state_dict`` returned, also with other ranks than were saved.

        What was learnt of a worker follows its name; workers without a saved state start afresh. ``skip_rest`` leaves
        out what remains of the saved epoch, where that is too little for these ranks.

        Raises
        ------
        ValueError
            If the state is another global batch's or other data's.
        """
        self._receive()
        self._loader.load_state_dict(from_torch(state["loader"]), skip_rest=skip_rest)
        if self.work is not None and "work" in state:
            self.work.load_state_dict(from_torch(state["work"]))
        self.balancer.load_state_dict(from_torch(state["balancer"]))
        for worker in self._workers:
            if worker not in self.balancer.workers:
                self.balancer.join(worker)
        for worker in self.balancer.workers:
            if worker not in self._workers:
                self.balancer.leave(worker)
        self._drivers_before = np.full_like(self._drivers_before, np.nan)
        self._tally = ReportTally()
        self._take_order()
        self._take_sizes()

    # -- in the loader ---------------------------------------------------------------------------------------------

    def start_step(self) -> None:
        """Take in what all ranks reported, and let the loader cut the next batch by the newest plan."""
        self._require_same_thread()
        began = time.perf_counter()
        self._wall_seconds, self._started = began - self._started, began
        self._receive()

    def hand_out(self, sizes_W: Sizes, batch: object) -> None:
        """Note a batch that the loop is given."""
        dealt = self._loader.dealt if isinstance(self._loader, KnowsWork) else None
        self._handed.add(sizes_W, dealt if dealt is not None and dealt.sizes is sizes_W else None)

    def start_loop(self) -> None:
        """Forget batches of a loop that is over."""
        self._handed.clear()
        self._micro_batches = 0

    # -- in the model's hooks ----------------------------------------------------------------------------------------

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any], sight: Sight) -> Turn:
        """Find out which batch a model is given, and start the clock if it is a new one.

        ``sight`` is how this model's batches can be seen, found out at its first.
        """
        began = time.perf_counter()
        rows, second = lengths(args, kwargs)
        waiting = self._handed.in_flight
        turn = self._handed.given(rows, second, sight)
        if turn.fresh:
            self._require_scaled()
            self._fresh = self._unscaled = True
            self._looks = self.work is None and self._losses.wants(self._handed.sizes)
            self._micro_batches += 1
            counts = turn.total >= LEAST * self._loader.global_batch
            self._clock.forward(turn.samples, counts=counts, features=turn.features)
        if turn.known:
            self._batch_turn = turn
        else:
            self._foreign = True
            if turn.fresh:  # in a form in which it cannot be seen: it is the next in order, which is warned about
                self._batch_turn = replace(turn, share=self._handed.weight)
        self._say_what_is_unseen(turn, rows, waiting)
        self._spent += time.perf_counter() - began
        return turn

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
        began = time.perf_counter()
        waiting = self._clock.ready()
        if gradients is not None and self._wants_look():  # a model that returns its loss shows no rows
            self._log_norm = math.log(max(float(gradients.norm()), TINY))
        self._spent += time.perf_counter() - began
        return waiting

    def sent(self) -> None:
        """Send what was measured, if it is time for a report.

        When that is must not depend on what this rank has seen: the others would wait for ever for a report that they
        alone send. Gradients are summed by all ranks alike, so sums are what is counted.
        """
        began = time.perf_counter()
        self._sums += 1
        if self._fresh:
            self._require_scaled()
            self._fresh, self._micro_batches = False, 0
            self._index += 1
            self._unreported += 1
        if self._sums >= self._pace.every and not self._exchange.under_way:
            self._sums = 0
            self._send()
        self._spent += time.perf_counter() - began

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
        if self.weigh == "gradients" and self._fresh and torch._C._current_graph_task_id() != -1:
            raise RuntimeError(audit.COLLECTIVE_IN_BACKWARD)
        self._clock.wait_begins()

    def wait_ends(self) -> None:
        """Start it again."""
        self._clock.wait_ends()

    # -- what it is made of --------------------------------------------------------------------------------------

    def _send(self) -> None:
        position = self._loader.position
        drivers = [driver.sample() if self._pace.alert else math.nan for driver in self._drivers]
        computed = self._handed.sizes
        total = 0 if computed is None else int(computed.sum())
        own = [self._plan_seconds, self._log_norm, total, self._foreign]
        measure = self._clock.report()
        if self._micro_batch:  # plans are about steps, whose micro-batches differ in number
            measure = measure.by_steps()
        features = (self._clock.features or [math.nan] * self._features) if self._features else []
        row = [*measure, self._out_of_memory, self._checksum, *position, *own, *drivers, *features]
        self._exchange.send(row)
        self._out_of_memory, self._foreign, self._log_norm = False, False, math.nan

    def _receive(self) -> None:
        """Take in the reports that are under way, if there are any, plan if it is worth it, and set the sizes."""
        if not self._exchange.under_way:
            return
        began = time.perf_counter()
        self._clock.wait_begins()  # for the slowest rank, if its report is not there yet
        report_WF = self._exchange.receive()
        self._clock.wait_ends()
        rows, used, agreed = RankReports(report_WF[self._order], self._features), self._plan, True
        if not rows.together:
            agreed = self._settle(rows)
        self._trust(rows)
        self._learn(self._in_work(rows))
        if not agreed:
            self._loader.adopt(self._exchange.from_first(self._loader.state_dict()))
        self.overhead_seconds = (self._spent + time.perf_counter() - began) / max(self._unreported, 1)
        self._spent, self._unreported = 0.0, 0
        if self.on_iteration:
            self._tell(rows, used, agreed)

    def _trust(self, rows: RankReports) -> None:
        """Stop to sum the weights of all ranks once it shows that the loop trains on the loader's batches alone.

        Then they sum to one by the plan, and a collective less in every step is a millisecond for small models. A loop
        that takes up other data later has been warned, and its weights are summed from then on.
        """
        if self.weigh != "gradients":
            return
        self._mixes = self._mixes or rows.any_foreign
        self._exchanges += 1
        self.sums_shares = self._mixes or self._exchanges < TRUSTED

    def _in_work(self, rows: RankReports) -> RankReports:
        """Return the reports in work in place of samples, where samples have costs; and learn what these are."""
        if self.work is None:
            log_norm_W = rows["log_norm"]
            if log_norm_W[0] == log_norm_W[0] and (sentence := self._losses.learn(rows["samples"], log_norm_W)):
                self.warn(sentence, sentence)
            return rows
        # Where costs divide, many samples are short ones: how gradients grow with their number tells nothing.
        assert isinstance(self._loader, KnowsWork), "it has costs"
        work_W, parts_W = self.work.work(rows.features_WF), rows["micro_batches"]
        planned = rows.at_shares(work_W, self._plan.sizes.astype(np.float64), self.work.fixed)
        if self.work.observe(rows.features_WF / parts_W[:, None], rows["seconds"] / parts_W):
            self._loader.coefficients = self.work.coefficients
            self._take_sizes()
        return planned

    def _learn(self, rows: RankReports) -> None:
        """Take the reports to account, and plan if waiting has cost enough since the plan before."""
        if not self._pace.wants_plan(rows["seconds"], rows["steps"], float(rows["plan_seconds"].max())):
            self._tally.add(rows)
            return
        began = time.perf_counter()
        before_WD, now_WD = (self._drivers_before, rows.drivers_WD) if self._drivers else (None, None)
        if len(self._tally):
            # What was quiet, and the change that ended it, are two observations: their mean is neither.
            self.balancer.observe(self._tally.take(before_WD))
            before_WD = None if before_WD is None else np.full_like(before_WD, np.nan)
        self._tally.add(rows)
        self.balancer.step(self._tally.take(before_WD), now_WD)
        self._drivers_before = rows.drivers_WD
        self._take_sizes()
        self._pace.planned(acted=self._plan.acted)
        self._plan_seconds += PLAN_SMOOTHING * (time.perf_counter() - began - self._plan_seconds)

    def _tell(self, rows: RankReports, used: Plan, agreed: bool) -> None:
        """Tell the observers of the iteration that is over."""
        steps_W, known_W = rows["steps"], np.isfinite(rows["samples"])  # a device may not have finished yet
        handed_W = self._handed.sizes
        planned_W = used.sizes if handed_W is None else handed_W[self._order]
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
            agreed=agreed,
            plan=self._plan,
            work=None if self.work is None else work_W,
        )
        for observe in self.on_iteration:
            observe(iteration)

    def _settle(self, rows: RankReports) -> bool:
        """Let all ranks go on from what the first has learnt where their plans differ; return whether they agreed.

        Raises
        ------
        RuntimeError
            If ranks have looped differently: samples are lost and repeated, and no plan can mend that.
        """
        names = PLACE[1:] if rows.agreed else ("epoch", "batches")  # other plans deal other batches
        places = rows.places(names)
        if not (places == places[0]).all():
            raise RuntimeError(audit.apart(self.balancer.workers, places))
        if rows.agreed:
            return True
        logger.warning(
            "The ranks did not agree on the sizes of iteration %d: all go on with those of the first. A few samples of "
            "that iteration came twice or not at all. Do the ranks run on different hardware or libraries?",
            self._index,
        )
        self.balancer.load_state_dict(self._exchange.from_first(self.balancer.state_dict()))
        if self.work is not None:
            self.work.load_state_dict(self._exchange.from_first(self.work.state_dict()))
        return False

    def _take_sizes(self) -> None:
        """Hand the plan to the loader."""
        self._plan = self.balancer.plan
        self._checksum = self._plan.checksum
        if self.work is not None:  # ranks that learned other costs divide other batches
            self._checksum ^= zlib.crc32(self.work.coefficients.tobytes())
        self._loader.sizes = self._plan.sizes[self._rank_order]
        if not (self._looked or np.array_equal(self._plan.sizes, self._first_sizes)):
            self._looked = True  # with equal batches nothing can be weighed wrongly, so this is soon enough
            for sentence in audit.of_the_process(self.models, self.weigh):
                self.warn(sentence, sentence)

    def _take_order(self) -> None:
        """Find the ranks in the balancer's order of workers, and the workers in the order of ranks."""
        self._order = np.array([self._workers.index(worker) for worker in self.balancer.workers])
        self._rank_order = np.argsort(self._order)

    # -- what would be silently wrong ------------------------------------------------------------------------------

    def _require_same_thread(self) -> None:
        """Refuse a thread of the loop's own: when it takes a batch is chance, and so would be the plan it gets."""
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                "the balanced loader is read by another thread than the one that called attach(): fetch batches in the "
                "thread that trains, and use num_workers= to load them ahead"
            )

    def _require_scaled(self) -> None:
        if self.weigh == "loss" and self._unscaled:
            raise RuntimeError(
                'attach(..., weigh="loss") needs balance.scale(loss) before backward(): without it ranks with few '
                "samples count as much as those with many"
            )

    def _say_what_is_unseen(self, turn: Turn, rows: Sequence[int], waiting: int) -> None:
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
        elif not rows and waiting > 1:
            self.warn(
                "order",
                "The model is given data in which no sizes can be seen, and batches are fetched ahead: they are taken "
                "to be computed in the order in which they were fetched.",
            )

    def warn(self, about: str, sentence: str) -> None:
        """Warn, once about each thing."""
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(sentence, BalanceWarning, stacklevel=3)


def _work_of(loader: Loader) -> WorkModel | None:
    """Return a model of what the loader's samples cost, if they have costs."""
    coefficients = loader.coefficients if isinstance(loader, KnowsWork) else None
    return None if coefficients is None else WorkModel(len(coefficients))


def _call_all(*calls: Callable[[], object]) -> None:
    for call in calls:
        call()
