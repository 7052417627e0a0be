"""What one rank did in one run: its samples, and the gradients and parameters of its steps, by their names."""

from __future__ import annotations

import math
import pickle
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import torch
import torch.distributed as dist

from paceline._arrays import Array
from paceline.audit.inside.randomness import SeededBlock, generator_checksums, generators_used_since
from paceline.audit.inside.samples import convert_tensors, count_rows, digest, part_sizes, restore_sample, store_sample
from paceline.audit.run import RANDINT_STREAM, AuditPlan, RankRecord, Sample, StepRecord, load_pickle

WRAPPER_PREFIX = re.compile(r"(^|\.)(module|_orig_mod|_forward_module|_fsdp_wrapped_module)(?=\.)")
"""Prefixes that wrappers put before a parameter's own name."""

load_samples = cache(load_pickle)

_nothing: tuple[Callable[[], Any], str] = (lambda: None, "")


class ParameterNames:
    """The modules of a script, noted when they are asked for their parameters, and the names of these."""

    def __init__(self) -> None:
        self._modules: list[ref[torch.nn.Module]] = []
        self._name_by_id: dict[int, tuple[Callable[[], Any], str]] = {}

    def add_module(self, module: torch.nn.Module) -> None:
        if not any(known() is module for known in self._modules):
            self._modules.append(ref(module))

    def modules(self) -> list[torch.nn.Module]:
        return [module for known in self._modules if (module := known()) is not None]

    def name_parameters(self, parameters: Iterable[torch.Tensor], named_parameters: Any) -> dict[str, torch.Tensor]:
        """Return the parameters by their names, those of the module that holds most of them; no two have the same."""
        all_parameters = list(parameters)
        if any(self._name_by_id.get(id(parameter), _nothing)[0]() is not parameter for parameter in all_parameters):
            named = sorted((dict(named_parameters(module)) for module in self.modules()), key=len, reverse=True)
            name_of = {id(parameter): name for names in reversed(named) for name, parameter in names.items()}
            for number, parameter in enumerate(all_parameters):
                name = name_of.get(id(parameter), f"parameter {number}")
                self._register_name(parameter, WRAPPER_PREFIX.sub("", f".{name}")[1:])
        return {self._name_by_id[id(parameter)][1]: parameter for parameter in all_parameters}

    def _register_name(self, parameter: torch.Tensor, name: str) -> None:
        if self._name_by_id.get(id(parameter), _nothing)[0]() is parameter:
            return
        used = {known for other, known in self._name_by_id.values() if other() is not None}
        numbered = [name, *(f"{name} ({number})" for number in range(2, len(used) + 3))]
        self._name_by_id[id(parameter)] = ref(parameter), next(one for one in numbered if one not in used)

    def batch_norm_layers(self) -> list[str]:
        """Return the kinds of layers in training that compute statistics of their own rank's rows."""
        mixing = torch.nn.modules.batchnorm._BatchNorm  # private, but the only base of all batch normalizations
        layers = [layer for module in self.modules() for layer in module.modules() if layer.training]
        own = [one for one in layers if isinstance(one, mixing) and not isinstance(one, torch.nn.SyncBatchNorm)]
        return sorted({type(layer).__name__ for layer in own})

    def hooked_parameters(self) -> list[str]:
        """Return the parameters on which the script has hooks of its own."""
        parameters = [named for module in self.modules() for named in module.named_parameters()]
        # torch's own attribute, where register_hook() puts a hook
        hooked = {name for name, parameter in parameters if parameter._backward_hooks}
        return sorted({WRAPPER_PREFIX.sub("", f".{name}")[1:] for name in hooked})

    def describe_untrained(self, trained_ids: set[int]) -> dict[str, list[float]]:
        """Return numbers that describe the parameters that no optimizer has, by the kind of their module."""
        found: dict[str, list[float]] = {}
        for module in self.modules():
            others = [
                one for one in module.parameters() if id(one) not in trained_ids and not hasattr(one, "full_tensor")
            ]
            if others:
                kind = type(module).__name__
                number = sum(name.startswith(f"{kind} ") for name in found)
                found[f"{kind} {number}"] = [float(compress_values(one).astype("float64").sum()) for one in others]
        return found


class StepRecorder:
    """Recorder of one rank in one run, into a folder; ``on_end`` is called when it is written, and ends the script."""

    def __init__(self, plan: AuditPlan, folder: Path, on_end: Callable[[Path, int], None]) -> None:
        self.plan, self.folder = plan, folder
        self.parameter_names = ParameterNames()
        self.record = RankRecord(0, 1)
        self.plain_named_parameters: Any = torch.nn.Module.named_parameters
        self.balanced_loaders: list[Any] = []
        self.batch_counts = Counter[str]()  # batches of each balanced loader
        self._on_end = on_end
        self._samples: dict[str, list[list[Any]]] = {}
        self._facts: dict[str, Any] = {}
        self._random_state: dict[int, int] | None = None
        self._loaded_twice = 0
        self._raw_gradients: dict[int, Array] = {}
        self._trained_ids: set[int] = set()
        self._parameters_before: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._backward_norm: float | None = None
        self._random_state_at_step: dict[int, int] | None = None
        self._dtypes: set[str] = set()
        self._depth = 0
        self._gradients: dict[str, Array] | None = None
        self.has_finished = False

    # -- samples ---------------------------------------------------------------------------------------------------

    def fetch_samples(
        self, stream_name: str, dataset: Any, indices: list[Any], load_item: Callable[[Any], Any]
    ) -> list[Any]:
        """Return the next samples of a stream: those of these indices, or others in their place."""
        batches = self.record.streams.setdefault(stream_name, [])
        arranged = (self.plan.arrangement or {}).get(stream_name, [])
        refs = arranged[len(batches)][_rank_and_world_size()[0]] if len(batches) < len(arranged) else None
        self.check_random_draws()
        if refs is None:
            samples = [self.load_sample(stream_name, index, load_item) for index in indices]
            known = [store_sample(item, index) for item, index in zip(samples, indices, strict=True)]
        else:
            folder = Path(self.plan.samples_folder)
            known = [
                load_samples(folder / f"{rank}.samples")[stream_name][number][place] for rank, number, place in refs
            ]
            samples = [
                restore_sample(one, lambda index: self.load_sample(stream_name, index, dataset.__getitem__))
                for one in known
            ]
        pairs = zip(samples, known, strict=True)
        batches.append([Sample(digest(item, index), part_sizes(item)) for item, (_, index) in pairs])
        self._samples.setdefault(stream_name, []).append(known)
        self._random_state = generator_checksums()
        return samples

    def load_sample(self, stream_name: str, index: Any, load_item: Callable[[Any], Any]) -> Any:
        """Return a sample, loaded with the same random numbers wherever and whenever that is."""
        with SeededBlock(f"{stream_name} {index}"):
            item = load_item(index)
        # load four samples twice, to see whether they are the same
        if self._loaded_twice < 4:
            self._loaded_twice += 1
            with SeededBlock(f"{stream_name} {index}"):
                if digest(load_item(index), index) != digest(item, index):
                    self.record.facts["random samples"] = True
        return item

    def convert_batch(self, num_samples: int, batch: Any) -> Any:
        """Return a batch that was made of so many samples, in the precision of the run."""
        rows = count_rows(batch)
        if rows is not None and rows != num_samples:
            self.record.facts.setdefault("collated", [rows, num_samples])
        if self.plan.precision != "float64":
            return batch
        return convert_tensors(batch, lambda part: part.double() if part.is_floating_point() else part)

    def before_collating(self) -> None:
        self.check_random_draws()
        self._random_state = generator_checksums()

    @property
    def draws_are_samples(self) -> bool:
        """True if numbers that the script draws now may be those of samples: no loader has yielded any."""
        return all(stream.startswith(RANDINT_STREAM) for stream in self.record.streams)

    def check_other_draws(self) -> None:
        """Note whether something else was drawn since the last step: then a row may not follow from its index."""
        if self._random_state_at_step is not None and generators_used_since(self._random_state_at_step):
            self._facts["beside"] = True
        self._random_state_at_step = None

    def check_random_draws(self) -> None:
        if self._random_state is not None and generators_used_since(self._random_state):
            self._facts["draws"] = True

    def ignore_last_draw(self) -> None:
        """Take what was just drawn as numbers of samples, or as part of an evaluation."""
        if self._random_state is not None:
            self._random_state = generator_checksums()
        if self._random_state_at_step is not None:
            self._random_state_at_step = generator_checksums()

    def is_evaluating(self) -> bool:
        """Return whether gradients are off and no model is in training: what is drawn now concerns no step."""
        return not torch.is_grad_enabled() and not any(one.training for one in self.parameter_names.modules())

    # -- steps -----------------------------------------------------------------------------------------------------

    def before_step(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        """Note the gradients that an optimizer is about to use; within another optimizer's step nothing."""
        self._depth += 1
        if self._depth > 1:
            return
        self.check_random_draws()
        if self._backward_norm is not None:
            self.record_facts(scale=self._gradient_norm() / (self._backward_norm or float("nan")))
        for loader in self.balanced_loaders:
            self.record_facts(sizes=[int(size) for size in loader.batch_sizes])
        if not self.record.steps:
            self.record.facts["trainer expects a divided loss"] = trainer_expects_divided_loss()
        parameters = self._named_parameters(optimizer)
        for name, parameter in parameters.items():
            self.record.initial_parameters.setdefault(name, compress_values(parameter))
        self._gradients = None if has_closure else gradients(parameters)
        if self.plan.frozen_parameters:
            self._parameters_before = [(parameter, parameter.detach().clone()) for parameter in parameters.values()]

    def after_closure(self, optimizer: torch.optim.Optimizer) -> None:
        if self._gradients is None:
            self._gradients = gradients(self._named_parameters(optimizer))

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the parameters; after the last step write the record and end the script."""
        self._depth -= 1
        if self._depth:
            return
        parameters = self._named_parameters(optimizer)
        found = gradients(parameters) if self._gradients is None else self._gradients
        self._dtypes |= {str(one.dtype).removeprefix("torch.") for one in parameters.values()}
        delivered = {name: len(batches) for name, batches in self.record.streams.items()} | self.batch_counts
        with torch.no_grad():
            for parameter, before in self._parameters_before:
                parameter.copy_(before)
        after = {name: compress_values(parameter) for name, parameter in parameters.items()}
        raw = {name: self._raw_gradients[id(one)] for name, one in parameters.items() if id(one) in self._raw_gradients}
        raw = raw if len(raw) == len(parameters) else {}
        self.record.steps.append(StepRecord(delivered, found, after, self._facts, raw))
        self._trained_ids |= {id(one) for one in parameters.values()}
        self._facts, self._random_state, self._backward_norm = {}, None, None
        self._random_state_at_step = generator_checksums()
        if len(self.record.steps) >= self.plan.steps:
            self.finish()

    def after_backward(self) -> None:
        """Note how large the gradients are: an optimizer that finds others had them changed by the script."""
        self._backward_norm = self._gradient_norm()
        self._facts["backward passes"] = self._facts.get("backward passes", 0) + 1
        if self.plan.frozen_parameters:
            unsharded = (one for one in self._known_parameters() if not hasattr(one, "full_tensor"))
            self._raw_gradients = {id(one): compress_values(one.grad) for one in unsharded if one.grad is not None}

    def _gradient_norm(self) -> float:
        found = [one.grad for one in self._known_parameters() if one.grad is not None and not one.grad.is_sparse]
        squares = [float(getattr(one, "to_local", lambda one=one: one)().norm()) ** 2 for one in found]
        return math.sqrt(sum(squares))

    def _known_parameters(self) -> list[torch.nn.Parameter]:
        parameters = {id(one): one for module in self.parameter_names.modules() for one in module.parameters()}
        return list(parameters.values())

    def record_facts(self, **facts: Any) -> None:
        for name, fact in facts.items():
            self._facts.setdefault(name, []).append(fact)

    def finish(self) -> None:
        if self.has_finished or not self.record.steps:
            return
        self.has_finished = True
        self.record.rank, self.record.world_size = _rank_and_world_size()
        self.record.facts |= {
            "mixing": self.parameter_names.batch_norm_layers(),
            "hooks": self.parameter_names.hooked_parameters(),
            "not trained": self.parameter_names.describe_untrained(self._trained_ids),
            "dtypes": sorted(self._dtypes),
        }
        (self.folder / f"{self.record.rank}.samples").write_bytes(pickle.dumps(self._samples))
        self.record.save(self.folder)
        self._on_end(self.folder, self.record.world_size)

    def _named_parameters(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return self.parameter_names.name_parameters(stepped, self.plain_named_parameters)


def _rank_and_world_size() -> tuple[int, int]:
    initialized = dist.is_available() and dist.is_initialized()
    return (dist.get_rank(), dist.get_world_size()) if initialized else (0, 1)


def trainer_expects_divided_loss() -> bool:
    """Return whether transformers' Trainer takes this step, and expects the model to divide its loss by all tokens."""
    for frame, _ in traceback.walk_stack(None):
        trainer = frame.f_locals.get("self")
        if any(kind.__module__ == "transformers.trainer" for kind in type(trainer).__mro__):
            return bool(getattr(trainer, "model_accepts_loss_kwargs", False))
    return False


def gradients(parameters: dict[str, torch.Tensor]) -> dict[str, Array]:
    """Return the gradients of parameters, zero where there is none."""
    return {
        name: compress_values(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        for name, parameter in parameters.items()
    }


def compress_values(tensor: torch.Tensor) -> Array:
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
