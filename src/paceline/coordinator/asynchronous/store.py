"""Stores of the parameters, and the updates that gradients make to them. Axis: P parameters."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.coordinator.asynchronous.epoch_sampler import SampleBatch
from paceline.coordinator.asynchronous.optimizer import Optimizer, Vector, flaw, is_finite
from paceline.coordinator.asynchronous.rules import Compensation


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

    def add_gradient(self, worker: str, ticket: int, gradient: Vector, weight: float) -> str:
        """Gather a gradient, or return its flaw. :meth:`keep` or :meth:`step` must follow."""
        ...

    def keep(self) -> None:
        """Copy the gradient taken last, because the caller reuses its memory."""
        ...

    def step(self, factor: float, applied: int, scale: float = 1.0) -> None:
        """Take an optimizer step along the weighted mean of the gathered gradients, times a scale."""
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
    ...     _ = store.add_gradient("a", ticket, np.array(gradient), weight=30 if not ticket else 10)
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
        self._pulled: dict[int, Vector] = {}
        self._gathered = WeightedMean()

    @property
    def parameters(self) -> Vector:
        return self._parameters_P.copy()

    def lend(self, worker: str, ticket: int) -> Vector:
        if self._compensator is not None:
            self._pulled[ticket] = self._parameters_P.copy()
        view_P = self._parameters_P.view()
        view_P.flags.writeable = False
        return view_P

    def flaw(self, worker: str, ticket: int, gradient: Vector) -> str:
        return flaw(gradient, self._parameters_P)

    def add_gradient(self, worker: str, ticket: int, gradient: Vector, weight: float) -> str:
        # One in half precision would overflow in a sum, and vanish beside a small learning rate.
        gradient = gradient.astype(np.result_type(gradient, self._parameters_P), copy=False)
        if self._compensator is not None:
            if ticket not in self._pulled:
                return "the parameters of its step were never read"
            with np.errstate(over="ignore", invalid="ignore"):  # refused in a sentence, not warned about
                gradient = self._compensator.compensated(worker, gradient, self._parameters_P, self._pulled[ticket])
            if not is_finite(gradient):
                self._compensator.undo()
                return "it overflows when its delay is compensated"
        self.forget(ticket)
        self._gathered.add(gradient, weight)
        return ""

    def undo(self) -> None:
        if self._gathered.undo() and self._compensator is not None:
            self._compensator.undo()

    def keep(self) -> None:
        self._gathered.keep()

    def step(self, factor: float, applied: int, scale: float = 1.0) -> None:
        mean_P = self._gathered.mean()
        if scale != 1.0:
            mean_P = mean_P * mean_P.dtype.type(scale)
        self.optimizer.step(self._parameters_P, mean_P, factor, applied)
        self._gathered.clear()

    def forget(self, ticket: int) -> None:
        self._pulled.pop(ticket, None)

    def state_dict(self) -> dict[str, NDArray[Any]]:
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
        self._pulled = {}


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
        """Start again."""
        self._new, self._weight = None, 0.0
        if self._sum_P is not None:
            self._sum_P.fill(0.0)


def part(state: Mapping[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    """Return what stands under a name in a state.

    >>> part({"sampler/size": np.array([6]), "place": np.array([0])}, "sampler")
    {'size': array([6])}
    """
    return {key.removeprefix(f"{name}/"): value for key, value in state.items() if key.startswith(f"{name}/")}


class Shard:
    """One part of the parameters, what the optimizer remembers of it, and gradients that wait for the lead's word.

    Parameters
    ----------
    parameters
        This part of them, ``[P]``.
    optimizer
        A copy of its own. It sees this part only: one that looks at all parameters together, to clip them by their norm
        for instance, does something else here.
    compensation
        The scheme's compensation of stale gradients.
    """

    def __init__(self, parameters: Vector, optimizer: Optimizer, compensation: Compensation | None) -> None:
        self.version = 0
        self._store = LocalStore(parameters, copy.deepcopy(optimizer), compensation)
        self._tickets: dict[str, int] = {}
        self._held: dict[str, tuple[int, Vector]] = {}

    def read(self, worker: str, ticket: int) -> Vector:
        """Return this part for a worker's step: a copy."""
        self._store.forget(self._tickets.get(worker, -1))  # a worker is at one step: what it read before is over
        self._tickets[worker] = ticket
        return self._store.lend(worker, ticket).copy()

    def hold(self, worker: str, ticket: int, gradient: Vector) -> None:
        """Keep this part of a step's gradient until the lead decides about it."""
        self._held[worker] = ticket, gradient

    def parameters(self) -> Vector:
        return self._store.parameters

    def flaw(self, worker: str, ticket: int) -> str:
        held, gradient = self._held.get(worker, (-1, np.empty(0)))
        return (
            self._store.flaw(worker, ticket, gradient)
            if held == ticket
            else "its gradient has not come to every server"
        )

    def add_gradient(self, worker: str, ticket: int, weight: float) -> str:
        _, gradient = self._held.pop(worker)
        return self._store.add_gradient(worker, ticket, gradient, weight)

    def undo(self) -> None:
        self._store.undo()

    def keep(self) -> None:
        self._store.keep()

    def step(self, factor: float, applied: int, scale: float = 1.0) -> None:
        self._store.step(factor, applied, scale)
        self.version += 1

    def forget(self, ticket: int) -> None:
        self._store.forget(ticket)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return self._store.state_dict()

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume, at the version of the state."""
        self._store.load_state_dict(state)
        self.version = int(state["place"][0])
        self._held = {}


class Everywhere(Protocol):
    """Calls a method of every shard, by its name, and returns when all have answered, with their answers."""

    def __call__(self, name: str, *arguments: Any, each: Sequence[Any] | None = None) -> list[Any]:
        """Call it with what is said to all, or with one of ``each``."""
        ...


def in_process(shards: Sequence[Shard]) -> Everywhere:
    """Return a way to reach shards in this process."""

    def call(name: str, *arguments: Any, each: Sequence[Any] | None = None) -> list[Any]:
        if each is not None:
            return [getattr(shard, name)(one) for shard, one in zip(shards, each, strict=True)]
        return [getattr(shard, name)(*arguments) for shard in shards]

    return call


class ShardedStore:
    """The lead's view of all shards; it holds no parameters.

    Parameters
    ----------
    everywhere
        How shards are reached.
    sizes
        How many parameters each holds.

    Examples
    --------
    >>> from paceline.coordinator.asynchronous import SGD, EpochSampler, Server, scheme
    >>> shards = [Shard(part, SGD(0.5), None) for part in pieces(np.array([1.0, 2.0, 3.0]), 2)]
    >>> store = ShardedStore(in_process(shards), [2, 1])
    >>> server = Server(np.empty(0), SGD(0.5), scheme("asp", 1), EpochSampler(10), batch=5, workers=["a"], store=store)
    >>> stamp = server.pull("a").stamp
    >>> parameters = np.concatenate([shard.read("a", stamp.ticket) for shard in shards])
    >>> for shard, gradient in zip(shards, pieces(np.ones(3), 2)):
    ...     shard.hold("a", stamp.ticket, gradient)
    >>> server.push("a", stamp, np.empty(0)).outcome
    <Outcome.APPLIED: 'applied'>
    >>> server.parameters
    array([0.5, 1.5, 2.5])
    """

    def __init__(self, everywhere: Everywhere, sizes: list[int]) -> None:
        self._everywhere, self._ends = everywhere, np.cumsum(sizes)[:-1]

    @property
    def parameters(self) -> Vector:
        return np.concatenate(self._everywhere("parameters"))

    def lend(self, worker: str, ticket: int) -> Vector:
        return np.empty(0)

    def flaw(self, worker: str, ticket: int, gradient: Vector) -> str:
        return next(filter(None, self._everywhere("flaw", worker, ticket)), "")

    def add_gradient(self, worker: str, ticket: int, gradient: Vector, weight: float) -> str:
        wrong = next(filter(None, self._everywhere("add_gradient", worker, ticket, weight)), "")
        if wrong:
            self._everywhere("undo")
        return wrong

    def keep(self) -> None:
        self._everywhere("keep")

    def step(self, factor: float, applied: int, scale: float = 1.0) -> None:
        self._everywhere("step", factor, applied, scale)

    def forget(self, ticket: int) -> None:
        self._everywhere("forget", ticket)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        states = self._everywhere("state_dict")
        return {name: _joined(name, states) for name in states[0]}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume; every shard takes its part.

        Raises
        ------
        ValueError
            If the state is that of other parameters. Nothing is changed then.
        """
        before = self._everywhere("state_dict")
        count = sum(len(one["parameters"]) for one in before)
        if state["parameters"].shape != (count,):
            raise ValueError(
                f"the state holds parameters of the shape {state['parameters'].shape}, these servers {(count,)}: "
                "build them for the same model"
            )
        # shards store these; the lead stores the others
        stored = {
            name: value
            for name, value in state.items()
            if name.startswith(("parameters", "optimizer/", "compensation/"))
        }
        split = {name: self._split(value, count) for name, value in stored.items()}
        place = {"place": state["place"]}
        shares = [place | {name: parts[s] for name, parts in split.items()} for s in range(len(before))]
        self._everywhere("load_state_dict", each=shares)

    def _split(self, value: NDArray[Any], count: int) -> list[NDArray[Any]]:
        """Return what each shard gets of a value: its part of a number for each parameter, or all of it."""
        return np.split(value, self._ends) if value.shape == (count,) else [value] * (len(self._ends) + 1)


def pieces(row: Vector, servers: int) -> list[Vector]:
    """Return a row in as many pieces as there are servers, of sizes that differ by 1 at most.

    >>> [piece.tolist() for piece in pieces(np.arange(5.0), 2)]
    [[0.0, 1.0, 2.0], [3.0, 4.0]]
    """
    return np.array_split(row, servers)


def _joined(name: str, states: list[dict[str, NDArray[Any]]]) -> NDArray[Any]:
    """Return a value of the shards' states: numbers for each parameter are joined, others are the same on all."""
    values = [state[name] for state in states]
    of_each = all(value.shape == state["parameters"].shape for value, state in zip(values, states, strict=True))
    return np.concatenate(values) if of_each else values[0]


@dataclass(frozen=True, eq=False)
class Push:
    """A push that was taken: its worker, its samples, its staleness, its weight for that, and its computing time."""

    worker: str
    assigned: SampleBatch
    staleness: int
    factor: float
    seconds: float = math.nan


@dataclass(eq=False)
class Gathered:
    """The pushes since the last update. Their gradients are in the store.

    Parameters
    ----------
    mean
        Whether the update is the mean over all samples, or the sum over the pushes.
    by_samples
        Whether a push counts in a sum by its samples over those of a full batch; in a mean it always does.
    batch
        Samples of a full batch.
    is_linear
        Of the optimizer: whether the rate follows the samples of a sum, or else its gradient.

    Examples
    --------
    30 samples, and 10 that count half:

    >>> import numpy as np
    >>> gathered = Gathered(mean=True, by_samples=False, batch=30)
    >>> for samples, factor in ((30, 1.0), (10, 0.5)):
    ...     assigned = SampleBatch(np.zeros(samples, np.int64), np.zeros(samples, np.int64))
    ...     gathered.pushes.append(Push("a", assigned, 0, factor))
    >>> [gathered.weight(push) for push in gathered.pushes], gathered.factor
    ([30.0, 5.0], 0.875)
    """

    mean: bool
    by_samples: bool
    batch: int
    is_linear: bool = True
    pushes: list[Push] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.pushes)

    def weight(self, push: Push) -> float:
        """Return the weight of a push's gradient in the update's mean."""
        return self._share(push) * push.factor

    @property
    def factor(self) -> float:
        """Factor that multiplies the learning rate when the mean of the gathered gradients is applied."""
        shares = sum(map(self._share, self.pushes))
        damping = sum(map(self.weight, self.pushes)) / shares
        if self.mean:
            return damping
        return damping * (shares if self.is_linear else len(self.pushes))

    @property
    def scale(self) -> float:
        """Factor that multiplies the mean of the gathered gradients: the mean share of a full batch, or 1."""
        if self.mean or self.is_linear:
            return 1.0
        return sum(map(self._share, self.pushes)) / len(self.pushes)

    def _share(self, push: Push) -> float:
        if self.mean:
            return float(len(push.assigned))
        return len(push.assigned) / self.batch if self.by_samples else 1.0
