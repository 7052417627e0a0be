"""The audit of a loss in a notebook: one process takes the parts of all ranks, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline._require import require
from paceline.audit.audit_verdict import AuditVerdict
from paceline.audit.comparisons import AuditPlan
from paceline.audit.examine import Audit
from paceline.audit.inquiry import AuditRun
from paceline.audit.tape import Arrays, Sample, Tape, TapedStep

if TYPE_CHECKING:
    import torch

ROWS = "rows of the batches"


def audit(
    step: Callable[[Any], torch.Tensor],
    batches: Iterable[Any],
    *,
    ranks: int = 2,
    model: torch.nn.Module | None = None,
) -> AuditVerdict:
    """Return whether the mean of the ranks' gradients is that of one process, wherever a row lands.

    Every batch is divided among pretended ranks, whose gradients are averaged as ``DistributedDataParallel`` does, in
    several ways, and compared with the gradient of the whole batch. No process is started and nothing is trained.

    Parameters
    ----------
    step
        A function of a batch that returns its loss, as a rank computes it; it does not call ``backward()``.
    batches
        A few global batches: tensors, or lists, tuples and dictionaries of them, whose first axis is the samples.
    ranks
        How many ranks to pretend.
    model
        The model, for the names of its parameters; its buffers are put back afterwards.

    Raises
    ------
    ValueError
        If there is no batch, or one has fewer than two samples for each rank.

    Examples
    --------
    A mean over the tokens that count, where rows have different numbers of these:

    >>> import torch
    >>> model = torch.nn.Linear(4, 5).double()
    >>> tokens, labels = torch.randn(8, 6, 4).double(), torch.randint(5, (8, 6))
    >>> for row, first in enumerate([0, 5, 1, 4, 2, 3, 0, 5]):
    ...     labels[row, :first] = -100
    >>> def step(batch):
    ...     tokens, labels = batch
    ...     return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
    >>> verdict = audit(step, [(tokens, labels)], model=model)
    >>> verdict.status.name, verdict.cause.name, verdict.detail
    ('NOT_EXACT', 'TERMS', 'it follows the number of part 1 that count')
    """
    require("torch", needed_by="paceline.audit", extra="torch")
    batch_list = list(batches)
    sizes = [rows_of(batch) for batch in batch_list]
    if not batch_list or min(sizes) < 2 * ranks:
        raise ValueError(f"batches must have at least {2 * ranks} samples each, for {ranks} ranks; got {sizes}")
    pretended = Pretended(step, batch_list, ranks, model)
    buffers = {} if model is None else {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        return Audit(pretended, steps=len(batch_list), notebook=True).verdict()
    finally:
        for name, buffer in [] if model is None else model.named_buffers():
            buffer.copy_(buffers[name])


class Pretended:
    """Runs the steps of all ranks in this process."""

    def __init__(
        self, step: Callable[[Any], torch.Tensor], batches: list[Any], ranks: int, model: torch.nn.Module | None
    ) -> None:
        self.step, self.batches, self.ranks = step, batches, ranks
        self.names = {} if model is None else {id(one): name for name, one in model.named_parameters()}
        self.model = model

    def __call__(self, plan: AuditPlan, alone: bool) -> AuditRun:
        """Run every batch by a plan."""
        from paceline.audit.inside.patches import no_dropout

        arranged = (plan.arranged or {}).get(ROWS) or self._shares(1 if alone else self.ranks)
        ranks = len(arranged[0])
        tapes = [Tape(rank, ranks, streams={ROWS: []}) for rank in range(ranks)]
        with no_dropout():
            for number, row in enumerate(arranged[: plan.steps]):
                gradients, dtypes, draws = self._averaged(row)
                for tape, refs in zip(tapes, row, strict=True):
                    tape.streams[ROWS].append([self._sample(ref) for ref in refs])
                    facts = {"draws": True} if draws else {}
                    tape.steps.append(TapedStep({ROWS: number + 1}, gradients, {}, facts))
                    tape.facts = {"dtypes": sorted(dtypes), "mixing": self._mixing()}
        return AuditRun(tapes, folder="this process")

    def _shares(self, ranks: int) -> list[list[list[tuple[int, int, int]]]]:
        parts = [rows_of(batch) // ranks for batch in self.batches]
        return [
            [[(rank, number, place) for place in range(part)] for rank in range(ranks)]
            for number, part in enumerate(parts)
        ]

    def _row(self, ref: tuple[int, int, int]) -> tuple[int, int]:
        """Return the batch and the row of a sample; before it was moved, each rank had one part after the other."""
        rank, number, place = ref
        return number, rank * (rows_of(self.batches[number]) // self.ranks) + place

    def _sample(self, ref: tuple[int, int, int]) -> Sample:
        from paceline.audit.inside.sample_order import converted, counts, digest, written

        number, row = self._row(ref)
        known = written(plain(converted(self.batches[number], lambda tensor: tensor[row])))
        return Sample(digest(known), counts(known))

    def _averaged(self, row: list[list[tuple[int, int, int]]]) -> tuple[Arrays, set[str], bool]:
        """Return the mean of the ranks' gradients, their precisions, and whether random numbers were drawn."""
        from paceline.audit.inside.randomness import Seeded, random_state, used_since

        total: Arrays = {}
        dtypes: set[str] = set()
        draws = False
        for rank, refs in enumerate(row):
            with Seeded(rank):
                before = random_state()
                gradients = self._gradients(refs)
                draws = draws or used_since(before)
            dtypes |= {str(array.dtype) for array in gradients.values()}
            for name, array in gradients.items():
                with np.errstate(invalid="ignore"):  # a loss of 0 / 0 is a verdict, not a warning
                    total[name] = total.get(name, 0.0) + array.astype(np.float64) / len(row)
        return total, dtypes, draws

    def _gradients(self, refs: list[tuple[int, int, int]]) -> Arrays:
        import torch

        from paceline.audit.inside.sample_order import converted
        from paceline.audit.inside.step_recorder import folded

        number, places = self._row(refs[0])[0], [self._row(ref)[1] for ref in refs]
        with torch.enable_grad():
            loss = self.step(converted(self.batches[number], lambda tensor: tensor[places]))
            leaves = leaves_of(loss)
            found = torch.autograd.grad(loss, leaves, allow_unused=True)
        return {
            self.names.get(id(leaf), f"parameter {place} {tuple(leaf.shape)}"): folded(
                torch.zeros_like(leaf) if gradient is None else gradient
            )
            for place, (leaf, gradient) in enumerate(zip(leaves, found, strict=True))
        }

    def _mixing(self) -> list[str]:
        from paceline.audit.inside.names import Names

        names = Names()
        if self.model is not None:
            names.note(self.model)
        return names.that_mix()


def rows_of(batch: Any) -> int:
    """Return the samples of a batch: the first axis of its first tensor.

    Raises
    ------
    TypeError
        If there is no tensor in it.
    """
    from paceline.audit.inside import sample_order

    rows = sample_order.rows_of(batch)
    if rows is not None:
        return rows
    raise TypeError(f"a batch must hold a tensor whose first axis is the samples, got {type(batch).__name__}")


def plain(item: Any) -> Any:
    """Return a row as plain lists and dictionaries, whatever classes held it."""
    if isinstance(item, Mapping):
        return {str(name): plain(part) for name, part in item.items()}
    return tuple(plain(part) for part in item) if isinstance(item, list | tuple) else item


def leaves_of(loss: torch.Tensor) -> list[torch.Tensor]:
    """Return the parameters that a loss depends on, in an order that its computation fixes.

    Raises
    ------
    ValueError
        If it depends on none.
    """
    found: dict[int, torch.Tensor] = {}
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.setdefault(id(node.variable), node.variable)
        waiting += [other for other, _ in node.next_functions]
    if not found:
        raise ValueError("step must return a loss that depends on parameters, and has a gradient: call no backward()")
    return list(found.values())
