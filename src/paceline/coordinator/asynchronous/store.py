"""Stores of the parameters, and the updates that gradients make to them. Axis: P parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.coordinator.asynchronous.finite import flaw, is_finite
from paceline.coordinator.asynchronous.optimizer import Optimizer, Vector
from paceline.coordinator.asynchronous.rules.compensation import Compensation

NEVER_PULLED = "the parameters of its step were never read"
OVERFLOWS = "it overflows when its delay is compensated"


class Store(Protocol):
    """Holds the parameters and does what the server decides; it decides nothing itself."""

    @property
    def parameters(self) -> Vector:
        """The newest parameters, ``[P]``: a copy."""
        ...

    def lend(self, worker: str, ticket: int) -> Vector:
        """Return the parameters for a step, ``[P]``: a read-only view, which the next update changes."""
        ...

    def flaw(self, worker: str, ticket: int, gradient: Vector) -> str:
        """Return the flaw of a step's gradient; an empty text if it has none."""
        ...

    def take(self, worker: str, ticket: int, gradient: Vector, weight: float) -> str:
        """Gather a gradient, or return its flaw. :meth:`keep` or :meth:`step` must follow."""
        ...

    def keep(self) -> None:
        """Copy the gradient taken last, because the caller reuses its memory."""
        ...

    def step(self, factor: float, applied: int, scale: float = 1.0) -> None:
        """Let the optimizer take a step along the weighted mean of what is gathered, times a scale."""
        ...

    def forget(self, ticket: int) -> None:
        """Drop what is kept for a step that will not be applied."""
        ...

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the parameters, and the states of the optimizer and the compensation."""
        ...

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned; what is gathered or lent is forgotten."""
        ...


class LocalStore:
    """All parameters, or one server's share of them, in this process.

    Parameters
    ----------
    parameters
        Initial parameters, ``[P]``, float32 or float64.
    optimizer
        What updates are applied with.
    compensation
        Correction of stale gradients, if any.
    copy
        ``False`` works in the array given, for optimizers that hold it too.

    Raises
    ------
    ValueError
        If the parameters are no row of finite floats.

    Examples
    --------
    The weighted mean of two gradients, and a step along it:

    >>> from paceline.coordinator.asynchronous.optimizer import SGD
    >>> store = LocalStore(np.array([1.0]), SGD(0.5), None)
    >>> for ticket, gradient in enumerate(([1.0], [5.0])):
    ...     _ = store.take("a", ticket, np.array(gradient), weight=30 if not ticket else 10)
    ...     store.keep()
    >>> store.step(factor=0.1, applied=0)
    >>> store.parameters
    array([0.9])
    """

    def __init__(
        self, parameters: Vector, optimizer: Optimizer, compensation: Compensation | None, *, copy: bool = True
    ) -> None:
        if parameters.ndim != 1 or parameters.dtype not in (np.float32, np.float64) or not is_finite(parameters):
            raise ValueError(
                "parameters must be one row of finite float32 or float64, got "
                f"{parameters.dtype} of the shape {parameters.shape}; flatten them, and look for NaN"
            )
        self.optimizer = optimizer
        self._parameters_P = parameters.copy() if copy else parameters
        self._compensator = None if compensation is None else compensation.start()
        self._lent: dict[int, Vector] = {}
        self._gathered = WeightedMean()

    @property
    def parameters(self) -> Vector:
        """The newest parameters, ``[P]``: a copy."""
        return self._parameters_P.copy()

    def lend(self, worker: str, ticket: int) -> Vector:
        """Return the parameters for a step; a copy is kept where gradients are compensated."""
        if self._compensator is not None:
            self._lent[ticket] = self._parameters_P.copy()
        view_P = self._parameters_P.view()
        view_P.flags.writeable = False
        return view_P

    def flaw(self, worker: str, ticket: int, gradient: Vector) -> str:
        """Return the flaw of a gradient; an empty text if it has none."""
        return flaw(gradient, self._parameters_P)

    def take(self, worker: str, ticket: int, gradient: Vector, weight: float) -> str:
        """Gather a gradient, compensated where the scheme says so."""
        # One in half precision would overflow in a sum, and vanish beside a small learning rate.
        gradient = gradient.astype(np.result_type(gradient, self._parameters_P), copy=False)
        if self._compensator is not None:
            if ticket not in self._lent:
                return NEVER_PULLED
            with np.errstate(over="ignore", invalid="ignore"):  # refused in a sentence, not warned about
                gradient = self._compensator.compensated(worker, gradient, self._parameters_P, self._lent[ticket])
            if not is_finite(gradient):
                self._compensator.undo()
                return OVERFLOWS
        self.forget(ticket)
        self._gathered.add(gradient, weight)
        return ""

    def undo(self) -> None:
        """Leave out the gradient taken last, which is neither kept nor applied yet, if there is one."""
        if self._gathered.undo() and self._compensator is not None:
            self._compensator.undo()

    def keep(self) -> None:
        """Copy the gradient taken last."""
        self._gathered.keep()

    def step(self, factor: float, applied: int, scale: float = 1.0) -> None:
        """Take a step, in place."""
        mean_P = self._gathered.mean()
        if scale != 1.0:
            mean_P = mean_P * mean_P.dtype.type(scale)
        self.optimizer.step(self._parameters_P, mean_P, factor, applied)
        self._gathered.clear()

    def forget(self, ticket: int) -> None:
        """Drop the copy of the parameters with which a step started."""
        self._lent.pop(ticket, None)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the parameters, and the states of the optimizer and the compensation."""
        state = {f"optimizer/{name}": value for name, value in self.optimizer.state_dict().items()}
        if self._compensator is not None:
            state |= {f"compensation/{name}": value for name, value in self._compensator.state_dict().items()}
        return {"parameters": self.parameters, **state}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume; nothing is changed where the state does not fit.

        Raises
        ------
        ValueError
            If the state is that of other parameters.
        """
        if state["parameters"].shape != self._parameters_P.shape:
            raise ValueError(
                f"the state holds parameters of the shape {state['parameters'].shape}, this server those of "
                f"{self._parameters_P.shape}: build it for the same model"
            )
        self.optimizer.load_state_dict(part(state, "optimizer"))
        if self._compensator is not None:
            self._compensator.load_state_dict(part(state, "compensation"))
        self._parameters_P[:] = state["parameters"]  # in place: an optimizer may hold the same array
        self._gathered.clear()
        self._lent = {}


class WeightedMean:
    """The weighted mean of gradients, in the memory of one gradient.

    Examples
    --------
    >>> gathered = WeightedMean()
    >>> for weight, gradient in ((3.0, np.array([1.0])), (1.0, np.array([5.0]))):
    ...     gathered.add(gradient, weight)
    ...     gathered.keep()
    >>> gathered.mean()
    array([2.])
    """

    def __init__(self) -> None:
        self._new: tuple[Vector, float] | None = None
        self._sum_P: Vector | None = None
        self._weight = 0.0

    def add(self, gradient: Vector, weight: float) -> None:
        """Add a gradient, which stays the caller's until :meth:`keep` or :meth:`mean`."""
        self._new = gradient, weight

    def undo(self) -> bool:
        """Leave the new gradient out; return whether there was one."""
        was_new, self._new = self._new is not None, None
        return was_new

    def keep(self) -> None:
        """Add the new gradient to the sum, so that the caller may reuse its memory."""
        if self._new is None:
            return
        gradient, weight = self._new
        if self._sum_P is None:
            self._sum_P = np.zeros_like(gradient)
        self._sum_P += weight * gradient
        self._weight += weight
        self._new = None

    def mean(self) -> Vector:
        """Return the mean of the gradients, ``[P]``; there must be at least one."""
        if self._new is not None and not self._weight:
            return self._new[0]  # the only one: there is nothing to add up
        self.keep()
        assert self._sum_P is not None
        if self._weight:  # damping by a power of a large staleness may leave no weight at all
            self._sum_P /= self._weight
        return self._sum_P

    def clear(self) -> None:
        """Begin anew."""
        self._new, self._weight = None, 0.0
        if self._sum_P is not None:
            self._sum_P.fill(0.0)


def part(state: Mapping[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    """Return what stands under a name in a state.

    >>> part({"sampler/size": np.array([6]), "place": np.array([0])}, "sampler")
    {'size': array([6])}
    """
    return {key.removeprefix(f"{name}/"): value for key, value in state.items() if key.startswith(f"{name}/")}
