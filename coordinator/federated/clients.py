"""Who is known: a row of an array for each client, found by its id. Axes: N rows, W clients of one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline.coordinator.federated.levels import NEVER, Rows

UNKNOWN_DEVICE = ""
"""The device type of a client that did not say."""

MOST_DEVICES = 10_000
"""Device types that are kept apart: they are names that clients send, so their number must be bounded."""

FORGOTTEN_AT_ONCE = 0.01
"""Share of the rows that is freed when they run out: looking for the oldest costs a look at all."""

COLUMNS: dict[str, tuple[type, float]] = {
    "data": (np.float64, np.nan),
    "memory": (np.float64, np.inf),
    "fits": (np.float64, np.inf),
    "device": (np.int64, 0),
    "seen": (np.int64, NEVER),
    "planned": (np.int64, 0),
    "replied": (np.int64, 0),
    "silent": (np.int64, 0),
    "left_out": (np.int64, 0),
    "disbelieved": (np.int64, 0),
    "samples": (np.float64, 0.0),
    "weight": (np.float64, 0.0),
}
"""What is kept of each client, and of one that is new.

``data`` and ``memory`` as it says, and what ``fits`` as learnt when it ran out of memory, in samples; ``seen`` the
round in which it joined or last replied; ``planned`` and ``replied`` rounds; ``silent``, ``left_out`` and
``disbelieved`` rounds in a row; ``samples`` processed; ``weight`` summed over rounds.
"""


class Clients:
    """Rows by id, with what is kept of each client in columns.

    Parameters
    ----------
    most
        How many are known at once. Where more join, those not seen for longest are forgotten.

    Examples
    --------
    >>> clients = Clients(most=10)
    >>> clients.join(["a", "b"], round_index=0)
    array([0, 1])
    >>> clients.leave("a")
    0
    >>> clients.rows(["b", "a"])
    array([ 1, -1])
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.devices: dict[str, int] = {UNKNOWN_DEVICE: 0}
        self._row: dict[str, int] = {}
        self._free: list[int] = []
        self._used = 0
        self._columns: dict[str, NDArray[Any]] = {}
        self._grow(64)

    def __len__(self) -> int:
        """Return how many are known."""
        return len(self._row)

    def __contains__(self, name: str) -> bool:
        """Return whether a client is known."""
        return name in self._row

    @property
    def names(self) -> list[str]:
        """Those known, in the order in which they joined."""
        return list(self._row)

    @property
    def room(self) -> int:
        """How many rows there are, used or not."""
        return len(self._columns["data"])

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, one entry a row: a view to read from and to write to."""
        return self._columns[name]

    def rows(self, names: Sequence[str]) -> Rows:
        """Return the row of each, -1 where it is not known, ``[W]``."""
        get = self._row.get
        return np.fromiter((get(name, -1) for name in names), dtype=np.intp, count=len(names))

    def join(self, names: Sequence[str], *, round_index: int) -> Rows:
        """Give a row to those that have none, and return the row of each, ``[W]``; make room for them first."""
        for name in names:
            if name not in self._row:
                row = self._free.pop() if self._free else self._next_row()
                self._row[name] = row
                for column, (_, fresh) in COLUMNS.items():
                    self._columns[column][row] = fresh
                self._columns["seen"][row] = round_index
        return self.rows(names)

    def in_the_way(self, names: Sequence[str]) -> list[str]:
        """Return who must be forgotten before these can join: those not seen for longest, and none of these."""
        new = sum(name not in self._row for name in dict.fromkeys(names))
        if new > self.most:
            raise ValueError(f"{new} clients cannot join where most_clients is {self.most}: make it more")
        surplus = len(self) + new - self.most
        if surplus <= 0:
            return []
        spared = set(names)
        others = [name for name in self._row if name not in spared]
        count = min(max(surplus, int(FORGOTTEN_AT_ONCE * self.most)), len(others))
        oldest = np.argsort(self._columns["seen"][self.rows(others)], kind="stable")[:count]
        return [others[i] for i in oldest]

    def leave(self, name: str) -> int:
        """Free the row of a client and return it."""
        row = self._row.pop(name)
        self._free.append(row)
        return row

    def device_indices(self, devices: Sequence[str]) -> Sizes:
        """Return the index of each device type, ``[W]``; one not met before gets the next while there are any."""
        known = self.devices
        for device in devices:
            if device not in known and len(known) < MOST_DEVICES:
                known[device] = len(known)
        return np.array([known.get(device, known[UNKNOWN_DEVICE]) for device in devices], dtype=np.int64)

    def taken(self, name: str, rows: Rows) -> Array:
        """Return a column at these rows as float64, what a new client has where the row is -1, ``[W]``."""
        fresh = COLUMNS[name][1]
        values: Array = np.where(rows >= 0, self._columns[name][rows], fresh).astype(np.float64)
        return values

    def device_of(self, rows: Rows) -> Sizes:
        """Return the index of the device type at each of these rows, 0 where the row is -1, ``[W]``."""
        return np.where(rows >= 0, self._columns["device"][rows], 0)

    def state_dict(self) -> tuple[dict[str, NDArray[Any]], Rows]:
        """Return names and columns, in the order of joining, and the rows they stand in now."""
        rows = np.fromiter(self._row.values(), dtype=np.intp, count=len(self._row))
        columns = {name: column[rows] for name, column in self._columns.items()}
        names = {"names": np.array(self.names, dtype=np.str_), "devices": np.array(list(self.devices), dtype=np.str_)}
        return {**names, **columns}, rows

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what ``state_dict`` returned; the first name gets row 0, and so on."""
        names = [str(name) for name in state["names"]]
        wrong = [name for name in COLUMNS if len(state[name]) != len(names)]
        if wrong:
            raise ValueError(f"the state must hold one entry a client in every column, but {wrong} do not")
        self._row = {name: row for row, name in enumerate(names)}
        self._free, self._used = [], len(names)
        self.devices = {str(device): index for index, device in enumerate(state["devices"])}
        self._columns = {name: np.array(state[name], dtype=kind) for name, (kind, _) in COLUMNS.items()}
        self._grow(max(64, len(names)))

    # -- what it is made of --------------------------------------------------------------------------------------

    def _next_row(self) -> int:
        if self._used == self.room:
            self._grow(2 * self.room)
        self._used += 1
        return self._used - 1

    def _grow(self, count: int) -> None:
        for name, (kind, fresh) in COLUMNS.items():
            there = self._columns.get(name, np.empty(0, dtype=kind))
            self._columns[name] = np.append(there, np.full(count - len(there), fresh, dtype=kind))
