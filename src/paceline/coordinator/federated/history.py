"""History of the rounds: who was chosen, replied, was silent or left out, and whose data were used.

Axis: W clients of one round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline._arrays import Array, Mask
from paceline.coordinator.federated.clients import Clients, Rows
from paceline.coordinator.federated.round_plan import RoundPlan
from paceline.coordinator.federated.round_report import RoundReport
from paceline.coordinator.federated.shares import Shares


def enter(clients: Clients, plan: RoundPlan, report: RoundReport, rows: Rows, place: Rows) -> Mask:
    """Record a round, and return a mask of the clients that were asked and did not reply, ``[W]``.

    Parameters
    ----------
    clients
        Known clients; the history is kept in their columns.
    plan, report
        Of the round.
    rows
        The row of each client of the plan, ``[W]``.
    place
        Index in the plan of each client that replied.
    """
    column = clients.column
    column("planned")[rows] += 1
    column("left_out")[rows] = np.where(plan.asked, 0, column("left_out")[rows] + 1)
    replied_W = np.zeros(len(rows), dtype=np.bool_)
    replied_W[place] = True
    column("seen")[rows[replied_W]] = plan.round_index
    silent_W: Mask = plan.asked & ~replied_W
    column("silent")[rows] = np.where(silent_W, column("silent")[rows] + 1, 0)
    _enter_used(clients, rows[place[report.used]], report.processed[report.used])
    return silent_W


def shares_of(clients: Clients, names: Sequence[str]) -> Shares:
    """Return what became of the data of these clients."""
    rows = clients.rows(names)
    weight_W, data_W = clients.taken("weight", rows), _filled(clients.taken("data", rows))
    return Shares(
        tuple(names),
        _share(data_W),
        _share(weight_W),
        clients.taken("samples", rows),
        clients.taken("planned", rows).astype(np.int64),
        clients.taken("replied", rows).astype(np.int64),
    )


def _enter_used(clients: Clients, rows: Rows, samples: Array) -> None:
    """Record the clients whose update enters the aggregate, with the weight that their data should give it."""
    clients.column("replied")[rows] += 1
    clients.column("samples")[rows] += np.where(np.isfinite(samples) & (samples > 0), samples, 0.0)
    clients.column("weight")[rows] += _share(_filled(clients.taken("data", rows)))


def _share(amounts_W: Array) -> Array:
    total = amounts_W.sum()
    share_W: Array = amounts_W / total if total > 0 else np.zeros(len(amounts_W))
    return share_W


def _filled(data_W: Array) -> Array:
    """Return amounts of data in which an unknown one is the mean of the known, or 1 if none is known."""
    known_W = np.isfinite(data_W)
    return np.where(known_W, data_W, data_W[known_W].mean() if known_W.any() else 1.0)
