"""Weights one model's gradients by the samples behind them, no matter which batches the loop fetched or skipped.

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

from paceline.recording.torch.callbacks import then
from paceline.recording.torch.collective_time import unheard
from paceline.recording.torch.forward_work import tell
from paceline.torch.exchange import Exchange
from paceline.torch.weighting.batch import Turn
from paceline.torch.weighting.graph import Pass, watch
from paceline.torch.weighting.hooks import CommHook, Only, ddp_of, drop_hook, take_hook, tensors_in
from paceline.torch.weighting.listener import Listener
from paceline.torch.weighting.recognition import Recognition
from paceline.torch.weighting.refusal import Refusal
from paceline.torch.weighting.waiting_gradients import WaitingGradients

NO_TERMS = 1e-30
"""Least divisor: where no rank has any loss term all gradients are 0, and must stay 0."""


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
    refusal
        Refusal of a step whose gradients have no right weight, on this rank or on another.
    """

    def __init__(
        self, model: torch.nn.Module, listener: Listener, exchange: Exchange, average: CommHook | None = None
    ) -> None:
        self.model = model
        self.listener = listener
        self.exchange = exchange
        self.in_backward = False
        self.sums = 0
        self.refusal = Refusal(exchange.group.group_name)
        self._average = average
        self._summed_for: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._recognition = Recognition()
        self._depth = 0
        self._pass: Pass | None = None
        self._spoilt = self._unfinished = False
        self._share: torch.Tensor | None = None
        self._sharing: Any = None  # the sum of the weights, while it is under way
        self._ddp = ddp_of(model)
        self._ledger = WaitingGradients(model, listener)
        # The module inside DistributedDataParallel, so that model.forward(x) is seen like model(x). A compiled wrapper
        # is looked at from outside, because hooks inside would break its graph.
        self._inside: torch.nn.Module = self._ddp.module if self._ddp is model and self._ddp is not None else model
        # The first pre-hook, so that a recorder's hook, which takes the work told here, runs after it. The other hook
        # runs after errors too, so that the depth of calls is right in the next forward pass.
        self._handles = [
            self._inside.register_forward_pre_hook(Only(self._before_forward), with_kwargs=True, prepend=True),
            self._inside.register_forward_hook(Only(self._after_forward), always_call=True, with_kwargs=True),
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

    @property
    def alone(self) -> bool:
        """True if a step taken now would use gradients of this rank alone."""
        return self._ddp is not None and (self.in_backward or (self._ledger.unsummed and self._ledger.waits))

    def summed_for(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether gradients were summed since this optimizer's last step, and note that it steps now."""
        before = self._summed_for.get(optimizer, 0)
        self._summed_for[optimizer] = self.sums
        return self._ddp is None or self.sums > before

    # -- forward -----------------------------------------------------------------------------------------------------

    def _before_forward(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if module is not self._inside or not torch.is_grad_enabled():  # a copy has the hook as well
            return
        self._depth += 1
        if self._depth > 1:  # a module that calls itself, as Lightning's do
            return
        self._pass = one = Pass(self, self.listener.look(args, kwargs))
        # Trainers may leave the wrapper in evaluation mode after validation while the model inside trains.
        if module.training or self.model.training:
            one.turn = turn = self.listener.given(one, self._recognition)
            if turn is not None and turn.features and self._ddp is not None:
                tell(self.listener.work_of(turn))  # a recorder's hook on the module inside comes next

    def _after_forward(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        if module is not self._inside or not torch.is_grad_enabled():
            return
        self._depth = max(self._depth - 1, 0)
        if self._depth or self._pass is None:
            return
        self._pass.ends()
        if (turn := self._pass.turn) is not None:
            made = tensors_in(output)
            self.listener.noted(turn, [*args, *kwargs.values()] if kwargs else args, made)
            if not turn.share and self._ddp is None:  # 0 / 0 is not to reach gradients that others sum
                for tensor in made:
                    if tensor.requires_grad:
                        tensor.register_hook(torch.zeros_like)

    def settle(self, one: Pass) -> Turn | None:
        """Return the turn of a pass; in evaluation mode a pass gets one only once gradients are computed.

        A model in evaluation mode may be trained too, such as one whose statistics are kept. Only its gradients tell it
        from a validation that could compute gradients.
        """
        if one.turn is None:
            one.turn = self.listener.given(one, self._recognition)
        return one.turn

    def trains(self) -> None:
        """Note that the last forward pass is for training: it may have been one in evaluation mode, with gradients."""
        if self._pass is not None:
            self.settle(self._pass)

    # -- backward ----------------------------------------------------------------------------------------------------

    def takes(self, inputs: Iterable[torch.Tensor]) -> bool:
        """Return whether one of these tensors is a parameter of the model."""
        wanted = {id(tensor) for tensor in inputs}
        return any(id(parameter) in wanted for parameter in self.model.parameters())

    def backward_begins(self, passes: Sequence[Pass]) -> None:
        """Settle the weight of the gradients that are about to be computed."""
        if not self._ledger.trains:
            return  # frozen, as a critic while its generator trains
        if self.refusal.waits:
            self.refusal.raise_of_device()
        self.in_backward, self.refusal.step = True, self.sums
        try:
            self._begin(passes)
        except RuntimeError as error:
            if self._ddp is None:
                self.in_backward = False
                raise
            self.refusal.refuse(error)

    def refuse(self, error: RuntimeError) -> None:
        """Refuse the gradients of the next backward pass, for which one rank alone may have cause."""
        if self._ddp is None:
            raise error
        self.refusal.step = self.sums
        self.refusal.refuse(error)

    def _begin(self, passes: Sequence[Pass]) -> None:
        turns = []
        for one in passes:
            turn = one.turn or self.settle(one)
            if turn is not None:
                turns.append(turn)
        self.listener.trained(passes)
        weight, ranks = self._ledger.begins(turns), self.exchange.world_size
        # Of this rank's gradients, before they are summed. Weights sum to one over the ranks, or are divided by their
        # sum: a sum of gradients is then their mean.
        if self._average is None:
            self._factor = weight if self.listener.weights_loss else 1 / ranks
        else:  # which divides by the number of ranks
            self._factor = weight * ranks if self.listener.weights_loss else 1

    def backward_ended(self) -> None:
        """Note that the gradients of a backward pass are computed; they may or may not be summed by now."""
        self.in_backward = False
        if self._unfinished:  # the first sparse gradients of a static graph come in buckets of which none is the last
            self.listener.summed(self.listener.ready(None, self._ledger.turn))
            self._all_sent()
            self.listener.sent()
        self._ledger.ends(self._share)
        if self._ddp is None:
            self.listener.backward_ended()
        if self._spoilt:
            self._spoilt = False
            self.refusal.hear()
        if self.refusal.error is not None and self.sums > self.refusal.step:  # until then the others do not know of it
            self.refusal.raise_error()

    def backward_failed(self) -> None:
        """Note that an error ended the backward pass."""
        self.in_backward, self.refusal.error = False, None
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
            try:  # before the factor: the check of the loss looks at this rank's own gradients
                waiting = self.listener.ready(gradients, self._ledger.turn)
            except RuntimeError as error:
                self.refusal.refuse(error)
        if self._ledger.before is not None:  # before the sum: no factor removes the NaN of a mean over no terms
            self._ledger.put_back(bucket)
        if self._sharing is None and self.listener.weights_loss and self.listener.sums_shares:
            self._sum_shares(gradients, group)
        share, sharing = self._share, self._sharing
        if self.refusal.error is not None:
            gradients.fill_(math.nan)  # so that all ranks learn of the refusal from the sum, which they wait for anyway
        elif self._factor != 1:
            gradients.mul_(self._factor)
        # dist.all_reduce without its Python checks; the script's hook averages what it is given.
        future = group.allreduce([gradients]).get_future() if self._average is None else self._average(bucket)
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
                raise type(lost)(f"{lost} {self.refusal.cause()}".strip()) from error
            if last and total.is_cuda and not total.is_sparse:
                self.refusal.look_later(total)
            elif last and not total.is_sparse:
                first = total[:1].tolist()  # one number is enough, as a refusal fills whole buckets
                self._spoilt = bool(first) and first[0] != first[0]
            if waiting is not None:
                self.listener.summed(waiting)
            return total

        result = then(future, summed)
        if last:
            self.listener.sent()  # the report goes out after the gradients, and so never delays them
            # Runs before the wait for the gradients, which begins in a callback that comes next. No public call for it.
            torch.autograd.Variable._execution_engine.queue_callback(self.listener.backward_ends)
        return result

    def _all_sent(self) -> None:
        self.sums += 1
        self._ledger.summed()
        self._sharing, self._unfinished = None, False

    def _sum_shares(self, gradients: torch.Tensor, group: dist.ProcessGroup) -> None:
        """Start to sum the weights of all ranks, at the first bucket: they may not sum to one."""
        if self._share is None:
            # float64 whatever the gradients are: the sum is compared with 1 to nine digits.
            self._share = torch.empty(1, dtype=torch.float64, device=gradients.device)
        part = self._ledger.part
        if self.listener.adds_parts and math.isfinite(self.listener.micro_batches):
            part /= self.listener.micro_batches  # by which the loop has divided its losses
        self._sharing = group.allreduce([self._share.fill_(part)])


def _divide(total: torch.Tensor, share: torch.Tensor | None, sharing: Any) -> None:
    """Divide summed gradients by the sum of the weights, which is 1 if all ranks trained as planned."""
    assert share is not None, "shares are sent before gradients"
    with unheard():
        sharing.wait()
    if share.is_cuda:
        # Reading its value, to compare it with 1, would wait for the device. Sparse gradients take no axis here.
        total.div_(share.clamp_(min=NO_TERMS)[0])
    elif abs(float(share) - 1) > 1e-9:  # more than rounding; otherwise a pass over all gradients is saved
        total.div_(max(float(share), NO_TERMS))
