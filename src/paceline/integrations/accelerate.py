"""Balanced training with Accelerate: a loader instead of ``DataLoader``, a call instead of ``Accelerator.prepare``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

import torch

from paceline._require import require
from paceline.recording import Target, sinks
from paceline.torch import Balance, StreamLoader, attach
from paceline.torch import BalancedLoader as GlobalLoader
from paceline.torch.global_batch import GlobalBatch
from paceline.torch.loader_options import require_int

__all__ = ["BalancedLoader", "prepare"]


class BalancedLoader(GlobalLoader):
    """A balanced loader that counts as a ``DataLoader`` does in a script of Accelerate.

    Its length is in batches of one process until it is prepared, and in batches of all processes from then on: the
    steps that a script computes for its schedule are those of equal batches.

    Parameters
    ----------
    dataset
        Any map-style dataset, the same in every process.
    batch_size
        Samples of a process in one batch, on average. With ``global_tokens`` it is left out.
    **options
        Options of :class:`paceline.torch.BalancedLoader`; ``shuffle`` is on by default.

    Raises
    ------
    RuntimeError
        If there is no ``Accelerator`` yet, which knows the processes.

    Examples
    --------
    >>> loader = BalancedLoader(dataset, batch_size=32, collate_fn=collate)  # doctest: +SKIP
    """

    counts_all = False

    def __init__(self, dataset: Any, batch_size: int | None = None, **options: Any) -> None:
        require("accelerate", needed_by="paceline.integrations.accelerate", extra="huggingface")
        state = import_module("accelerate.state")
        if not state.is_initialized():
            raise RuntimeError("BalancedLoader needs the process group: create the Accelerator before the loader")
        processes = state.AcceleratorState()
        world_size = processes.num_processes
        total = None if batch_size is None else require_int("batch_size", batch_size, 1, "sample") * world_size
        self._process_batch = batch_size  # first: len() may be asked for in the call below
        super().__init__(dataset, total, rank=processes.process_index, world_size=world_size, **options)

    def __len__(self) -> int:
        """Return the batches of an epoch as one process alone would have them."""
        if self._process_batch is None:
            return super().__len__() * self.world_size
        return GlobalBatch(self._process_batch, 1, self._rule.drop_last).num_batches(len(self._assigner.order))


def prepare(accelerator: Any, *things: Any, metrics: str | Iterable[Target] = (), **options: Any) -> Any:
    """Prepare models, optimizers, schedulers and loaders as the accelerator does, and let batches follow speeds.

    Beside ``accelerator.prepare`` it attaches models in ``DistributedDataParallel`` or FSDP2 to the
    :class:`BalancedLoader`, and tells the accelerator where an epoch of the loader ends, so that
    ``accelerator.accumulate`` takes the last step there. The learning rate of every step stays as it was.

    Parameters
    ----------
    accelerator
        An ``accelerate.Accelerator``.
    *things
        The arguments of ``accelerator.prepare``; exactly one of them is a :class:`BalancedLoader`. With
        ``split_batches=True`` that is the one of :mod:`paceline.torch`, whose batches are split as well.
    metrics
        Where to write metrics, as :func:`paceline.recording.sink` takes it: ``"run.jsonl"``, or a list.
    **options
        Options of :func:`paceline.torch.attach`, such as ``predictor`` or ``policy``.

    Returns
    -------
    tuple
        The same things, prepared, in the same order. The loader is a :class:`PreparedLoader`: its attribute
        ``balance`` is the handle that ``attach`` returns. The accelerator's checkpoints hold its state.

    Raises
    ------
    ImportError
        If accelerate is missing.
    TypeError
        If there is not exactly one :class:`BalancedLoader`, or it counts otherwise than the accelerator.
    ValueError
        If the accelerator shards the model or the samples of a process, or the loader has another number of
        micro-batches.

    Examples
    --------
    >>> loader = BalancedLoader(dataset, batch_size=32, seed=0)  # doctest: +SKIP
    >>> schedule = get_linear_schedule_with_warmup(optimizer, 100, epochs * len(loader))  # doctest: +SKIP
    >>> model, optimizer, loader, schedule = prepare(
    ...     accelerator, model, optimizer, loader, schedule
    ... )  # doctest: +SKIP
    """
    require("accelerate", needed_by="paceline.integrations.accelerate", extra="huggingface")
    loader = _find_loader(things)
    _require_supported_parallelism(accelerator)
    _require_matching_batch_size(accelerator, loader)
    _set_accumulation_steps(loader, accelerator)
    prepared = accelerator.prepare(*things)
    prepared = list(prepared) if len(things) > 1 else [prepared]
    balance = _attach_models(prepared, loader, options)
    prepared_loader = PreparedLoader(loader, accelerator, balance)
    for place, thing in enumerate(prepared):
        if thing is loader:
            prepared[place] = prepared_loader
    balance.on_iteration.extend(sinks(*([metrics] if isinstance(metrics, str) else metrics)))
    accelerator.register_for_checkpointing(balance)
    return tuple(prepared) if len(prepared) > 1 else prepared[0]


class PreparedLoader:
    """A balanced loader with the interface of Accelerate's own: it moves batches, and reports the epoch's end.

    ``balance`` is the handle that ``attach`` returned.
    """

    remainder = 0
    """Accelerate's count of samples in the last batch that are not repetitions; 0 means that it repeats none."""

    def __init__(self, loader: GlobalLoader, accelerator: Any, balance: Balance) -> None:
        self.loader, self.accelerator, self.balance = loader, accelerator, balance
        self.end_of_dataloader = False

    def __getattr__(self, name: str) -> Any:
        """Return what the loader itself has, such as ``dataset``, ``set_epoch`` and ``step_ends``."""
        return getattr(vars(self)["loader"], name)

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch, counted for all processes together."""
        return GlobalLoader.__len__(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of an epoch, on the accelerator's device."""
        state = self.accelerator.gradient_state
        self.end_of_dataloader = False
        state._add_dataloader(self)  # private, but Accelerate's own loaders call it too, and there is no other way
        try:
            for batch in self.loader:
                self.end_of_dataloader = self.loader.position[1] >= len(self)
                if self.accelerator.device_placement:
                    send: Any = import_module("accelerate.utils").send_to_device
                    batch = send(batch, self.accelerator.device, non_blocking=self.accelerator.non_blocking)
                yield batch
        finally:
            state._remove_dataloader(self)


def _find_loader(prepared_objects: Iterable[Any]) -> GlobalLoader:
    if any(isinstance(thing, StreamLoader) for thing in prepared_objects):
        raise TypeError(
            "prepare() cannot tell Accelerate where the epoch of a StreamLoader ends, as streams have no length: "
            "prepare the model and the optimizer with accelerator.prepare, then attach(model, loader)"
        )
    loaders = [thing for thing in prepared_objects if isinstance(thing, GlobalLoader)]
    if len(loaders) != 1:
        raise TypeError(
            f"prepare() needs one BalancedLoader, got {len(loaders)}: pass it together with the model and the "
            "optimizer, and loaders for evaluation as DataLoaders"
        )
    return loaders[0]


def _require_supported_parallelism(accelerator: Any) -> None:
    """Refuse an accelerator in which neither DistributedDataParallel nor FSDP2 sums the gradients."""
    kind = accelerator.distributed_type.name
    parallelism = getattr(accelerator, "parallelism_config", None)
    replicated = kind == "NO" or kind.startswith("MULTI_")  # Accelerate's names for a whole model in each process
    if not (replicated or getattr(accelerator, "is_fsdp2", False)) or parallelism is not None:
        way = "a ParallelismConfig" if parallelism is not None else kind
        raise ValueError(
            f"the accelerator trains with {way}, but batches can be balanced only with DistributedDataParallel or "
            "FSDP2, where each process has its own samples: for FSDP, set fsdp_version=2; for others, write a loop "
            "without Accelerate and call attach(model, loader)"
        )


def _require_matching_batch_size(accelerator: Any, loader: GlobalLoader) -> None:
    """Refuse a loader whose length would make a script compute a wrong number of scheduler steps."""
    if accelerator.split_batches and isinstance(loader, BalancedLoader):
        raise TypeError(
            "with split_batches=True, a batch is that of all processes, but this loader's batch_size= is per "
            "process: use paceline.torch.BalancedLoader(dataset, global_batch=...)"
        )
    if not accelerator.split_batches and not isinstance(loader, BalancedLoader):
        raise TypeError(
            "len() of paceline.torch.BalancedLoader counts global batches, but Accelerate steps schedulers once per "
            "process, so learning rates would be wrong. Use paceline.integrations.accelerate.BalancedLoader(dataset, "
            "batch_size=...), with the batch_size of your DataLoader"
        )


def _set_accumulation_steps(loader: GlobalLoader, accelerator: Any) -> None:
    steps = accelerator.gradient_accumulation_steps
    if (loader.micro_batch or loader.packs) and steps != 1:
        raise ValueError(
            f"the accelerator counts gradient_accumulation_steps={steps} on every rank, but with "
            "micro_batch= or pack= they have different numbers of micro-batches: leave gradient_accumulation_steps at "
            "1, compute inside `with loader.balance.accumulating():`, and step where loader.step_ends is true"
        )
    loader.set_accumulate(steps, f"the accelerator has gradient_accumulation_steps={steps}")


def _attach_models(prepared: Iterable[Any], loader: GlobalLoader, options: dict[str, Any]) -> Balance:
    models = [thing for thing in prepared if isinstance(thing, torch.nn.Module)]
    trained = [model for model in models if any(parameter.requires_grad for parameter in model.parameters())]
    if not trained:
        raise TypeError("prepare() needs the model and the BalancedLoader in the same call: pass both")
    balance: Balance = attach(trained[0], loader, **options)
    balance.loss_divisor = loader.accumulate  # accelerator.backward() divides by it
    for model in trained[1:]:
        attach(model, loader)
    return balance
