"""Weighs one model's gradients by the samples behind them, whatever the loop fetched or skipped in between.

A forward pass notes which batch it was given; the gradients that come back through its output carry that batch's
weight. As long as a loop trains on the loader's batches alone, the weights of all ranks sum to one by the plan. Where
it does not, they are summed beside the gradients and divided out.

DistributedDataParallel compares the hook's annotations with its types, so this file keeps them as types, not as text.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator.torch.exchange import Exchange
from paceline.coordinator.torch.handed import Sight, Turn
from paceline.recording.torch.waiting import unheard

Weigh = Literal["gradients", "loss", "none"]


class BalanceWarning(UserWarning):
    """The loop does something for which balanced batches do not give what equal ones would have given."""


class Listener(Protocol):
    """Who follows the passes of a model: the balance."""

    weigh: Weigh
    sums_shares: bool
    """Whether weights are summed over the ranks: the same on all of them, and during a backward pass."""

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any], sight: Sight) -> Turn:
        """A forward pass in training begins."""
        ...

    def look(self, gradient: torch.Tensor, turn: Turn) -> None:
        """Gradients of the loss by an output of the model: they tell what kind of loss it is."""
        ...

    def ready(self, gradients: torch.Tensor) -> Any:
        """All gradients are ready, the last of them these; return what to tell ``summed``."""
        ...

    def sent(self) -> None:
        """They have been handed to the network."""
        ...

    def summed(self, waiting: Any) -> None:
        """Those of all ranks are summed."""
        ...

    def backward_ended(self) -> None:
        """A backward pass is over, of a model outside DistributedDataParallel."""
        ...

    def warn(self, about: str, sentence: str) -> None:
        """Warn, once about each thing."""
        ...


class Weighting:
    """The hooks on one model.

    Parameters
    ----------
    model
        The model that the loop calls.
    listener
        Who is told of its passes.
    exchange
        Words the error when a rank is gone.
    """

    def __init__(self, model: torch.nn.Module, listener: Listener, exchange: Exchange) -> None:
        self.model = model
        self.listener = listener
        self.exchange = exchange
        self.in_backward = False
        self._sight = Sight()
        self._turn: Turn | None = None
        self._last_turn: Turn | None = None
        self._reached: Turn | None = None
        self._scale = 0.0
        self._unsummed = False
        self._share: torch.Tensor | None = None
        self._sharing: Any = None  # the work under way
        before = model.register_forward_pre_hook(Only(model, self._before_forward), with_kwargs=True)
        after = model.register_forward_hook(Only(model, self._after_forward))
        self._handles = [before, after]
        self._ddp = ddp_of(model)
        if self._ddp is not None:
            _take_hook(self._ddp, self)

    def close(self) -> None:
        """Take the hooks off; DistributedDataParallel keeps its own, which averages plainly from now on."""
        for handle in self._handles:
            handle.remove()
        if self._ddp is not None:
            _slots[self._ddp].weighting = None

    # -- forward and backward --------------------------------------------------------------------------------------

    def _before_forward(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._turn = None
        # Validation may leave the wrapper in evaluation mode while what it wraps trains on.
        inside = module if self._ddp is None else self._ddp.module
        if (module.training or inside.training) and torch.is_grad_enabled():
            self.in_backward = False  # a backward pass that raised an error has not said that it ended
            self._turn = self._last_turn = self.listener.given(args, kwargs, self._sight)

    def _after_forward(self, module: Any, args: Any, output: Any) -> None:
        turn = self._turn
        if turn is None:
            return

        # Weakly: a model may keep its output, and Python cannot see the cycle that goes through torch's graph.
        known = weakref.ref(self)

        def reached(gradient: torch.Tensor | None) -> torch.Tensor | None:
            if (alive := known()) is None:
                return None
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
        """A backward pass comes to the output of this turn: its gradients are still to be accumulated."""
        if not self.in_backward:
            self.in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)
            self._take_share(turn)
        elif self._weighs and self._reached is not None and turn.share != self._reached.share:
            self.listener.warn(
                "backward",
                f"One backward pass covers batches of {self._reached.samples} and of {turn.samples} samples on this "
                "rank. One weight cannot serve both: the gradients are not those of equal batches. Call backward() "
                'for each, or use attach(..., weigh="loss") and balance.scale() for the loss of the balanced batch.',
            )

    def _take_share(self, turn: Turn) -> None:
        """Let this turn's weight be that of all gradients that wait to be summed.

        Micro-batches accumulated under ``no_sync`` may have other weights: an epoch's last is split in other
        proportions.
        """
        self._reached = turn
        if not self._unsummed:
            # Of a micro-batch without any loss term nothing is added, but gradients summed before are to stay.
            self._scale = turn.share if turn.whole or self._ddp is None else 1 / self._ddp.process_group.size()
            if self._weighs and turn.whole not in (0.0, 1.0):
                self._multiply(1 / turn.whole)  # those summed before are summed once more
        elif turn.share:  # else its gradients are 0, and those before keep their weight
            if self._weighs and self._scale and self._scale != turn.share:
                self._multiply(self._scale / turn.share)
            self._scale = turn.share
        self._unsummed = True

    def _multiply(self, factor: float) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _backward_ends(self) -> None:
        self.in_backward = False
        if self._ddp is None:
            self.listener.backward_ended()

    @property
    def _weighs(self) -> bool:
        return self.listener.weigh == "gradients"

    # -- the communication hook --------------------------------------------------------------------------------------

    def hook(self, bucket: Any, group: dist.ProcessGroup) -> "torch.futures.Future[torch.Tensor]":
        """Weigh the gradients of a bucket, sum them over the ranks, and tell of the last."""
        last, gradients = bucket.is_last(), bucket.buffer()
        waiting = self.listener.ready(gradients) if last else None
        weighs = self._weighs
        weight = self._weight(gradients, group) if weighs else 1 / group.size()
        gradients.mul_(weight) if weight else gradients.zero_()  # a model may return its loss, and NaN remains NaN
        share, sharing = self._share, self._sharing
        future = _all_reduce(gradients, group).get_future()
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

        result: torch.futures.Future[torch.Tensor] = future.then(summed)
        if last:
            self.listener.sent()
        return result

    def _weight(self, gradients: torch.Tensor, group: dist.ProcessGroup) -> float:
        """Return the weight of this rank; before the first bucket, start to sum the weights of all if need be."""
        turn = self._reached if self._unsummed else self._last_turn  # an output of a kind that cannot be followed
        if turn is None:
            raise RuntimeError(
                "gradients are summed for a model whose forward pass was not seen: attach the module that is called"
            )
        if self.listener.sums_shares and self._sharing is None:
            if self._share is None:
                self._share = torch.empty(1, dtype=torch.float64, device=gradients.device)
            self._sharing = _all_reduce(self._share.fill_(turn.part), group)
        return self._scale if self._unsummed else turn.share


def _all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> Any:
    return group.allreduce([tensor])  # dist.all_reduce without its checks; always asynchronous


def _divide(total: torch.Tensor, share: torch.Tensor | None, sharing: Any) -> None:
    """Divide summed gradients by the sum of the weights: where all went as planned, that is 1 and nothing is done."""
    assert share is not None, "shares are sent before gradients"
    with unheard():
        sharing.wait()
    if share.is_cuda:
        total.div_(share)  # asking for its value would wait for the device
    elif abs(float(share) - 1) > 1e-9:
        total.div_(float(share))


# -- what hooks the model ----------------------------------------------------------------------------------------------


class Only:
    """A hook for this very module: a copy of the module, or its pickle, takes its hooks along but not this one."""

    def __init__(self, module: torch.nn.Module, call: Callable[..., None]) -> None:
        self.module = weakref.ref(module)
        self.call = call

    def __call__(self, module: torch.nn.Module, *arguments: Any) -> None:
        """Call the hook, if this is the module."""
        if module is self.module():
            self.call(module, *arguments)

    def __reduce__(self) -> tuple[Callable[[], Callable[..., None]], tuple[()]]:
        """Be copied, and pickled, as a hook that does nothing."""
        return _nothing, ()


def _nothing() -> Callable[..., None]:
    return ignored


def ignored(*arguments: Any) -> None:
    """Do nothing."""


def ddp_of(model: torch.nn.Module) -> DistributedDataParallel | None:
    """Return the DistributedDataParallel that a model is, also inside ``torch.compile``; None if it is not."""
    inside = getattr(model, "_orig_mod", model)
    return inside if isinstance(inside, DistributedDataParallel) else None


def tensors_in(output: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a model's output: of sequences, mappings and data classes.

    >>> [tensor.item() for tensor in tensors_in({"loss": torch.tensor(1), "parts": [torch.tensor(2), None]})]
    [1, 2]
    """
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from tensors_in(value)
    elif is_dataclass(output) and not isinstance(output, type):
        for field in fields(output):
            yield from tensors_in(getattr(output, field.name))


class _Slot:
    """What the one communication hook does that DistributedDataParallel takes, and that a model keeps for good.

    It knows the weighting weakly, which other hooks of the model hold: Python cannot see the cycle of a model whose
    hook, held by torch, holds the model.
    """

    def __init__(self) -> None:
        self._weighting: Callable[[], Weighting | None] = lambda: None

    @property
    def weighting(self) -> Weighting | None:
        """Who weighs this model's gradients, if anybody does."""
        return self._weighting()

    @weighting.setter
    def weighting(self, weighting: Weighting | None) -> None:
        self._weighting = (lambda: None) if weighting is None else weakref.ref(weighting)


def _hook_for(slot: _Slot, group: dist.ProcessGroup) -> Callable[..., Any]:
    # A function: copies of a model share its hooks, and a method would take the process group along.
    def hook(
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        if (weighting := slot.weighting) is not None:
            return weighting.hook(bucket, group)
        average = bucket.buffer().div_(group.size())  # nothing is attached any more
        future = _all_reduce(average, group).get_future()
        result: torch.futures.Future[torch.Tensor] = future.then(lambda arrived: arrived.value()[0])
        return result

    return hook


_slots: "weakref.WeakKeyDictionary[DistributedDataParallel, _Slot]" = weakref.WeakKeyDictionary()


def _take_hook(ddp: DistributedDataParallel, weighting: Weighting) -> None:
    slot = _slots.get(ddp)
    if slot is None:
        slot = _Slot()
        try:
            group: Any = ddp.process_group
            ddp.register_comm_hook(None, _hook_for(slot, group))
        except RuntimeError as error:
            raise ValueError(
                "the model has a communication hook already, and DistributedDataParallel takes only one, which "
                "balancing needs: leave yours out"
            ) from error
        _slots[ddp] = slot
    elif slot.weighting is not None:
        raise ValueError("the model is attached already: close() that balance before attaching it again")
    slot.weighting = weighting
