"""Balanced training with torchft: replicas leave and return, and the global batch stays the same. Axis: P replicas."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline._require import require
from paceline.coordinator.load_balancer import LoadBalancer
from paceline.coordinator.plan import Plan
from paceline.coordinator.policy import Policy
from paceline.predictors import Auto, Curves, Predictor, Report
from paceline.recording.torch.busy_time import BusyTimer, CPUEvents, CUDAEvents
from paceline.solver import split
from paceline.torch.assigner import SampleOrder
from paceline.torch.counting import LoopError
from paceline.torch.loader_options import require_int
from paceline.torch.loading import BatchSource, OnDemandSource
from paceline.torch.reports import MIN_BATCH_SHARE
from paceline.torch.state_lists import from_lists, to_lists

require("torchft", needed_by="paceline.integrations.torchft", extra="torchft")

MAX_NAME_BYTES = 64
SHARED_SETTINGS = ("samples in the dataset", "global_batch", "epochs", "seed", "shuffle")
"""What must be the same on every replica."""

__all__ = ["ReplicaLoader"]


class ReplicaLoader:
    """Loads this replica's part of every global batch, whichever replicas take part in the step.

    Before every batch it asks torchft for a quorum, and divides the global batch among the replicas that are in it, by
    their forecast speeds. A step that fails, because a replica died, is taken again with the same samples by those that
    are left. So every sample comes once in an epoch, and the place in the data follows from ``manager.current_step()``
    alone. A replica that returns gets the parameters from torchft, and what the balancer has learned with them.

    Parameters
    ----------
    dataset
        Any map-style dataset, the same on every replica.
    global_batch
        Samples of all replicas together in one step, however many there are; at least one for each.
    manager
        The ``torchft.Manager`` of this replica, made with ``use_async_quorum=False``: a batch depends on the quorum. A
        replica is one process.
    epochs
        Epochs of the job. A loop over the loader yields the batches of all of them, from the manager's present step.
    shuffle, seed
        Whether, and from which seed, every epoch has a new order. The same on every replica.
    collate_fn
        Makes a batch of a list of samples; None stacks them as torch does.
    predictor
        Forecasts the replicas' speeds; ``Auto()`` by default.
    policy
        When to change sizes, and by how much at once.
    name
        The name of this replica in plans; by default the environment's ``REPLICA_GROUP_ID``, or host and process.
    device
        Where the replica computes and the manager's process group communicates.

    Attributes
    ----------
    replicas, sizes
        The names of the replicas in this step, as the manager orders them, and their samples, ``[P]``.
    balancer
        The load balancer.

    Raises
    ------
    TypeError
        If the manager is not a manager.
    ValueError
        If a number is out of range; in the loop, if replicas have the same name, or other data or batches.
    LoopError
        By ``manager.allreduce``, if the loss of this step was not scaled.

    Examples
    --------
    >>> loader = ReplicaLoader(dataset, global_batch=512, manager=manager, epochs=3)  # doctest: +SKIP
    >>> for inputs, targets in loader:  # doctest: +SKIP
    ...     optimizer.zero_grad()
    ...     loader.scale(loss_of(model(inputs), targets)).backward()
    ...     for parameter in model.parameters():
    ...         manager.allreduce(parameter.grad).wait()
    ...     if manager.should_commit():
    ...         optimizer.step()
    """

    def __init__(
        self,
        dataset: Any,
        global_batch: int,
        manager: Any,
        *,
        epochs: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        predictor: Predictor | None = None,
        policy: Policy | None = None,
        name: str | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if not hasattr(manager, "start_quorum"):
            raise TypeError(f"manager must be a torchft.Manager, got {type(manager).__name__}")
        self.dataset, self.manager, self.device = dataset, manager, torch.device(device)
        self.global_batch = require_int("global_batch", global_batch, 1, "sample")
        self.epochs = require_int("epochs", epochs, 1)
        self.name = name or os.environ.get("REPLICA_GROUP_ID") or f"{socket.gethostname()}:{os.getpid()}"
        if len(self.name.encode()) > MAX_NAME_BYTES:
            raise ValueError(f"name must have at most {MAX_NAME_BYTES} bytes in UTF-8, got {self.name!r}")
        self._order = SampleOrder(len(dataset), bool(shuffle), require_int("seed", seed, 0))
        self._source: BatchSource = OnDemandSource(dataset, collate_fn)
        self._timer = BusyTimer(CUDAEvents(self.device) if self.device.type == "cuda" else CPUEvents())
        self.balancer = LoadBalancer(
            Auto() if predictor is None else predictor,
            workers=[self.name],
            global_batch=self.global_batch,
            policy=policy,
            horizon=1 + self._timer.delay,
        )
        self.replicas: tuple[str, ...] = ()
        self.sizes: Sizes = np.zeros(0, dtype=np.int64)
        self._rank = 0
        self._is_scaled = True
        self._epoch_order = (-1, np.arange(0))
        manager.register_state_dict_fn("paceline", self.load_state_dict, self.state_dict)
        self._allreduce, manager.allreduce = manager.allreduce, self._timed_allreduce

    def __repr__(self) -> str:
        return f"ReplicaLoader({self.name!r}, global_batch={self.global_batch}, {self.balancer!r})"

    def __len__(self) -> int:
        """Return the steps of an epoch; the last may have fewer samples."""
        return -(-len(self._order) // self.global_batch)

    @property
    def epoch(self) -> int:
        """The epoch of the manager's present step; the first is 0."""
        return int(self.manager.current_step()) // len(self)

    @property
    def plan(self) -> Plan:
        """The latest plan of this replica's balancer. All use the sizes of the first one's."""
        return self.balancer.plan

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned; the place in the data is in ``manager.state_dict()``."""
        return to_lists(self.balancer.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what was learned."""
        self.balancer.load_state_dict(from_lists(state))

    def __iter__(self) -> Iterator[Any]:
        """Yield this replica's batches until the last step is taken; each comes after a quorum."""
        has_stepped, waiting = True, None
        while True:
            measure = self._timer.report()
            # a failed step may end early
            self._agree_on_sizes((measure.samples, measure.seconds) if has_stepped else (np.nan, np.nan))
            if self.manager.current_step() >= self.epochs * len(self):
                return  # after a last quorum: a replica in which the last step failed has got its result there
            if waiting is not None:
                self._timer.gradients_summed(waiting)
            samples = self._sample_indices()
            self._timer.load_begins()
            [batch] = self._source.take([samples])
            self._timer.load_ends()
            self._timer.add_batch(len(samples))
            self._timer.forward_begins(len(samples), in_report=self.sizes.sum() >= MIN_BATCH_SHARE * self.global_batch)
            step, self._is_scaled = self.manager.current_step(), False
            yield batch
            has_stepped, waiting = self.manager.current_step() > step, self._timer.gradients_ready()

    def scale(self, loss: torch.Tensor, count: torch.Tensor | float | None = None) -> torch.Tensor:
        """Return the loss scaled so that the mean of the replicas' gradients is that of all samples of the step.

        Parameters
        ----------
        loss
            A mean over this replica's batch; by ``manager.allreduce``, gradients become the mean over replicas.
        count
            What it is a mean over, such as tokens; None for samples. With a count, replicas exchange it.
        """
        self._is_scaled = True
        own = float(self.sizes[self._rank])
        if count is None:
            return loss * (own * len(self.sizes) / float(self.sizes.sum()))
        counts_P = self._gather_rows((float(count) if own else 0.0,))[:, 0]
        return loss * (float(counts_P[self._rank]) * len(counts_P) / max(float(counts_P.sum()), 1.0))

    def _agree_on_sizes(self, measured: tuple[float, float]) -> None:
        """Agree on a step's replicas and sizes, in as many quorums as it takes, from the last samples and seconds."""
        manager = self.manager
        while True:
            manager.start_quorum()
            if manager.participating_rank() is None:
                raise ValueError(
                    "this replica is not participating in the quorum: create the Manager with use_async_quorum=False "
                    "and without WorldSizeMode.FIXED_WITH_SPARES"
                )
            self._rank = int(manager.participating_rank())
            settings = (len(self.dataset), self.global_batch, self.epochs, self._order.seed, self._order.shuffle)
            name = self.name.encode().ljust(MAX_NAME_BYTES, b"\0")
            rows_PF = self._gather_rows((*measured, *settings, *name))
            if manager.errored() is None:
                plan = self._plan_sizes(rows_PF)
                # What replicas have learned may differ after a failure, and other hardware may round otherwise.
                rows_PF = self._gather_rows(tuple(plan))
                if manager.errored() is None:
                    self.sizes = rows_PF[0].astype(np.int64)
                    return
            manager.should_commit()  # it says no, and counts the failure

    def _gather_rows(self, own_row: tuple[float, ...]) -> Array:
        """Return the rows of all replicas, ``[P, F]``; of no use where the manager then has an error."""
        rows_PF = torch.zeros(self.manager.num_participants(), len(own_row), dtype=torch.float64, device=self.device)
        rows_PF[self._rank] = torch.tensor(own_row, dtype=torch.float64)
        self._allreduce(rows_PF, reduce_op=dist.ReduceOp.SUM).wait()
        rows: Array = rows_PF.cpu().numpy()
        return rows

    def _plan_sizes(self, rows_PF: Array) -> list[float]:
        """Learn what the replicas have measured, and return the sizes of this step, in their order."""
        measured_PF, settings_PF, names_PF = np.split(rows_PF, [2, 2 + len(SHARED_SETTINGS)], axis=1)
        for name, values in zip(SHARED_SETTINGS, settings_PF.T.astype(int).tolist(), strict=True):
            if len(set(values)) > 1:
                raise ValueError(f"{name} must be the same on every replica, got {values}")
        names = [bytes(row_F.astype(np.uint8)).rstrip(b"\0").decode() for row_F in names_PF]
        if len(set(names)) < len(names):
            raise ValueError(f"replicas must have different names, got {names}: pass name= or set REPLICA_GROUP_ID")
        self.replicas = tuple(names)
        joined = [name for name in names if name not in self.balancer.workers]
        if len(joined) == len(names):  # after a resume: a fleet is never empty
            self.balancer.join(joined.pop(0))
        for worker in self.balancer.workers:
            if worker not in names:
                self.balancer.leave(worker)
        for name in joined:
            self.balancer.join(name)
        measured_WF = measured_PF[[names.index(worker) for worker in self.balancer.workers]]
        if np.isfinite(measured_WF[:, 1]).any():
            self.balancer.step(Report(samples=measured_WF[:, 0], seconds=measured_WF[:, 1]))
        sizes_W = self.balancer.plan.sizes
        left = len(self._order) - self.manager.current_step() % len(self) * self.global_batch
        if left < self.global_batch:
            sizes_W = split(Curves.from_speed(sizes_W.astype(float)), left).sizes
        return [float(sizes_W[self.balancer.workers.index(name)]) for name in names]

    def _sample_indices(self) -> NDArray[np.int64]:
        epoch, step = divmod(self.manager.current_step(), len(self))
        if self._epoch_order[0] != epoch:
            self._epoch_order = epoch, self._order.epoch_indices(epoch)
        first = step * self.global_batch + int(self.sizes[: self._rank].sum())
        # A replica without a part of a short last batch computes one sample that counts nothing.
        samples = self._epoch_order[1][first : first + int(self.sizes[self._rank])]
        return samples if len(samples) else self._epoch_order[1][:1]

    def _timed_allreduce(self, *args: Any, **options: Any) -> Any:
        """Sum as the manager does, but refuse gradients of an unscaled loss; waiting for it is no busy time."""
        if not self._is_scaled:
            raise LoopError("write loss = loader.scale(loss) before backward(): replicas have batches of unequal size")
        work = self._allreduce(*args, **options)
        wait = work.wait

        def timed_wait(*args: Any, **options: Any) -> Any:
            self._timer.wait_begins()
            try:
                return wait(*args, **options)
            finally:
                self._timer.wait_ends()

        work.wait = timed_wait
        return work
