"""Known clients: a row of an array for each, found by its id. Axes: N rows, W clients of one round."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes

Rows = NDArray[np.intp]

NEVER = -1
"""The round of a reply that never was."""

UNKNOWN_DEVICE = ""
"""The device type of a client that did not say."""

MOST_DEVICES = 10_000
"""Device types that are kept apart: they are names that clients send, so their number must be bounded."""

FORGOTTEN_AT_ONCE = 0.01
"""Share of the rows that is freed when they run out: looking for the oldest costs a look at all."""

MOMENTS = ("fit_count", "fit_x", "fit_y", "fit_xx", "fit_xy", "fit_yy")
"""Of the fit of a client's time against its samples; see `Following`."""

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
    "rejected": (np.int64, 0),
    "samples": (np.float64, 0.0),
    "weight": (np.float64, 0.0),
    "computed": (np.int64, 0),
    "communicated": (np.int64, 0),
    "ceiling": (np.float64, np.inf),
    "state": (np.int64, 0),
    "turn": (np.int64, 0),
    "base": (np.float64, 0.0),
    **dict.fromkeys(MOMENTS, (np.float64, 0.0)),
}
"""Columns that are kept of each client, with the value for a new one.

``data`` and ``memory`` as it says, and what ``fits`` as learnt when it ran out of memory, in samples; ``seen`` the
round in which it joined or last replied; ``planned`` and ``replied`` rounds; ``silent``, ``left_out`` and
``rejected`` rounds in a row; ``samples`` processed; ``weight`` summed over rounds; ``computed`` and
``communicated`` reports from which a predictor learnt; ``ceiling`` the largest speed that its silence allows, in
samples/s; the rest is that of `Following`.
"""


class Clients:
    """Rows by id in the order of joining, with what is kept of each client in columns.

    Parameters
    ----------
    most
        How many are known at once. Where more join, those not seen for longest are forgotten.

    Examples
    --------
    >>> clients = Clients(most=10)
    >>> clients.join(["a", "b"], round_index=0)
    >>> clients.leave(["a"])
    >>> clients.rows(["b", "a"])
    array([ 0, -1])
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.devices: dict[str, int] = {UNKNOWN_DEVICE: 0}
        self._row: dict[str, int] = {}
        self._columns: dict[str, NDArray[Any]] = {name: np.empty(0, kind) for name, (kind, _) in COLUMNS.items()}

    def __len__(self) -> int:
        """Return how many are known."""
        return len(self._row)

    def __contains__(self, name: str) -> bool:
        """Return whether a client is known."""
        return name in self._row

    @property
    def names(self) -> list[str]:
        """Names of the known clients, in the order in which they joined."""
        return list(self._row)

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, one entry a row: a view to read from and to write to."""
        return self._columns[name]

    def rows(self, names: Sequence[str]) -> Rows:
        """Return the row of each, -1 where it is not known, ``[W]``."""
        get = self._row.get
        return np.fromiter((get(name, -1) for name in names), dtype=np.intp, count=len(names))

    def join(self, names: Sequence[str], *, round_index: int) -> None:
        """Give new clients the next rows; there must be room for them."""
        self._row |= {name: len(self) + i for i, name in enumerate(names)}
        for column, (kind, fresh) in COLUMNS.items():
            value = round_index if column == "seen" else fresh
            self._columns[column] = np.append(self._columns[column], np.full(len(names), value, kind))

    def new(self, names: Sequence[str]) -> list[str]:
        """Return those of these names that are not known."""
        return [name for name in names if name not in self._row]

    def in_the_way(self, names: Sequence[str]) -> list[str]:
        """Return the clients to forget before these can join: those not seen for longest, never any of these."""
        new = len(self.new(names))
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

    def leave(self, names: Collection[str]) -> None:
        """Forget these clients; those behind them move up."""
        gone = set(names)
        stays_N = np.array([name not in gone for name in self._row], dtype=np.bool_)
        self._row = {name: row for row, name in enumerate(name for name in self._row if name not in gone)}
        self._columns = {name: column[stays_N] for name, column in self._columns.items()}

    def device_indices(self, devices: Sequence[str]) -> Sizes:
        """Return the index of each device type, ``[W]``; one not met before gets the next while there are any."""
        known = self.devices
        for device in devices:
            if device not in known and len(known) < MOST_DEVICES:
                known[device] = len(known)
        return np.array([known.get(device, known[UNKNOWN_DEVICE]) for device in devices], dtype=np.int64)

    def taken(self, name: str, rows: Rows) -> Array:
        """Return a column at these rows as float64, ``[W]``; a row of -1 gets the value of a new client."""
        values_W: Array = np.full(len(rows), COLUMNS[name][1], dtype=np.float64)
        values_W[rows >= 0] = self._columns[name][rows[rows >= 0]]
        return values_W

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return names, device types and columns, in the order of joining."""
        names = {"names": np.array(self.names, dtype=np.str_), "devices": np.array(list(self.devices), dtype=np.str_)}
        return {**names, **{name: column.copy() for name, column in self._columns.items()}}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what ``state_dict`` returned."""
        names = [str(name) for name in state["names"]]
        wrong = [name for name in COLUMNS if len(state[name]) != len(names)]
        if wrong:
            raise ValueError(f"the state must hold one entry a client in every column, but {wrong} do not")
        self._row = {name: row for row, name in enumerate(names)}
        self.devices = {str(device): index for index, device in enumerate(state["devices"])}
        self._columns = {name: np.array(state[name], dtype=kind) for name, (kind, _) in COLUMNS.items()}
