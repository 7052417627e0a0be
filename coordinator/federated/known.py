"""All that is known of clients: their rows, and the forecasts of what they compute and communicate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.coordinator.federated.clients import Clients
from paceline.coordinator.federated.following import Following
from paceline.coordinator.federated.levels import Levels, Rows

PRIOR_SPEED = 1.0
"""Speed in samples/s before anybody reported: only ratios count, and all are equal."""

BRIEFEST_COMM = 1e-6
"""Communication is forecast in the log, so a time of 0 counts as this many seconds."""


class Known:
    """Clients by id with the levels of their speed and of their time to communicate, kept in step.

    Parameters
    ----------
    smoothing
        Of both levels.
    most
        How many clients are known at once.
    again
        Of `Following`.
    """

    def __init__(self, smoothing: float, most: int, again: int) -> None:
        self.clients = Clients(most)
        self.speed = Levels(smoothing, PRIOR_SPEED)
        self.comm = Levels(smoothing, BRIEFEST_COMM)
        self.following = Following(again)
        self._grow()

    def join(self, names: Sequence[str], round_index: int) -> Rows:
        """Return the row of each, ``[W]``; who is new gets one, and whoever is in the way is forgotten."""
        oldest = self.clients.in_the_way(names)
        if oldest:  # before the new ones join, as they take over the rows
            self._forget(np.array([self.clients.leave(name) for name in oldest], dtype=np.intp))
        rows = self.clients.join(names, round_index=round_index)
        self._grow()
        return rows

    def leave(self, name: str) -> None:
        """Forget a client."""
        self._forget(np.array([self.clients.leave(name)], dtype=np.intp))

    def set_devices(self, rows: Rows, devices: Sequence[str]) -> None:
        """Count these rows, none twice, with other device types from now on."""
        device_W = self.clients.device_indices(devices)
        changed_W = self.clients.device_of(rows) != device_W
        rows, device_W = rows[changed_W], device_W[changed_W]
        before_W = self.clients.device_of(rows)
        for levels in (self.speed, self.comm):
            levels.move(rows, before_W, device_W)
        self.clients.column("device")[rows] = device_W

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything, as arrays with a row a client."""
        clients, rows = self.clients.state_dict()
        parts = {
            "clients": clients,
            "speed": self.speed.state_dict(rows),
            "comm": self.comm.state_dict(rows),
            "following": self.following.state_dict(rows),
        }
        return {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what ``state_dict`` returned; load it into one just made, as a state may turn out not to be whole.

        Raises
        ------
        ValueError
            If it is not whole, or holds more clients than may be known.
        """
        count, most = len(state["clients/names"]), self.clients.most
        if count > most:
            raise ValueError(f"the state holds {count} clients, but most_clients is {most}")
        try:
            for part in ("clients", "speed", "comm", "following"):
                getattr(self, part).load_state_dict(_part(state, part))
        except KeyError as error:
            raise ValueError(f"the state is not whole, it lacks {error}: was it saved by another version?") from error
        self._grow()

    def _grow(self) -> None:
        """Give all that is learnt as many rows as there are."""
        self.speed.grow(self.clients.room)
        self.comm.grow(self.clients.room)
        self.following.grow(self.clients.room)

    def _forget(self, rows: Rows) -> None:
        """Clear what was learnt of rows that were freed."""
        for levels in (self.speed, self.comm):
            levels.forget(rows, self.clients.device_of(rows))
        self.following.forget(rows)


def _part(state: Mapping[str, NDArray[Any]], part: str) -> dict[str, NDArray[Any]]:
    return {name[len(part) + 1 :]: value for name, value in state.items() if name.startswith(f"{part}/")}
