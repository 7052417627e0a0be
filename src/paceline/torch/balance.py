"""The handle of a balanced job: what it was given, what it knows, how it is saved and taken off."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from paceline.coordinator.balanced.load_balancer import LoadBalancer
from paceline.coordinator.balanced.plan import Plan
from paceline.coordinator.balanced.work import WorkModel
from paceline.recording.covariates import Covariate
from paceline.recording.records import Iteration
from paceline.recording.torch.busy_clock import Clock
from paceline.recording.torch.collective_time import listen
from paceline.torch.equal_shapes import EqualShapes
from paceline.torch.exchange import Exchange
from paceline.torch.loader_protocol import Loader
from paceline.torch.passes import Passes
from paceline.torch.planning import Planning
from paceline.torch.sampled import Sampled
from paceline.torch.steps import Steps
from paceline.torch.weighting.hooks import CommHook, ddp_of, ignored
from paceline.torch.weighting.listener import Loss
from paceline.torch.weighting.terms import TermCount
from paceline.torch.weighting.weighting import Weighting


class Balance:
    """Keeps the ranks of one training job in step. :func:`attach` makes it.

    Attributes
    ----------
    on_iteration
        Called with an :class:`paceline.recording.records.Iteration` after each exchange of reports, on every rank.
    loss
        What the loss of a rank is: see :func:`attach`.
    balancer
        The load balancer: the same on every rank.
    work
        What samples cost, learned or given; None where they have no costs.
    workers
        The names of the ranks, in their order.
    """

    def __init__(
        self,
        balancer: LoadBalancer,
        loader: Loader,
        exchange: Exchange,
        clock: Clock,
        *,
        workers: Sequence[str],
        covariates: Sequence[Covariate] = (),
        loss: Loss = "mean",
        count: TermCount | None = None,
    ) -> None:
        self.loss: Loss = loss
        self.balancer = balancer
        self.workers = tuple(workers)
        self._loader, self._exchange, self._clock = loader, exchange, clock
        self._planning = Planning(balancer, loader, exchange, workers, len(covariates))
        self.work: WorkModel | None = self._planning.work
        self._passes = Passes(loader, clock, loss, count)
        self._covariates = Sampled(covariates)
        self._steps = Steps(loader, self._planning, exchange, self._passes, clock, self._covariates)
        self.on_iteration: list[Callable[[Iteration], None]] = self._steps.observers
        self.warn = self._passes.warn
        self._passes.report, self._passes.backward_ends = self._steps.send, self._steps.backward_ends
        # Ended with it: a job that drops its model and loader drops the balance too.
        passes, ranks = weakref.ref(self._passes), dist.get_process_group_ranks(exchange.group)
        equal_shapes = EqualShapes(loader, lambda: bool((one := passes()) and one.to_come.waits), ranks)
        stop_listening = listen(self._passes, equal_shapes)
        self._end = weakref.finalize(self, _call_all, stop_listening, self._steps.optimizers.watch(), exchange.close)
        self._end.atexit = False  # when the interpreter ends, torch has taken its groups down

    @property
    def plan(self) -> Plan:
        """The plan of the iteration under way. Its arrays are in the order of ``plan.workers``."""
        return self._planning.plan

    @property
    def overhead_seconds(self) -> float:
        """Time that balancing took of the training loop, per iteration since the exchange before.

        That is measuring, exchanging reports and planning; observers left out. Measuring is counted in CPU time, as
        other threads run meanwhile.
        """
        return self._steps.overhead_seconds

    @property
    def models(self) -> tuple[torch.nn.Module, ...]:
        """The models that are balanced."""
        return self._steps.optimizers.models

    @property
    def closed(self) -> bool:
        """True if the balance has been taken off the models."""
        return not self._end.alive

    def add(self, model: torch.nn.Module, average: CommHook | None = None) -> None:
        """Balance a further model that trains on the same batches, with a communication hook of its own."""
        weighting = Weighting(model, self._passes, self._exchange, average)
        if not self._passes.weightings:
            self._steps.handle = self  # the model's hooks keep it alive until it is closed
            _connect(self._loader, self._steps, self._passes, self._clock)
        self._passes.weightings.append(weighting)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a micro-batch times ``x_i W / X``, so that plain averaging over ranks is exact.

        The factor is the weight of the batch that the loss was computed from. A loss without an attached model gets
        that of the last batch of the loader that an attached model was given.

        Raises
        ------
        RuntimeError
            If ``attach`` was not given ``loss="scaled"``, or the loss is one of two batches.
        """
        if self._passes.scaling is None:
            raise RuntimeError(
                'the gradients are weighted already: leave the loss alone, or attach(..., loss="scaled")'
            )
        return self._passes.scaling.scale(loss)

    def accumulating(self) -> AbstractContextManager[object]:
        """Return the context for a forward and backward pass of a loader with ``micro_batch=``.

        Gradients are summed over the ranks after the step's last micro-batch alone: ranks have different numbers of
        them, and one that summed after each would wait for ever.
        """
        if self._loader.step_ends:
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
        self._steps.out_of_memory = True

    def close(self) -> None:
        """Take everything off the models and the loader; sizes stay as they are, and gradients are averaged plainly.

        Every rank calls it. The job may go on without balancing, or be attached anew.
        """
        if self.closed:
            return
        if (rows := self._steps.rows) is not None and rows.together and self.on_iteration:
            self._steps.tell(rows)  # the last iteration, which no other follows
        for observe in self.on_iteration:
            if hasattr(observe, "close"):
                observe.close()
        for weighting in self._passes.weightings:
            weighting.close()
        # Cycles, in which the model and the loader would wait for the garbage collector.
        self._passes.weightings.clear()
        self._passes.report = self._passes.backward_ends = ignored
        self._steps.handle = None
        loader = self._loader
        loader.before_batch = loader.after_batch = loader.on_start = loader.before_state = None
        loader.before_load = loader.after_load = None
        self._end()
        self._covariates.close()  # this object may wait long for the garbage collector

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return everything learnt and decided, and where the data stands: the same on every rank, save it once."""
        self._steps.finish()
        records = {"index": self._passes.index}
        return {**self._planning.state_dict(), "loader": self._loader.state_dict(), "records": records}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]], *, skip_rest: bool = False) -> None:
        """Resume, on every rank, from what ``state_dict`` returned, also with other ranks than were saved.

        What was learnt of a worker follows its name; workers without a saved state start afresh. ``skip_rest`` leaves
        out what remains of the saved epoch, where that is too little for these ranks.

        Raises
        ------
        ValueError
            If the state is another global batch's or other data's.
        """
        self._steps.finish()
        self._loader.load_state_dict(state["loader"], skip_rest=skip_rest)
        self._planning.load_state_dict(state)
        self._passes.index = int(state.get("records", {}).get("index", -1))  # records go on counting
        self._steps.look_at_process()


def _connect(loader: Loader, steps: Steps, passes: Passes, clock: Clock) -> None:
    """Connect the loader's callbacks by weak references.

    The balance holds the loader, and the model's hooks hold the balance. If the loader held the balance too, the cycle
    would delay the end of the loader's worker processes until the next garbage collection.
    """

    def weakly(method: Any) -> Callable[..., None]:
        known, function = weakref.ref(method.__self__), method.__func__  # WeakMethod is Python, for every batch

        def call(*arguments: Any) -> None:
            if (alive := known()) is not None:
                function(alive, *arguments)

        return call

    loader.before_batch = weakly(steps.begin)
    loader.after_batch = weakly(passes.hand_out)
    loader.on_start = weakly(passes.start_loop)
    loader.before_state = weakly(passes.say_what_is_fetched)
    loader.before_load, loader.after_load = weakly(clock.load_begins), weakly(clock.load_ends)


def _call_all(*calls: Callable[[], object]) -> None:
    for call in calls:
        call()
