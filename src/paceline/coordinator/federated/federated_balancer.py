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

from paceline._arrays import Array
from paceline._curves import scale_curves
from paceline._text import MAX_NAMES, join_names
from paceline.coordinator.federated.clients import (
    BatchTimeFits,
    ClientIndices,
    Clients,
    plausible_comm_times,
    plausible_speeds,
)
from paceline.coordinator.federated.rounds import ForecastSource, Reason, RoundPlan, RoundReport
from paceline.coordinator.federated.sizes import RoundInputs, choose_sizes
from paceline.predictors import LocalLevel, Predictor
from paceline.predictors.protocol import require_predictor

logger = logging.getLogger("paceline.federated")


class FederatedBalancer:
    """Sizes the batches of federated clients so that a round's replies come together (LB-BSP, the federated setting).

    All clients take the same number of local steps at the same learning rate; only the batch ``B_i`` differs, so that
    ``local_steps * B_i / v_i + comm_i`` is the same for all. Two copies of a predictor forecast the speed ``v_i`` and
    the time to communicate ``comm_i``. A client that never reported is forecast by those of its device type: it gets
    the smaller a batch, the more they differ.

    Average updates by the clients' amounts of data, never by their batches: a step is a mean over its batch, so an
    update has the same expectation whatever the batch.

    Parameters
    ----------
    batch
        Samples of a client in a local step, in the mean over the clients that are asked.
    local_steps
        Local steps of every client in a round.
    deadline
        Seconds after which a round closes. A client that would miss it with its balanced batch, if it computed slower
        than forecast by one standard deviation, gets less; one that would miss it even with ``min_batch`` is not asked.
        ``None`` is no deadline.
    min_batch
        The smallest batch of a client that is asked; unless given, a quarter of ``batch``: smaller ones cost more
        accuracy than they save time (``benchmarks/federated.md``). A client with less data uses all of it.
    largest_multiple
        The largest batch of any client, in multiples of ``batch``: what a client that lies about its speed can do at
        worst.
    predictor
        Any predictor; it gets no report of a client that is not asked in a round. Unless given, `LocalLevel`, in which
        a report counts more after a gap.
    risk
        How much less a client gets whose speed is uncertain, from 0 to 2: 1 makes the expected time of a round least
        where computing is in proportion to samples and links take no time.
    try_again
        A client that the deadline has left out for this many rounds in a row is asked with the smallest batch,
        so that its data count and its speed is measured again.
    max_speed_ratio
        A reported speed that differs from the mean of all clients by more than this factor is ignored; a slow one is
        accepted if the round trip by the server's clock was as long.

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
    (array([15, 15, 30]), array([8.5, 8.5, 8.9]))
    >>> print(plan.why("tablet"))
    tablet gets 30 samples a step (150% of the mean): 60.6 samples/s by its own reports and 4 s to communicate make
    8.95 s for 10 local steps.
    """

    def __init__(
        self,
        *,
        batch: int,
        local_steps: int,
        deadline: float | None = None,
        min_batch: int | None = None,
        largest_multiple: float = 8.0,
        predictor: Predictor | None = None,
        risk: float = 0.7,
        try_again: int = 10,
        max_speed_ratio: float = 100.0,
    ) -> None:
        self.batch = _require_positive("batch", batch, "sample")
        self.local_steps = _require_positive("local_steps", local_steps, "step")
        self.deadline = deadline
        self.min_batch = max(1, batch // 4) if min_batch is None else min_batch
        self.largest_multiple = largest_multiple
        self.predictor = LocalLevel() if predictor is None else predictor
        self.risk = risk
        self.try_again = _require_positive("try_again", try_again, "round")
        self.max_speed_ratio = max_speed_ratio
        if not 1 <= self.min_batch <= self.batch:
            raise ValueError(f"min_batch must lie between 1 and the batch of {self.batch}, got {self.min_batch}")
        if not 1.0 <= largest_multiple < math.inf:
            raise ValueError(f"largest_multiple must be at least 1 and finite, got {largest_multiple}")
        require_predictor(self.predictor)
        if not 0.0 <= risk <= 2.0:
            raise ValueError(f"risk must lie in [0, 2], got {risk}")
        if not max_speed_ratio > 1.0:
            raise ValueError(f"max_speed_ratio must be above 1, got {max_speed_ratio}")
        if deadline is not None and not 0.0 < deadline < math.inf:
            raise ValueError(f"deadline must be a positive number of seconds or None, got {deadline}")
        self.rounds = 0
        self._unanswered_rounds = 0  # rounds in a row, up to now, to which nobody replied
        self._clients = Clients(self.predictor)

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, client: object) -> bool:
        return str(client) in self._clients

    @property
    def clients(self) -> list[str]:
        """Names of the known clients, in the order in which they joined."""
        return self._clients.names

    def join(
        self,
        clients: Sequence[object],
        *,
        devices: Sequence[str] | None = None,
        data: ArrayLike | None = None,
        memory: ArrayLike | None = None,
    ) -> None:
        """Add clients, or update facts about known ones. A client that was not added joins when it is first asked.

        A ValueError is raised if a client is named twice, or an array does not have one valid entry for each.

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
        """
        names = [str(client) for client in clients]
        facts = {
            "data": _validated_amounts("data", data, len(names)),
            "memory": _validated_amounts("memory", memory, len(names)),
        }
        if devices is not None and len(devices) != len(names):
            raise ValueError(f"devices must have one entry for each of the {len(names)} clients, got {len(devices)}")
        if len(set(names)) != len(names):
            raise ValueError("clients must not repeat an id: list each only once")
        rows = self._clients.join(names)
        for name, values_W in facts.items():
            if values_W is not None:
                self._clients.columns[name][rows] = values_W
        if devices is not None:
            self._clients.columns["device"][rows] = self._clients.device_indices([str(device) for device in devices])

    def leave(self, client: object) -> None:
        """Forget a client and its reports; raise a ValueError if it is not known."""
        name = str(client)
        if name not in self._clients:
            raise ValueError(f"client {name!r} is not known, so it cannot leave")
        self._clients.leave(name)

    def plan(self, clients: Sequence[object]) -> RoundPlan:
        """Return the batches of a round with these clients, known or not. Asking twice gives the same answer."""
        names = tuple(str(client) for client in clients)
        if not names or len(set(names)) != len(names):
            raise ValueError(
                f"clients must hold at least one id and no duplicates, got {len(names)} ids, "
                f"{len(set(names))} of them different"
            )
        rows = self._clients.indices(names)
        device_W = self._clients.column_values("device", rows).astype(np.int64)
        max_speed_W = self._clients.column_values("ceiling", rows)
        speed, source_W = self._clients.forecast_for("speed", rows, device_W, max_speed_W)
        comm, _ = self._clients.forecast_for("comm", rows, device_W)
        comm_W = comm.curves.busy_seconds(np.ones(len(rows)))
        batch_fits = BatchTimeFits(self._clients, self.try_again)
        flat_W = batch_fits.seconds(rows)
        is_flat_W = np.isfinite(flat_W)
        # Of all local steps together; next to nothing a sample where the time does not follow the samples.
        curves = scale_curves(speed.curves, np.where(is_flat_W, 1e-12, float(self.local_steps)))
        inputs = RoundInputs(
            curves=curves,
            # The time of those that do not follow their batch is like one to communicate: it is there whatever they do.
            comm_seconds=comm_W + np.nan_to_num(flat_W),
            log_spread=np.where(np.isfinite(speed.spread), speed.spread, self._clients.typical_spread()),
            data_limit=self._clients.column_values("data", rows),
            memory_limit=np.minimum(
                self._clients.column_values("memory", rows), self._clients.column_values("fits", rows)
            ),
            is_retry_due=self._clients.column_values("left_out", rows) >= self.try_again,
            fixed_size=batch_fits.sizes(rows, self.batch, self.min_batch),
            fixed_reason=np.where(is_flat_W, Reason.FLAT, Reason.TESTED),
        )
        batch, deadline = self.batch, self.deadline
        if np.any(source_W == ForecastSource.NOTHING):
            # Before any report no forecast is in seconds: the deadline is left out. All that is known is whether
            # anybody replied at all: as long as nobody does, the batch is halved.
            batch, deadline = max(self.batch >> self._unanswered_rounds, self.min_batch), None
        size_W, reason_W, upper_W, safety_factor_W = choose_sizes(
            inputs,
            batch=batch,
            min_batch=self.min_batch,
            max_batch=math.floor(self.largest_multiple * self.batch),
            risk=self.risk,
            deadline=deadline,
        )
        busy_W = np.where(is_flat_W, flat_W, curves.busy_seconds(np.maximum(size_W, 1)))
        seconds_W = np.where(size_W > 0, busy_W + comm_W, 0.0)
        return RoundPlan(
            clients=names,
            sizes=size_W,
            local_steps=self.local_steps,
            speed=np.maximum(size_W, 1) * self.local_steps / busy_W,
            spread=speed.spread,
            comm_seconds=comm_W,
            source=source_W,
            seconds=seconds_W,
            safety_factor=safety_factor_W,
            max_sizes=upper_W,
            reasons=reason_W,
            rounds_unanswered=self._clients.column_values("silent", rows).astype(np.int64),
            rounds_rejected=self._clients.column_values("rejected", rows).astype(np.int64),
            deadline=self.deadline,
            is_reduced=batch < self.batch,
            round_index=self.rounds,
        )

    def observe(self, plan: RoundPlan, report: RoundReport) -> None:
        """Learn from the replies of a round; refuse them with a ValueError if a client replied that was not asked.

        A client that was asked and is not in the report did not reply: if the report says how long the server waited,
        it is from now on taken to be at least that slow. A speed that cannot be is not used, logged, and shown by
        `why`.
        """
        place = np.array([plan.index_by_client.get(name, -1) for name in report.clients], dtype=np.intp)
        strangers = [name for name, i in zip(report.clients, place, strict=True) if i < 0 or not plan.participating[i]]
        if strangers:
            raise ValueError(
                f"{join_names(strangers)} replied but were not asked in this round: leave replies of earlier rounds "
                "out of the report"
            )
        rows = self._clients.join(plan.clients)
        columns, replied = self._clients.columns, rows[place]
        self._learn_from_replies(plan, report, replied, place)
        # An answer in time, even without a time of its own, shows that it is not as slow as its silence did.
        columns["ceiling"][replied[report.used]] = np.inf
        columns["left_out"][rows] = np.where(plan.participating, 0, columns["left_out"][rows] + 1)
        silent_W = plan.participating.copy()
        silent_W[place] = False
        columns["silent"][rows] = np.where(silent_W, columns["silent"][rows] + 1, 0)
        if plan.participating.any():
            self._unanswered_rounds = 0 if len(place) else self._unanswered_rounds + 1
        if report.waited > 0:  # whoever was silent for so long computes at most as fast as this silence allows
            left_W = np.maximum(report.waited - plan.comm_seconds, 0.01 * report.waited)
            most_W, silent = plan.sizes * plan.local_steps / left_W, rows[silent_W]
            columns["ceiling"][silent] = np.minimum(columns["ceiling"][silent], most_W[silent_W])
        self.rounds += 1

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything learned, as arrays with a row a client: loading it resumes exactly."""
        counts = {"rounds": np.array(self.rounds), "unanswered": np.array(self._unanswered_rounds)}
        return {**counts, **self._clients.state_dict()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from what ``state_dict`` returned; a ValueError is raised if it is incomplete, and nothing changed."""
        if not {"rounds", "unanswered", "clients/names", "clients/devices"} <= set(state):
            raise ValueError(f"the state must come from state_dict of a FederatedBalancer, got {sorted(state)[:5]}")
        clients = Clients(self.predictor)
        clients.load_state_dict(state)
        self._clients, self.rounds, self._unanswered_rounds = clients, int(state["rounds"]), int(state["unanswered"])

    def _learn_from_replies(
        self, plan: RoundPlan, report: RoundReport, index_W: ClientIndices, plan_index_W: ClientIndices
    ) -> None:
        """Learn from the clients that replied, whose rows these are, among all clients and in the plan."""
        clients, columns = self._clients, self._clients.columns
        accepted_W = plausible_speeds(report, clients.mean_forecast("speed"), self.max_speed_ratio)
        timed_W = plausible_comm_times(report, accepted_W, clients.mean_forecast("comm"), self.max_speed_ratio)
        samples_W, seconds_W = report.samples[accepted_W], report.seconds[accepted_W]
        # A predictor of curves is to learn them over the samples of a step.
        clients.observe("speed", index_W[accepted_W], samples_W / plan.local_steps, seconds_W / plan.local_steps)
        comm_W = np.maximum(report.communication[timed_W], 1e-6)
        clients.observe("comm", index_W[timed_W], np.ones(len(comm_W)), comm_W)
        size_W = plan.sizes[plan_index_W].astype(np.float64)
        mean_size = float(plan.sizes[plan.participating].mean()) if len(index_W) else 1.0
        batch_fits = BatchTimeFits(clients, self.try_again)
        found, cleared = batch_fits.learn(index_W[accepted_W], samples_W, seconds_W, size_W[accepted_W], mean_size)
        if len(found):
            logger.warning(
                "the time of %s does not depend on the batch size, which stays at the mean: let clients train for the "
                "local steps and with the batch size that they are asked for, not for epochs",
                join_names([clients.names[row] for row in found]),
            )
        if len(cleared):
            logger.warning(
                "the time of %s now depends on the batch size, which is balanced from here on",
                join_names([clients.names[row] for row in cleared]),
            )
        doubtful_W = np.isfinite(report.speed) & ~accepted_W
        columns["rejected"][index_W[doubtful_W]] += 1
        columns["rejected"][index_W[accepted_W]] = 0
        for i in np.flatnonzero(doubtful_W)[:MAX_NAMES]:
            message = "round %d: %s reported an implausible %.3g samples/s, which its forecast ignores"
            logger.warning(message, plan.round_index, report.clients[i], report.speed[i])
        # A client that ran out of memory gets at most this share of the batch that it ran out with.
        ran_out = index_W[report.out_of_memory]
        columns["fits"][ran_out] = np.minimum(
            columns["fits"][ran_out], np.maximum(0.8 * size_W[report.out_of_memory], 1.0)
        )


def _validated_amounts(name: str, values: ArrayLike | None, num_clients: int) -> Array | None:
    if values is None:
        return None
    amounts_W = np.asarray(values, dtype=np.float64)
    if amounts_W.shape != (num_clients,) or not (amounts_W >= 0).all():
        raise ValueError(
            f"{name} must have one number of at least 0 for each of the {num_clients} clients, got "
            f"{amounts_W.tolist()!r:.80}"
        )
    return amounts_W


def _require_positive(name: str, value: int, unit: str) -> int:
    if value < 1:
        raise ValueError(f"{name} must be at least 1 {unit}, got {value}")
    return value
