"""The parameters, and the updates that gradients make to them. Axis: P parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import substate
from paceline.coordinator.asynchronous.epoch_sampler import SampleBatch
from paceline.coordinator.asynchronous.optimizer import Optimizer, Vector, is_finite
from paceline.coordinator.asynchronous.schemes import Scheme


@dataclass(frozen=True, eq=False)
class Push:
    """A push that was taken: its worker, its samples, its staleness, its weight for that, and its computing time."""

    worker: str
    assigned: SampleBatch
    staleness: int
    factor: float
    seconds: float = math.nan


class ParameterStore:
    """Holds the parameters, gathers pushes, and applies them when the server decides to."""

    def __init__(self, parameters: Vector, optimizer: Optimizer, scheme: Scheme, batch: int, *, copy: bool) -> None:
        if parameters.ndim != 1 or parameters.dtype not in (np.float32, np.float64) or not is_finite(parameters):
            raise ValueError(
                "parameters must be a flat array of finite float32 or float64 numbers, got "
                f"{parameters.dtype} of the shape {parameters.shape}: flatten them, and look for NaN"
            )
        self.parameters = parameters.copy() if copy else parameters
        self.optimizer, self.batch = optimizer, batch
        self.pushes: list[Push] = []
        """Those since the last update."""
        self._averages_pushes, self._weights_by_samples = scheme.aggregation.averages_pushes, scheme.weights_by_samples
        self._compensation = deepcopy(scheme.compensation)  # its state is this server's alone
        self._pulled_parameters: dict[int, Vector] = {}
        self._pending_gradient: Vector | None = None
        """That of the last push, until it is added to the sum: where it is the only one, there is nothing to add up."""
        self._sum_P: Vector | None = None

    def parameters_for_step(self, step_id: int) -> Vector:
        """Return the parameters for a step, ``[P]``: a read-only view, which the next update changes."""
        if self._compensation is not None:
            self._pulled_parameters[step_id] = self.parameters.copy()
        view_P = self.parameters.view()
        view_P.flags.writeable = False
        return view_P

    def add(self, push: Push, step_id: int, gradient: Vector) -> str:
        """Gather a push, or return what is wrong with its gradient.

        :meth:`accumulate` or :meth:`step` must follow, before the gradient changes.
        """
        # One in half precision would overflow in a sum, and vanish beside a small learning rate.
        gradient = gradient.astype(np.result_type(gradient, self.parameters), copy=False)
        if self._compensation is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # refused in a sentence, not warned about
                gradient = self._compensation.compensate(
                    push.worker, gradient, self.parameters, self._pulled_parameters[step_id]
                )
            if not is_finite(gradient):
                return "it overflows when it is compensated for its staleness"
        self.discard(step_id)
        self._pending_gradient = gradient
        self.pushes.append(push)
        return ""

    def accumulate(self) -> None:
        """Add the latest gradient to the sum, because the caller reuses its memory."""
        if self._pending_gradient is None:
            return
        if self._sum_P is None:
            self._sum_P = np.zeros_like(self._pending_gradient)
        self._sum_P += self._share(self.pushes[-1]) * self.pushes[-1].factor * self._pending_gradient
        self._pending_gradient = None

    def step(self, max_factor: float, samples_applied: int) -> list[Push]:
        """Apply the gathered pushes, and return them; the learning rate is multiplied by at most ``max_factor``.

        The optimizer takes a step along their weighted mean. In a sum of pushes, their samples scale the rate of an
        optimizer that is linear, and the mean of others.
        """
        pushes = self.pushes
        shares, weight = sum(map(self._share, pushes)), sum(self._share(push) * push.factor for push in pushes)
        if self._pending_gradient is not None and len(pushes) == 1:
            mean_P = self._pending_gradient
        else:
            self.accumulate()
            assert self._sum_P is not None
            if weight:  # damping by a power of a large staleness may leave no weight at all
                self._sum_P /= weight
            mean_P = self._sum_P
        lr_factor = weight / shares
        if not self._averages_pushes and self.optimizer.is_linear:
            lr_factor *= shares
        elif not self._averages_pushes:
            lr_factor *= len(pushes)
            if shares != len(pushes):
                mean_P = mean_P * mean_P.dtype.type(shares / len(pushes))
        self.optimizer.step(self.parameters, mean_P, min(lr_factor, max_factor), samples_applied)
        self._clear()
        return pushes

    def discard(self, step_id: int) -> None:
        """Drop the parameters stored for a step that will not be applied."""
        self._pulled_parameters.pop(step_id, None)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the parameters, and the states of the optimizer and the compensation."""
        state = {f"optimizer/{name}": value for name, value in self.optimizer.state_dict().items()}
        if self._compensation is not None:
            state |= {f"compensation/{name}": value for name, value in self._compensation.state_dict().items()}
        return {"parameters": self.parameters.copy(), **state}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume; what is gathered or lent is forgotten. Nothing is changed where the state does not fit."""
        if state["parameters"].shape != self.parameters.shape:
            raise ValueError(
                f"the state has parameters of the shape {state['parameters'].shape}, but this server's have "
                f"{self.parameters.shape}: create the server for the same model"
            )
        self.optimizer.load_state_dict(substate(state, "optimizer"))
        if self._compensation is not None:
            self._compensation.load_state_dict(substate(state, "compensation"))
        self.parameters[:] = state["parameters"]  # in place: an optimizer may hold the same array
        self._clear()
        self._pulled_parameters = {}

    def _share(self, push: Push) -> float:
        """Return what a push weighs without its staleness: its samples, or in a sum their share of a full batch."""
        if self._averages_pushes:
            return float(len(push.assigned))
        return len(push.assigned) / self.batch if self._weights_by_samples else 1.0

    def _clear(self) -> None:
        self.pushes, self._pending_gradient = [], None
        if self._sum_P is not None:
            self._sum_P.fill(0.0)
