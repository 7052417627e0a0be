"""Delay compensation: a stale gradient moved to where the parameters are by now. Axis: P parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from paceline.coordinator.asynchronous.optimizer import Vector


class Compensation(Protocol):
    """Corrects a gradient for the change of the parameters since it was pulled."""

    def start(self) -> Compensator:
        """Return a compensator with a state of its own, for one server."""
        ...


class Compensator(Protocol):
    """A compensation at work on one server."""

    def compensated(self, worker: str, gradient: Vector, parameters: Vector, pulled: Vector) -> Vector:
        """Return the gradient to apply at ``parameters``, ``[P]``, for one computed at ``pulled``."""
        ...

    def undo(self) -> None:
        """Undo the effect of the last gradient on the state, because it will not be applied."""
        ...

    def state_dict(self) -> dict[str, Vector]:
        """Return the compensator's state, arrays of ``[P]``."""
        ...

    def load_state_dict(self, state: Mapping[str, Vector]) -> None:
        """Resume from what ``state_dict`` returned."""
        ...


@dataclass(frozen=True)
class Constant:
    """g + strength g * g * (w - w_pulled) (DC-ASGD-c; Zheng et al., ICML 2017, equation 10).

    g * g stands for the diagonal of the Hessian.

    >>> rule = Constant(strength=2.0).start()
    >>> rule.compensated("a", np.array([3.0]), parameters=np.array([1.5]), pulled=np.array([1.0]))
    array([12.])
    """

    strength: float = 0.04

    def __post_init__(self) -> None:
        if not self.strength >= 0:
            raise ValueError(f"strength must be 0 or more, got {self.strength}")

    def start(self) -> Constant:
        """Return the rule itself, which has no state."""
        return self

    def compensated(self, worker: str, gradient: Vector, parameters: Vector, pulled: Vector) -> Vector:
        """Return the gradient to apply, ``[P]``."""
        change_P: Vector = self.strength * gradient * gradient * (parameters - pulled)
        return gradient + change_P

    def undo(self) -> None:
        """Do nothing: there is no state."""

    def state_dict(self) -> dict[str, Vector]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Vector]) -> None:
        """Do nothing: there is no state."""


@dataclass(frozen=True)
class Adaptive:
    """As `Constant`, with strength / sqrt(ms + 1e-10), ms a running mean of g * g (DC-ASGD-a; ICML 2017, equation 14).

    Parameters
    ----------
    strength
        Lambda of the paper.
    memory
        Weight of the past in ms, in [0, 1): ms <- memory ms + (1 - memory) g * g, kept for each worker.

    Examples
    --------
    >>> rule = Adaptive(strength=2.0, memory=0.0).start()
    >>> rule.compensated("a", np.array([3.0]), parameters=np.array([1.5]), pulled=np.array([1.0])).round(6)
    array([6.])
    """

    strength: float = 2.0
    memory: float = 0.95

    def __post_init__(self) -> None:
        if not self.strength >= 0:
            raise ValueError(f"strength must be 0 or more, got {self.strength}")
        if not 0 <= self.memory < 1:
            raise ValueError(f"memory must lie in [0, 1), got {self.memory}")

    def start(self) -> AdaptiveCompensator:
        """Return a compensator that remembers the mean square of each worker."""
        return AdaptiveCompensator(self)


@dataclass(eq=False)
class AdaptiveCompensator:
    """DC-ASGD-a at work: it remembers the mean square of each worker's gradients, ``[P]``."""

    rule: Adaptive
    squares: dict[str, Vector] = field(default_factory=dict)
    _before: tuple[str, Vector | None] = field(default=("", None), init=False, repr=False)
    """Worker whose mean square was changed last, and its value before."""

    def compensated(self, worker: str, gradient: Vector, parameters: Vector, pulled: Vector) -> Vector:
        """Return the gradient to apply, ``[P]``."""
        square_P: Vector = gradient * gradient
        before_P = self.squares.get(worker)
        mean_P: Vector = (1 - self.rule.memory) * square_P
        if before_P is not None:
            mean_P += self.rule.memory * before_P
        self._before, self.squares[worker] = (worker, before_P), mean_P
        change_P: Vector = self.rule.strength / np.sqrt(mean_P + 1e-10) * square_P * (parameters - pulled)
        return gradient + change_P

    def undo(self) -> None:
        """Restore the mean square from before the last gradient, because it will not be applied."""
        worker, before_P = self._before
        if before_P is None:
            self.squares.pop(worker, None)
        else:
            self.squares[worker] = before_P

    def state_dict(self) -> dict[str, Vector]:
        """Return the mean square of each worker's gradients."""
        return {worker: square_P.copy() for worker, square_P in self.squares.items()}

    def load_state_dict(self, state: Mapping[str, Vector]) -> None:
        """Resume from what ``state_dict`` returned."""
        self.squares = {worker: square_P.copy() for worker, square_P in state.items()}
        self._before = ("", None)
