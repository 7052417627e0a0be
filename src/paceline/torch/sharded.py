"""How the gradients of a model are averaged: by DistributedDataParallel, FSDP1, FSDP2, HSDP, replicate, or by hand."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def find_ddp(model: torch.nn.Module) -> DistributedDataParallel | None:
    """Return the model as DistributedDataParallel, also from inside ``torch.compile``; None for any other model."""
    inside = getattr(model, "_orig_mod", model)
    return inside if isinstance(inside, DistributedDataParallel) else None


def unwrap_fabric(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model inside Fabric's wrapper: the DistributedDataParallel, if the strategy made one."""
    if type(model).__name__ != "_FabricModule":
        return model
    inside: Any = next((one for one in model.modules() if isinstance(one, DistributedDataParallel)), model.module)
    return inside  # type: ignore[no-any-return]


def process_group_of(model: torch.nn.Module) -> dist.ProcessGroup | None:
    """Return the group of the ranks that train together, None for a process that trains alone.

    A model of which several ranks must get the same samples is refused.
    """
    if not dist.is_initialized():
        return None
    ddp = find_ddp(model)
    group: Any = dist.group.WORLD if ddp is None else ddp.process_group
    sizes = {one.mesh_info.mesh.size() for one in _param_groups(model)}
    split = bool(sizes) and sizes != {dist.get_world_size(group)}
    if not sizes and (DTensor := getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)) is not None:
        split = any(isinstance(one, DTensor) for one in model.parameters())
    if split:
        raise ValueError(
            f"{type(model).__name__} is split over ranks that must get the same samples (tensor or pipeline "
            "parallelism), and a balanced loader gives every rank samples of its own: attach a model whose ranks "
            "are all data-parallel (DistributedDataParallel, FSDP, HSDP)"
        )
    return group  # type: ignore[no-any-return]


def replica_of_each_rank(model: torch.nn.Module) -> list[int]:
    """Return the replica of every rank of a sharded model, ``[W]``: its ranks gather their parameters together."""
    groups = _param_groups(model)
    if not groups:  # FSDP1
        return [0] * dist.get_world_size()
    mesh_info = groups[0].mesh_info
    ranks = mesh_info.mesh.mesh
    sharded = getattr(mesh_info, "shard_mesh_dim", None)
    ranks_RS = ranks.reshape(-1, 1) if sharded is None else ranks.movedim(sharded, -1).reshape(-1, ranks.shape[sharded])
    replica_of = {rank: replica for replica, together in enumerate(ranks_RS.tolist()) for rank in together}
    return [replica_of[rank] for rank in sorted(replica_of)]


def set_gradient_sync(model: torch.nn.Module, *, enabled: bool) -> None:
    """Set whether backward passes of a model in FSDP2 or HSDP sum gradients over the ranks, or keep them for later."""
    modules: list[Any] = list(model.modules())
    for module in modules:
        if hasattr(module, "set_requires_gradient_sync"):
            module.set_requires_gradient_sync(enabled, recurse=False)


def gathers_parameters(model: torch.nn.Module) -> bool:
    """Return whether ranks wait for each other in every forward pass, to gather their shards of the parameters."""
    return bool(_param_groups(model)) or hasattr(model, "_sync_gradients")


def averages_gradients(model: torch.nn.Module) -> bool | None:
    """Return whether the backward pass under way averages gradients over the ranks; None if no engine does so."""
    if groups := _param_groups(model):
        return bool(groups[-1].reduce_grads)
    if (fully_sharded := getattr(model, "_sync_gradients", None)) is not None:  # FSDP1
        return bool(fully_sharded)
    return None


def _param_groups(model: torch.nn.Module) -> list[Any]:
    modules: list[Any] = [module for module in model.modules() if hasattr(module, "_get_fsdp_state")]
    states = [module._get_fsdp_state() for module in modules]
    groups = [getattr(state, "_fsdp_param_groups", [getattr(state, "_fsdp_param_group", None)]) for state in states]
    return [one for some in groups for one in some if one is not None]


def gradients_of(parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    """Return the gradients of these parameters; of sharded ones this rank's shards."""
    gradients = [one.grad for one in parameters if one.grad is not None]
    return [getattr(one, "_local_tensor", one) for one in gradients]


def require_summed_parameters(ddp: DistributedDataParallel) -> None:
    """Refuse a model of which more parameters need gradients than DistributedDataParallel sums."""
    summed = ddp._get_ddp_logging_data().get("num_parameter_tensors", 0)
    ignored: Any = ddp.parameters_to_ignore
    wanted = sum(one.requires_grad and name not in ignored for name, one in ddp.module.named_parameters())
    if wanted > summed:
        raise ValueError(
            f"{wanted - summed} parameters of the model need gradients that DistributedDataParallel does not sum, as "
            "they were frozen when it wrapped the model: the ranks' models would diverge, with equal batches too. Wrap "
            "the model in DistributedDataParallel again after requires_grad_(True), and attach it"
        )
