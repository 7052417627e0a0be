"""Parameters split over several servers: a lead decides, and each of the others holds one part. Axis: P parameters.

The contract: the lead stamps and counts versions; every shard applies the same updates in the same order, and has
applied them before the lead hands out the next stamp. A worker reads the parts after its stamp, so each part is at
least as new, and what is applied to it is never staler than the lead says: the bound holds on every shard. Parts that
are read while an update comes may differ in their versions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.coordinator.asynchronous.optimizer import Optimizer, Vector
from paceline.coordinator.asynchronous.rules.compensation import Compensation
from paceline.coordinator.asynchronous.store import LocalStore

OWN = ("parameters", "optimizer/", "compensation/")
"""Beginnings of the names in a state that the shards keep; the lead keeps the others."""

NEVER_CAME = "its gradient has not come to every server"


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
        """Keep this part of a step's gradient until the lead says what becomes of it."""
        self._held[worker] = ticket, gradient

    def parameters(self) -> Vector:
        """Return this part, ``[P]``, as it is now: a copy."""
        return self._store.parameters

    def flaw(self, worker: str, ticket: int) -> str:
        """Return the flaw of a gradient that is held; an empty text if it has none."""
        held, gradient = self._held.get(worker, (-1, np.empty(0)))
        return self._store.flaw(worker, ticket, gradient) if held == ticket else NEVER_CAME

    def take(self, worker: str, ticket: int, weight: float) -> str:
        """Gather a gradient that is held."""
        _, gradient = self._held.pop(worker)
        return self._store.take(worker, ticket, gradient, weight)

    def undo(self) -> None:
        """Leave out the gradient taken last."""
        self._store.undo()

    def keep(self) -> None:
        """Add the gradient taken last to the sum."""
        self._store.keep()

    def step(self, factor: float, applied: int, scale: float = 1.0) -> None:
        """Apply the gathered gradients, which makes a new version."""
        self._store.step(factor, applied, scale)
        self.version += 1

    def forget(self, ticket: int) -> None:
        """Drop what is held of a step that will not be applied."""
        self._store.forget(ticket)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return this part of the parameters, and the optimizer's state for it."""
        return self._store.state_dict()

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume, at the version of the state."""
        self._store.load_state_dict(state)
        self.version = int(state["place"][0])
        self._held = {}


class Everywhere(Protocol):
    """Calls a method of every shard, by its name, and returns when all have answered, with their answers."""

    def __call__(self, name: str, *said: Any, each: Sequence[Any] | None = None) -> list[Any]:
        """Call it with what is said to all, or with one of ``each``."""
        ...


def in_process(shards: Sequence[Shard]) -> Everywhere:
    """Return a way to reach shards in this process."""

    def call(name: str, *said: Any, each: Sequence[Any] | None = None) -> list[Any]:
        if each is not None:
            return [getattr(shard, name)(one) for shard, one in zip(shards, each, strict=True)]
        return [getattr(shard, name)(*said) for shard in shards]

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
        """The newest parameters, ``[P]``, fetched from all shards."""
        return np.concatenate(self._everywhere("parameters"))

    def lend(self, worker: str, ticket: int) -> Vector:
        """Return nothing, ``[0]``: workers read from the shards."""
        return np.empty(0)

    def flaw(self, worker: str, ticket: int, gradient: Vector) -> str:
        """Return the first flaw that a shard sees in its part."""
        return next(filter(None, self._everywhere("flaw", worker, ticket)), "")

    def take(self, worker: str, ticket: int, gradient: Vector, weight: float) -> str:
        """Gather a gradient on all shards, or on none."""
        wrong = next(filter(None, self._everywhere("take", worker, ticket, weight)), "")
        if wrong:
            self._everywhere("undo")
        return wrong

    def keep(self) -> None:
        """Add the gradient taken last to the sums."""
        self._everywhere("keep")

    def step(self, factor: float, applied: int, scale: float = 1.0) -> None:
        """Apply the gathered gradients on every shard, which makes a new version."""
        self._everywhere("step", factor, applied, scale)

    def forget(self, ticket: int) -> None:
        """Drop what the shards hold of a step that will not be applied."""
        self._everywhere("forget", ticket)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the state as one server would, so that it resumes on any number of servers."""
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
        own = {name: value for name, value in state.items() if name.startswith(OWN)}
        split = {name: self._split(value, count) for name, value in own.items()}
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
