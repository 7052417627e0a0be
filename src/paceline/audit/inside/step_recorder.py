"""The recorder of one rank in one run: it notes samples and steps, hands out other samples, and ends the script."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from paceline._arrays import Array
from paceline.audit.comparisons import AuditPlan
from paceline.audit.inside.names import Names
from paceline.audit.inside.sample_order import (
    NUMBER,
    Supplies,
    UnwritableError,
    converted,
    counts,
    digest,
    read,
    written,
)
from paceline.audit.tape import DRAWN, Sample, Tape, TapedStep

LARGEST = 65536
"""Values of a parameter that are compared one by one; a larger one is folded to so many sums with random signs."""


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
        self.asked_for_names: Any = torch.nn.Module.named_parameters
        self._end = end
        self._supplies = Supplies(plan.supplies) if plan.supplies else None
        self._samples: dict[str, list[list[Any]]] = {}
        self._facts: dict[str, Any] = {}
        self._chance: int | None = None
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._backward: float | None = None
        self._at_step: int | None = None
        self._balanced: list[Any] = []
        self._handed_out: dict[str, int] = {}
        self._dtypes: set[str] = set()
        self._depth = 0
        self._gradients: dict[str, Array] | None = None
        self.done = False

    # -- samples ---------------------------------------------------------------------------------------------------

    def fetched(self, stream: str, load: Callable[[], list[Any]], dataset: Any, indices: list[Any]) -> list[Any]:
        """Return the next samples of a stream: those that were loaded, or others in their place."""
        batches = self.tape.streams.setdefault(stream, [])
        number, rank = len(batches), self._rank()
        self._look_at_chance()
        with Chance(zlib.crc32(f"{stream} {number} {rank}".encode())):  # what augments draws the same in every run
            refs = self._arranged(stream, number, rank)
            if refs is None:
                samples = load()
                known = [self._known(item, index) for item, index in zip(samples, indices, strict=True)]
            else:
                assert self._supplies is not None
                known = [self._supplies.take(stream, *ref) for ref in refs]
                samples = [read(one, dataset) for one in known]
        batches.append([Sample(digest(one), counts(one)) for one in known])
        self._samples.setdefault(stream, []).append(known)
        self._chance = chance()
        return samples

    def _arranged(self, stream: str, number: int, rank: int) -> list[tuple[int, int, int]] | None:
        batches = (self.plan.arranged or {}).get(stream, [])
        return batches[number][rank] if number < len(batches) else None

    def _known(self, item: Any, index: Any) -> Any:
        try:
            return written(item)
        except UnwritableError:
            return {NUMBER: index}

    def delivered(self, batch: Any) -> Any:
        """Return a batch in the precision of the run."""
        if self.plan.precision != "float64":
            return batch
        return converted(batch, lambda part: part.double() if part.is_floating_point() else part)

    @property
    def draws_are_samples(self) -> bool:
        """True if numbers that the script draws now may be those of samples: no loader has handed out any."""
        return all(stream.startswith(DRAWN) for stream in self.tape.streams)

    def look_beside(self) -> None:
        """Note whether something else was drawn since the last step: then a row may be more than its number."""
        if self._at_step is not None and self._at_step != chance():
            self._facts["beside"] = True
        self._at_step = None

    def _look_at_chance(self) -> None:
        """Note whether the script drew random numbers since it was given its samples."""
        if self._chance is not None and self._chance != chance():
            self._facts["draws"] = True

    # -- steps -----------------------------------------------------------------------------------------------------

    def before_step(self, optimizer: torch.optim.Optimizer, closure: bool) -> None:
        """Note the gradients that an optimizer is about to use; within another optimizer's step nothing."""
        self._depth += 1
        if self._depth > 1:
            return
        self._look_at_chance()
        if self._backward is not None:
            self.say(kept=self._norm() / (self._backward or float("nan")))
        self._note_sizes()
        parameters = self._parameters(optimizer)
        for name, parameter in parameters.items():
            self.tape.start.setdefault(name, folded(parameter))
        self._gradients = None if closure else gradients(parameters)
        if self.plan.frozen:
            self._before = [(parameter, parameter.detach().clone()) for parameter in parameters.values()]

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the parameters; after the last step write the record and end the script."""
        self._depth -= 1
        if self._depth:
            return
        parameters = self._parameters(optimizer)
        found = gradients(parameters) if self._gradients is None else self._gradients
        self._dtypes |= {str(one.dtype).removeprefix("torch.") for one in parameters.values()}
        delivered = {name: len(batches) for name, batches in self.tape.streams.items()} | self._handed_out
        with torch.no_grad():
            for parameter, before in self._before:
                parameter.copy_(before)
        after = {name: folded(parameter) for name, parameter in parameters.items()}
        self.tape.steps.append(TapedStep(delivered, found, after, self._facts))
        self._facts, self._chance, self._backward, self._at_step = {}, None, None, chance()
        if len(self.tape.steps) >= self.plan.steps:
            self.finish()

    def after_backward(self) -> None:
        """Note how large the gradients are: an optimizer that finds others had them changed by the script."""
        self._backward = self._norm()

    def _norm(self) -> float:
        parameters = {id(one): one for module in self.names.modules() for one in module.parameters()}
        found = [one.grad for one in parameters.values() if one.grad is not None and not one.grad.is_sparse]
        squares = [float(getattr(one, "to_local", lambda one=one: one)().norm()) ** 2 for one in found]
        return math.sqrt(sum(squares))

    def handed_out(self, name: str) -> None:
        """Count a batch of a balanced loader."""
        self._handed_out[name] = self._handed_out.get(name, 0) + 1

    def watch(self, loader: Any) -> None:
        """Note the sizes of a balanced loader's batches in every step."""
        self._balanced.append(loader)

    def _note_sizes(self) -> None:
        for loader in self._balanced:
            self.say(sizes=[int(size) for size in loader.batch_sizes])

    def say(self, **facts: Any) -> None:
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
            "dtypes": sorted(self._dtypes),
        }
        torch.save(self._samples, self.folder / f"{self.tape.rank}.samples")
        self.tape.save(self.folder)
        self._end(self.folder, self.tape.world_size)

    def _parameters(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return self.names.of(given, self.asked_for_names)

    @staticmethod
    def _rank() -> int:
        return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0

    @staticmethod
    def _world_size() -> int:
        return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class Chance:
    """Random numbers of their own for what runs inside; outside they go on as if nothing had been drawn."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __enter__(self) -> None:
        """Set the generators apart."""
        self._states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002 - scripts use it
        torch.manual_seed(self.seed)
        random.seed(self.seed)
        np.random.seed(self.seed)  # noqa: NPY002

    def __exit__(self, *error: object) -> None:
        """Put them back."""
        torch.set_rng_state(self._states[0])
        random.setstate(self._states[1])
        np.random.set_state(self._states[2])  # noqa: NPY002


def chance() -> int:
    """Return a checksum of the states of the random generators that scripts draw from."""
    numpy_state: Any = np.random.get_state()  # noqa: NPY002
    state = torch.get_rng_state().numpy().tobytes() + numpy_state[1].tobytes() + str(numpy_state[2]).encode()
    return zlib.crc32(state + repr(hash(random.getstate())).encode())


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
    whole: Any = getattr(tensor, "full_tensor", lambda: tensor)()  # of a sharded one: every rank asks alike
    if whole.is_sparse:
        whole = whole.to_dense()
    values = whole.detach().cpu().reshape(-1)
    if not values.is_floating_point() or values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    flat: Array = values.numpy().copy()
    if len(flat) <= LARGEST:
        return flat
    signs = np.random.default_rng(len(flat)).integers(0, 2, len(flat), dtype=np.int8) * 2 - 1
    padded = np.zeros(-(-len(flat) // LARGEST) * LARGEST, flat.dtype)
    padded[: len(flat)] = flat * signs
    return np.asarray(padded.reshape(-1, LARGEST).sum(axis=0))
