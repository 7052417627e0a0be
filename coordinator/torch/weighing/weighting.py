"""Weights one model's gradients by the samples behind them, no matter what the loop fetched or skipped in between.

A forward pass notes which batch it was given; the gradients that come back through its output carry that batch's
weight. While a loop trains only on the loader's batches, the weights of all ranks sum to one by the plan. Otherwise
they are summed beside the gradients and divided out.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from paceline.coordinator.torch.reporting.exchange import Exchange
from paceline.coordinator.torch.weighing.handed import Turn
from paceline.coordinator.torch.weighing.hooks import Only, all_reduce, ddp_of, drop_hook, take_hook, tensors_in
from paceline.coordinator.torch.weighing.listener import Listener
from paceline.coordinator.torch.weighing.sight import Sight
from paceline.recording.torch.callbacks import then
from paceline.recording.torch.waiting import unheard
from paceline.recording.torch.work import tell

NO_TERMS = 1e-30
"""Where no rank has any loss term all gradients are 0, and are to stay 0."""


class _Pass:
    """A forward pass with gradients: in training mode it takes its turn at once, in evaluation mode once it trains.

    A model in evaluation mode may be trained too, such as one whose statistics are kept. Only the gradients that come
    back tell it from a validation that computes gradients in vain.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._inputs = args, kwargs
        self._turn: Turn | None = None

    def turn(self, given: Callable[[Sequence[Any], Mapping[str, Any]], Turn]) -> Turn:
        """Return its turn, which it takes in the first call."""
        if self._turn is None:
            self._turn = given(*self._inputs)
            self._inputs = (), {}  # not kept any longer than they have to
        return self._turn


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
    """

    def __init__(self, model: torch.nn.Module, listener: Listener, exchange: Exchange) -> None:
        self.model = model
        self.listener = listener
        self.exchange = exchange
        self.in_backward = False
        self._sight = Sight()
        self._pass: _Pass | None = None
        self._last_turn: Turn | None = None
        self._reached: Turn | None = None
        self._scale = 0.0
        self._part = 0.0
        self._summed_parts = 0
        self._unsummed = False
        self._syncs = True
        self._share: torch.Tensor | None = None
        self._sharing: Any = None  # the sum of the weights, while it is under way
        before = model.register_forward_pre_hook(Only(model, self._before_forward), with_kwargs=True)
        after = model.register_forward_hook(Only(model, self._after_forward))
        self._handles = [before, after]
        self._ddp = ddp_of(model)
        if self._ddp is not None:
            take_hook(self._ddp, self)

    def close(self) -> None:
        """Remove the hooks. DistributedDataParallel cannot drop its own, which takes plain averages from now on."""
        for handle in self._handles:
            handle.remove()
        if self._ddp is not None:
            drop_hook(self._ddp)

    @property
    def alone(self) -> bool:
        """Whether a step taken now would use gradients of this rank alone, if the model has any."""
        if self._ddp is None or self._last_turn is None:
            return self._ddp is not None
        # After a forward pass that sums, gradients that wait are those of inputs alone, as for adversarial examples.
        return self._unsummed and (self.in_backward or not self._syncs)

    # -- forward and backward --------------------------------------------------------------------------------------

    def _before_forward(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._pass = None
        if not torch.is_grad_enabled():
            return
        self._pass = _Pass(args, kwargs)
        self._syncs = self._ddp is None or self._ddp.require_backward_grad_sync
        # Trainers may leave the wrapper in evaluation mode after validation while the model inside trains.
        inside = module if self._ddp is None else self._ddp.module
        if module.training or inside.training:
            self.in_backward = False  # after an error in a backward pass, its end was never reported
            turn = self._pass.turn(self._given)
            if turn.features and self._ddp is not None:  # a recorder's hook on the module inside comes next
                tell(self.listener.work_of(turn))

    def _given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Turn:
        self._last_turn = self.listener.given(args, kwargs, self._sight)
        return self._last_turn

    def trains(self) -> None:
        """Note that the last forward pass is for training: it may have been one in evaluation mode, with gradients."""
        if self._pass is not None:
            self._pass.turn(self._given)

    def _after_forward(self, module: Any, args: Any, output: Any) -> None:
        this = self._pass
        if this is None:
            return

        # A weak reference: a model may keep its output, and Python's garbage collector cannot see the cycle through
        # torch's graph.
        known = weakref.ref(self)

        def reached(gradient: torch.Tensor | None) -> torch.Tensor | None:
            if (alive := known()) is None:
                return None
            turn = this.turn(alive._given)
            alive._reach(turn)
            if gradient is None:  # an output that the loss does not depend on
                return None
            if not turn.share and alive.listener.weigh != "none":
                return torch.zeros_like(gradient)  # the mean over no terms is 0 / 0, which no factor takes back
            alive.listener.look(gradient, turn)
            return None

        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(reached)

    def _reach(self, turn: Turn) -> None:
        """Note that a backward pass reaches the output of this turn, before its gradients are accumulated."""
        if not self.in_backward:
            self.in_backward = True
            # The callback runs after the whole backward pass. torch has no public call for it.
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)
            self._take_share(turn)
        elif self.listener.adds_parts and turn.fresh and self._reached is not turn:
            raise RuntimeError(
                "one backward pass covers two batches, whose loss terms would not count alike: call backward() for each"
            )
        elif self._weighs and self._reached is not None and turn.share != self._reached.share:
            self.listener.warn(
                "backward",
                f"One backward pass covers batches of {self._reached.samples} and of {turn.samples} samples on this "
                "rank. One weight cannot serve both: the gradients are not those of equal batches. Call backward() "
                'for each, or use attach(..., weigh="loss") and balance.scale() for the loss of the balanced batch.',
            )

    def _take_share(self, turn: Turn) -> None:
        """Use this turn's weight for all gradients that wait to be summed.

        Micro-batches accumulated under ``no_sync`` may have other weights, because an epoch's last batch is split in
        other proportions. Their gradients are rescaled, so that one weight is right for the sum.
        """
        self._reached = turn
        self._add_part(turn)
        if not self._unsummed:
            # Of a micro-batch without any loss term nothing is added, but gradients summed before are to stay.
            self._scale = turn.share
            if not turn.whole and self._ddp is not None:
                group: Any = self._ddp.process_group
                self._scale = 1 / group.size()
            if self._weighs and turn.whole not in (0.0, 1.0):
                self._multiply(1 / turn.whole)  # those summed before are summed once more
        elif turn.share:  # else its gradients are 0, and those before keep their weight
            if self._weighs and self._scale and self._scale != turn.share:
                self._multiply(self._scale / turn.share)
            self._scale = turn.share
        self._unsummed = True

    def _add_part(self, turn: Turn) -> None:
        """Add up what is to be summed over the ranks: that of a step's last micro-batch, or of all of them."""
        if not self.listener.adds_parts:
            self._part = turn.part
            return
        if not self._unsummed:
            self._part, self._summed_parts = 0.0, 0
            grads = (parameter.grad for parameter in self.model.parameters() if parameter.grad is not None)
            if any(bool(gradient.any()) for gradient in grads):
                raise RuntimeError(
                    "gradients that were summed over the ranks already are there when a further backward pass begins, "
                    "so that terms would not count alike: put all micro-batches of a step but the last into "
                    "`with model.no_sync():`, and call zero_grad() after the step"
                )
        self._part += turn.part
        self._summed_parts += 1
        if self._summed_parts > self.listener.micro_batches:
            raise RuntimeError(
                f"{self._summed_parts} micro-batches were summed before a step, more than accumulate="
                f"{self.listener.micro_batches:g} says: give accumulate=, by which the loop divides its losses"
            )

    def _multiply(self, factor: float) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _backward_ends(self) -> None:
        self.in_backward = False
        if self._ddp is None:
            self.listener.backward_ended()
        else:
            self.listener.backward_ends()

    @property
    def _weighs(self) -> bool:
        return self.listener.weigh in ("gradients", "sum")

    # -- the communication hook --------------------------------------------------------------------------------------

    def hook(self, bucket: Any, group: dist.ProcessGroup) -> torch.futures.Future[torch.Tensor]:
        """Weight the gradients of a bucket, sum them over the ranks, and report the last bucket."""
        last, gradients = bucket.is_last(), bucket.buffer()
        waiting = self.listener.ready(gradients) if last else None
        weighs = self._weighs
        weight = self._weight(gradients, group) if weighs else 1 / group.size()
        gradients.mul_(weight) if weight else gradients.zero_()  # a model may return its loss, and NaN remains NaN
        share, sharing = self._share, self._sharing
        future = all_reduce(gradients, group).get_future()
        if last:
            self._unsummed, self._sharing = False, None

        def summed(arrived: torch.futures.Future[Any]) -> torch.Tensor:
            try:
                total: torch.Tensor = arrived.value()[0]
                if sharing is not None:
                    _divide(total, share, sharing)
            except RuntimeError as error:
                raise self.exchange.lost(error) from error
            if last:
                self.listener.summed(waiting)
            return total

        result = then(future, summed)
        if last:
            self.listener.sent()
        return result

    def _weight(self, gradients: torch.Tensor, group: dist.ProcessGroup) -> float:
        """Return the weight of this rank; at the first bucket, start to sum the weights of all ranks if necessary."""
        # Without `_reached`, the model's output was of a kind whose tensors could not be hooked.
        if not self._unsummed:
            self.trains()
        turn = self._reached if self._unsummed else self._last_turn
        if turn is None:
            raise RuntimeError(
                "gradients are summed for a model whose forward pass was not seen: attach the module that is called"
            )
        if self.listener.sums_shares and self._sharing is None:
            if self._share is None:
                self._share = torch.empty(1, dtype=torch.float64, device=gradients.device)
            part = self._part if self._unsummed else turn.part
            if self.listener.adds_parts and math.isfinite(self.listener.micro_batches):
                part /= self.listener.micro_batches  # by which the loop has divided its losses
            self._sharing = all_reduce(self._share.fill_(part), group)
        return self._scale if self._unsummed else turn.share


def _divide(total: torch.Tensor, share: torch.Tensor | None, sharing: Any) -> None:
    """Divide summed gradients by the sum of the weights, which is 1 if all ranks trained as planned."""
    assert share is not None, "shares are sent before gradients"
    with unheard():
        sharing.wait()
    if share.is_cuda:
        total.div_(share.clamp_(min=NO_TERMS))  # reading its value to compare it with 1 would wait for the device
    elif abs(float(share) - 1) > 1e-9:
        total.div_(max(float(share), NO_TERMS))
