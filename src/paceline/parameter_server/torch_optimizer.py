"""Any torch optimizer at the server. Axis: P parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from paceline.coordinator.asynchronous.optimizer import Vector

FlatVector = NDArray[np.float32]

HEADER_FLOATS = 128
"""Floats in front of a row, 512 bytes: the header of a message travels in front of its row, in one message."""


class FlatModel:
    """Makes a model's parameters, and their gradients, views of two flat rows: nothing is copied piece by piece.

    The model is changed in place and works on as before. Buffers, such as the running means of batch normalization, are
    not parameters.

    Parameters
    ----------
    model
        Any module whose parameters are on the CPU and dense.

    Attributes
    ----------
    parameters, gradient
        The rows, ``[P]``: write the first before a forward pass, read the second after the backward pass.
    receive_buffer, send_buffer
        The same rows with space for a header in front, ``[HEADER_FLOATS + P]``: for messages.

    Raises
    ------
    ValueError
        If the model has no parameters that are trained, or some that are not float32 on the CPU.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> flat = FlatModel(model)
    >>> flat.parameters[:] = [1.0, 2.0]
    >>> model(torch.tensor([[3.0, 5.0]])).sum().backward()
    >>> flat.gradient
    array([3., 5.], dtype=float32)
    """

    def __init__(self, model: torch.nn.Module) -> None:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not trained:
            raise ValueError("the model has no parameter that requires a gradient: there is nothing to train")
        if wrong := sorted({f"{p.dtype} on {p.device}" for p in trained} - {"torch.float32 on cpu"}):
            raise ValueError(f"parameters must be torch.float32 on the CPU, got {wrong}: move the model first")
        lengths = [parameter.numel() for parameter in trained]
        self.receive_buffer, self.send_buffer = (torch.zeros(HEADER_FLOATS + sum(lengths)) for _ in range(2))
        row, slope = self.receive_buffer[HEADER_FLOATS:], self.send_buffer[HEADER_FLOATS:]
        torch.cat([parameter.detach().reshape(-1) for parameter in trained], out=row)
        self._pairs = []
        for parameter, values, slopes in zip(trained, row.split(lengths), slope.split(lengths), strict=True):
            parameter.data, parameter.grad = values.view(parameter.shape), slopes.view(parameter.shape)
            self._pairs.append((parameter, parameter.grad))
        self.parameters: FlatVector = row.numpy()
        self.gradient: FlatVector = slope.numpy()

    def zero_grad(self) -> None:
        """Set the gradient to zero, and restore the flat row where a loop has set a gradient to None."""
        self.gradient.fill(0.0)
        for parameter, slope in self._pairs:
            parameter.grad = slope

    def set_gradient(self, gradient: torch.Tensor) -> None:
        """Use parts of a row, ``[P]``, as gradients until the next call, without a copy."""
        parts = gradient.split([slope.numel() for _, slope in self._pairs])
        for (parameter, slope), part in zip(self._pairs, parts, strict=True):
            parameter.grad = part.view(slope.shape)

    def gather(self) -> FlatVector:
        """Return the gradient, ``[P]``, also where a loop has put other tensors in place of the views."""
        for parameter, slope in self._pairs:
            if parameter.grad is None:
                slope.zero_()
            elif parameter.grad is not slope:
                slope.copy_(parameter.grad)
                parameter.grad = slope
        return self.gradient


LearningRateSchedule = Callable[[int], float] | LRScheduler
"""Factor of the learning rates as a function of the samples applied, or a scheduler of the optimizer."""

GroupSettings = list[dict[str, Any]]

PASS_SCHEDULE_HINT = "pass the scheduler, or a function of the applied samples, as schedule="


class SchedulerCopy:
    """A copied scheduler, stepped by the applied samples alone, so that a training that resumes goes on exactly."""

    def __init__(self, scheduler: LRScheduler, samples: int) -> None:
        self.scheduler, self.samples = scheduler, samples
        self._start = copy.deepcopy((scheduler.state_dict(), group_settings(scheduler.optimizer)))
        self._steps_done = 0

    def step_to(self, applied_samples: int) -> None:
        """Step the scheduler as often as this number of applied samples requires."""
        # OneCycleLR raises beyond its end; one made for whole batches ends a little before the samples do.
        due = min(applied_samples // self.samples, getattr(self.scheduler, "total_steps", applied_samples + 1) - 1)
        if due < self._steps_done:
            state, settings = copy.deepcopy(self._start)
            self.scheduler.load_state_dict(state)
            for group, before in zip(self.scheduler.optimizer.param_groups, settings, strict=True):
                group.update({name: value for name, value in before.items() if name != "params"})
            self._steps_done = 0
        optimizer = self.scheduler.optimizer
        for _ in range(due - self._steps_done):
            # A scheduler wraps its optimizer's step, to see that it has stepped: a copy has lost that wrapper.
            if not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
                step: Any = partial(type(optimizer).step, optimizer)
                step._wrapped_by_lr_sched = True
                optimizer.__dict__.update(step=step, _opt_called=True)
            self.scheduler.step()
        self._steps_done = due


def group_settings(optimizer: torch.optim.Optimizer) -> GroupSettings:
    """Return copies of the settings of each parameter group, its parameters by identity."""
    return [
        {
            name: [id(one) for one in value] if name == "params" else copy.deepcopy(value)
            for name, value in group.items()
        }
        for group in optimizer.param_groups
    ]


def require_copyable(optimizer: torch.optim.Optimizer, schedule: LearningRateSchedule | None) -> None:
    """Raise a ValueError if a copy of the optimizer would not behave like the optimizer itself."""
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise ValueError("optimizer has hooks on its step, which the copy at the server would not call: remove them")
    if isinstance(schedule, ReduceLROnPlateau):
        raise ValueError(
            "schedule must depend on the number of applied samples alone, and ReduceLROnPlateau follows a metric: pass "
            "a function of the applied samples that returns a factor, and change that factor on rank 0 where you "
            "evaluate"
        )
    if isinstance(schedule, LRScheduler):
        if schedule.optimizer is not optimizer:
            raise ValueError("schedule must be a scheduler of this optimizer, got one of another optimizer")
    elif schedule is not None and not callable(schedule):
        raise ValueError(f"schedule must be a torch LRScheduler or a function, got {type(schedule).__name__}")
    elif schedule is None and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        raise ValueError(
            f"this optimizer has a scheduler, whose changes the server would not see: {PASS_SCHEDULE_HINT}"
        )


def require_unchanged(optimizer: torch.optim.Optimizer, settings_before: GroupSettings) -> None:
    """Raise a RuntimeError where the groups are no longer those that the server has copied."""
    now = group_settings(optimizer)
    changed = [
        f"{name} from {old[name]} to {new.get(name)}" if name != "params" else "its parameters"
        for old, new in zip(settings_before, now, strict=False)
        for name in old
        if name not in new or bool(torch.as_tensor(old[name] != new[name]).any())
    ]
    if len(now) != len(settings_before):
        changed = [f"the number of its groups from {len(settings_before)} to {len(now)}"]
    if changed:
        raise RuntimeError(
            f"the optimizer changed ({changed[0]}), and its copy at the server does not: leave the optimizer and its "
            f"scheduler alone in the loop; {PASS_SCHEDULE_HINT}"
        )


class TorchOptimizer:
    """A copy of a model and of its optimizer, kept at the server: the shapes and the groups stay the user's.

    Parameters
    ----------
    model, optimizer
        The user's own, left as they are.
    schedule, samples_per_schedule_step
        As in :class:`AsyncJob`: a copy of a scheduler is stepped here, so that its changes of the groups take effect.

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
        If the optimizer holds parameters that the model does not train, or does what a copy cannot follow.

    Examples
    --------
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> optimizer = TorchOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.5))
    >>> parameters = np.array([1.0], dtype=np.float32)
    >>> optimizer.step(parameters, np.array([1.0], dtype=np.float32), lr_factor=0.5, samples_applied=0)
    >>> parameters
    array([0.75], dtype=float32)
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: LearningRateSchedule | None = None,
        samples_per_schedule_step: int = 0,
    ) -> None:
        require_copyable(optimizer, schedule)
        if isinstance(schedule, LRScheduler) and samples_per_schedule_step < 1:
            raise ValueError(
                "samples_per_schedule_step must be at least 1 if schedule is an LRScheduler, "
                f"got {samples_per_schedule_step}"
            )
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if not held <= {id(parameter) for parameter in model.parameters() if parameter.requires_grad}:
            raise ValueError("optimizer must hold only parameters of this model that require a gradient")
        self.is_linear = isinstance(optimizer, (torch.optim.SGD, torch.optim.ASGD))
        # Copied together, so that the copied optimizer holds the copied parameters, and the scheduler that optimizer.
        scheduler = schedule if isinstance(schedule, LRScheduler) else None
        copied, self.optimizer, scheduler = copy.deepcopy((model, optimizer, scheduler))
        self.flat = FlatModel(copied)
        self.scheduler_copy = None if scheduler is None else SchedulerCopy(scheduler, samples_per_schedule_step)
        self.schedule = None if isinstance(schedule, LRScheduler) else schedule

    def step(self, parameters: Vector, gradient: Vector, lr_factor: float, samples_applied: int) -> None:
        """Take a step, in place, ``[P]``."""
        row = self.flat.parameters
        if parameters is not row:
            row[:] = parameters
        self.flat.set_gradient(torch.from_numpy(np.ascontiguousarray(gradient, dtype=np.float32)))
        if self.scheduler_copy is not None:
            self.scheduler_copy.step_to(samples_applied)
        now = lr_factor * (self.schedule(samples_applied) if self.schedule else 1.0)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * now
        self.optimizer.step()
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate  # a scheduler goes on from it
        if parameters is not row:
            parameters[:] = row

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
        """Resume from what ``state_dict`` returned, unless it is of another kind of optimizer.

        Torch would load that silently, and start from scratch.
        """
        expected = type(self.optimizer).__name__
        remembered = dict(state)
        kind = bytes(remembered.pop("kind", np.frombuffer(expected.encode(), dtype=np.uint8))).decode(errors="replace")
        if kind != expected:
            raise ValueError(
                f"the state was saved with the optimizer {kind}, but this one is {expected}: use the same optimizer"
            )
        states: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in remembered.items():
            number, _, name = key.partition("/")
            states.setdefault(int(number), {})[name] = torch.from_numpy(np.array(value))
        self.optimizer.load_state_dict({"state": states, "param_groups": self.optimizer.state_dict()["param_groups"]})
