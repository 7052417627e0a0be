"""Weights of the models that train on one loader: counts are compared and summed over the ranks beside the gradients.

A backward pass multiplies its gradients by this rank's share of the batch, times the number of ranks, so that the
average that any engine takes is the mean over all samples. The shares must sum to one: every rank learns from the same
exchange whether they do, or whether a rank refuses, and all raise the same error, so that none waits. Gradients of
scaled losses are divided by the sum of counts over the ranks once the engine has averaged them.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline._arrays import Array
from paceline.recording.torch.busy_time import BusyTimer
from paceline.torch.counting import (
    SCALE_LOSS_HINT,
    BackwardGraph,
    ForwardPass,
    LoopError,
    WarnOnce,
    YieldedBatches,
    tensors_in,
    watch_backward,
)
from paceline.torch.exchange import Exchange, LostRankError
from paceline.torch.sharded import averages_gradients, find_ddp, gradients_of, require_summed_parameters

MIXED_STEP_ERROR = "some of this step's losses are scaled and others are not, or not on every rank: scale every loss"


class OwnModuleHook(functools.partial[None]):
    """A hook that only one module runs: copies and pickles of the module carry it along, but it does nothing there."""

    def __new__(cls, hook: Callable[..., None]) -> OwnModuleHook:
        """Hide a hook from the compiler: numbers of nodes are those of the run, not of the trace."""
        return super().__new__(cls, torch.compiler.disable(hook))  # an optimizer imports dynamo anyway

    def __reduce__(self) -> Any:
        """Copy and pickle as a hook that does nothing."""
        return functools.partial, (noop,)


def noop(*arguments: Any) -> None:
    """Do nothing."""


class AttachedModel:
    """One attached model: its hooks, and what it has counted since gradients were summed.

    Attributes
    ----------
    sums, backwards, has_unsummed
        How often its gradients were summed over the ranks, backward passes since then, and whether it has gradients of
        this rank alone.
    share_residual
        How far this rank's shares are from those of so many global batches, since the last sum; NaN refuses.
    scaled_count
        Counts of scaled losses since the last sum; NaN if losses were not scaled, below 0 if they are averaged plainly.
    """

    def __init__(self, model: torch.nn.Module, weighting: Weighting) -> None:
        self.model, self.weighting = model, weighting
        self.ddp = find_ddp(model)
        self.sums, self.has_unsummed, self.is_in_backward = 0, False, False
        self.backwards, self.share_residual, self.scaled_count = 0, 0.0, math.nan
        self._handles: list[Any] = []
        self._parameters = list(model.parameters())
        self._frozen = [] if self.ddp is None else [one for one in self._parameters if not one.requires_grad]
        self.require_summed_parameters()
        self._expects_sum = False  # whether the next backward pass sums, as torch prepared it in a forward pass
        self._total_count = 0.0  # counts of all ranks in the sums of this step so far, by which gradients were divided
        self._are_gradients_divided = False  # whether they still are
        self._mark: tuple[torch.nn.Parameter, int, int] | None = None
        self._depth = 0
        self._pass: ForwardPass | None = None
        self._sums_at_step: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        # The module inside DistributedDataParallel, so that model.forward(x) is seen like model(x), but not inside a
        # compiled wrapper, where hooks would break its graph.
        self._inside: torch.nn.Module = self.ddp.module if self.ddp is model and self.ddp is not None else model
        # The first pre-hook, as a recorder's takes the work that it sets; and the other one after errors too, so that
        # the depth of calls is right in the next forward pass.
        self._handles = [
            self._inside.register_forward_pre_hook(OwnModuleHook(self._before_forward), with_kwargs=True, prepend=True),
            self._inside.register_forward_hook(OwnModuleHook(self._after_forward), always_call=True, with_kwargs=True),
        ]
        self._unwatch = watch_backward(self)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._unwatch()

    @property
    def first_parameter(self) -> torch.nn.Parameter | None:
        """The first parameter that gets a gradient; None while all are frozen, as a critic's often are."""
        return next((one for one in self._parameters if one.requires_grad), None)

    def owns_any(self, tensors: Iterable[Any]) -> bool:
        """Return whether one of these tensors is a parameter of the model."""
        mine = {id(one) for one in self._parameters}
        return any(id(one) in mine for one in tensors)

    def _before_forward(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        # A copy has the hook as well, and a recomputed pass belongs to the one before it.
        if module is not self._inside or not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return
        self._depth += 1
        if self._depth > 1:  # a module that calls itself, as Lightning's do
            return
        self._pass = one = ForwardPass(self, args, kwargs)
        if self.ddp is not None and self.ddp.require_backward_grad_sync:
            active: Any = DistributedDataParallel._active_ddp_module
            self._expects_sum = self._expects_sum or active is self.ddp or self._inside is not self.ddp.module
        # Trainers may leave the wrapper in evaluation mode after validation while the model inside trains.
        if module.training or self.model.training:
            self.weighting.forward(one)

    def _after_forward(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        if module is not self._inside or not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return
        self._depth = max(self._depth - 1, 0)
        if self._depth or self._pass is None:
            return
        self._pass.note_end()
        if self.weighting.watches_outputs and self._pass.batch is not None:
            self.weighting.watch_outputs(tensors_in(output), self)
        self._pass = None

    def averages_gradients(self) -> bool:
        """Return whether the backward pass under way, which has computed this rank's gradients, averages them."""
        if self.ddp is None:
            engine = averages_gradients(self.model)
            return self.weighting.averages_manually(self) if engine is None else engine
        if self._expects_sum:
            return True
        try:  # a trainer may have prepared the sum by itself
            self.ddp.reducer._check_reducer_finalized()
        except RuntimeError:
            return True
        return False

    def begin_backward(self, share_residual: float, scaled_count: float) -> None:
        """Count a backward pass."""
        if scaled_count == scaled_count and self._mark is not None:
            self._undo_division()
        if share_residual == share_residual and self.share_residual == self.share_residual:
            if (scaled_count != scaled_count) != (self.scaled_count != self.scaled_count) and (
                self.share_residual or self.has_unsummed
            ):
                share_residual = math.nan
                self.weighting.reject_step(LoopError(MIXED_STEP_ERROR))
            elif scaled_count == scaled_count:
                before = 0.0 if self.scaled_count != self.scaled_count else self.scaled_count
                self.scaled_count = before + scaled_count
            else:
                self.scaled_count = math.nan
        self.share_residual += share_residual
        self.backwards += 1
        self.is_in_backward = True

    def _undo_division(self) -> None:
        """Multiply gradients by the counts that divided them, to add more; forget the counts of dropped ones."""
        assert self._mark is not None
        parameter, place, version = self._mark
        gradient = parameter.grad
        if gradient is not None and (gradient.data_ptr(), gradient._version) != (place, version):
            remaining = any(bool(one.any()) for one in gradients_of(self._parameters))
        else:
            remaining = gradient is not None
        self._mark = None
        if not remaining:
            self._total_count, self.scaled_count, self.has_unsummed = 0.0, math.nan, False
        elif self._are_gradients_divided:
            _multiply(gradients_of(self._parameters), self._total_count / self.weighting.world_size)
        self._are_gradients_divided = False

    def end_backward(self) -> None:
        """Note the end of a backward pass of scaled losses."""
        self.is_in_backward = False
        if self.scaled_count == self.scaled_count or self._total_count:
            parameter = next((one for one in self._parameters if one.grad is not None and not one.grad.is_sparse), None)
            if parameter is not None and (gradient := parameter.grad) is not None:
                self._mark = parameter, gradient.data_ptr(), gradient._version

    def divide_by_counts(self, total_count: float) -> None:
        """Divide averaged gradients by the counts of all ranks, if losses were scaled."""
        if total_count == total_count and total_count >= 0:
            self._total_count += total_count
            if self._total_count:  # else no rank has any term, and all gradients are 0
                _multiply(gradients_of(self._parameters), self.weighting.world_size / self._total_count)
                self._are_gradients_divided = True
        else:
            self._total_count, self._are_gradients_divided = 0.0, False

    def on_gradients_sent(self) -> None:
        """Note that the gradients were handed to the network."""
        self.sums += 1
        self.backwards, self.share_residual, self.scaled_count = 0, 0.0, math.nan
        self._expects_sum = self.has_unsummed = False

    def require_summed_parameters(self) -> None:
        """Refuse parameters that were unfrozen after DistributedDataParallel had been built, which it does not sum."""
        if self.ddp is None or (self._handles and not any(one.requires_grad for one in self._frozen)):
            return
        require_summed_parameters(self.ddp)

    def mark_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether gradients were summed since this optimizer's last step, and note that it steps now."""
        before, self._sums_at_step[optimizer] = self._sums_at_step.get(optimizer, 0), self.sums
        return self.ddp is None or self.sums > before


def _multiply(gradients: list[torch.Tensor], factor: float) -> None:
    dense = [one for one in gradients if not one.is_sparse]
    if dense:
        torch._foreach_mul_(dense, factor)
    for one in gradients:
        if one.is_sparse:
            one.mul_(factor)


class Weighting:
    """Weighs the gradients of all models that train on one loader, and refuses steps that have no right weight.

    The loader is None if its batches are not ours.
    """

    watches_outputs = False  # whether the kind of the loss is looked at
    has_scaled_counts = False  # whether the last sum was of scaled losses
    finds_by_order = False  # the same, also without counts: rows may then say nothing of a batch, but its order does
    renormalizes_shares = False  # whether shares that do not sum to one are divided by their sum, and not refused

    def __init__(self, exchange: Exchange, loader: Any = None, timer: BusyTimer | None = None) -> None:
        self.exchange, self.loader, self.timer = exchange, loader, timer
        self.world_size = exchange.world_size
        self.models: list[AttachedModel] = []
        self.warn = WarnOnce()
        self.batches = YieldedBatches(exchange.rank)
        self.unit = 1.0 if loader is None else self.world_size / loader.global_batch
        self.error: RuntimeError | None = None
        self._key = 0
        self._has_known_batch = False  # whether the backward pass under way is of a batch that is known
        self._under_way: list[AttachedModel] = []
        self._awaiting_counts: list[AttachedModel] = []
        self._wait: Any = None
        self._is_waiting = False

    # -- what a balanced loop adds: see StepWeighting ---------------------------------------------------------------

    def forward(self, forward_pass: ForwardPass) -> None:
        """Find the batch that a model is given in training, if there is one."""

    def watch_outputs(self, outputs: Sequence[torch.Tensor], model: AttachedModel) -> None:
        """Watch the gradients of a model's outputs."""

    def send(self, counts: list[float]) -> None:
        """Send counts to all ranks, with a report if one is due."""
        self.exchange.send(counts)

    def receive(self) -> None:
        """Receive the counts of all ranks."""
        self.check_counts(self.exchange.receive())

    def averages_manually(self, model: AttachedModel) -> bool:
        """Return whether the backward pass under way is taken for the last of a step, if no engine averages."""
        if self.loader is None:
            return True
        # Not by what this rank has seen of its batches: ranks that disagree wait for each other.
        scaled = model.scaled_count == model.scaled_count
        return bool(self.loader.step_ends) and (scaled or model.backwards >= self.loader.accumulate)

    def before_optimizer_step(self) -> None:
        """Raise an error before an optimizer's step if ranks have looped differently."""

    is_delayed = False
    """Whether counts are looked at later, so that nothing waits while a device computes."""

    # -- backward passes ---------------------------------------------------------------------------------------------

    def begin_backward(self, graph: BackwardGraph, owners: Sequence[AttachedModel], error: LoopError | None) -> float:
        """Count a backward pass, and return by what its gradients are to be multiplied; NaN to refuse it."""
        self._under_way = [one for one in owners if one.weighting is self]
        factor, residue, counted = 1.0, 0.0, math.nan
        try:
            if error is not None:
                raise error
            if graph.scaled:
                counted = self._sum_scaled_counts(graph)
            else:
                factor, residue = self._share_factor(graph)
        except LoopError as refusal:
            self.reject_step(refusal)
            factor = residue = math.nan
        self._has_known_batch = any(passed.batch is not None for passed in graph.passes)
        for passed in graph.passes:
            if passed.batch is not None and self._is_of_our_model(passed):
                self.batches.note_backward(passed.batch, passed.owner())
        for one in self._under_way:
            one.begin_backward(residue, counted)
        return factor if self.error is None else math.nan

    def _sum_scaled_counts(self, graph: BackwardGraph) -> float:
        if any(self._is_of_our_model(one) for one in graph.plain) or self._owns_any(graph.leaves):
            raise LoopError(
                "one backward pass has losses that balance.scale() has scaled and others that it has not: scale every "
                "loss of a step, penalties included"
            )
        beside = [one for one in graph.beside if not self._owns_any([one])]
        if beside:
            raise LoopError(
                f"a scaled loss has {len(beside)} parameters (one of shape {list(beside[0].shape)}) that belong to no "
                "attached model, and nothing would divide their gradients by the counts of all ranks: make them part "
                "of the model, or wrap them in DistributedDataParallel and attach them"
            )
        counts = [node.count for node in graph.scaled]
        if None in counts:
            if any(count is not None for count in counts):
                raise LoopError("one backward pass has losses with a count and others without: pass a count for each")
            return -1.0
        return float(sum(counts)) * self.unit

    def _share_factor(self, graph: BackwardGraph) -> tuple[float, float]:
        """Return this rank's share times the number of ranks, and how far that is from this pass's part of it."""
        passes = [one for one in graph.passes if self._is_of_our_model(one)]
        if self.loader is None:
            raise LoopError(
                f"attach() was called without a balanced loader, so its batches cannot be counted: {SCALE_LOSS_HINT}"
            )
        if self.loader.packs:
            raise LoopError(
                f"micro-batches are packed, so a loss is a mean over tokens, which only the loop can count: "
                f"{SCALE_LOSS_HINT}"
            )
        shares = {}
        for one in passes:
            # Where losses were scaled, the batch was found by its place.
            batch = None if self.has_scaled_counts else one.batch
            batch = batch or self.batches.find(one.rows, one.owner())[0]
            if batch is None:
                if not one.rows:
                    raise LoopError(f"the number of rows cannot be read from the model's inputs: {SCALE_LOSS_HINT}")
                rows = " or ".join(map(str, one.rows))
                raise LoopError(
                    f"the model's inputs have {rows} rows, but the batches that this rank fetched have "
                    f"{self.batches.rows}: {SCALE_LOSS_HINT}"
                )
            if one.others:
                rows = " and ".join(map(str, sorted({one.rows[0], *one.others})))
                raise LoopError(f"the model's inputs have different numbers of rows, {rows}: {SCALE_LOSS_HINT}")
            one.batch = batch
            shares[batch.local_samples(self.exchange.rank), batch.total] = batch
        if len(shares) > 1:
            rows = " and ".join(str(count) for count, _ in shares)
            raise LoopError(f"one backward pass goes through forward passes of {rows} rows: {SCALE_LOSS_HINT}")
        ((count, total),) = shares
        share = count * self.world_size / total
        batch = shares[count, total]
        return share, share - (1.0 if batch.ends_step else 0.0)

    def _is_of_our_model(self, forward_pass: ForwardPass) -> bool:
        owner = forward_pass.owner()
        return owner is not None and owner.weighting is self

    def _owns_any(self, tensors: Sequence[torch.Tensor]) -> bool:
        return bool(tensors) and any(model.owns_any(tensors) for model in self.models)

    def on_local_gradients_ready(self) -> None:
        """Send the counts of a backward pass whose gradients are averaged now, and look at all ranks' afterwards."""
        sums = [one for one in self._under_way if one.averages_gradients()]
        for one in self._under_way:
            one.has_unsummed = True
        if not sums:
            return
        if self.loader is not None and not self.loader.step_ends and self.loader.counts_differ:
            self.reject_step(
                RuntimeError(
                    "with micro_batch= and pack=True ranks have different numbers of micro-batches, and gradients "
                    "were about to be summed before this rank's last: put forward and backward into `with "
                    "balance.accumulating():`, and step where loader.step_ends is true; fetch no batch ahead, as "
                    "step_ends is that of the last batch fetched"
                )
            )
            for one in sums:
                one.share_residual = math.nan
        self._is_waiting = True
        if self.timer is not None:
            self._wait = self.timer.gradients_ready()  # this rank's, and those of the others are awaited
        if self.exchange.under_way:  # of a sum before, on a device
            self.receive()
        self._awaiting_counts = sums
        sent = [(one.share_residual, one.scaled_count) if one in sums else (0.0, math.nan) for one in self.models]
        self._key += 1
        self.send([number for pair in sent for number in pair])
        self.has_scaled_counts = any(counted >= 0 for _, counted in sent)
        followed, self.finds_by_order = self.finds_by_order, any(counted == counted for _, counted in sent)
        if self.finds_by_order and not followed and not self._has_known_batch:
            self.batches.drop_unmatched()
        for one in sums:
            one.on_gradients_sent()
        torch.autograd.Variable._execution_engine.queue_callback(self._on_gradients_averaged)

    def _on_gradients_averaged(self) -> None:
        if self.timer is not None:
            self.timer.gradients_summed(self._wait)
        self._is_waiting = False
        if self.exchange.under_way and (self.has_scaled_counts or not self.is_delayed):
            self.receive()

    def check_counts(self, count_WF: Array) -> None:
        """Look at the counts of all ranks: refuse the step if a rank did, and divide by the counts of scaled losses."""
        for place, model in enumerate(self.models[: count_WF.shape[1] // 2]):
            if model not in self._awaiting_counts:
                continue
            residues, counts = count_WF[:, 2 * place].tolist(), count_WF[:, 2 * place + 1].tolist()
            residue, total = sum(residues), sum(counts)
            if residue != residue:
                self.reject_step(LoopError(f"another rank refused this step: {self._rejection_cause()}"))
            elif total != total and any(count == count for count in counts):
                self.reject_step(LoopError(MIXED_STEP_ERROR))
            elif min(counts) < 0 <= max(counts):
                self.reject_step(LoopError("a loss has a count on some ranks only: pass one on every rank, or on none"))
            elif abs(residue) > 1e-9 * self.world_size and self.renormalizes_shares:
                model.divide_by_counts(self.world_size + residue)
            elif abs(residue) > 1e-9 * self.world_size:
                self.reject_step(
                    LoopError(
                        f"the ranks' shares of this step sum to {1 + residue / self.world_size:.6g} instead of 1, as "
                        f"they computed different batches, or rows that belong to no batch: {SCALE_LOSS_HINT}"
                    )
                )
            else:
                model.divide_by_counts(total)
        self._awaiting_counts = []

    def end_backward(self) -> None:
        """Note that a backward pass is over, and raise the error if its step is refused."""
        for one in self._under_way:
            one.end_backward()
        waits = any(one.has_unsummed for one in self._under_way)  # until they are summed the other ranks do not know
        self._under_way = []
        if self.error is not None and not waits:
            self.raise_error()

    def fail_backward(self, error: BaseException) -> None:
        """Note that an error ended a backward pass: while gradients are awaited, it is that of a lost rank."""
        for one in self._under_way:
            one.is_in_backward = False
        self._under_way = []
        waited, self._is_waiting = self._is_waiting, False
        if waited and type(error) is not LostRankError and isinstance(error, RuntimeError):
            raise self.exchange.lost_rank_error(error) from error

    # -- refusals ----------------------------------------------------------------------------------------------------

    def reject_step(self, error: RuntimeError) -> None:
        """Refuse the step under way; the other ranks learn of it with the counts."""
        if self.error is not None:
            return
        self.error = error
        # Through the store, not a collective: the other ranks are on their way into the sum of gradients.
        with suppress(RuntimeError, ValueError):
            store = dist.distributed_c10d._get_default_store()
            store.set(f"paceline/{self.exchange.name}/{self._key + 1}", str(error))

    def _rejection_cause(self) -> str:
        with suppress(RuntimeError, ValueError):
            store = dist.distributed_c10d._get_default_store()
            for number in (self._key, self._key + 1):
                if store.check([key := f"paceline/{self.exchange.name}/{number}"]):
                    return str(store.get(key).decode())
        return "see its error message"

    def raise_error(self) -> None:
        """Raise the error of a refused step, once."""
        error, self.error = self.error, None
        for one in self.models:
            one.share_residual, one.scaled_count = 0.0, math.nan
        if error is not None:
            raise error
