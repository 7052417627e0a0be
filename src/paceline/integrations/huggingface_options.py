"""Options of Hugging Face's Trainer that balanced batches honor, and the errors for those they cannot."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

from paceline.torch import BalanceWarning, Costs

SHUFFLES = {"random": True, "sequential": False}
"""Supported sampling strategies, and whether they shuffle."""


def refuse_ignored(trainer: Any, mixin: type) -> None:
    """Refuse the first option that would be ignored.

    Raises
    ------
    ValueError
        If there is one; the message says what to do.
    """
    for sentence in (*_of_sharding(trainer), *_of_assigning(trainer, mixin), *_of_arguments(trainer.args)):
        raise ValueError(sentence)
    if trainer.args.full_determinism:
        warnings.warn(
            "full_determinism cannot make runs repeat bit for bit: sizes follow measured times, and the rounding of "
            "sums depends on the sizes",
            BalanceWarning,
            stacklevel=2,
        )


def shuffles(arguments: Any) -> bool:
    """Return whether every epoch has its own order."""
    return SHUFFLES[getattr(arguments, "train_sampling_strategy", "random")]


def loading(arguments: Any) -> dict[str, Any]:
    """Return the loader's options for loading samples, from the Trainer's arguments."""
    options: dict[str, Any] = {"pin_memory": arguments.dataloader_pin_memory and arguments.device.type == "cuda"}
    if arguments.dataloader_num_workers:
        options |= {
            "num_workers": arguments.dataloader_num_workers,
            "prefetch_factor": arguments.dataloader_prefetch_factor,
            "multiprocessing_context": getattr(arguments, "dataloader_multiprocessing_context", None),
            "worker_init_fn": _seeding(arguments),
        }
    return options


def costs_for(dataset: Any, costs: Costs | None) -> Costs | None:
    """Return the loader's costs, with the numbers of all samples of this dataset.

    They are read here because the loader gets a dataset without the columns that the model does not take.

    Raises
    ------
    ValueError
        If the Trainer cannot honor them.
    """
    if costs is None:
        return None
    if costs.global_tokens is not None:
        raise ValueError("global_tokens of costs must be left out: the Trainer says how many samples a step has")
    return costs.read(dataset)


def _seeding(arguments: Any) -> Any:
    """Return a function that seeds a loading process, differently on every rank, as the Trainer's own loaders do."""
    seed_worker = import_module("transformers.trainer_utils").seed_worker
    known = inspect.signature(seed_worker).parameters  # before transformers 4.52 it took only the process's number
    options = {"num_workers": arguments.dataloader_num_workers, "rank": arguments.process_index}
    return partial(seed_worker, **{name: value for name, value in options.items() if name in known})


def _of_sharding(trainer: Any) -> Iterator[str]:
    """Yield errors for kinds of training in which a rank does not have the whole model."""
    parallelism = getattr(trainer.accelerator, "parallelism_config", None)
    ways = {
        "DeepSpeed": trainer.is_deepspeed_enabled,
        "FSDP": trainer.is_fsdp_enabled or trainer.is_fsdp_xla_enabled,
        "a ParallelismConfig": parallelism is not None,
        "a model sharded by from_pretrained()": getattr(trainer, "is_distributed_loading_by_transformers", False),
        "model parallelism": trainer.is_model_parallel,
    }
    for way, used in ways.items():
        if used:
            yield (
                f"the Trainer is set to use {way}, but batches can be balanced only where each rank has the whole "
                "model, in DistributedDataParallel. Without the Trainer, fully_shard can be balanced: "
                "attach(model, loader)"
            )


def _of_assigning(trainer: Any, mixin: type) -> Iterator[str]:
    """Yield errors for subclasses that choose the samples themselves."""
    for name in ("_get_train_sampler", "_get_dataloader", "get_train_dataloader"):
        owner = _owner(trainer, name, mixin)
        if not owner.__module__.startswith("transformers."):
            yield (
                f"{owner.__name__}.{name} chooses the samples of a rank, which would be ignored: BalancedLoader "
                f"assigns "
                "balanced batches to ranks. Remove the override, or the BalancedTrainerMixin"
            )


def _owner(trainer: Any, name: str, mixin: type) -> type:
    """Return the class whose method the Trainer would use without the mixin."""
    kinds = type(trainer).__mro__
    if name in vars(mixin):
        kinds = kinds[kinds.index(mixin) + 1 :]
    return next(kind for kind in kinds if name in vars(kind))


def _of_arguments(arguments: Any) -> Iterator[str]:
    """Yield errors for arguments about training data that cannot be honored."""
    way = "group_by_length" if getattr(arguments, "group_by_length", False) else None
    way = way or getattr(arguments, "train_sampling_strategy", "random")
    if way not in SHUFFLES:
        yield (
            f"train_sampling_strategy must be one of {sorted(SHUFFLES)}, got {way!r}: to divide by the samples' "
            "lengths, leave it out and give the Trainer costs=Costs(lengths=...)"
        )
    if arguments.auto_find_batch_size:
        yield (
            "auto_find_batch_size must be False: it would start again with smaller batches on one rank only. Give a "
            "batch size that fits, and balancing={'policy': Policy(upper=...)} to limit every rank's batch"
        )
    if not getattr(arguments, "average_tokens_across_devices", True):
        yield (
            "average_tokens_across_devices must be True: otherwise each rank divides its loss by the tokens of its own "
            "batch, and tokens count more on ranks that have few of them"
        )
    if not getattr(arguments, "dataloader_in_order", True):
        yield "dataloader_in_order must be True: balanced batches come in order on every rank"
    for option, allowed in {
        "split_batches": (False,),
        "dispatch_batches": (None, False),
        "use_seedable_sampler": (True,),
    }.items():
        if (value := getattr(arguments.accelerator_config, option, allowed[0])) not in allowed:
            yield (
                f"accelerator_config's {option} must be {allowed[-1]}, got {value}: Accelerate does not assign the "
                f"batches, "
                "BalancedLoader does"
            )
