"""Forward passes that a loss goes back through, found in autograd's graph.

autograd numbers the nodes that a thread makes. A forward pass is a range of these numbers, so whatever class its output
has, and whatever a loss, a penalty or a second model makes of it, the graph shows the passes behind it.
"""

from __future__ import annotations

import functools
import math
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Protocol

import torch

from paceline.torch.weighting.batch import Turn
from paceline.torch.weighting.handed import Seen

MOST = 1024
"""Passes that are remembered: more than any step goes back through."""


class Owner(Protocol):
    """Protocol of the object that is told when a backward pass goes through forward passes of its model."""

    def settle(self, one: Pass) -> Turn | None:
        """Return the turn of a forward pass, which takes its batch in the first call."""
        ...

    def takes(self, inputs: Iterable[torch.Tensor]) -> bool:
        """Return whether one of these tensors is a parameter of the model."""
        ...

    def refuse(self, error: RuntimeError) -> None:
        """Refuse the gradients of the next backward pass."""
        ...

    def backward_begins(self, passes: list[Pass]) -> None:
        """Note that gradients of these passes are about to be computed."""
        ...

    def backward_ended(self) -> None:
        """Note that the gradients of the backward pass are computed."""
        ...

    def backward_failed(self) -> None:
        """Note that an error ended the backward pass."""
        ...


class Pass:
    """A forward pass with gradients.

    Parameters
    ----------
    owner
        Its model's.
    seen
        What its inputs show of the batch.

    Attributes
    ----------
    turn
        Its batch; None for a pass in evaluation mode until its gradients are computed.
    doubt
        What to warn of once they are: subjects and sentences.
    scaled
        Whether its loss was given to ``balance.scale()``.
    """

    __slots__ = ("begin", "doubt", "end", "owner", "scaled", "seen", "turn")

    def __init__(self, owner: Owner, seen: Seen) -> None:
        self.owner: weakref.ref[Owner] = weakref.ref(owner)
        self.seen = seen
        self.turn: Turn | None = None
        self.doubt: Sequence[tuple[str, str]] = ()
        self.scaled = False
        self.begin: int = number_now()
        self.end: float = math.inf  # a forward pass may hold a backward pass, as Lightning's training steps do
        if len(_passes) >= MOST:
            del _passes[: MOST // 2], _begins[: MOST // 2]
        _passes.append(self)
        _begins.append(self.begin)

    def ends(self) -> None:
        """Note the end of the forward pass."""
        self.end = number_now()
        if self.end == self.begin and self in _passes:  # nothing in it has gradients
            place = _passes.index(self)
            del _passes[place], _begins[place]


_passes: list[Pass] = []
_begins: list[int] = []
_owners: weakref.WeakSet[Any] = weakref.WeakSet()
_FIRST = itemgetter(0)
_torch_backward = torch.autograd.backward

number_now: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
"""Return the number of the next node that this thread makes."""


def behind(tensors: Iterable[Any]) -> list[Pass]:
    """Return the passes that gradients of these tensors, or at these edges of the graph, go back through.

    Every way into the graph is followed up to the first pass it meets, and on from where that pass began.
    """
    nodes: list[Any] = []
    for edge in tensors:
        node = edge.grad_fn if isinstance(edge, torch.Tensor) else edge.node
        nodes.append(node)
    met: dict[Pass, None] = {}
    known: set[Any] = {None}
    while nodes:
        node = nodes.pop()
        if node in known:
            continue
        known.add(node)
        number = node._sequence_nr()
        place = bisect_right(_begins, number) - 1
        if place >= 0 and number < _passes[place].end:
            one = _passes[place]
            if one not in met:
                met[one] = None
                met.update(dict.fromkeys(one.seen.through))
        else:
            nodes.extend(map(_FIRST, node.next_functions))
    return list(met)


def watch(owner: Owner) -> Callable[[], None]:
    """Tell an owner of backward passes through its model, until the returned function is called."""
    torch.autograd.backward = _backward
    _owners.add(owner)
    return functools.partial(_unwatch, weakref.ref(owner))


def _unwatch(known: weakref.ref[Owner]) -> None:
    if (owner := known()) is not None:
        _owners.discard(owner)
    if not _owners:
        torch.autograd.backward = _torch_backward
        _passes.clear()
        _begins.clear()


@functools.wraps(_torch_backward)
def _backward(tensors: Any, *args: Any, **named: Any) -> None:
    """Compute gradients as torch does, and notify the owners of the passes behind them."""
    # A pass within another one recomputes activations: its gradients are the outer one's.
    if not _owners or torch._C._current_graph_task_id() != -1:
        _torch_backward(tensors, *args, **named)
        return
    roots = (tensors,) if isinstance(tensors, torch.Tensor | torch.autograd.graph.GradientEdge) else tensors
    inputs = named.get("inputs", args[4] if len(args) > 4 else None)
    through: dict[Owner, list[Pass]] = {}
    for one in behind(roots):
        if (owner := one.owner()) is not None and owner in _owners:
            through.setdefault(owner, []).append(one)
    if inputs is not None:  # gradients of nothing else are kept, such as those of an adversarial example
        wanted = [inputs] if isinstance(inputs, torch.Tensor) else list(getattr(inputs, "values", lambda: inputs)())
        through = {owner: passes for owner, passes in through.items() if owner.takes(wanted)}
    for owner, passes in through.items():
        owner.backward_begins(passes)
    try:
        _torch_backward(tensors, *args, **named)
    except BaseException:
        for owner in through:
            owner.backward_failed()
        raise
    for owner in through:
        owner.backward_ended()
