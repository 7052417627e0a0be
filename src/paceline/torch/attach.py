"""Attach a load balancer to a training job: the one call that a user adds to the loop."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, overload
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist

from paceline.coordinator.load_balancer import LoadBalancer
from paceline.coordinator.policy import Policy, default_batch_multiple
from paceline.predictors import Auto, Predictor
from paceline.predictors.protocol import require_predictor
from paceline.recording.control_group import QuotaTracker
from paceline.recording.covariates import Covariate
from paceline.recording.torch.busy_time import BusyTimer, CPUEvents, choose_events
from paceline.torch.balance import Balance, LossScaling
from paceline.torch.counting import BalanceWarning
from paceline.torch.covariates import select_covariates
from paceline.torch.exchange import open_exchange
from paceline.torch.optimizer_checks import OptimizerChecks
from paceline.torch.rank_loader import RankLoader
from paceline.torch.setup_checks import collect_facts, different_data_warning, require_agreement
from paceline.torch.sharded import gathers_parameters, process_group_of, replica_of_each_rank, unwrap_fabric
from paceline.torch.weighting import Weighting

_balances: WeakKeyDictionary[Any, ref[Balance]] = WeakKeyDictionary()
"""The balance of each loader, shared by all models that train on it. Weak, because the models' hooks keep it alive."""


@overload
def attach(model: torch.nn.Module, loader: None = None) -> LossScaling: ...


@overload
def attach(
    model: torch.nn.Module,
    loader: RankLoader,
    *,
    predictor: Predictor | None = None,
    policy: Policy | None = None,
    timeout: float | None = None,
    workers: Sequence[str] | None = None,
    covariates: Sequence[Covariate] | None = None,
) -> Balance: ...


def attach(
    model: torch.nn.Module,
    loader: RankLoader | None = None,
    *,
    predictor: Predictor | None = None,
    policy: Policy | None = None,
    timeout: float | None = None,
    workers: Sequence[str] | None = None,
    covariates: Sequence[Covariate] | None = None,
) -> Any:
    """Let every rank's batch size follow its speed, so that no rank waits for another.

    Every rank calls it once, after wrapping the model and before the first batch. From then on a step equals that of
    one process on the union of all batches, for any sizes. Where a loss is no mean over the samples that the model was
    given, the loop calls :meth:`Balance.scale`. If two models train on the same batches, such as a generator and its
    discriminator, attach both to the same loader.

    Parameters
    ----------
    model
        The model, whose gradients are averaged over the ranks: by ``DistributedDataParallel``, ``fully_shard``
        (FSDP2, HSDP), FSDP1, ``replicate``, or by hand. Also as Fabric's ``setup`` returns it.
    loader
        A :class:`BalancedLoader` or a :class:`StreamLoader`. None for a loader of your own, whose batches stay as they
        are, of any sizes: every loss is then scaled by :meth:`LossScaling.scale`.
    predictor
        Forecasts the ranks' speeds, fitted if it needs fitting; ``Auto()`` by default.
    policy
        When to change sizes, and by how much at once. By default sizes are multiples of a power of two that divides the
        batch, at most a thirtieth of a rank's share: libraries choose and tune their kernels again for every new size.
    timeout
        Seconds after which a rank that does not answer counts as lost, which ends every rank with an error. It also
        applies to the model's process group. None keeps that group's timeout: by default 30 minutes with gloo, 10 with
        NCCL.
    workers
        A name for each rank, by which a saved state finds its worker after a restart; by default host and local rank.
    covariates
        Samplers for the predictor's covariates, such as the CPU share; by default those that
        :func:`paceline.recording.covariates.default_covariates` offers under the predictor's names. A covariate
        that nothing samples is NaN.

    Returns
    -------
    Balance
        A handle to scale losses, watch the job and save its state; you may ignore it. Without a loader a
        :class:`LossScaling`, which scales losses alone.

    Raises
    ------
    TypeError
        If the loader cannot be balanced.
    ValueError
        If the ranks do not agree on the library's version, the data, the policy or the predictor, an argument is
        out of range, or ranks of the model must get the same samples (tensor parallelism).

    Examples
    --------
    One device, to show the calls; in a process of ``torchrun`` the model is wrapped in ``DistributedDataParallel``:

    >>> from paceline.torch import BalancedLoader
    >>> model = torch.nn.Linear(4, 1)
    >>> loader = BalancedLoader(torch.randn(100, 4), global_batch=25)
    >>> balance = attach(model, loader)
    >>> for inputs in loader:
    ...     model(inputs).mean().backward()
    >>> print(balance.plan.why)
    Equal batches: 4 of 5 warm-up iterations done.
    """
    model = unwrap_fabric(model)
    if loader is None:
        return _attach_without_loader(model, (predictor, policy, timeout, workers, covariates))
    _require_loader(loader)
    shards = _ranks_per_replica(model, loader)
    if loader in _balances and (known := _balances[loader]()) is not None and not known.closed:
        if loader.counts_differ:
            raise ValueError(
                "micro_batch= and pack=True take one model: torch builds the buckets of a second one after another "
                "micro-batch on each rank, and all would wait forever. Put both into one DistributedDataParallel, or "
                "pass accumulate= a number"
            )
        if any(option is not None for option in (predictor, policy, timeout, workers, covariates)):
            raise ValueError("this loader is already attached: pass options only in the first call")
        known.add(model)
        return known
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
    predictor = Auto() if predictor is None else predictor
    # a user's predictor may have no more than a job calls
    if isinstance(predictor, type) or not hasattr(predictor, "predict"):
        require_predictor(predictor)
    policy = _policy_for(model, loader, policy, loader.global_batch // shards)
    if not isinstance(policy.lower, Mapping):
        loader.min_samples = max(int(policy.lower), 1)
    sampled = select_covariates(predictor, covariates)
    group = process_group_of(model)
    exchange = open_exchange(group, timeout)
    # The exchange stays open if the ranks disagree: another rank may not have received the facts yet.
    names = require_agreement(exchange, loader, collect_facts(loader, predictor, policy, timeout), workers)
    if shards > 1:  # ranks of a replica take as many micro-batches, so they are one worker, named after its first rank
        replicas = replica_of_each_rank(model)
        names = tuple(names[replicas.index(replica)] for replica in replicas)
    _warn_of_unknown_bounds(policy, names)
    warning = different_data_warning(exchange, getattr(loader, "dataset", None))
    events = choose_events(model)
    # A GPU's time is not the quota's, and a process that waits for one may use CPU time.
    allowance = QuotaTracker() if isinstance(events, CPUEvents) else None
    timer = BusyTimer(events, allowance, torch.get_num_threads())
    # The timer of a CUDA device reports one step late, so its plans are for one iteration later.
    balancer = LoadBalancer(
        predictor,
        workers=tuple(dict.fromkeys(names)),
        global_batch=loader.global_batch // shards,
        policy=policy,
        horizon=1 + timer.delay,
    )
    balance = Balance(balancer, loader, exchange, timer, workers=names, covariates=sampled)
    balance.add(model)
    if warning:
        balance.warn("data", warning)
    if timeout is not None and group is not None:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout), group)
    _balances[loader] = ref(balance)
    return balance


def _attach_without_loader(model: torch.nn.Module, options: tuple[object, ...]) -> LossScaling:
    if any(option is not None for option in options):
        raise TypeError("options of attach() apply to a balanced loader only: pass one, or leave them out")
    weighting = Weighting(open_exchange(process_group_of(model)))
    scaling = LossScaling(weighting, OptimizerChecks(weighting))
    scaling.add(model)
    return scaling


def _require_loader(loader: object) -> None:
    if isinstance(loader, torch.utils.data.DataLoader):
        raise TypeError(
            "loader must be a BalancedLoader, got a DataLoader, whose batches are fixed, by its batch_sampler too: "
            "replace it and its sampler with BalancedLoader(dataset, global_batch=...); or keep it, attach(model) "
            "alone, and write loss = balance.scale(loss, count)"
        )
    if not isinstance(loader, RankLoader):
        raise TypeError(f"loader must be a BalancedLoader or a StreamLoader, got {type(loader).__name__}")


def _ranks_per_replica(model: torch.nn.Module, loader: RankLoader) -> int:
    """Return the ranks that must take as many micro-batches as each other, as they gather parameters together."""
    if not loader.counts_differ or not gathers_parameters(model):
        return 1
    if loader.packs:
        raise TypeError(
            f"the ranks of this {type(model).__name__} gather parameters in every forward pass and so need "
            'the same number of micro-batches: pass pack="lockstep" to the loader'
        )
    replicas = replica_of_each_rank(model)
    shards = len(replicas) // len(set(replicas))
    if shards == len(replicas):
        raise TypeError(
            "micro_batch= lets the number of micro-batches follow speed, but all ranks of this "
            f"{type(model).__name__} gather parameters in every forward pass and so need the same number: "
            "leave out micro_batch=, or shard the model within replicas, as fully_shard does on a mesh of "
            "two dimensions (HSDP)"
        )
    if loader.global_batch % shards:
        raise ValueError(
            f"global_batch must be a multiple of the {shards} ranks of a replica, which take the same number "
            f"of samples, got {loader.global_batch}"
        )
    if shards > 1 and not loader.settings().get("drop_last"):
        raise ValueError(
            "the last batch of an epoch cannot always be divided equally among the ranks of a replica: pass "
            "drop_last=True to the loader"
        )
    return shards


def _policy_for(model: torch.nn.Module, loader: RankLoader, policy: Policy | None, samples: int) -> Policy:
    """Return the policy, with a lower bound that the model needs for training."""
    batch_multiple = default_batch_multiple(loader.global_batch, loader.world_size)
    if loader.micro_batch and samples % loader.micro_batch == 0:
        batch_multiple = loader.micro_batch  # fixed shapes, as compilers like them, and no time for a rest
    if loader.coefficients is not None:
        batch_multiple = 1  # unequal costs make every batch another size anyway
    wanted = policy or Policy(batch_multiple=batch_multiple)
    bounds = wanted.lower.values() if isinstance(wanted.lower, Mapping) else [wanted.lower]
    if any(bound < 1 for bound in bounds):
        raise ValueError(
            f"policy.lower must be at least 1 sample, as an empty batch has no mean loss, got {wanted.lower}"
        )
    # _BatchNorm is private, but it is the only base class that all batch normalizations share.
    normalizes = any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules())
    if normalizes and wanted.lower == 1 and loader.global_batch >= 2 * loader.world_size:
        return replace(wanted, lower=2)  # batch normalization needs two samples for a variance
    return wanted


def _warn_of_unknown_bounds(policy: Policy, names: Sequence[str]) -> None:
    """Warn of bounds for unknown workers: names are easily mistyped, and a bound may be there to keep memory free."""
    bounds = [name for bound in (policy.lower, policy.upper) if isinstance(bound, Mapping) for name in bound]
    if unknown := sorted(set(bounds) - set(names)):
        warnings.warn(
            f"policy.lower or policy.upper bounds {unknown}, which are not among the workers {list(names)}: "
            "these bounds have no effect; check their spelling",
            BalanceWarning,
            stacklevel=3,  # where attach() is called
        )
