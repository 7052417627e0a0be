"""Any torch optimizer at the server. Axis: P parameters."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.lr_scheduler import LRScheduler

from paceline.coordinator.asynchronous.optimizer import Vector
from paceline.parameter_server.flat import FlatModel
from paceline.parameter_server.schedule import Schedule, Ticks, require_followed

LINEAR = (torch.optim.SGD, torch.optim.ASGD)
"""Optimizers whose step grows with its gradient."""


class TorchOptimizer:
    """A copy of a model and of its optimizer, kept at the server: the shapes and the groups stay the user's.

    Parameters
    ----------
    model, optimizer
        The user's own, left as they are.
    schedule
        What the learning rates are multiplied by after a number of applied samples; or a torch scheduler of the
        optimizer; a copy of it is stepped here, so that its changes of the groups take effect.
    tick
        Applied samples for which the scheduler is stepped once: a batch, or the data set for one made for epochs.

    Attributes
    ----------
    flat
        The copied model. Hand ``flat.parameters`` to the server with ``copy=False``, and no step copies parameters.
    is_linear
        Whether its steps grow with their gradients, as those of ``SGD``, with momentum too, and of ``ASGD``. All others
        divide the scale of a gradient out again.

    Raises
    ------
    ValueError
        If the optimizer holds parameters that the model does not train, or does what a copy cannot follow: a scheduler
        works on it that is not given, or its steps are hooked.

    Examples
    --------
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> optimizer = TorchOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.5))
    >>> parameters = np.array([1.0], dtype=np.float32)
    >>> optimizer.step(parameters, np.array([1.0], dtype=np.float32), factor=0.5, applied=0)
    >>> parameters
    array([0.75], dtype=float32)
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule | None = None,
        tick: int = 0,
    ) -> None:
        require_followed(optimizer, schedule)
        if isinstance(schedule, LRScheduler) and tick < 1:
            raise ValueError(f"tick must be at least 1 applied sample where a scheduler is given, got {tick}")
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if not held <= {id(parameter) for parameter in model.parameters() if parameter.requires_grad}:
            raise ValueError("optimizer must hold parameters of the model alone, that require a gradient")
        self.is_linear = isinstance(optimizer, LINEAR)
        # Copied together, so that the copied optimizer holds the copied parameters, and the scheduler that optimizer.
        scheduler = schedule if isinstance(schedule, LRScheduler) else None
        copied, self.optimizer, scheduler = copy.deepcopy((model, optimizer, scheduler))
        self.flat = FlatModel(copied)
        self.ticks = None if scheduler is None else Ticks(scheduler, tick)
        self.schedule = None if isinstance(schedule, LRScheduler) else schedule

    def step(self, parameters: Vector, gradient: Vector, factor: float, applied: int) -> None:
        """Take a step, in place, ``[P]``."""
        own = self.flat.parameters
        shared = parameters is own
        if not shared:
            own[:] = parameters
        self.flat.lay(torch.from_numpy(np.ascontiguousarray(gradient, dtype=np.float32)))
        if self.ticks is not None:
            self.ticks.reach(applied)
        now = factor * (self.schedule(applied) if self.schedule else 1.0)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * now
        self.optimizer.step()
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate  # a scheduler goes on from it
        if not shared:
            parameters[:] = own

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return what the optimizer remembers of each parameter, and its kind."""
        states = self.optimizer.state_dict()["state"]
        kind = {"kind": np.frombuffer(type(self.optimizer).__name__.encode(), dtype=np.uint8)}
        return kind | {
            f"{number}/{name}": np.array(value.detach().numpy() if isinstance(value, torch.Tensor) else value)
            for number, state in states.items()
            for name, value in state.items()
            if value is not None
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned.

        Raises
        ------
        ValueError
            If it is the state of another kind of optimizer: torch would take it, and begin anew without a word.
        """
        own = type(self.optimizer).__name__
        remembered = dict(state)
        kind = bytes(remembered.pop("kind", np.frombuffer(own.encode(), dtype=np.uint8))).decode(errors="replace")
        if kind != own:
            raise ValueError(f"the state is that of the optimizer {kind}, and this one is {own}: take the same")
        states: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in remembered.items():
            number, _, name = key.partition("/")
            states.setdefault(int(number), {})[name] = torch.from_numpy(np.array(value))
        self.optimizer.load_state_dict({"state": states, "param_groups": self.optimizer.state_dict()["param_groups"]})
