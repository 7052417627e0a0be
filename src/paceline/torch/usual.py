"""The policy of a job: the usual one, and the bounds that its model and its loader need."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from paceline.coordinator.balanced.policy import Policy, default_batch_multiple
from paceline.torch.loader_protocol import Loader
from paceline.torch.weighting.listener import BalanceWarning


def policy_for(model: torch.nn.Module, loader: Loader, policy: Policy | None) -> Policy:
    """Return the policy, with a lower bound that the model needs for training."""
    # Samples of unequal cost make every batch another size anyway, so a batch multiple would only make shares coarse.
    costs = loader.coefficients is not None
    batch_multiple = 1 if costs else default_batch_multiple(loader.global_batch, loader.world_size)
    if loader.micro_batch and loader.global_batch % loader.micro_batch == 0:
        # Whole micro-batches: fixed shapes, as compilers like them, and no time for a rest. Costs cut their own.
        batch_multiple = 1 if costs else loader.micro_batch
    wanted = policy or Policy(batch_multiple=batch_multiple)
    bounds = wanted.lower.values() if isinstance(wanted.lower, Mapping) else [wanted.lower]
    if any(bound < 1 for bound in bounds):
        raise ValueError(
            f"policy.lower must be at least 1 sample, as an empty batch has no mean loss, got {wanted.lower}"
        )
    # _BatchNorm is private, but it is the only base class that all batch normalisations share.
    normalises = any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules())
    if normalises and wanted.lower == 1 and loader.global_batch >= 2 * loader.world_size:
        return replace(wanted, lower=2)  # batch normalisation needs two samples for a variance
    return wanted


def say_unknown_bounds(policy: Policy, names: Sequence[str]) -> None:
    """Warn of bounds for unknown workers: names are easily mistyped, and a bound may be there to keep memory free."""
    bounds = [name for given in (policy.lower, policy.upper) if isinstance(given, Mapping) for name in given]
    if unknown := sorted(set(bounds) - set(names)):
        warnings.warn(
            f"policy.lower or policy.upper bounds {unknown}, who are not among the workers {list(names)}: these bounds "
            "change nothing",
            BalanceWarning,
            stacklevel=3,  # where attach() is called
        )
