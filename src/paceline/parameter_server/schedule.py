"""Schedulers at the server: stepped by applied samples, as no worker's own steps say how far the training is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

Schedule = Callable[[int], float] | LRScheduler
"""Factor of the learning rates as a function of the samples applied, or a scheduler of the optimizer."""

Settings = list[dict[str, Any]]

HAND_OVER = "hand the scheduler over as schedule=, or give schedule= a function of the applied samples"


class Ticks:
    """A copied scheduler, stepped once for every so many applied samples.

    What it does follows from the applied samples alone, so a training that resumes goes on exactly.

    Parameters
    ----------
    scheduler
        From now on this object's own, as is its optimizer.
    samples
        Applied samples for which it is stepped once.
    """

    def __init__(self, scheduler: LRScheduler, samples: int) -> None:
        self.scheduler, self.samples = scheduler, samples
        self._start = copy.deepcopy((scheduler.state_dict(), settings_of(scheduler.optimizer)))
        self._done = 0

    def reach(self, applied: int) -> None:
        """Step until as many steps are done as samples are applied."""
        # OneCycleLR raises beyond its end; one made for whole batches ends a little before the samples do.
        due = min(applied // self.samples, getattr(self.scheduler, "total_steps", applied + 1) - 1)
        if due < self._done:
            self._begin_anew()
        for _ in range(due - self._done):
            _seen(self.scheduler.optimizer)
            self.scheduler.step()
        self._done = due

    def _begin_anew(self) -> None:
        state, settings = copy.deepcopy(self._start)
        self.scheduler.load_state_dict(state)
        for group, before in zip(self.scheduler.optimizer.param_groups, settings, strict=True):
            group.update({name: value for name, value in before.items() if name != "params"})
        self._done = 0


def settings_of(optimizer: torch.optim.Optimizer) -> Settings:
    """Return copies of the settings of each parameter group, its parameters by identity."""
    return [
        {
            name: [id(one) for one in value] if name == "params" else copy.deepcopy(value)
            for name, value in group.items()
        }
        for group in optimizer.param_groups
    ]


def require_followed(optimizer: torch.optim.Optimizer, schedule: Schedule | None) -> None:
    """Raise if a copy of the optimizer would not behave as the optimizer does.

    Raises
    ------
    ValueError
        If its steps are hooked, a scheduler works on it and no schedule is given, or the schedule is not one that can
        be followed.
    """
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise ValueError("optimizer has hooks on its step, which the copy at the server would not call: remove them")
    if isinstance(schedule, ReduceLROnPlateau):
        raise ValueError(
            "schedule must follow from the applied samples, and ReduceLROnPlateau follows a metric: give a function of "
            "the applied samples that returns a factor, and change that factor where you evaluate, on rank 0"
        )
    if isinstance(schedule, LRScheduler):
        if schedule.optimizer is not optimizer:
            raise ValueError("schedule must be a scheduler of this optimizer, got one of another")
    elif schedule is not None and not callable(schedule):
        raise ValueError(f"schedule must be a torch LRScheduler or a function, got {type(schedule).__name__}")
    elif schedule is None and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        raise ValueError(f"a scheduler works on this optimizer, and the server would not see what it does: {HAND_OVER}")


def require_unchanged(optimizer: torch.optim.Optimizer, before: Settings) -> None:
    """Raise where the groups are no longer those that the server has copied.

    Raises
    ------
    RuntimeError
        If one was added, or its parameters or a setting changed.
    """
    now = settings_of(optimizer)
    changed = [
        f"{name} from {old[name]} to {new.get(name)}" if name != "params" else "its parameters"
        for old, new in zip(before, now, strict=False)
        for name in old
        if name not in new or not _same(old[name], new[name])
    ]
    if len(now) != len(before):
        changed = [f"the number of its groups from {len(before)} to {len(now)}"]
    if changed:
        raise RuntimeError(
            f"the optimizer changed ({changed[0]}), and its copy at the server does not: leave the optimizer and its "
            f"scheduler alone in the loop; {HAND_OVER}"
        )


def _same(one: Any, other: Any) -> bool:
    return bool(torch.equal(one, other)) if isinstance(one, torch.Tensor) else bool(one == other)


def _seen(optimizer: torch.optim.Optimizer) -> None:
    """Let a scheduler see that its optimizer steps: it wraps that method, and a copy has lost the wrapping."""
    if not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        step: Any = partial(type(optimizer).step, optimizer)
        step._wrapped_by_lr_sched = True
        optimizer.__dict__.update(step=step, _opt_called=True)
