"""Weights one model's gradients by the samples behind them, no matter what the loop fetched or skipped in between.

A forward pass notes which batch it was given. A backward pass goes through forward passes, which the graph shows, and
its gradients carry the weight of their batch. While a loop trains only on the loader's batches, the weights of all
ranks sum to one by the plan. Otherwise they are summed beside the gradients and divided out.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from paceline.coordinator.torch.reporting.exchange import Exchange
from paceline.coordinator.torch.weighing.graph import Pass, watch
from paceline.coordinator.torch.weighing.handed import Turn
from paceline.coordinator.torch.weighing.hooks import (
    CommHook,
    Only,
    all_reduce,
    ddp_of,
    drop_hook,
    take_hook,
    tensors_in,
)
from paceline.coordinator.torch.weighing.ledger import Ledger
from paceline.coordinator.torch.weighing.listener import Listener
from paceline.coordinator.torch.weighing.refusal import cause_of, leave
from paceline.coordinator.torch.weighing.sight import Sight
from paceline.recording.torch.callbacks import then
from paceline.recording.torch.late import Late
from paceline.recording.torch.waiting import unheard
from paceline.recording.torch.work import tell

NO_TERMS = 1e-30
"""Where no rank has any loss term all gradients are 0, and are to stay 0."""


class Weighting:
    """The hooks on one model.

    Parameters
    ----------
    model
        The model that the loop calls.
    listener
        Gets a call at every step of a pass.
    exchange
        Makes the error for a lost rank.
    average
        The script's own communication hook; None sums as it is.

    Attributes
    ----------
    in_backward
        Whether gradients of the model are being computed.
    sums
        How often its gradients were summed over the ranks.
    """

    def __init__(
        self, model: torch.nn.Module, listener: Listener, exchange: Exchange, average: CommHook | None = None
    ) -> None:
        self.model = model
        self.listener = listener
        self.exchange = exchange
        self._average = average
        self.in_backward = False
        self.sums = 0
        self._summed_for: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._sight = Sight()
        self._depth = 0
        self._pass: Pass | None = None
        self._scale = 0.0
        self._unfinished = False
        self._ddp = ddp_of(model)
        self._ledger = Ledger(model, listener)
        self._refused: RuntimeError | None = None
        self._spoilt, self._begun = False, 0
        self._late, self._late_key = Late(), ""  # of a device's gradients, which are looked at later
        self._share: torch.Tensor | None = None
        self._sharing: Any = None  # the sum of the weights, while it is under way
        self._weighs = listener.weigh in ("gradients", "sum")
        # The module inside DistributedDataParallel, so that model.forward(x) is seen like model(x). A compiled wrapper
        # is looked at from outside, because hooks inside would break its graph.
        self._inside: torch.nn.Module = self._ddp.module if self._ddp is model and self._ddp is not None else model
        before, after = Only(self._inside, self._before_forward), Only(self._inside, self._after_forward)
        self._handles = [
            self._inside.register_forward_pre_hook(before, with_kwargs=True, prepend=True),
            self._inside.register_forward_hook(after, always_call=True, with_kwargs=True),
        ]
        if self._ddp is not None:
            take_hook(self._ddp, self)
        self._unwatch = watch(self)

    def close(self) -> None:
        """Remove the hooks. DistributedDataParallel cannot drop its own, which takes plain averages from now on."""
        for handle in self._handles:
            handle.remove()
        self._unwatch()
        if self._ddp is not None:
            drop_hook(self._ddp)

    def require_accepted(self) -> None:
        """Raise what a backward pass has refused, if the gradients of no sum have told of it."""
        if self._refused is not None and not self.in_backward:
            self._raise_refusal()
        self._require_accepted_by_others()

    def _require_accepted_by_others(self) -> None:
        """Raise what another rank has refused, as soon as a device tells: that rank sums nothing any more."""
        if math.isnan(self._late.take() or 0.0) and (cause := cause_of(self._late_key)):
            raise RuntimeError(f"another rank refused an earlier step: {cause}")

    @property
    def alone(self) -> bool:
        """Whether a step taken now would use gradients of this rank alone."""
        return self._ddp is not None and (self.in_backward or self._ledger.waits)

    def summed_for(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether gradients were summed since an optimiser's last step; this is its next."""
        before = self._summed_for.get(optimizer, 0)
        self._summed_for[optimizer] = self.sums
        return self._ddp is None or self.sums > before

    # -- forward -----------------------------------------------------------------------------------------------------

    def _before_forward(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if not torch.is_grad_enabled():
            return
        self._depth += 1
        if self._depth > 1:  # a module that calls itself, as Lightning's do
            return
        self._pass = Pass(self, self.listener.look(args, kwargs))
        # Trainers may leave the wrapper in evaluation mode after validation while the model inside trains.
        if module.training or self.model.training:
            turn = self.settle(self._pass)
            if (
                turn is not None and turn.features and self._ddp is not None
            ):  # a recorder's hook on the module inside comes next
                tell(self.listener.work_of(turn))

    def _after_forward(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        self._depth = max(self._depth - 1, 0)
        if self._depth or self._pass is None:
            return
        self._pass.ends()
        if (turn := self._pass.turn) is not None:
            self.listener.noted(turn, [*args, *kwargs.values()] if kwargs else args, output)
            if not turn.share and self._ddp is None:  # 0 / 0 is not to reach gradients that others sum
                for tensor in tensors_in(output):
                    if tensor.requires_grad:
                        tensor.register_hook(torch.zeros_like)

    def settle(self, one: Pass) -> Turn | None:
        """Return the turn of a pass; one in evaluation mode takes it once gradients are computed.

        A model in evaluation mode may be trained too, such as one whose statistics are kept. Only its gradients tell it
        from a validation that could compute gradients.
        """
        if one.turn is None:
            one.turn = self.listener.given(one, self._sight)
        return one.turn

    def trains(self) -> None:
        """Note that the last forward pass is for training: it may have been one in evaluation mode, with gradients."""
        if self._pass is not None:
            self.settle(self._pass)

    # -- backward ----------------------------------------------------------------------------------------------------

    def takes(self, inputs: Iterable[torch.Tensor]) -> bool:
        """Whether one of these tensors is a parameter of the model."""
        wanted = {id(tensor) for tensor in inputs}
        return any(id(parameter) in wanted for parameter in self.model.parameters())

    def backward_begins(self, passes: list[Pass]) -> None:
        """Settle the weight of the gradients that are about to be computed."""
        if not self._ledger.trains:
            return  # frozen, as a critic while its generator trains
        self._require_accepted_by_others()
        self.in_backward, self._begun = True, self.sums
        try:
            self._begin(passes)
        except RuntimeError as error:
            if self._ddp is None:
                self.in_backward = False
                raise
            self._refuse(error)

    def _begin(self, passes: list[Pass]) -> None:
        turns = [one.turn or self.settle(one) for one in passes]
        self.listener.trained(passes)
        self._scale = self._ledger.begins([turn for turn in turns if turn is not None])

    def _refuse(self, error: RuntimeError) -> None:
        """Refuse a step on all ranks: they find out when gradients are summed, for which they wait."""
        self._refused = self._refused or error
        leave(self._key, str(error))

    @property
    def _key(self) -> str:
        return f"{self.exchange.group.group_name}/{self._begun}"

    def backward_ended(self) -> None:
        """Note that they are computed, and summed or not."""
        self.in_backward = False
        if self._unfinished:  # the first sparse gradients of a static graph come in buckets of which none is the last
            self.listener.summed(self.listener.ready(None, self._ledger.turn))
            self._all_sent()
            self.listener.sent()
        self._ledger.ends(self._share)
        if self._ddp is None:
            self.listener.backward_ended()
        if self._spoilt and self._refused is None and (cause := cause_of(self._key)):
            self._refused = RuntimeError(f"another rank refused this step: {cause}")
        self._spoilt = False
        if self._refused is not None and self.sums > self._begun:  # until then the others do not know of it
            self._raise_refusal()

    def _raise_refusal(self) -> None:
        error, self._refused = self._refused, None
        self._late.forget()  # this rank knows
        assert error is not None, "a step is refused"
        raise error

    def backward_failed(self) -> None:
        """Note that an error ended the backward pass."""
        self.in_backward, self._refused = False, None
        self._ledger.ends()

    # -- the communication hook --------------------------------------------------------------------------------------

    def hook(self, bucket: Any, group: dist.ProcessGroup) -> torch.futures.Future[torch.Tensor]:
        """Weight the gradients of a bucket, sum them over the ranks, and report the last bucket."""
        if not self.in_backward:  # of a graph without any pass, such as a penalty on the parameters alone
            if self._pass is None:
                raise RuntimeError(
                    "gradients are summed for a model whose forward pass was not seen: attach the module that is called"
                )
            self._begin([self._pass])
        last, gradients, waiting = bucket.is_last(), bucket.buffer(), None
        if last:
            try:
                waiting = self.listener.ready(gradients, self._ledger.turn)
            except RuntimeError as error:
                self._refuse(error)
        self._ledger.put_back(bucket)
        if self._weighs:
            self._sum_shares(gradients, group)
        if self._refused is not None:
            gradients.fill_(math.nan)
        future = self._summing(bucket, gradients, group)
        share, sharing = self._share, self._sharing
        self._unfinished = not last
        if last:
            self._all_sent()

        def summed(arrived: torch.futures.Future[Any]) -> torch.Tensor:
            try:
                value = arrived.value()
                total: torch.Tensor = value if isinstance(value, torch.Tensor) else value[0]
                if sharing is not None:
                    _divide(total, share, sharing)
            except RuntimeError as error:
                lost = self.exchange.lost(error)
                raise type(lost)(f"{lost} {cause_of(self._key)}".strip()) from error
            if last and total.is_cuda and not total.is_sparse:  # to look now would wait for the device
                if not self._late.under_way:
                    self._late_key = self._key
                    self._late.fetch(total[:1].sum())
            elif last and not total.is_sparse:
                self._spoilt = bool(total[:1].isnan().any())
            if waiting is not None:
                self.listener.summed(waiting)
            return total

        result = then(future, summed)
        if last:
            self.listener.sent()
            # Runs before the wait for the gradients, which begins in a callback that comes next. No public call for it.
            torch.autograd.Variable._execution_engine.queue_callback(self.listener.backward_ends)
        return result

    def _all_sent(self) -> None:
        self.sums += 1
        self._ledger.summed()
        self._sharing, self._unfinished = None, False

    def _summing(self, bucket: Any, gradients: torch.Tensor, group: dist.ProcessGroup) -> torch.futures.Future[Any]:
        """Start to sum a bucket by its weights: as it is, or by the script's hook, which averages what it is given."""
        if self._average is None:
            gradients.mul_(self._scale if self._weighs else 1 / group.size())
            future: torch.futures.Future[Any] = all_reduce(gradients, group).get_future()
            return future
        if self._weighs:
            gradients.mul_(self._scale * group.size())
        averaged: torch.futures.Future[Any] = self._average(bucket)
        return averaged

    def _sum_shares(self, gradients: torch.Tensor, group: dist.ProcessGroup) -> None:
        """Start to sum the weights of all ranks, at the first bucket, if they may not sum to one."""
        if self._sharing is None and self.listener.sums_shares:
            if self._share is None:
                self._share = torch.empty(1, dtype=torch.float64, device=gradients.device)
            part = self._ledger.part
            if self.listener.adds_parts and math.isfinite(self.listener.micro_batches):
                part /= self.listener.micro_batches  # by which the loop has divided its losses
            self._sharing = all_reduce(self._share.fill_(part), group)


def _divide(total: torch.Tensor, share: torch.Tensor | None, sharing: Any) -> None:
    """Divide summed gradients by the sum of the weights, which is 1 if all ranks trained as planned."""
    assert share is not None, "shares are sent before gradients"
    with unheard():
        sharing.wait()
    if share.is_cuda:
        # Reading its value, to compare it with 1, would wait for the device. Sparse gradients take no axis here.
        total.div_(share.clamp_(min=NO_TERMS)[0])
    elif abs(float(share) - 1) > 1e-9:
        total.div_(max(float(share), NO_TERMS))
