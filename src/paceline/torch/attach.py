"""Attach a load balancer to a training job: the one call that a user adds to the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist

from paceline.coordinator.balanced.load_balancer import LoadBalancer
from paceline.coordinator.balanced.policy import Policy
from paceline.predictors import Auto, Predictor
from paceline.predictors.protocol import require_predictor
from paceline.recording.allowance import Allowance
from paceline.recording.covariates import Covariate
from paceline.recording.torch.busy_clock import Clock
from paceline.recording.torch.marks import CPUMarks, marks_of
from paceline.torch.agreement import agree, facts_of
from paceline.torch.balance import Balance
from paceline.torch.checked import refuse_mixing_layers
from paceline.torch.exchange import Exchange
from paceline.torch.likeness import different
from paceline.torch.loader_protocol import Loader
from paceline.torch.sampled import covariates_for
from paceline.torch.usual import policy_for, say_unknown_bounds
from paceline.torch.weighting.hooks import CommHook, averaging, ddp_of
from paceline.torch.weighting.listener import Loss, weights_loss
from paceline.torch.weighting.terms import TermCount

ONE_MODEL = (
    "micro_batch= takes one model: ranks have different numbers of micro-batches, and torch builds the buckets "
    "of a second model in between, each rank at another time, for which the others wait for ever. Put both into one "
    "DistributedDataParallel, or give accumulate= a number"
)

_balances: WeakKeyDictionary[Any, ref[Balance]] = WeakKeyDictionary()
"""The balance of each loader, shared by all models that train on it. Weak, because the models' hooks keep it alive."""


def attach(
    model: torch.nn.Module,
    loader: Loader,
    *,
    predictor: Predictor | None = None,
    policy: Policy | None = None,
    loss: Loss = "mean",
    loss_terms: TermCount | None = None,
    timeout: float | None = None,
    workers: Sequence[str] | None = None,
    covariates: Sequence[Covariate] | None = None,
    hook: Callable[..., Any] | None = None,
    hook_state: object = None,
) -> Balance:
    """Let every rank's batch size follow its speed, so that no rank waits for another.

    Every rank of the job calls it once, after wrapping the model and before the first batch. From then on each rank's
    gradients are weighted by its share of the samples that the model was given, so that a step equals that of one
    process on the union of all batches, for any sizes. If two models train on the same batches, such as a generator and
    its discriminator, attach both to the same loader.

    Parameters
    ----------
    model
        The model, in ``DistributedDataParallel``; with ``loss="scaled"`` it may also be sharded by ``fully_shard``, or
        not wrapped at all.
    loader
        A :class:`BalancedLoader` or a :class:`StreamLoader`. For a loader of your own, whose batches stay as they are,
        there is :func:`weight_terms`.
    predictor
        Forecasts the ranks' speeds, fitted if it needs fitting; ``Auto()`` by default.
    policy
        When to change sizes, and by how much at once. By default sizes are multiples of a power of two that divides the
        batch, at most a thirtieth of a rank's share: libraries choose and tune their kernels again for every new size.
    loss
        The loss on each rank. ``"mean"``: a mean over the rank's batch; its gradients are weighted, and the loop stays
        as it is. ``"sum"``: a sum, or one divided by a number that all ranks share, such as all tokens of the global
        batch; the plain average is right. ``"scaled"``: a mean that the loop gives to ``balance.scale(loss)``, for
        models whose gradients are not summed by ``DistributedDataParallel``, and for those whose forward or backward
        pass mixes the samples of all ranks.
    loss_terms
        A function of a batch that returns how many terms its loss has, where the loader cannot know: labels that are
        masked at random, say. The loss is their mean or their sum; the step is the mean over the terms of all ranks and
        micro-batches, which are summed beside the gradients. Do not divide sums by micro-batches.
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
    hook, hook_state
        A communication hook of your own, which averages gradients over the ranks, and its state, as in
        ``model.register_comm_hook(hook_state, hook)``: ``fp16_compress_hook``, ``bf16_compress_hook``,
        ``powerSGD_hook``. It gets the gradients weighted; a further model of the same loader may have another.

    Returns
    -------
    Balance
        A handle to watch the job and save its state; you may ignore it.

    Raises
    ------
    TypeError
        If the model needs ``DistributedDataParallel`` and is not in it, or the loader cannot be balanced.
    ValueError
        If the ranks do not agree on the library's version, the data, the policy or the predictor, an argument is
        out of range, or the model mixes samples of all ranks in a way that needs ``loss="scaled"``.

    Examples
    --------
    A job with a single rank, to show the calls; ``torchrun`` starts one such process per rank:

    >>> from torch.nn.parallel import DistributedDataParallel
    >>> from paceline.torch import BalancedLoader
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 1))
    >>> loader = BalancedLoader(torch.randn(100, 4), global_batch=25)
    >>> balance = attach(model, loader)
    >>> for inputs in loader:
    ...     model(inputs).mean().backward()
    >>> print(balance.plan.why)
    Equal batches: 4 of 5 warm-up iterations done.
    >>> dist.destroy_process_group()
    """
    _require_loader(loader)
    _require_loss(model, loss, loss_terms)
    _require_loss_terms(loader, loss_terms)
    if loader.micro_batch and ddp_of(model) is None:
        raise TypeError(
            f"micro_batch= needs DistributedDataParallel, got {type(model).__name__}: layers that gather their "
            "parameters (FSDP, HSDP) make every rank wait in every forward pass, so all need as many micro-batches"
        )
    if weights_loss(loss, loss_terms):
        refuse_mixing_layers(model)
    average = None if hook is None else averaging(hook, hook_state)
    if average is not None and ddp_of(model) is None:
        raise TypeError(f"hook= needs DistributedDataParallel, got {type(model).__name__}, which has no such hooks")
    if loader in _balances and (known := _balances[loader]()) is not None and not known.closed:
        if loader.micro_batch:
            raise ValueError(ONE_MODEL)
        return _joined(known, model, (predictor, policy, timeout, workers, covariates), loss, average)
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
    predictor = Auto() if predictor is None else predictor
    if isinstance(predictor, type) or not hasattr(predictor, "predict"):  # one's own may have no more than a job calls
        require_predictor(predictor)
    policy = policy_for(model, loader, policy)
    if not isinstance(policy.lower, Mapping):
        loader.least_samples = max(int(policy.lower), 1)
    sampled = covariates_for(predictor, covariates)
    ddp = ddp_of(model)
    group: dist.ProcessGroup = dist.group.WORLD if ddp is None else ddp.process_group  # type: ignore[assignment]
    exchange = Exchange(group, timeout)
    kind = loss if loss_terms is None else f"{loss} over terms that a function counts"
    # The exchange stays open if the ranks disagree: another rank may not have received the facts yet.
    names = agree(exchange, loader, facts_of(loader, predictor, policy, kind, timeout), workers)
    say_unknown_bounds(policy, names)
    warning = different(exchange, getattr(loader, "dataset", None))
    marks = marks_of(model)
    # A GPU's time is not the quota's, and a process that waits for one may use CPU time.
    allowance = Allowance() if isinstance(marks, CPUMarks) else None
    clock = Clock(marks, allowance, torch.get_num_threads())
    # A CUDA clock reports one step late, so its plans are for one iteration later.
    balancer = LoadBalancer(
        predictor, workers=names, global_batch=loader.global_batch, policy=policy, horizon=1 + clock.delay
    )
    how: dict[str, Any] = {"loss": loss, "count": loss_terms}
    balance = Balance(balancer, loader, exchange, clock, workers=names, covariates=sampled, **how)
    balance.add(model, average)
    if warning:
        balance.warn("data", warning)
    if timeout is not None:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout), group)
    _balances[loader] = ref(balance)
    return balance


def _joined(
    balance: Balance, model: torch.nn.Module, options: tuple[object, ...], loss: Loss, average: CommHook | None
) -> Balance:
    """Add a further model that trains on an attached loader to its balance."""
    if any(option is not None for option in options) or loss != balance.loss:
        raise ValueError(
            "this loader is attached already, and a further model shares its balance: give options only in the first "
            f"call, and loss={balance.loss!r} in both"
        )
    balance.add(model, average)
    return balance


def _require_loader(loader: object) -> None:
    if isinstance(loader, torch.utils.data.DataLoader):
        raise TypeError(
            "loader must be a BalancedLoader, got a DataLoader, whose batches are fixed, by its batch_sampler too: "
            "replace it and its sampler with BalancedLoader(dataset, global_batch=...); or keep it, and "
            "weight by loss terms alone with weight_terms(model, loader, loss_terms)"
        )
    missing = [name for name in ("global_batch", "shares", "settings", "position") if not hasattr(loader, name)]
    if missing:
        raise TypeError(f"loader must be a BalancedLoader, got {type(loader).__name__}, which has no {missing[0]}")


def _require_loss(model: torch.nn.Module, loss: str, loss_terms: object) -> None:
    """Refuse an unknown kind of loss, and a model whose gradients cannot be weighted for this kind."""
    if loss not in ("mean", "sum", "scaled"):
        raise ValueError(f'loss must be "mean", "sum" or "scaled", got {loss!r}')
    if loss == "scaled" and loss_terms is not None:
        raise ValueError(
            'loss_terms are summed beside the gradients, which loss="scaled" leaves alone: use loss="mean", or give '
            "the "
            "loader loss_terms=, which every rank knows beforehand"
        )
    if weights_loss(loss, loss_terms) and ddp_of(model) is None:
        raise TypeError(
            f"model must be in DistributedDataParallel, got {type(model).__name__}: wrap it, or use "
            'attach(..., loss="scaled") and balance.scale(loss)'
        )


def _require_loss_terms(loader: Loader, loss_terms: object) -> None:
    """Refuse to count loss terms twice."""
    if loss_terms is None:
        return
    if not callable(loss_terms):
        raise TypeError(f"loss_terms must be a function of a batch with a BalancedLoader, got {loss_terms!r}")
    known = loader.settings()
    if known.get("loss_terms") or "loss_terms" in str(known.get("numbers of a sample", "")):
        raise ValueError("the loader knows its loss terms already: give them to one of the two")
