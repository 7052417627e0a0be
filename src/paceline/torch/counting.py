"""How many samples a gradient is of: rows of forward passes, batches that are out, and what backward goes through.

A weight needs only how many, never which. A forward pass of an attached model counts the rows that it was given, and a
backward pass multiplies its gradient by this rank's share of the batch with as many; or it goes through losses that
``balance.scale(loss, count)`` has multiplied by what they are means over.

Autograd numbers the nodes that a thread makes, so a forward pass is a range of these numbers: whatever a loss, a
penalty or a second model makes of its output, the graph shows the passes behind it.
"""

from __future__ import annotations

import functools
import math
import warnings
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from paceline.torch.global_batch import RankBatch

if TYPE_CHECKING:
    from paceline.torch.weighting import AttachedModel

MAX_REMEMBERED_PASSES = 1024
"""Passes that are remembered: more than any step goes back through."""

MAX_YIELDED_BATCHES = 64
"""Batches that may be out: the oldest are forgotten."""


SCALE_LOSS_HINT = (
    "write loss = balance.scale(loss, count) before backward(), where count is the number of samples or tokens that "
    "this rank's loss is a mean over (a step is then the mean over those of all ranks and micro-batches: do not divide "
    "by the number of micro-batches as well)"
)


class LoopError(RuntimeError):
    """The gradients of a step have no right weight; the message says which line to add."""


class BalanceWarning(UserWarning):
    """Something in the data or in the measured gradients is suspicious."""


class WarnOnce:
    """Warns of each thing once."""

    def __init__(self) -> None:
        self._warned_keys: set[str] = set()

    def __call__(self, key: str, sentence: str) -> None:
        """Warn, if there was no warning about this yet."""
        if key not in self._warned_keys:
            self._warned_keys.add(key)
            warnings.warn(sentence, BalanceWarning, stacklevel=3)


# -- rows and batches ----------------------------------------------------------------------------------------------


def tensors_in(value: Any, depth: int = 4) -> list[torch.Tensor]:
    """Return the tensors of a model's inputs or output, also inside sequences, mappings and objects.

    >>> [tensor.item() for tensor in tensors_in({"loss": torch.tensor(1), "parts": [torch.tensor(2), None]})]
    [1, 2]
    """
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        inside: Any = value.values()
    elif isinstance(value, (list, tuple)):
        inside = value
    elif value is None or isinstance(value, (str, bytes, int, float, complex, torch.nn.Module, type)):
        return []
    else:
        slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
        inside = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]
    found: list[torch.Tensor] = []
    for part in inside:
        if isinstance(part, torch.Tensor):
            found.append(part)
        elif depth:
            found += tensors_in(part, depth - 1)
    return found


def count_rows(
    args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> tuple[tuple[int, ...], set[int]]:
    """Return how many rows the inputs of a model may have, and how many other ones have that do not agree.

    They lie along the first axis of the first tensor, or in a list of tensors; a further tensor agrees if it has as
    many, one, or a single axis.

    >>> images = [torch.zeros(3, 8, 8), torch.zeros(3, 9, 9)]
    >>> count_rows((images,), {}, images)
    ((3, 2), set())
    >>> count_rows(images, {}, [torch.zeros(3, 8), torch.zeros(5, 8)])
    ((3,), {5})
    """
    first = args[0] if args else next(iter(kwargs.values()), None)
    lengths = [tensor.shape[0] for tensor in tensors if tensor.dim()][:1]
    if isinstance(first, (list, tuple)) and first and isinstance(first[0], torch.Tensor):
        return (*lengths, len(first)), set()
    others = {tensor.shape[0] for tensor in tensors if tensor.dim() > 1}
    return tuple(lengths), others - {1, *lengths}


class YieldedBatches:
    """Batches of this rank that were yielded and may still be computed, the one being computed first.

    Which of them a pass was given matters only where two have as many rows of this rank, and not as many of all ranks,
    as an epoch's last batch may. The loop is taken to go on to the next one after a backward pass; where it does not,
    the ranks' shares do not sum to one, and the step is refused.

    Examples
    --------
    >>> import numpy as np
    >>> out = YieldedBatches(rank=0)
    >>> out.add(RankBatch(np.array([3, 5])))
    >>> out.find((3,))[0].sizes, out.find((4,))
    (array([3, 5]), (None, False))
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.num_delivered = self.passes = 0
        """Batches of the loop under way, and passes in training."""
        self._batches: list[RankBatch] = []
        self._is_first_computed = self._has_fetched_since = self._models_take_turns = False
        self._backward_model_ids: set[int] = set()  # models whose gradients the first of them was computed for

    def add(self, batch: RankBatch) -> None:
        """Add a batch that the loop is given."""
        self._batches.append(batch)
        self.num_delivered += 1
        self._has_fetched_since = True
        if len(self._batches) > MAX_YIELDED_BATCHES:
            del self._batches[0]
            self._is_first_computed = False

    def clear(self) -> None:
        """Forget the batches of a loop that is over."""
        self._batches.clear()
        self.num_delivered = self.passes = 0
        self._is_first_computed = self._has_fetched_since = False
        self._backward_model_ids.clear()

    def find(self, row_counts: Sequence[int], model: object = None) -> tuple[RankBatch | None, bool]:
        """Return a batch of one of these counts of own rows, or None, and whether it is new; leave out those before it.

        A model leaves the batch that its gradients were computed of once a further one was yielded; a second one too,
        where models take turns, as earlier batches have shown.
        """
        out = self._batches
        places = list(range(len(out)))
        if self._moves_on(model):
            places[:2] = [1] if self._has_fetched_since and id(model) in self._backward_model_ids else [1, 0]
        if (
            len(out) > 1
            and self._backward_model_ids
            and id(model) not in self._backward_model_ids
            and out[0].total == out[1].total
        ):
            mine = [batch.local_samples(self.rank) for batch in out[:2]]
            if mine[0] != mine[1] and any(count in row_counts for count in mine):
                self._models_take_turns = mine[1] in row_counts
        for wanted in row_counts:
            for place in places:
                batch = out[place]
                if batch.local_samples(self.rank) == wanted:
                    new = place > 0 or not self._is_first_computed
                    if new:
                        del out[:place]
                        self._is_first_computed, self._has_fetched_since = True, False
                        self._backward_model_ids.clear()
                    return batch, new
        return None, False

    def drop_unmatched(self) -> None:
        """Leave out batches that were computed without being found: all but as many as the loop fetches ahead."""
        ahead = max(self.num_delivered - self.passes, 0)
        del self._batches[: max(len(self._batches) - ahead, 0)]
        self._is_first_computed, self._has_fetched_since = False, bool(self._batches)
        self._backward_model_ids.clear()

    def note_backward(self, batch: RankBatch, model: object) -> None:
        """Note a backward pass of a model through this batch."""
        if self._batches and self._batches[0] is batch:
            self._backward_model_ids.add(id(model))

    def next_batch(self, model: object) -> tuple[RankBatch | None, bool]:
        """Return the batch that a loop is taken to compute whose rows say nothing, and whether it is a new one."""
        out = self._batches
        if not out:
            return None, False
        return self.find([out[int(self._moves_on(model))].local_samples(self.rank)], model)

    def _moves_on(self, model: object) -> bool:
        backed = id(model) in self._backward_model_ids or (
            self._models_take_turns and self._has_fetched_since and bool(self._backward_model_ids)
        )
        return self._is_first_computed and backed and len(self._batches) > 1

    @property
    def rows(self) -> list[int]:
        """Rows of this rank's batches that are out."""
        return sorted({batch.local_samples(self.rank) for batch in self._batches})


# -- passes and the graph ------------------------------------------------------------------------------------------


class ForwardPass:
    """A forward pass with gradients: its model, its rows, and the passes that made its inputs."""

    __slots__ = ("batch", "begin", "beside", "end", "others", "owner", "rows", "through")

    def __init__(self, owner: AttachedModel, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        tensors = tensors_in([*args, *kwargs.values()] if kwargs else args)
        self.owner = weakref.ref(owner)
        self.rows, self.others = count_rows(args, kwargs, tensors)
        self.batch: RankBatch | None = None
        made = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        behind = BackwardGraph(made) if made else None
        self.through: list[ForwardPass] = list(behind.passes) if behind else []
        self.beside: list[torch.Tensor] = behind.leaves if behind else []
        self.begin: int = number_now()
        self.end: float = math.inf  # a forward pass may hold a backward pass, as Lightning's training steps do
        if len(_passes) >= MAX_REMEMBERED_PASSES:
            del _passes[: MAX_REMEMBERED_PASSES // 2]
        _passes.append(self)

    def note_end(self) -> None:
        """Note the end of the forward pass."""
        self.end = number_now()
        if self.end == self.begin and self in _passes:  # nothing in it has gradients
            _passes.remove(self)


_passes: list[ForwardPass] = []
_owners: weakref.WeakSet[AttachedModel] = weakref.WeakSet()
_torch_backward = torch.autograd.backward

number_now: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
"""Return the number of the next node that this thread makes."""


class BackwardGraph:
    """What gradients at these nodes go back through, up to the first pass on every way.

    Attributes
    ----------
    passes, plain
        All forward passes, and those that are reached otherwise than through a scaled loss.
    scaled
        The scaled losses.
    leaves, beside
        Parameters that are reached otherwise than through a pass or a scaled loss, as by a penalty; and those that are
        reached through a scaled loss and no pass, or that made the inputs of a pass.
    """

    def __init__(self, nodes: Iterable[Any]) -> None:
        self.passes: dict[ForwardPass, None] = {}
        self.plain: dict[ForwardPass, None] = {}
        self.scaled: list[Any] = []
        self.leaves: list[torch.Tensor] = []
        self.beside: list[torch.Tensor] = []
        waiting: list[tuple[Any, bool]] = [(node, False) for node in nodes]
        known = {(None, False), (None, True)}
        while waiting:
            node, scaled = waiting.pop()
            if (node, scaled) in known:
                continue
            known.add((node, scaled))
            number = node._sequence_nr()
            place = bisect_right(_passes, number, key=attrgetter("begin")) - 1
            if type(node) is _SCALED:
                if scaled:
                    raise LoopError("balance.scale() was called on a loss that is already scaled: scale each loss once")
                self.scaled.append(node)
                waiting += [(following, True) for following, _ in node.next_functions]
            elif place >= 0 and number < _passes[place].end:
                one = _passes[place]
                found = [one, *one.through]
                self.passes.update(dict.fromkeys(found))
                self.beside += one.beside
                if not scaled:
                    self.plain.update(dict.fromkeys(found))
            elif node.next_functions:
                waiting += [(following, scaled) for following, _ in node.next_functions]
            elif isinstance(leaf := getattr(node, "variable", None), torch.nn.Parameter):
                (self.beside if scaled else self.leaves).append(leaf)


class _ScaledLoss(torch.autograd.Function):
    """A loss times what it is a mean over; no count leaves it as it is, and 0 makes it 0 even if it is NaN."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, count: float | None, factor: float) -> torch.Tensor:
        ctx.count, ctx.factor = count, factor
        return loss * ctx.factor if ctx.factor else torch.zeros_like(loss)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradients[0] * ctx.factor, None, None


_SCALED: Any = _ScaledLoss._backward_cls


def scale_loss(loss: torch.Tensor, count: float | None, factor: float) -> torch.Tensor:
    """Return the loss times a factor, and let the graph remember the count behind it."""
    if count == 0 and loss.grad_fn is not None:
        _keep_finite(loss.grad_fn)
    return _ScaledLoss.apply(loss, count, factor)  # type: ignore[no-any-return, no-untyped-call]


def _keep_finite(root: Any) -> None:
    """Make the nodes of a loss without terms send zeros instead of 0 / 0."""

    def replace_nonfinite(
        grad_inputs: Sequence[torch.Tensor | None], grad_outputs: Any
    ) -> tuple[torch.Tensor | None, ...]:
        return tuple(one if one is None or one.is_sparse else one.nan_to_num(0.0, 0.0, 0.0) for one in grad_inputs)

    waiting, known = [root], {None, root}
    for node in waiting:
        node.register_hook(replace_nonfinite)
        for following, _ in node.next_functions:  # division and reduction come first
            if following not in known and len(known) < 64 and not hasattr(following, "variable"):
                known.add(following)
                waiting.append(following)


# -- backward passes -----------------------------------------------------------------------------------------------


_ever_attached: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def was_attached(model: torch.nn.Module) -> bool:
    """Return whether a model is or was attached."""
    return model in _ever_attached


def is_attached(model: torch.nn.Module) -> bool:
    """Return whether a model is attached, to whatever loader."""
    return any(owner.model is model for owner in _owners)


def watch_backward(owner: AttachedModel) -> Callable[[], None]:
    """Weigh backward passes through this model, until the returned function is called."""
    torch.autograd.backward = _backward
    _owners.add(owner)
    _ever_attached.add(owner.model)
    return functools.partial(_unwatch, weakref.ref(owner))


def _unwatch(owner_ref: weakref.ref[AttachedModel]) -> None:
    if (owner := owner_ref()) is not None:
        _owners.discard(owner)
    if not _owners:
        torch.autograd.backward = _torch_backward
        _passes.clear()


@functools.wraps(_torch_backward)
def _backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    """Compute gradients as torch does, each model's times this rank's share of the samples behind them."""
    options = {"retain_graph": retain_graph, "create_graph": create_graph, "inputs": inputs}
    gradients = grad_variables if grad_tensors is None else grad_tensors
    # A pass within another one recomputes activations: its gradients are the outer one's.
    if not _owners or torch._C._current_graph_task_id() != -1:
        _torch_backward(tensors, gradients, **options)
        return
    single = isinstance(tensors, torch.Tensor | torch.autograd.graph.GradientEdge)
    roots: list[Any] = [tensors] if single else list(tensors)
    nodes = [root.grad_fn if isinstance(root, torch.Tensor) else root.node for root in roots]
    reached, error = None, None
    try:
        reached = BackwardGraph(nodes)
    except LoopError as twice:
        reached, error = BackwardGraph(()), twice
        reached.passes = dict.fromkeys(_passes[-1:])
    owners: dict[AttachedModel, None] = {}
    for one in reached.passes:
        if (owner := one.owner()) is not None and owner in _owners and owner.first_parameter is not None:
            owners[owner] = None
    if inputs is not None:  # gradients of nothing else are kept, such as those of an adversarial example
        wanted = [inputs] if isinstance(inputs, torch.Tensor) else list(getattr(inputs, "values", lambda: inputs)())
        owners = {owner: None for owner in owners if owner.owns_any(wanted)}
    if not owners:
        _torch_backward(tensors, gradients, **options)
        return
    weightings = dict.fromkeys(owner.weighting for owner in owners)
    factors = {weighting.begin_backward(reached, list(owners), error) for weighting in weightings}
    factor = factors.pop()
    if factors:
        for weighting in weightings:
            weighting.reject_step(
                LoopError(f"one backward pass covers batches of several balanced loaders: {SCALE_LOSS_HINT}")
            )
        factor = math.nan
    handles = _call_at_end(nodes, weightings)
    try:
        if factor != 1.0:
            gradients = _scale_root_gradients(roots, gradients, factor)
        _torch_backward(roots, gradients, **options)
    except BaseException as error:
        for weighting in weightings:
            weighting.fail_backward(error)
        raise
    finally:
        for handle in handles:
            handle.remove()
    for weighting in weightings:
        weighting.end_backward()


def _call_at_end(nodes: Iterable[Any], weightings: Iterable[Any]) -> list[Any]:
    """Notify weightings when all gradients of this rank are there, before any rank waits for others.

    The engine runs callbacks in their order, and those of DistributedDataParallel and sharded models are queued later.
    """
    begun: list[bool] = []

    def queue_callbacks(gradients: Any) -> None:
        if not begun:
            begun.append(True)
            for weighting in weightings:
                torch.autograd.Variable._execution_engine.queue_callback(weighting.on_local_gradients_ready)

    return [node.register_prehook(queue_callbacks) for node in dict.fromkeys(nodes) if node is not None]


def _scale_root_gradients(roots: Sequence[Any], gradients: Any, factor: float) -> list[torch.Tensor | None]:
    """Return the gradients with which torch begins at these roots, times a factor."""
    gradient_tuple = torch.autograd._tensor_or_tensors_to_tuple(gradients, len(roots))
    root_gradients = torch.autograd._make_grads(roots, gradient_tuple, is_grads_batched=False)
    return [None if gradient is None else gradient * factor for gradient in root_gradients]
