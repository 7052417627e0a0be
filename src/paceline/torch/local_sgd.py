"""Local SGD: ranks take steps of their own and average their models now and then, faster ranks after more steps.

Axes: W ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from paceline.coordinator.load_balancer import LoadBalancer
from paceline.coordinator.plan import Plan
from paceline.coordinator.policy import Policy
from paceline.predictors import Auto, Predictor, Report
from paceline.torch.loader import BalancedLoader
from paceline.torch.reports import MIN_BATCH_SHARE
from paceline.torch.sharded import find_ddp, gathers_parameters
from paceline.torch.state_lists import from_lists, to_lists


class LocalSGD:
    """Averages the models of ranks after every round, in which each rank takes as many steps as its speed allows.

    A round is a global batch of the loader, and a step one of its micro-batches, so every sample comes once in an
    epoch. Models are averaged with weights by samples, or by the counts given to :meth:`merge`.

    Parameters
    ----------
    model
        The model, not wrapped in DistributedDataParallel. All ranks begin with the first rank's parameters.
    loader
        A loader with ``micro_batch=``.
    predictor
        Forecasts the ranks' speeds; ``Auto()`` by default.
    policy
        When to change the numbers of steps; by default in whole micro-batches.
    outer
        Makes an outer optimizer of parameters, which steps by the average change of the models in a round: DiLoCo
        takes ``lambda parameters: torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)``. None takes the
        average itself.

    Raises
    ------
    TypeError
        If the loader is no BalancedLoader, or the model is in DistributedDataParallel or sharded.
    ValueError
        If the loader has no micro-batches, or a round does not give every rank one.

    References
    ----------
    S. U. Stich, Local SGD converges fast and communicates little, ICLR 2019; A. Douillard et al., DiLoCo: distributed
    low-communication training of language models, arXiv 2311.08105.

    Examples
    --------
    One rank, to show the calls:

    >>> from paceline.torch import BalancedLoader
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loader = BalancedLoader(torch.randn(64, 4), global_batch=32, micro_batch=4)
    >>> local = LocalSGD(model, loader)
    >>> for inputs in loader:
    ...     model(inputs).square().mean().backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    ...     if loader.step_ends:
    ...         local.merge()
    >>> local.rounds
    2
    >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loader: BalancedLoader,
        *,
        predictor: Predictor | None = None,
        policy: Policy | None = None,
        outer: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer] | None = None,
    ) -> None:
        if not isinstance(loader, BalancedLoader):
            raise TypeError(
                f"loader must be a BalancedLoader, got {type(loader).__name__}: write BalancedLoader(dataset, "
                "global_batch=..., micro_batch=...)"
            )
        if find_ddp(model) is not None or gathers_parameters(model):
            raise TypeError(
                f"this model ({type(model).__name__}) synchronizes in every step and would hang, as ranks take "
                "different numbers of steps: pass the model itself, not wrapped or sharded"
            )
        if not loader.micro_batch:
            raise ValueError("LocalSGD needs the number of samples in a step: pass micro_batch= to the loader")
        if loader.global_batch % loader.micro_batch or loader.global_batch < loader.world_size * loader.micro_batch:
            nearest = max(round(loader.global_batch / loader.micro_batch), loader.world_size) * loader.micro_batch
            raise ValueError(
                f"global_batch must be a multiple of micro_batch={loader.micro_batch} with at least one step for each "
                f"of {loader.world_size} ranks, got {loader.global_batch}: the nearest is {nearest}"
            )
        self.model, self.loader = model, loader
        policy = policy or Policy(batch_multiple=loader.micro_batch, lower=loader.micro_batch)
        self.balancer = LoadBalancer(
            Auto() if predictor is None else predictor,
            workers=range(loader.world_size),
            global_batch=loader.global_batch,
            policy=policy,
        )
        loader.shares = self.balancer.plan.sizes
        self.rounds = 0
        for tensor in self._averaged_tensors():
            dist.broadcast(tensor, 0)
        self._anchors = [parameter.detach().clone() for parameter in model.parameters()] if outer else []
        self._outer = outer(self._anchors) if outer else None
        self._round_start_time = time.perf_counter()

    def __repr__(self) -> str:
        return f"LocalSGD(rounds={self.rounds}, {self.balancer!r})"

    @property
    def plan(self) -> Plan:
        """The plan of the round under way, in samples."""
        return self.balancer.plan

    def merge(self, count: float | None = None) -> None:
        """Average the models, and plan the next round. Every rank calls it where ``loader.step_ends`` is true.

        Parameters
        ----------
        count
            The weight of this rank's model, such as its tokens of the round; None takes its samples.

        Raises
        ------
        RuntimeError
            If this rank has steps left in the round.
        ValueError
            If the count is negative, or no rank has any.
        """
        if not self.loader.step_ends:
            raise RuntimeError("this rank has steps left in the round: call merge() where loader.step_ends is true")
        if count is not None and not count >= 0:
            raise ValueError(f"count must be at least 0, got {count}")
        tensors = self._averaged_tensors()
        device = tensors[0].device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - self._round_start_time
        samples = float(self.loader.batch_sizes[self.loader.rank])
        row = torch.tensor([samples, seconds, samples if count is None else float(count)], device=device)
        rows = [torch.zeros_like(row) for _ in range(self.loader.world_size)]
        dist.all_gather(rows, row)
        rows_WF = torch.stack(rows).cpu().double().numpy()
        if not rows_WF[:, 2].sum():
            raise ValueError("merge() needs a count above 0 on at least one rank: pass one, or leave out count")
        self._average(tensors, float(rows_WF[self.loader.rank, 2] / rows_WF[:, 2].sum()))
        if self._outer is not None:
            self._step_outer(self._outer)
        self.rounds += 1
        # an epoch's last round is not learned from if it is much smaller: its time says too little
        if rows_WF[:, 0].sum() >= MIN_BATCH_SHARE * self.loader.global_batch:
            plan = self.balancer.step(Report(samples=rows_WF[:, 0], seconds=rows_WF[:, 1]))
            # Other hardware may round otherwise, and ranks of different plans would lose samples.
            sizes = torch.tensor(plan.sizes, device=device)
            dist.broadcast(sizes, 0)
            self.loader.shares = sizes.cpu().numpy()
        self._round_start_time = time.perf_counter()

    @torch.no_grad()
    def _average(self, tensors: list[torch.Tensor], weight: float) -> None:
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):  # in one order on every rank
            together = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in together]) * weight
            dist.all_reduce(flat)
            for tensor, part in zip(together, flat.split([tensor.numel() for tensor in together]), strict=True):
                tensor.copy_(part.view_as(tensor))

    @torch.no_grad()
    def _step_outer(self, outer_optimizer: torch.optim.Optimizer) -> None:
        for anchor, parameter in zip(self._anchors, self.model.parameters(), strict=True):
            anchor.grad = anchor - parameter
        outer_optimizer.step()
        for anchor, parameter in zip(self._anchors, self.model.parameters(), strict=True):
            parameter.copy_(anchor)

    def _averaged_tensors(self) -> list[torch.Tensor]:
        buffers = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        return [parameter.detach() for parameter in self.model.parameters()] + buffers

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the model's own state, for a resume on every rank after a merge."""
        outer = {} if self._outer is None else {"outer": self._outer.state_dict(), "anchors": self._anchors}
        balancer = to_lists(self.balancer.state_dict())
        return {"balancer": balancer, "loader": self.loader.state_dict(), "rounds": self.rounds, **outer}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume on the same number of ranks, after the model's own state was loaded."""
        self.balancer.load_state_dict(from_lists(state["balancer"]))
        self.loader.load_state_dict(state["loader"])
        self.loader.shares = self.balancer.plan.sizes
        self.rounds = state["rounds"]
        if self._outer is not None:
            self._outer.load_state_dict(state["outer"])
            with torch.no_grad():
                for anchor, saved in zip(self._anchors, state["anchors"], strict=True):
                    anchor.copy_(saved)
        self._round_start_time = time.perf_counter()
