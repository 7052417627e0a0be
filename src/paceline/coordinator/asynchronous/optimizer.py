"""Optimizers with which the server applies updates, all behind one method. Axis: P parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating[Any]]
"""All parameters of a model, or a gradient of them, in one row, ``[P]``: float32 or float64."""


class Optimizer(Protocol):
    """Moves the parameters, in place, along one gradient."""

    @property
    def is_linear(self) -> bool:
        """Whether a step grows with its gradient, as with plain descent and momentum.

        The learning rate then follows the samples of a push; elsewhere, as in Adam, its gradient does.
        """
        ...

    def step(self, parameters: Vector, gradient: Vector, lr_factor: float, samples_applied: int) -> None:
        """Change the parameters along the gradient, ``[P]``, which is not to be changed or kept.

        The learning rate of this step is multiplied by ``lr_factor``: apart from the gradient, as an optimizer such as
        Adam divides the scale of a gradient out again. ``samples_applied`` before this step are for schedules.
        """
        ...

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the optimizer's state."""
        ...

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned."""
        ...


@dataclass(eq=False)
class SGD:
    """Stochastic gradient descent, with momentum if wanted.

    Parameters
    ----------
    rate
        Learning rate above 0, or a function that gives it after that many applied samples.
    momentum
        In [0, 1): ``m <- momentum * m + factor * gradient``, and the step is ``rate * m``.

    Examples
    --------
    >>> parameters = np.array([1.0, 2.0])
    >>> SGD(0.5).step(parameters, np.array([1.0, -1.0]), lr_factor=1.0, samples_applied=0)
    >>> parameters
    array([0.5, 2.5])
    """

    rate: float | Callable[[int], float]
    momentum: float = 0.0
    is_linear: ClassVar[bool] = True
    _momentum_P: Vector | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.rate) and not 0 < self.rate < np.inf:
            raise ValueError(f"the learning rate must be above 0 and finite, got {self.rate}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum}")

    def step(self, parameters: Vector, gradient: Vector, lr_factor: float, samples_applied: int) -> None:
        rate = self.rate(samples_applied) if callable(self.rate) else self.rate
        if self.momentum and self._momentum_P is None:
            self._momentum_P = np.zeros_like(parameters)
        if self._momentum_P is None:
            parameters -= rate * lr_factor * gradient
        else:
            self._momentum_P *= self.momentum
            self._momentum_P += lr_factor * gradient
            parameters -= rate * self._momentum_P

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {} if self._momentum_P is None else {"momentum": self._momentum_P.copy()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._momentum_P = np.array(state["momentum"]) if "momentum" in state else None


def gradient_error(gradient: Vector, parameters: Vector) -> str:
    """Return what is wrong with a gradient for these parameters; an empty text if nothing is."""
    if not isinstance(gradient, np.ndarray) or gradient.dtype.kind != "f":
        return f"it must be an array of floats, got {getattr(gradient, 'dtype', type(gradient).__name__)}"
    if gradient.shape != parameters.shape:
        return f"its shape is {gradient.shape}, but that of the parameters is {parameters.shape}"
    if not is_finite(gradient):
        count = int(np.count_nonzero(~np.isfinite(gradient)))
        return f"{count} of its {len(gradient)} numbers {'is' if count == 1 else 'are'} NaN or infinite"
    return ""


def is_finite(values: Vector) -> bool:
    """Return whether all numbers are finite."""
    # The sum of squares reads the numbers once and writes nothing, five times faster than isfinite; it can overflow
    # where all numbers are finite, and only then are they looked at one by one.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(values, values))) or bool(np.isfinite(values).all())
