"""Attach a load balancer to a training job: the one call that a user adds to the loop."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal
from weakref import ref

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from paceline import __version__
from paceline.coordinator.balancer import LoadBalancer
from paceline.coordinator.policy import Policy
from paceline.coordinator.torch.balance import Balance
from paceline.coordinator.torch.clock import Clock, EventClock, WallClock
from paceline.coordinator.torch.exchange import Exchange
from paceline.coordinator.torch.hook import weighted_sum
from paceline.coordinator.torch.pace import Pace
from paceline.coordinator.torch.protocol import Loader
from paceline.coordinator.torch.reports import COLUMNS
from paceline.coordinator.torch.sharded import leave_out_collectives
from paceline.datasets.drivers import Driver, default_drivers
from paceline.predictors import Auto, Predictor

logger = logging.getLogger(__name__)

STEPS = 30
"""A rank's share of the batch has at least so many steps of the default quantum."""


def attach(
    model: torch.nn.Module,
    loader: Loader,
    *,
    predictor: Predictor | None = None,
    policy: Policy | None = None,
    weigh: Literal["gradients", "loss"] = "gradients",
    timeout: float | None = None,
    workers: Sequence[str] | None = None,
    drivers: Sequence[Driver] | None = None,
    every: int | None = None,
) -> Balance:
    """Let every rank's batch size follow its speed, so that no rank waits for another.

    Every rank of the job calls it once, after wrapping the model and before the first batch. From then on gradients
    are weighed by each rank's share of the samples: whatever the sizes are, a step equals that of one process on the
    union of all batches.

    Parameters
    ----------
    model
        The model, in ``DistributedDataParallel``; with ``weigh="loss"`` also by ``fully_shard``, or bare.
    loader
        A :class:`BalancedLoader`.
    predictor
        Forecasts the ranks' speeds, fitted where it needs it; ``Auto()`` by default.
    policy
        When to change sizes, and by how much at once. By default sizes are multiples of 2, 4, 8 and so on, as the batch
        allows, in steps of up to a thirtieth of a rank's share: libraries choose and tune their kernels anew for
        every size they have not seen.
    weigh
        What carries the weights: ``"gradients"`` leaves the loop as it is; with ``"loss"`` the loop calls
        ``balance.scale(loss)``, for models whose gradients are not summed by ``DistributedDataParallel``. The loss
        is a mean over the rank's batch in both.
    timeout
        Seconds after which a rank that does not answer is taken for lost, which ends every rank with an error. It is
        set on the model's process group too. None leaves that as it is: by default 30 minutes with gloo, 10 with NCCL.
    workers
        A name for each rank, by which state finds its worker again after a restart; by default host and local rank.
    drivers
        What to sample for a predictor that reads drivers; by default those of its names that
        :func:`paceline.datasets.drivers.default_drivers` knows. What nobody samples is NaN.
    every
        Iterations from one plan to the next. By default as many as fit in a tenth of a second: one, unless iterations
        are so short that planning after each would hold them up.

    Returns
    -------
    Balance
        The handle, for watching the job and for saving its state. Nothing needs to be done with it.

    Raises
    ------
    TypeError
        If the model is not in ``DistributedDataParallel`` although gradients are to be weighed.
    ValueError
        If the ranks do not agree on the library's version, the data, the policy or the predictor, or an argument is
        out of range.

    Examples
    --------
    A job of a single rank, to show the calls; ``torchrun`` starts as many as there are:

    >>> from paceline.coordinator.torch import BalancedLoader
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 1))
    >>> loader = BalancedLoader(torch.randn(100, 4), global_batch=25)
    >>> balance = attach(model, loader)
    >>> for inputs in loader:
    ...     model(inputs).mean().backward()
    >>> print(balance.plan.why)
    Equal batches: 3 of 5 warm-up iterations done.
    >>> dist.destroy_process_group()
    """
    _require_weigh(model, weigh)
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
    predictor = predictor or Auto()
    policy = policy or Policy(quantum=_quantum(loader.global_batch, loader.world_size))
    _require_samples(policy)
    sampled = _drivers_for(predictor, drivers)
    in_ddp = isinstance(model, DistributedDataParallel)
    group: dist.ProcessGroup = model.process_group if in_ddp else dist.group.WORLD  # type: ignore[assignment]
    exchange = Exchange(group, len(COLUMNS) + len(sampled), timeout)
    if timeout is not None:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout), group)
    _require_agreement(exchange, _facts(loader, predictor, policy, weigh, timeout, every))
    names = _names(exchange, workers)
    clock = _clock_for(model)
    balancer = LoadBalancer(
        predictor, workers=names, global_batch=loader.global_batch, policy=policy, horizon=1 + clock.delay
    )
    balance = Balance(
        balancer,
        loader,
        exchange,
        clock,
        workers=names,
        drivers=sampled,
        scales_loss=weigh == "loss",
        backward_ends_iteration=not in_ddp,
        pace=Pace(every),
    )
    loader.before_batch = _weakly(balance)
    if isinstance(model, DistributedDataParallel):
        weight, ready, sent = balance.gradient_weight, balance.stop_clock, balance.send_report
        hook = weighted_sum(group, weight, ready, sent, clock.summed, exchange)
        model.register_comm_hook(None, hook)
        model.register_forward_pre_hook(_forward_hook(model, balance))
    elif isinstance(clock, WallClock):
        leave_out_collectives(model, clock)
    return balance


def _forward_hook(model: torch.nn.Module, balance: Balance) -> Callable[[torch.nn.Module, object], None]:
    """Return the hook that begins a forward pass of this very model: not of a copy, which takes its hooks along."""

    def begin(module: torch.nn.Module, inputs: object) -> None:
        if module is model:
            balance.start_forward(model)

    return begin


def _quantum(global_batch: int, world_size: int) -> int:
    """Return the largest power of two that divides the batch and is small beside a rank's share of it.

    >>> _quantum(896, world_size=2), _quantum(1000, world_size=2), _quantum(30, world_size=2)
    (8, 8, 1)
    """
    most = global_batch / world_size / STEPS
    quantum = 1
    while 2 * quantum <= most and global_batch % (2 * quantum) == 0:
        quantum *= 2
    return quantum


def _weakly(balance: Balance) -> Callable[[], None]:
    """Return what starts an iteration as long as there is a balance: the model's hook, or the loop, holds it.

    The balance holds the loader. If the loader held the balance too, its processes would not end at once with it.
    """
    known = ref(balance)

    def start() -> None:
        if (alive := known()) is not None:
            alive.start_iteration()

    return start


def _require_weigh(model: torch.nn.Module, weigh: str) -> None:
    if weigh not in ("gradients", "loss"):
        raise ValueError(f'weigh must be "gradients" or "loss", got {weigh!r}')
    if weigh == "gradients" and not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"model must be in DistributedDataParallel, got {type(model).__name__}: wrap it, or use "
            'attach(..., weigh="loss") and balance.scale(loss)'
        )


def _require_samples(policy: Policy) -> None:
    fewest = policy.lower.values() if isinstance(policy.lower, Mapping) else [policy.lower]
    if min(fewest, default=1) < 1:
        raise ValueError(
            f"policy.lower must be at least 1 sample, as an empty batch has no mean loss, got {policy.lower}"
        )


def _clock_for(model: torch.nn.Module) -> Clock:
    device = next(model.parameters()).device
    if device.type != "cuda":
        return WallClock()

    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event

    return EventClock(mark)


@dataclass(frozen=True)
class Unknown:
    """A driver that this machine does not tell: always NaN, which predictors take for not known."""

    name: str
    unit: str = "not sampled"

    def sample(self) -> float:
        """Return NaN."""
        return float("nan")


def _drivers_for(predictor: Predictor, drivers: Sequence[Driver] | None) -> list[Driver]:
    """Return what to sample, in the order in which the predictor reads it."""
    if not predictor.driver_names:
        return []
    known = {driver.name: driver for driver in (default_drivers() if drivers is None else drivers)}
    missing = [name for name in predictor.driver_names if name not in known]
    if len(missing) == len(predictor.driver_names):
        raise ValueError(
            f"the predictor reads the drivers {missing}, but sampled are {list(known)}: give drivers=[...]"
        )
    if missing:
        logger.info("the predictor could read %s, which nobody samples here", missing)
    return [known.get(name, Unknown(name)) for name in predictor.driver_names]


def _names(exchange: Exchange, workers: Sequence[str] | None) -> list[str]:
    """Return a name for each rank: those given, or host and local rank."""
    if workers is not None:
        names = [str(worker) for worker in workers]
    else:
        local = os.environ.get("LOCAL_RANK", str(exchange.rank))
        names = exchange.gather(f"{socket.gethostname()}:{local}")
    if len(set(names)) != len(names) or len(names) != exchange.world_size:
        raise ValueError(f"workers must be {exchange.world_size} different names, one for each rank, got {names}")
    return names


def _facts(
    loader: Loader, predictor: Predictor, policy: Policy, weigh: str, timeout: float | None, every: int | None
) -> dict[str, object]:
    """Return all that the plans depend on, besides the reports."""
    return {
        "version of paceline": __version__,
        "number of ranks in the loader": loader.world_size,
        "global batch": loader.global_batch,
        "micro-batches of a step": loader.accumulate,
        "data": _hash(loader.state_dict()),
        "policy": repr(policy),
        # An object that does not say what it is, is shown with its address, which differs everywhere.
        "predictor": re.sub(r" at 0x\w+", "", repr(predictor)) + f" with state {_hash(predictor.state_dict())}",
        "way of weighing": weigh,
        "iterations between plans": every,
        "timeout": timeout,
    }


def _require_agreement(exchange: Exchange, facts: Mapping[str, object]) -> None:
    if facts["number of ranks in the loader"] != exchange.world_size:
        raise ValueError(
            f"the loader deals to {facts['number of ranks in the loader']} ranks, but {exchange.world_size} train "
            "together: give the loader their rank and world_size"
        )
    facts_W = exchange.gather(facts)
    for name in facts:
        said = [str(other[name]) for other in facts_W]
        if len(set(said)) > 1:
            raise ValueError(
                f"the ranks must agree on the {name}, got "
                + ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(said))
            )


def _hash(state: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name, value in sorted(state.items()):
        array = np.ascontiguousarray(value)
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
