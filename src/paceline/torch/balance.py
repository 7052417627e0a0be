"""The handle of a balanced job: what it was given, what it knows, how it is saved and detached."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

import torch

from paceline.coordinator.load_balancer import LoadBalancer
from paceline.coordinator.plan import Plan
from paceline.coordinator.work import WorkModel
from paceline.recording.records import Iteration
from paceline.recording.torch.busy_time import BusyTimer
from paceline.recording.torch.waits import FSDPWaits, listen
from paceline.torch.counting import is_attached, scale_loss
from paceline.torch.covariates import CovariateSampler
from paceline.torch.exchange import Exchange
from paceline.torch.gather import check_gathered_shapes
from paceline.torch.optimizer_checks import OptimizerChecks
from paceline.torch.planning import Planning
from paceline.torch.rank_loader import RankLoader
from paceline.torch.sharded import set_gradient_sync
from paceline.torch.steps import StepWeighting
from paceline.torch.weighting import AttachedModel, Weighting


class LossScaling:
    """Weighs the losses of a job whose batches stay as its loader makes them. :func:`attach` makes it."""

    loss_divisor = 1
    """By what a trainer divides every loss, such as its number of micro-batches: scaled losses undo it."""

    def __init__(self, weighting: Weighting, optimizer_checks: OptimizerChecks) -> None:
        self._weighting, self._optimizer_checks = weighting, optimizer_checks
        self._end = weakref.finalize(self, _call_all, optimizer_checks.watch(), weighting.exchange.close)
        self._end.atexit = False  # when the interpreter ends, torch has taken its groups down

    def __repr__(self) -> str:
        names = [type(model).__name__ for model in self.models]
        return f"{type(self).__name__}(models=[{', '.join(names)}], closed={self.closed})"

    @property
    def models(self) -> tuple[torch.nn.Module, ...]:
        """The attached models."""
        return tuple(one.model for one in self._weighting.models)

    @property
    def closed(self) -> bool:
        """True if it has been detached from the models."""
        return not self._end.alive

    def add(self, model: torch.nn.Module) -> None:
        """Attach a further model that trains on the same batches."""
        weighting = self._weighting
        if is_attached(model):
            raise ValueError("the model is already attached: call close() on that balance before attaching it again")
        weighting.models.append(AttachedModel(model, weighting))

    def scale(self, loss: torch.Tensor, count: float | torch.Tensor | None = None) -> torch.Tensor:
        """Return the loss times what it is a mean over, for ``backward()``.

        The step's gradient is then the mean over the samples or tokens of all ranks and micro-batches. Scale every loss
        of a step; rows of batches are not counted then. Without gradients, as in an evaluation, the loss comes back as
        it is.

        Parameters
        ----------
        loss
            A mean over the rank's own samples, tokens, boxes or nodes, or a sum of such means over the same ones. Where
            there are none, it may be NaN. Not divided by the number of micro-batches.
        count
            How many these are, 0 where there are none. None for a loss that is already divided by a count over all
            ranks and multiplied by the number of ranks: its gradients are averaged as they are.

        Raises
        ------
        ValueError
            If the count is negative or not finite.

        Examples
        --------
        >>> loss = balance.scale(cross_entropy(outputs, labels), (labels != -100).sum())  # doctest: +SKIP
        >>> loss.backward()  # doctest: +SKIP
        """
        if count is not None:
            count = float(count)
            if not 0 <= count < math.inf:
                raise ValueError(f"count must be a finite number of at least 0 samples or tokens, got {count:g}")
        if not torch.is_grad_enabled():
            return loss
        # In units that keep it near the loss itself.
        unit = self._weighting.unit * self.loss_divisor
        return scale_loss(loss, count, 1.0 if count is None else count * unit)

    def close(self) -> None:
        """Detach from the models: gradients are averaged plainly from now on. Every rank calls it."""
        if self.closed:
            return
        for model in self._weighting.models:
            model.close()
        self._weighting.models.clear()  # a cycle, in which the model would wait for the garbage collector
        self._end()


class Balance(LossScaling):
    """Keeps the ranks of one training job in step. :func:`attach` makes it.

    Attributes
    ----------
    on_iteration
        Called with an :class:`paceline.recording.records.Iteration` after each exchange of reports, on every rank.
    balancer, workers
        The load balancer, the same on every rank; and the names of the ranks, in their order.
    work
        What samples cost, learned or given; None where they have no costs.
    """

    def __init__(
        self,
        balancer: LoadBalancer,
        loader: RankLoader,
        exchange: Exchange,
        timer: BusyTimer,
        *,
        workers: Sequence[str],
        covariates: Sequence[Callable[[], float]] = (),
    ) -> None:
        self.balancer = balancer
        self.workers = tuple(workers)
        self._loader, self._timer = loader, timer
        self._planning = planning = Planning(balancer, loader, exchange, workers, len(covariates))
        self.work: WorkModel | None = planning.work
        self._covariates = CovariateSampler(covariates)
        self._waits: list[FSDPWaits] = []
        self._steps = steps = StepWeighting(loader, planning, exchange, timer, self._covariates)
        self.on_iteration: list[Callable[[Iteration], None]] = steps.observers
        self.warn = steps.warn
        super().__init__(steps, OptimizerChecks(steps, lambda: planning.plan.sizes))
        # Ended with it: a job that drops its model and loader drops the balance too.
        known, ranks = weakref.ref(steps), frozenset(exchange.ranks)
        shape_check = partial(
            check_gathered_shapes, loader, lambda: bool((one := known()) and one.pending_sums.is_pending), ranks
        )
        self._stop_listening = weakref.finalize(self, listen(timer, shape_check))
        self._stop_listening.atexit = False

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, balancer={self.balancer!r}, plan={self.plan!r})"

    @property
    def plan(self) -> Plan:
        """The plan of the iteration under way. Its arrays are in the order of ``plan.workers``."""
        return self._planning.plan

    @property
    def overhead_seconds(self) -> float:
        """Seconds of the last iteration that measuring, exchanging reports and planning took; observers left out."""
        return self._steps.overhead_seconds

    def add(self, model: torch.nn.Module) -> None:
        """Balance a further model that trains on the same batches."""
        if self._timer.delay and not is_attached(model):  # a device: its waits for other ranks block no call
            self._waits.append(FSDPWaits(model, self._timer))  # before the hooks that begin a lap
        super().add(model)
        if len(self._steps.models) == 1:
            self._steps.handle = self  # the model's hooks keep it alive until it is closed
            self._steps.connect()

    def accumulating(self) -> AbstractContextManager[object]:
        """Return the context for a forward and backward pass of a loader with ``micro_batch=`` or ``pack=``.

        Gradients are summed over the ranks after the step's last micro-batch only, as ranks have different numbers.
        """
        if self._loader.step_ends:
            return nullcontext()
        stack = ExitStack()
        for one in self._steps.models:
            if one.ddp is not None:
                stack.enter_context(one.ddp.no_sync())
            else:
                set_gradient_sync(one.model, enabled=False)
                stack.callback(set_gradient_sync, one.model, enabled=True)
        return stack

    def measured(self, seconds: float) -> None:
        """Report these compute seconds next, instead of the timer's."""
        self._timer.override_seconds(seconds)

    def ran_out_of_memory(self) -> None:
        """Report that this rank's batch did not fit into memory; it gets less from then on."""
        self._steps.out_of_memory = True

    def close(self) -> None:
        """Detach from the models and the loader, on every rank; the job may go on with these sizes, or be attached."""
        if self.closed:
            return
        if (reports := self._steps.reports) is not None and reports.is_consistent and self.on_iteration:
            self._steps.notify(reports)  # the last iteration, which no other follows
        for observe in self.on_iteration:
            if hasattr(observe, "close"):
                observe.close()
        self._steps.handle = None
        self._steps.disconnect()
        super().close()
        for waits in self._waits:
            waits.close()
        self._stop_listening()
        self._covariates.close()  # this object may wait long for the garbage collector

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return everything learned and decided, and where the data stands: the same on every rank, save it once."""
        self._steps.finish_iteration()
        records = {"index": self._steps.index}
        return {**self._planning.state_dict(), "loader": self._loader.state_dict(), "records": records}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]], *, skip_rest: bool = False) -> None:
        """Resume, on every rank, from what ``state_dict`` returned, also with other ranks than were saved.

        What was learned of a worker follows its name. ``skip_rest`` leaves out what remains of the saved epoch, where
        that is too little for these ranks.

        Raises
        ------
        ValueError
            If the state is another global batch's or other data's.
        """
        self._steps.finish_iteration()
        self._loader.load_state_dict(state["loader"], skip_rest=skip_rest)
        self._planning.load_state_dict(state)
        self._steps.index = int(state.get("records", {}).get("index", -1))  # records go on counting


def _call_all(*calls: Callable[[], object]) -> None:
    for call in calls:
        call()
