"""Federated rounds that end together: replies in, batch sizes out. No engine, no threads, no files, no clock.

Axes: W clients of one round, N rows for all known clients.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline._arrays import Array, Mask, Sizes
from paceline.coordinator import why
from paceline.coordinator.federated.belief import believable_comm, believable_speeds
from paceline.coordinator.federated.clients import Clients
from paceline.coordinator.federated.levels import Levels, Rows, Source
from paceline.coordinator.federated.plan import RoundPlan
from paceline.coordinator.federated.report import RoundReport
from paceline.coordinator.federated.shares import Shares
from paceline.coordinator.federated.sizing import Round, Rules, sized
from paceline.coordinator.federated.summary import summary_of
from paceline.solver import caution

logger = logging.getLogger("paceline.federated")

PRIOR_SPEED = 1.0
"""Speed in samples/s before anybody reported: only ratios count, and all are equal."""

BRIEFEST_COMM = 1e-6
"""Communication is forecast in the log, so a time of 0 counts as this many seconds."""

UNKNOWN_SPREAD = 0.2
"""Relative deviation of a speed that was never compared with its forecast, when a deadline is to be met."""

SHRINK = 0.8
"""A client that ran out of memory gets at most this share of the batch that it ran out with."""


class FederatedBalancer:
    """Sizes the batches of federated clients so that a round's replies come together (LB-BSP, the federated setting).

    All clients take the same number of local steps at the same learning rate; only the batch ``B_i`` differs, so that
    ``local_steps * B_i / v_i + comm_i`` is the same for all. The speed ``v_i`` and the time to communicate ``comm_i``
    are forecast apart, from each client's own past reports, or from those of its device type before it has any.

    Parameters
    ----------
    batch
        Samples of a client in a local step, in the mean over the clients that are asked: what plain federated
        averaging would give everybody.
    local_steps
        Local steps of every client in a round.
    deadline
        Seconds after which a round closes. Who would miss it with its balanced batch, if it computed slower than
        forecast by one standard deviation, gets less; who would miss it even with ``least`` is not asked. ``None`` is
        no deadline.
    least
        The smallest batch of a client that is asked; unless given, a quarter of ``batch``: smaller ones cost more
        accuracy than they save time (``benchmarks/federated.md``). A client with less data uses all of it.
    largest
        The largest batch of any client, in multiples of ``batch``: beyond it a sample adds little to a step, and it is
        what a client that lies about its speed can do at worst.
    smoothing
        Weight of a client's newest report, in (0, 1], if it reports every round; after a gap the report weighs more.
    risk
        Caution for clients whose speed is noisy, from 0 to 2: see `paceline.solver.caution`.
    try_again
        After so many rounds left out in a row because of the deadline a client is asked with the smallest batch,
        so that its data count and its speed is measured again.
    plausible
        A report of a speed this many times above or below the mean of all clients is not believed.
    most_clients
        How many clients are known at once; beyond it those not seen for longest are forgotten.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    Updates must be averaged by the clients' amounts of data, never by their batches: a step is a mean over its batch,
    so an update has the same expectation whatever the batch, and to weigh by batch would count the data of fast
    clients for more than there are.

    Examples
    --------
    Two phones and a tablet; the tablet is three times as fast, but far from the network:

    >>> balancer = FederatedBalancer(batch=20, local_steps=10)
    >>> plan = balancer.plan(["phone-1", "phone-2", "tablet"])
    >>> plan.sizes
    array([20, 20, 20])
    >>> balancer.observe(plan, RoundReport(clients=plan.clients, samples=[200, 200, 200], seconds=[10.0, 10.0, 3.3],
    ...                                    comm_seconds=[1.0, 1.0, 4.0]))
    >>> plan = balancer.plan(["phone-1", "phone-2", "tablet"])
    >>> plan.sizes, plan.seconds.round(1)
    (array([15, 15, 30]), array([8.5, 8.5, 9. ]))
    >>> print(plan.why("tablet"))
    tablet gets 30 samples a step (150 % of the mean): 60.6 samples/s by its own reports and 4 s to communicate make
    8.95 s for 10 local steps.
    """

    def __init__(
        self,
        *,
        batch: int,
        local_steps: int,
        deadline: float | None = None,
        least: int | None = None,
        largest: float = 8.0,
        smoothing: float = 0.5,
        risk: float = 0.0,
        try_again: int = 10,
        plausible: float = 100.0,
        most_clients: int = 1_000_000,
    ) -> None:
        self.batch = _at_least_one("batch", batch, "sample")
        self.local_steps = _at_least_one("local_steps", local_steps, "step")
        self.deadline = deadline
        self.least = max(1, batch // 4) if least is None else least
        self.largest = largest
        self.smoothing = smoothing
        self.risk = risk
        self.try_again = _at_least_one("try_again", try_again, "round")
        self.plausible = plausible
        self.most_clients = _at_least_one("most_clients", most_clients, "client")
        self._check()
        self.rounds = 0
        self._clients = Clients(most_clients)
        self._speed = Levels(smoothing, PRIOR_SPEED)
        self._comm = Levels(smoothing, BRIEFEST_COMM)
        self._grow()

    # -- who is known --------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return how many clients are known."""
        return len(self._clients)

    def __contains__(self, client: object) -> bool:
        """Return whether a client is known."""
        return str(client) in self._clients

    @property
    def clients(self) -> list[str]:
        """Those known, in the order in which they joined."""
        return self._clients.names

    def join(
        self,
        clients: Sequence[object],
        *,
        devices: Sequence[str] | None = None,
        data: ArrayLike | None = None,
        memory: ArrayLike | None = None,
    ) -> None:
        """Make clients known, or say more of those that are. Who is not announced joins when it is first asked.

        Parameters
        ----------
        clients
            Their ids, ``[W]``.
        devices
            The device type of each, such as its phone's model, ``[W]``: what an unseen client is forecast by.
        data
            Samples that each holds, ``[W]``; its batch is never larger, and its weight follows it.
        memory
            The largest batch that fits into each one's memory, ``[W]``, in samples.

        Raises
        ------
        ValueError
            If an array does not have one entry for each, or data or memory are negative or NaN.
        """
        names = [str(client) for client in clients]
        facts = {"data": _amounts("data", data, len(names)), "memory": _amounts("memory", memory, len(names))}
        if devices is not None and len(devices) != len(names):
            raise ValueError(f"devices must have one entry for each of the {len(names)} clients, got {len(devices)}")
        rows = self._join(names)
        for name, given_W in facts.items():
            if given_W is not None:
                self._clients.column(name)[rows] = given_W
        if devices is not None:
            self._set_devices(rows, self._clients.device_indices([str(device) for device in devices]))

    def leave(self, client: object) -> None:
        """Forget a client, its reports and its shares.

        Raises
        ------
        ValueError
            If it is not known.
        """
        name = str(client)
        if name not in self._clients:
            raise ValueError(f"client {name!r} is not known, so it cannot leave")
        self._forget(np.array([self._clients.leave(name)], dtype=np.intp))

    # -- a round -------------------------------------------------------------------------------------------------

    def plan(self, clients: Sequence[object]) -> RoundPlan:
        """Return the batches of a round with these clients. Pure: asking twice gives the same answer.

        Parameters
        ----------
        clients
            Those chosen for the round, known or not, by whatever rule the framework samples them.

        Raises
        ------
        ValueError
            If nobody or somebody twice is chosen.
        """
        names = tuple(str(client) for client in clients)
        if not names or len(set(names)) != len(names):
            raise ValueError(f"clients must be at least one, and none twice, got {len(names)} of {len(set(names))} ids")
        rows = self._clients.rows(names)
        device_W = self._clients.device_of(rows)
        speed_W, spread_W, source_W = self._speed.forecast(rows, device_W)
        comm_W, _, _ = self._comm.forecast(rows, device_W)
        left_out_W = self._clients.taken("left_out", rows)
        now = Round(
            step_seconds=self.local_steps / speed_W * caution(spread_W, self.risk),
            comm=comm_W,
            margin=np.exp(np.minimum(np.where(np.isfinite(spread_W), spread_W, UNKNOWN_SPREAD), 1.0)),
            data=self._clients.taken("data", rows),
            memory=self._clients.taken("memory", rows),
            due=left_out_W >= self.try_again,
        )
        size_W, reason_W, upper_W = sized(now, self._rules(anything_known=not np.any(source_W == Source.NOTHING)))
        seconds_W = np.where(size_W > 0, size_W * self.local_steps / speed_W + comm_W, 0.0)
        return RoundPlan(
            clients=names,
            sizes=size_W,
            local_steps=self.local_steps,
            speed=speed_W,
            spread=spread_W,
            comm_seconds=comm_W,
            source=source_W,
            seconds=seconds_W,
            upper=upper_W,
            reasons=reason_W,
            silent=self._clients.taken("silent", rows).astype(np.int64),
            disbelieved=self._clients.taken("disbelieved", rows).astype(np.int64),
            deadline=self.deadline,
            round_index=self.rounds,
            summary=summary_of(names, size_W, seconds_W, source_W, reason_W),
        )

    def observe(self, plan: RoundPlan, report: RoundReport) -> None:
        """Learn from the replies of a round.

        Who was asked and is not in the report did not reply: if the report says how long the server waited, the client
        is from now on taken to be at least that slow. A speed that cannot be is not used, logged, and shown by `why`.

        Raises
        ------
        ValueError
            If somebody replied who was not asked. Nothing is learnt then.
        """
        place = np.array([plan.place.get(name, -1) for name in report.names], dtype=np.intp)
        strangers = [name for name, i in zip(report.names, place, strict=True) if i < 0 or not plan.asked[i]]
        if strangers:
            raise ValueError(
                f"{why.listed(strangers[: why.SHOWN], max(len(strangers) - why.SHOWN, 0))} replied but were not asked "
                "in this round: leave replies of earlier rounds out of the report"
            )
        rows = self._join(plan.clients)
        self._learn(plan, report, rows[place], place)
        self._count(plan, report, rows, place)
        self.rounds += 1

    def shares(self, clients: Sequence[object] | None = None) -> Shares:
        """Return what became of the data of these clients, or of all known ones, over the rounds."""
        names = tuple(self.clients if clients is None else map(str, clients))
        rows = self._clients.rows(names)
        weight_W = self._clients.taken("weight", rows)
        data_W = _filled(self._clients.taken("data", rows))
        return Shares(
            names,
            data_W / max(data_W.sum(), 1e-300),
            weight_W / max(weight_W.sum(), 1e-300),
            self._clients.taken("samples", rows),
            self._clients.taken("planned", rows).astype(np.int64),
            self._clients.taken("replied", rows).astype(np.int64),
        )

    # -- saved and resumed ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything learnt, as arrays with a row a client: loading it resumes exactly."""
        clients, rows = self._clients.state_dict()
        parts = {"clients": clients, "speed": self._speed.state_dict(rows), "comm": self._comm.state_dict(rows)}
        arrays = {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}
        return {"rounds": np.array(self.rounds), **arrays}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned.

        Raises
        ------
        ValueError
            If it is not such a state, or holds more than ``most_clients``. Nothing is changed then.
        """
        if "rounds" not in state or "clients/names" not in state:
            raise ValueError(f"the state must come from state_dict of a FederatedBalancer, got {sorted(state)[:5]}")
        if len(state["clients/names"]) > self.most_clients:
            raise ValueError(
                f"the state holds {len(state['clients/names'])} clients, but most_clients is {self.most_clients}"
            )
        clients = Clients(self.most_clients)
        speed, comm = Levels(self.smoothing, PRIOR_SPEED), Levels(self.smoothing, BRIEFEST_COMM)
        try:
            clients.load_state_dict(_part(state, "clients"))
            speed.load_state_dict(_part(state, "speed"))
            comm.load_state_dict(_part(state, "comm"))
        except KeyError as error:
            raise ValueError(f"the state is not whole, it lacks {error}: was it saved by another version?") from error
        self._clients, self._speed, self._comm = clients, speed, comm  # all or nothing
        self.rounds = int(state["rounds"])
        self._grow()

    # -- what it is made of --------------------------------------------------------------------------------------

    def _check(self) -> None:
        if not 1 <= self.least <= self.batch:
            raise ValueError(f"least must lie between 1 and the batch of {self.batch}, got {self.least}")
        if not 1.0 <= self.largest < math.inf:
            raise ValueError(f"largest must be at least 1 (times the batch) and finite, got {self.largest}")
        if not 0.0 < self.smoothing <= 1.0:
            raise ValueError(f"smoothing must lie in (0, 1], got {self.smoothing}")
        if not 0.0 <= self.risk <= 2.0:
            raise ValueError(f"risk must lie in [0, 2], got {self.risk}")
        if not self.plausible > 1.0:
            raise ValueError(f"plausible must be above 1, got {self.plausible}")
        if self.deadline is not None and not 0.0 < self.deadline < math.inf:
            raise ValueError(f"deadline must be a positive number of seconds or None, got {self.deadline}")

    def _rules(self, *, anything_known: bool) -> Rules:
        """Return the rules; before anybody reported no forecast in seconds says who would miss a deadline."""
        deadline = self.deadline if anything_known else None
        return Rules(self.batch, self.least, math.floor(self.largest * self.batch), deadline)

    def _join(self, names: Sequence[str]) -> Rows:
        oldest = self._clients.in_the_way(names)
        if oldest:  # before the new ones join, as they take over the rows
            self._forget(np.array([self._clients.leave(name) for name in oldest], dtype=np.intp))
        rows = self._clients.join(names, round_index=self.rounds)
        self._grow()
        return rows

    def _grow(self) -> None:
        """Give the forecasts as many rows as there are."""
        self._speed.grow(self._clients.room)
        self._comm.grow(self._clients.room)

    def _forget(self, rows: Rows) -> None:
        """Clear the forecasts of rows that were freed."""
        for levels in (self._speed, self._comm):
            levels.forget(rows, self._clients.device_of(rows))

    def _set_devices(self, rows: Rows, device_W: Sizes) -> None:
        changed_W = self._clients.device_of(rows) != device_W
        rows, device_W = rows[changed_W], device_W[changed_W]
        before_W = self._clients.device_of(rows)
        for levels in (self._speed, self._comm):
            levels.move(rows, before_W, device_W)
        self._clients.column("device")[rows] = device_W

    def _learn(self, plan: RoundPlan, report: RoundReport, rows: Rows, place: Rows) -> None:
        """Learn speeds and communication of those that replied, and how slow the silent ones must be."""
        device_W = self._clients.device_of(rows)
        believed_W = believable_speeds(report, self._speed.mean(), self.plausible)
        self._speed.learn(rows[believed_W], report.speed[believed_W], device_W[believed_W], round_index=self.rounds)
        timed_W = believable_comm(report, believed_W, self._comm.mean(), self.plausible)
        comm_W = np.maximum(report.communication, BRIEFEST_COMM)
        self._comm.learn(rows[timed_W], comm_W[timed_W], device_W[timed_W], round_index=self.rounds)
        doubtful_W = np.isfinite(report.speed) & ~believed_W
        self._disbelieve(report, rows, doubtful_W, believed_W)
        ran_out_W = report.ran_out
        held_W = np.maximum(SHRINK * plan.sizes[place[ran_out_W]], 1.0)
        memory = self._clients.column("memory")
        memory[rows[ran_out_W]] = np.minimum(memory[rows[ran_out_W]], held_W)

    def _disbelieve(self, report: RoundReport, rows: Rows, doubtful_W: Mask, believed_W: Mask) -> None:
        disbelieved = self._clients.column("disbelieved")
        disbelieved[rows[doubtful_W]] += 1
        disbelieved[rows[believed_W]] = 0
        for i in np.flatnonzero(doubtful_W)[: why.SHOWN]:
            logger.warning(
                "round %d: %s reported %.3g samples/s, which cannot be; it is forecast without",
                self.rounds,
                report.names[i],
                report.speed[i],
            )

    def _count(self, plan: RoundPlan, report: RoundReport, rows: Rows, place: Rows) -> None:
        """Keep the books: who was asked, replied, was silent or left out, and whose data were used."""
        column = self._clients.column
        column("planned")[rows] += 1
        column("left_out")[rows] = np.where(plan.asked, 0, column("left_out")[rows] + 1)
        replied_W = np.zeros(len(rows), dtype=np.bool_)
        replied_W[place] = True
        column("seen")[rows[replied_W]] = self.rounds
        silent_W = plan.asked & ~replied_W
        column("silent")[rows] = np.where(silent_W, column("silent")[rows] + 1, 0)
        if report.waited > 0:
            self._slow_down(plan, report.waited, rows, silent_W)
        used = rows[place[report.used]]
        column("replied")[used] += 1
        samples_W = report.processed[report.used]
        column("samples")[used] += np.where(np.isfinite(samples_W) & (samples_W > 0), samples_W, 0.0)
        if len(used):
            data_W = _filled(self._clients.taken("data", used))
            column("weight")[used] += data_W / max(data_W.sum(), 1e-300)

    def _slow_down(self, plan: RoundPlan, waited: float, rows: Rows, silent_W: Mask) -> None:
        """Take those that were silent for the whole wait to be at most as fast as that shows."""
        left_W = np.maximum(waited - plan.comm_seconds, 0.01 * waited)
        most_W = plan.sizes * plan.local_steps / left_W
        self._speed.cap(rows[silent_W], most_W[silent_W])


def _part(state: Mapping[str, NDArray[Any]], part: str) -> dict[str, NDArray[Any]]:
    return {name[len(part) + 1 :]: value for name, value in state.items() if name.startswith(f"{part}/")}


def _filled(data_W: Array) -> Array:
    """Return amounts of data in which an unknown one is the mean of the known, or 1 if none is known."""
    known_W = np.isfinite(data_W)
    return np.where(known_W, data_W, data_W[known_W].mean() if known_W.any() else 1.0)


def _amounts(name: str, given: ArrayLike | None, count: int) -> Array | None:
    if given is None:
        return None
    amounts_W = np.asarray(given, dtype=np.float64)
    if amounts_W.shape != (count,) or not (amounts_W >= 0).all():
        raise ValueError(
            f"{name} must have one number for each of the {count} clients, not negative, got {amounts_W.tolist()!r:.80}"
        )
    return amounts_W


def _at_least_one(name: str, value: int, thing: str) -> int:
    if value < 1:
        raise ValueError(f"{name} must be at least 1 {thing}, got {value}")
    return value
