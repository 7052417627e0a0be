"""The recorder of one rank in one run: it notes samples and steps, hands out other samples, and ends the script."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from paceline._arrays import Array
from paceline.audit.comparisons import AuditPlan
from paceline.audit.inside.names import Names
from paceline.audit.inside.randomness import Seeded, random_state, used_since
from paceline.audit.inside.sample_order import (
    Supplies,
    converted,
    counts,
    digest,
    read,
    recorded,
    rows_of,
)
from paceline.audit.tape import RANDINT, Sample, Tape, TapedStep


class StepRecorder:
    """Recorder of the samples and steps of one rank in one run.

    Parameters
    ----------
    plan
        Plan of the run.
    folder
        Where the record is written.
    end
        Called after the last step, when the record is written: it ends the script.
    """

    def __init__(self, plan: AuditPlan, folder: Path, end: Callable[[Path, int], None]) -> None:
        self.plan, self.folder = plan, folder
        self.names = Names()
        self.tape = Tape(0, 1)
        self.plain_named_parameters: Any = torch.nn.Module.named_parameters
        self._end = end
        self._supplies = Supplies(plan.supplies) if plan.supplies else None
        self._samples: dict[str, list[list[Any]]] = {}
        self._facts: dict[str, Any] = {}
        self._random: dict[int, int] | None = None
        self._loaded_twice = 0
        self._raw: dict[int, Array] = {}
        self._trained: set[int] = set()
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._backward: float | None = None
        self._at_step: dict[int, int] | None = None
        self._balanced: list[Any] = []
        self._batch_counts: dict[str, int] = {}
        self._dtypes: set[str] = set()
        self._depth = 0
        self._gradients: dict[str, Array] | None = None
        self.done = False

    # -- samples ---------------------------------------------------------------------------------------------------

    def fetched(self, stream: str, dataset: Any, indices: list[Any], get: Callable[[Any], Any]) -> list[Any]:
        """Return the next samples of a stream: those of these indices, or others in their place."""
        batches = self.tape.streams.setdefault(stream, [])
        refs = self._arranged(stream, len(batches), self._rank())
        self._look_for_draws()
        if refs is None:
            samples = [self.loaded(stream, index, get) for index in indices]
            known = [recorded(item, index) for item, index in zip(samples, indices, strict=True)]
        else:
            assert self._supplies is not None
            known = [self._supplies.take(stream, *ref) for ref in refs]
            samples = [read(one, lambda index: self.loaded(stream, index, dataset.__getitem__)) for one in known]
        batches.append([Sample(digest(one), counts(one)) for one in known])
        self._samples.setdefault(stream, []).append(known)
        self._random = random_state()
        return samples

    def loaded(self, stream: str, index: Any, get: Callable[[Any], Any]) -> Any:
        """Return a sample, loaded with the same random numbers wherever and whenever that is."""
        with Seeded(f"{stream} {index}"):
            item = get(index)
        # load four samples twice, to see whether they are the same
        if self._loaded_twice < 4:
            self._loaded_twice += 1
            with Seeded(f"{stream} {index}"):
                if digest(recorded(get(index), index)) != digest(recorded(item, index)):
                    self.tape.facts["random samples"] = True
        return item

    def _arranged(self, stream: str, number: int, rank: int) -> list[tuple[int, int, int]] | None:
        batches = (self.plan.arranged or {}).get(stream, [])
        return batches[number][rank] if number < len(batches) else None

    def collated(self, samples: int, batch: Any) -> Any:
        """Return a batch that was made of so many samples, in the precision of the run."""
        rows = rows_of(batch)
        if rows is not None and rows != samples:
            self.tape.facts.setdefault("collated", [rows, samples])
        if self.plan.precision != "float64":
            return batch
        return converted(batch, lambda part: part.double() if part.is_floating_point() else part)

    def before_collating(self) -> None:
        """Note where random numbers stand when a balanced loader makes a batch."""
        self._look_for_draws()
        self._random = random_state()

    @property
    def draws_are_samples(self) -> bool:
        """True if numbers that the script draws now may be those of samples: no loader has yielded any."""
        return all(stream.startswith(RANDINT) for stream in self.tape.streams)

    def look_beside(self) -> None:
        """Note whether something else was drawn since the last step: then a row may be more than its number."""
        if self._at_step is not None and used_since(self._at_step):
            self._facts["beside"] = True
        self._at_step = None

    def _look_for_draws(self) -> None:
        """Note whether the script drew random numbers since it was given its samples."""
        if self._random is not None and used_since(self._random):
            self._facts["draws"] = True

    # -- steps -----------------------------------------------------------------------------------------------------

    def before_step(self, optimizer: torch.optim.Optimizer, closure: bool) -> None:
        """Note the gradients that an optimizer is about to use; within another optimizer's step nothing."""
        self._depth += 1
        if self._depth > 1:
            return
        self._look_for_draws()
        if self._backward is not None:
            self.note(kept=self._norm() / (self._backward or float("nan")))
        self._note_sizes()
        parameters = self._parameters(optimizer)
        for name, parameter in parameters.items():
            self.tape.start.setdefault(name, folded(parameter))
        self._gradients = None if closure else gradients(parameters)
        if self.plan.frozen:
            self._before = [(parameter, parameter.detach().clone()) for parameter in parameters.values()]

    def after_closure(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the gradients of a closure that is called for the first time in a step."""
        if self._gradients is None:
            self._gradients = gradients(self._parameters(optimizer))

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the parameters; after the last step write the record and end the script."""
        self._depth -= 1
        if self._depth:
            return
        parameters = self._parameters(optimizer)
        found = gradients(parameters) if self._gradients is None else self._gradients
        self._dtypes |= {str(one.dtype).removeprefix("torch.") for one in parameters.values()}
        delivered = {name: len(batches) for name, batches in self.tape.streams.items()} | self._batch_counts
        with torch.no_grad():
            for parameter, before in self._before:
                parameter.copy_(before)
        after = {name: folded(parameter) for name, parameter in parameters.items()}
        raw = {name: self._raw[id(one)] for name, one in parameters.items() if id(one) in self._raw}
        self.tape.steps.append(
            TapedStep(delivered, found, after, self._facts, raw if len(raw) == len(parameters) else {})
        )
        self._trained |= {id(one) for one in parameters.values()}
        self._facts, self._random, self._backward, self._at_step = {}, None, None, random_state()
        if len(self.tape.steps) >= self.plan.steps:
            self.finish()

    def after_backward(self) -> None:
        """Note how large the gradients are: an optimizer that finds others had them changed by the script."""
        self._backward = self._norm()
        if self.plan.frozen:
            unsharded = (one for one in self._known_parameters() if not hasattr(one, "full_tensor"))
            self._raw = {id(one): folded(one.grad) for one in unsharded if one.grad is not None}

    def _norm(self) -> float:
        found = [one.grad for one in self._known_parameters() if one.grad is not None and not one.grad.is_sparse]
        squares = [float(getattr(one, "to_local", lambda one=one: one)().norm()) ** 2 for one in found]
        return math.sqrt(sum(squares))

    def _known_parameters(self) -> list[torch.nn.Parameter]:
        parameters = {id(one): one for module in self.names.modules() for one in module.parameters()}
        return list(parameters.values())

    def clipped(self, norm: Any, limit: float) -> None:
        """Note the norm that gradients are clipped by; that of sharded ones is the same on every rank."""
        if not hasattr(norm, "full_tensor"):
            self.note(clipped=[float(norm), float(limit)])

    def count_batch(self, name: str) -> None:
        """Count a batch of a balanced loader."""
        self._batch_counts[name] = self._batch_counts.get(name, 0) + 1

    def watch(self, loader: Any) -> None:
        """Note the sizes of a balanced loader's batches in every step."""
        self._balanced.append(loader)

    def _note_sizes(self) -> None:
        for loader in self._balanced:
            self.note(sizes=[int(size) for size in loader.batch_sizes])

    def note(self, **facts: Any) -> None:
        """Note facts about the step under way."""
        for name, fact in facts.items():
            self._facts.setdefault(name, []).append(fact)

    def finish(self) -> None:
        """Write the record, once; then end the script."""
        if self.done or not self.tape.steps:
            return
        self.done = True
        self.tape.rank, self.tape.world_size = self._rank(), self._world_size()
        self.tape.facts |= {
            "mixing": self.names.that_mix(),
            "hooks": self.names.that_hook(),
            "not trained": self.names.not_trained(self._trained, folded),
            "dtypes": sorted(self._dtypes),
        }
        torch.save(self._samples, self.folder / f"{self.tape.rank}.samples")
        self.tape.save(self.folder)
        self._end(self.folder, self.tape.world_size)

    def _parameters(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return self.names.of(stepped, self.plain_named_parameters)

    @staticmethod
    def _rank() -> int:
        return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0

    @staticmethod
    def _world_size() -> int:
        return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gradients(parameters: dict[str, torch.Tensor]) -> dict[str, Array]:
    """Return the gradients of parameters, zero where there is none."""
    return {
        name: folded(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        for name, parameter in parameters.items()
    }


def folded(tensor: torch.Tensor) -> Array:
    """Return a tensor's values; of a large one, sums of its values with random signs.

    A difference between two tensors shows in the sums, which are linear.
    """
    full: Any = getattr(tensor, "full_tensor", lambda: tensor)()  # of a sharded one: every rank asks alike
    if full.is_sparse:
        full = full.to_dense()
    values = full.detach().cpu().reshape(-1)
    if not values.is_floating_point() or values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    flat: Array = values.numpy().copy()
    sums = 65536  # up to so many values are compared one by one
    if len(flat) <= sums:
        return flat
    signs = np.random.default_rng(len(flat)).integers(0, 2, len(flat), dtype=np.int8) * 2 - 1
    padded = np.zeros(-(-len(flat) // sums) * sums, flat.dtype)
    padded[: len(flat)] = flat * signs
    return np.asarray(padded.reshape(-1, sums).sum(axis=0))
