"""The audit of a loss in one process, as in a notebook: it computes the gradients of all ranks, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from paceline.audit.inside.patches import no_dropout
from paceline.audit.inside.randomness import SeededBlock, generator_checksums, generators_used_since
from paceline.audit.inside.samples import convert_tensors, count_rows, part_sizes
from paceline.audit.inside.step_recorder import ParameterNames, compress_values
from paceline.audit.run import Arrays, AuditPlan, AuditRun, RankRecord, Sample, SampleRef, StepRecord
from paceline.audit.verdict import Audit
from paceline.audit.verdict_types import AuditVerdict

ROWS_STREAM = "rows of the batches"


def audit(
    step: Callable[[Any], torch.Tensor], batches: Iterable[Any], *, ranks: int = 2, model: torch.nn.Module | None = None
) -> AuditVerdict:
    """Return whether the mean of the ranks' gradients is that of one process, wherever a row lands.

    Every batch is divided among simulated ranks, whose gradients are averaged as ``DistributedDataParallel`` does, in
    several ways, and compared with the gradient of the whole batch. No process is started and nothing is trained.

    Parameters
    ----------
    step
        A function of a batch that returns its loss, as a rank computes it; it does not call ``backward()``.
    batches
        A few global batches: tensors, or lists, tuples and dictionaries of them, whose first axis is the samples.
    ranks
        How many ranks to simulate, at least 2.
    model
        The model whose parameters are compared, and whose buffers are restored afterwards; without it, the parameters
        are whatever the loss has gradients for.

    Raises
    ------
    ValueError
        If a batch has fewer than two samples for each rank, or the loss depends on no parameter.

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
    batch_list = list(batches)
    sizes = [count_rows(batch) or 0 for batch in batch_list]
    if ranks < 2:
        raise ValueError(f"ranks must be at least 2, got {ranks}")
    if min(sizes, default=0) < 2 * ranks:
        raise ValueError(
            f"batches must hold tensors of at least {2 * ranks} samples each, on their first axis, for {ranks} ranks; "
            f"got batches of {sizes} samples"
        )
    known = torch.nn.Module() if model is None else model
    run = SimulatedRanks(step, batch_list, ranks, [size // ranks for size in sizes], known)
    return Audit(run, steps=len(batch_list), is_script=False).verdict()


@dataclass
class SimulatedRanks:
    """Computes the steps of all ranks in this process; a model that is not known is one without parameters."""

    compute_loss: Callable[[Any], torch.Tensor]
    batches: list[Any]
    num_ranks: int
    samples_per_rank: list[int]  # samples of each batch that a rank gets
    model: torch.nn.Module

    def __post_init__(self) -> None:
        self.parameter_names = ParameterNames()
        self.parameter_names.add_module(self.model)
        self.parameters: dict[str, torch.Tensor] = {
            name: one for name, one in self.model.named_parameters() if one.requires_grad
        }
        self.find_parameters = not self.parameters

    def __call__(self, plan: AuditPlan, in_one_process: bool) -> AuditRun:
        """Compute every step of a plan; a run of one process has all its samples on one rank already."""
        placed = (plan.arrangement or {}).get(ROWS_STREAM) or [
            [[(rank, number, place) for place in range(share)] for rank in range(self.num_ranks)]
            for number, share in enumerate(self.samples_per_rank)
        ]
        records = [RankRecord(rank, len(placed[0]), streams={ROWS_STREAM: []}) for rank in range(len(placed[0]))]
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        try:
            with no_dropout():
                for number, parts in enumerate(placed[: plan.steps]):
                    gradients, draws = self.average_gradients(number, parts)
                    for record, refs in zip(records, parts, strict=True):
                        record.streams[ROWS_STREAM].append([self.sample_at(ref) for ref in refs])
                        record.steps.append(StepRecord({ROWS_STREAM: number + 1}, gradients, {}, {"draws": draws}))
        finally:  # every run starts from the same buffers
            for name, buffer in self.model.named_buffers():
                buffer.copy_(buffers[name])
        dtypes = {str(parameter.dtype).removeprefix("torch.") for parameter in self.parameters.values()}
        for record in records:
            record.facts = {"dtypes": sorted(dtypes), "mixing": self.parameter_names.batch_norm_layers()}
        return AuditRun(records)

    def row_index(self, sample_ref: SampleRef) -> int:
        """Return a sample's row of its global batch, of which each rank has one part after the other."""
        rank, number, place = sample_ref
        return rank * self.samples_per_rank[number] + place

    def sample_at(self, sample_ref: SampleRef) -> Sample:
        item = convert_tensors(self.batches[sample_ref[1]], lambda tensor: tensor[self.row_index(sample_ref)])
        return Sample(self.row_index(sample_ref), part_sizes(item))

    def average_gradients(self, step_index: int, sample_refs_by_rank: list[list[SampleRef]]) -> tuple[Arrays, bool]:
        """Return the mean of the ranks' gradients in a step, and whether random numbers were drawn."""
        total: Arrays = {}
        draws = False
        for rank, refs in enumerate(sample_refs_by_rank):
            with SeededBlock(f"{step_index} {rank}"):
                before = generator_checksums()
                gradients = self.gradients(refs)
                draws = draws or generators_used_since(before)
            for name, array in gradients.items():
                with np.errstate(invalid="ignore"):  # a loss of 0 / 0 is a verdict, not a warning
                    total[name] = total.get(name, 0.0) + array.astype(np.float64) / len(sample_refs_by_rank)
        return total, draws

    def gradients(self, sample_refs: list[SampleRef]) -> Arrays:
        """Return the gradients of one rank, whose samples are all of one global batch."""
        rows = [self.row_index(ref) for ref in sample_refs]
        with torch.enable_grad():
            loss = self.compute_loss(convert_tensors(self.batches[sample_refs[0][1]], lambda tensor: tensor[rows]))
            for leaf in leaf_parameters(loss) if self.find_parameters else ():
                if not any(leaf is known for known in self.parameters.values()):
                    self.parameters[f"parameter {len(self.parameters)} {tuple(leaf.shape)}"] = leaf
            parameters = list(self.parameters.values())
            found = torch.autograd.grad(loss, parameters, allow_unused=True) if loss.requires_grad else ()
        if all(gradient is None for gradient in found):
            raise ValueError("step must return a loss that depends on the model's parameters, before any backward()")
        return {
            name: compress_values(torch.zeros_like(parameter) if gradient is None else gradient)
            for (name, parameter), gradient in zip(self.parameters.items(), found, strict=True)
        }


def leaf_parameters(loss: torch.Tensor) -> list[torch.Tensor]:
    """Return the parameters that a loss depends on, in an order that its computation fixes."""
    seen: dict[Any, None] = {}
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen[node] = None
            waiting += [other for other, _ in node.next_functions]
    return [node.variable for node in seen if hasattr(node, "variable")]
