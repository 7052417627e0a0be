"""The parameters, and the updates that gradients make to them. Axis: P parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import substate
from paceline.coordinator.asynchronous.epoch_sampler import SampleBatch
from paceline.coordinator.asynchronous.optimizer import Optimizer, Vector, is_finite
from paceline.coordinator.asynchronous.rules import Compensation


class ParameterStore:
    """Holds the parameters and applies the updates that the server decides on."""

    def __init__(
        self, parameters: Vector, optimizer: Optimizer, compensation: Compensation | None, *, copy: bool = True
    ) -> None:
        if parameters.ndim != 1 or parameters.dtype not in (np.float32, np.float64) or not is_finite(parameters):
            raise ValueError(
                "parameters must be a flat array of finite float32 or float64 numbers, got "
                f"{parameters.dtype} of the shape {parameters.shape}: flatten them, and look for NaN"
            )
        self.parameters = parameters.copy() if copy else parameters
        self.optimizer = optimizer
        self._compensation = deepcopy(compensation)  # its state is this server's alone
        self._pulled_parameters: dict[int, Vector] = {}
        self._pending_gradient: tuple[Vector, float] | None = None
        self._sum_P: Vector | None = None
        self._weight = 0.0

    def parameters_for_step(self, step_id: int) -> Vector:
        """Return the parameters for a step, ``[P]``: a read-only view, which the next update changes."""
        if self._compensation is not None:
            self._pulled_parameters[step_id] = self.parameters.copy()
        view_P = self.parameters.view()
        view_P.flags.writeable = False
        return view_P

    def add_gradient(self, worker: str, step_id: int, gradient: Vector, weight: float) -> str:
        """Gather a gradient, or return what is wrong with it.

        :meth:`accumulate` or :meth:`step` must follow, before the gradient changes.
        """
        # One in half precision would overflow in a sum, and vanish beside a small learning rate.
        gradient = gradient.astype(np.result_type(gradient, self.parameters), copy=False)
        if self._compensation is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # refused in a sentence, not warned about
                gradient = self._compensation.compensate(
                    worker, gradient, self.parameters, self._pulled_parameters[step_id]
                )
            if not is_finite(gradient):
                return "it overflows when it is compensated for its staleness"
        self.discard(step_id)
        self._pending_gradient = gradient, weight
        return ""

    def accumulate(self) -> None:
        """Add the latest gradient to the sum, because the caller reuses its memory."""
        if self._pending_gradient is None:
            return
        gradient, weight = self._pending_gradient
        if self._sum_P is None:
            self._sum_P = np.zeros_like(gradient)
        self._sum_P += weight * gradient
        self._weight += weight
        self._pending_gradient = None

    def step(self, lr_factor: float, samples_applied: int, scale: float = 1.0) -> None:
        """Take an optimizer step along the weighted mean of the gathered gradients, times a scale."""
        if self._pending_gradient is not None and not self._weight:
            mean_P = self._pending_gradient[0]  # the only one: there is nothing to add up
        else:
            self.accumulate()
            assert self._sum_P is not None
            if self._weight:  # damping by a power of a large staleness may leave no weight at all
                self._sum_P /= self._weight
            mean_P = self._sum_P
        if scale != 1.0:
            mean_P = mean_P * mean_P.dtype.type(scale)
        self.optimizer.step(self.parameters, mean_P, lr_factor, samples_applied)
        self._clear()

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

    def _clear(self) -> None:
        self._pending_gradient, self._weight = None, 0.0
        if self._sum_P is not None:
            self._sum_P.fill(0.0)


@dataclass(frozen=True, eq=False)
class Push:
    """A push that was taken: its worker, its samples, its staleness, its weight for that, and its computing time."""

    worker: str
    assigned: SampleBatch
    staleness: int
    factor: float
    seconds: float = math.nan


@dataclass(eq=False)
class PendingPushes:
    """The pushes since the last update. Their gradients are in the store."""

    averages_pushes: bool
    """Whether the update is the mean over all samples, or the sum over the pushes."""
    weights_by_samples: bool
    """Whether a push counts in a sum by its samples over those of a full batch; in a mean it always does."""
    batch: int
    is_linear: bool = True
    """Of the optimizer: whether the rate follows the samples of a sum, or else its gradient."""
    pushes: list[Push] = field(default_factory=list)

    def weight(self, push: Push) -> float:
        """Return the weight of a push's gradient in the update's mean."""
        return self._share(push) * push.factor

    @property
    def factor(self) -> float:
        """Factor that multiplies the learning rate when the mean of the gathered gradients is applied."""
        shares = sum(map(self._share, self.pushes))
        damping = sum(map(self.weight, self.pushes)) / shares
        if self.averages_pushes:
            return damping
        return damping * (shares if self.is_linear else len(self.pushes))

    @property
    def scale(self) -> float:
        """Factor that multiplies the mean of the gathered gradients: the mean share of a full batch, or 1."""
        if self.averages_pushes or self.is_linear:
            return 1.0
        return sum(map(self._share, self.pushes)) / len(self.pushes)

    def _share(self, push: Push) -> float:
        if self.averages_pushes:
            return float(len(push.assigned))
        return len(push.assigned) / self.batch if self.weights_by_samples else 1.0
