"""A federated round: its plan, the clients' reports, and the reasons for each client's batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array, Mask, Sizes
from paceline._text import count, duration, percent
from paceline.coordinator.plan import Plan
from paceline.predictors import Curves, Forecast
from paceline.solver import evaluate


class RoundReport:
    """The replies of one round. A client that was asked and is not listed did not reply; an error is a reply with NaN.

    Parameters
    ----------
    clients
        Ids of the clients that replied, in any order, none twice; a ValueError names an array of another length.
    samples
        Samples each processed in all its local steps, ``[W]``.
    seconds
        Own compute time for them, ``[W]``, in seconds; NaN where it reported none.
    comm_seconds
        Time to fetch the model and send the update, ``[W]``, in seconds; NaN where it is not known. ``None`` if
        nobody's is.
    elapsed
        Time from asking to having the reply, by the server's clock, ``[W]``, in seconds. Where ``comm_seconds`` are
        missing they are the rest of it.
    out_of_memory
        Which clients ran out of memory, ``[W]`` of bool.
    failed
        Which replies are errors and enter no aggregate, ``[W]`` of bool.
    waited
        For how long the server waited for those that did not reply, in seconds; NaN if it is not known.

    Examples
    --------
    >>> report = RoundReport(clients=["a", "b"], samples=[320, 320], seconds=[4.0, 8.0], elapsed=[5.0, 10.0])
    >>> report.speed, report.communication
    (array([80., 40.]), array([1., 2.]))
    """

    def __init__(
        self,
        *,
        clients: Sequence[object],
        samples: ArrayLike,
        seconds: ArrayLike,
        comm_seconds: ArrayLike | None = None,
        elapsed: ArrayLike | None = None,
        out_of_memory: ArrayLike | None = None,
        failed: ArrayLike | None = None,
        waited: float = float("nan"),
    ) -> None:
        self.clients, self.waited = tuple(map(str, clients)), waited
        if len(set(self.clients)) != len(self.clients):
            raise ValueError("clients must not repeat an id: sum up or drop the second reply of a client")
        self.samples, self.seconds = self._column("samples", samples), self._column("seconds", seconds)
        self.comm_seconds, self.elapsed = self._column("comm_seconds", comm_seconds), self._column("elapsed", elapsed)
        self.out_of_memory = self._column("out_of_memory", out_of_memory) == 1
        self.failed = self._column("failed", failed) == 1

    @property
    def used(self) -> Mask:
        """Mask of the clients whose update can enter the aggregate, ``[W]``: neither an error nor out of memory."""
        return np.asarray(~self.failed & ~self.out_of_memory)

    @property
    def speed(self) -> Array:
        """Samples per second of computing, ``[W]``; NaN where the report makes none, or memory ran out."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            speed_W = self.samples / self.seconds
        usable_W = np.isfinite(speed_W) & (speed_W > 0) & (self.samples > 0) & self.used
        return np.where(usable_W, speed_W, np.nan)

    @property
    def communication(self) -> Array:
        """Time to communicate, ``[W]``, in seconds; NaN where the report makes none."""
        with np.errstate(invalid="ignore"):
            rest_W = np.maximum(self.elapsed - self.seconds, 0.0)
        comm_W = np.where(np.isnan(self.comm_seconds), rest_W, self.comm_seconds)
        return np.where(np.isfinite(comm_W) & (comm_W >= 0), comm_W, np.nan)

    def _column(self, name: str, values: ArrayLike | None) -> Array:
        if values is None:
            return np.full(len(self.clients), np.nan)
        if np.shape(values) != (len(self.clients),):
            raise ValueError(
                f"{name} must have one entry for each of the {len(self.clients)} clients that replied, got the "
                f"shape {np.shape(values)}"
            )
        return np.asarray(values, dtype=np.float64)


class ForecastSource(IntEnum):
    """Basis of a client's forecast."""

    CLIENT = 0
    DEVICE = 1
    FLEET = 2
    NOTHING = 3
    SILENCE = 4


class Reason(IntEnum):
    """Reason for the batch of a client."""

    BALANCED = 0
    MIN_BATCH = 1
    LARGEST = 2
    DATA = 3
    MEMORY = 4
    DEADLINE = 5
    LEFT_OUT = 6
    TRIED_AGAIN = 7
    NO_ROOM = 8
    TESTED = 9
    FLAT = 10


LIMIT_PHRASES = {
    Reason.MIN_BATCH: "; that is the smallest batch there is, and it ends after the others",
    Reason.LARGEST: "; that is the largest batch that any client gets",
    Reason.DATA: "; that is all its data",
    Reason.MEMORY: "; its memory holds no more",
    Reason.DEADLINE: "; more would miss the deadline",
}

LAST_CLIENT_PHRASES = {
    Reason.MIN_BATCH: ", even with the smallest batch",
    Reason.TRIED_AGAIN: ", which is tried again with the smallest batch",
}
"""Text added to the name of the client for which a round waits."""

SOURCE_PHRASES = {
    ForecastSource.CLIENT: "by its own reports",
    ForecastSource.DEVICE: "as others of its device type, for it never reported",
    ForecastSource.FLEET: "as the clients' mean, for neither it nor its device type ever reported",
    ForecastSource.NOTHING: "",
    ForecastSource.SILENCE: "at most, for it did not reply in the time that was waited",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundPlan:
    """The batch sizes of a round to come, with the forecasts behind them. Arrays are in the order of ``clients``."""

    clients: tuple[str, ...]
    """Those chosen for the round."""
    sizes: Sizes
    """Samples of each client in each local step, ``[W]`` int64; 0 for one that is not asked."""
    local_steps: int
    """Local steps of every client."""
    speed: Array
    """Forecast of each client's computing, ``[W]``, in samples/s."""
    spread: Array
    """Relative standard deviation of that forecast's error, ``[W]``; infinite where nothing is known."""
    comm_seconds: Array
    """Forecast of the time to fetch the model and send the update, ``[W]``, in seconds."""
    source: Sizes
    """Basis of the forecast of the speed, ``[W]``, as `ForecastSource`."""
    seconds: Array
    """When each is expected to have replied, ``[W]``, in seconds after the round began; 0 if it is not asked."""
    safety_factor: Array
    """How many times as slow as forecast each was taken to be, because its speed is uncertain, ``[W]``."""
    max_sizes: Array
    """The most samples a step that data, memory, ``largest_multiple`` and the deadline allow, ``[W]``."""
    reasons: Sizes
    """What decided each size, ``[W]``, as `Reason`."""
    rounds_unanswered: Sizes
    """For how many rounds in a row each did not reply, ``[W]``."""
    rounds_rejected: Sizes
    """For how many rounds in a row each reported a speed that cannot be, ``[W]``."""
    deadline: float | None
    is_reduced: bool
    """Whether all batches are less than the mean one, as no client has replied so far."""
    round_index: int
    """How many rounds had been reported when it was made."""

    @cached_property
    def participating(self) -> Mask:
        """Mask of the clients that are asked to compute, ``[W]``."""
        return np.asarray(self.sizes > 0)

    @property
    def makespan(self) -> float:
        """Seconds until the last reply is expected; 0 if no client is asked."""
        return float(self.seconds.max(initial=0.0))

    @cached_property
    def index_by_client(self) -> dict[str, int]:
        """Index of each client in the arrays."""
        return {client: i for i, client in enumerate(self.clients)}

    @cached_property
    def summary(self) -> str:
        """The whole round in a sentence: clients asked, their samples, the time of replies, and the slowest client."""
        planned_W = self.participating
        if not planned_W.any():
            return "No client is asked: none could reply by the deadline, or has data or memory for a sample."
        who = f"{count(int(planned_W.sum()), 'client')} asked"
        if not planned_W.all():
            who += f", {int((~planned_W).sum())} left out"
        if np.any(self.source == ForecastSource.NOTHING):
            return f"{who}: equal batches, as no client has reported yet."
        unseen = int(np.isin(self.source[planned_W], (ForecastSource.DEVICE, ForecastSource.FLEET)).sum())
        cold = f"; {unseen} of them never seen" if unseen else ""
        typical, last, last_text = float(np.median(self.seconds[planned_W])), int(np.argmax(self.seconds)), ""
        if self.makespan > 1.2 * typical:  # only one that is late by so much is named
            last_text = f"; the last is {self.clients[last]}{LAST_CLIENT_PHRASES.get(Reason(self.reasons[last]), '')}"
        return (
            f"{who}{cold}, with {self.sizes[planned_W].min()} to {self.sizes.max()} samples a step: all replies are "
            f"expected after {duration(self.makespan)}, the median after {duration(typical)}{last_text}."
        )

    def why(self, client: object) -> str:
        """Return why a client computes with its batch, in a sentence; raise a ValueError if it was not chosen."""
        i = self.index_by_client.get(str(client))
        if i is None:
            raise ValueError(
                f"client {str(client)!r} is not in this round's plan of {len(self.clients)} clients: see plan.clients"
            )
        reason, source, speed = Reason(self.reasons[i]), ForecastSource(self.source[i]), float(self.speed[i])
        name, samples = self.clients[i], count(int(self.sizes[i]), "sample")
        time, comm, steps = duration(self.seconds[i]), duration(self.comm_seconds[i]), self.local_steps
        limit = "" if self.deadline is None else duration(self.deadline)
        sentences = {
            Reason.NO_ROOM: f"{name} is not asked: its data or its memory holds no sample.",
            Reason.LEFT_OUT: (
                f"{name} is not asked: even with the smallest batch it would miss the deadline of {limit}, at "
                f"{speed:.3g} samples/s {SOURCE_PHRASES[source]} and {comm} to communicate."
            ),
            Reason.TRIED_AGAIN: (
                f"{name} gets the smallest batch, {samples}, though it may miss the deadline of {limit}: left out for "
                "long, its data would be starved and its speed never measured again."
            ),
            Reason.TESTED: (
                f"{name} gets {samples} a step, to see whether its time follows its batch: recently it did not, as if "
                "it trained by epochs."
            ),
            Reason.FLAT: (
                f"{name} gets {samples} a step and is not balanced: its time, {time}, does not follow its batch, as if "
                f"it trained by epochs instead of {count(steps, 'local step')}."
            ),
        }
        if reason in sentences:
            sentence = sentences[reason]
        elif source == ForecastSource.NOTHING:
            halved = "; as no client has replied so far, it is less than the mean batch" if self.is_reduced else ""
            sentence = f"{name} gets {samples} a step: no client has reported yet{halved}."
        else:
            mean = percent(self.sizes[i] / self.sizes[self.participating].mean())
            # Named where the client was taken to be slower than its forecast by a tenth or more.
            spared = self.safety_factor[i] > 1.1 and reason == Reason.BALANCED
            sentence = (
                f"{name} gets {samples} a step ({mean} of the mean): {speed:.3g} samples/s {SOURCE_PHRASES[source]} "
                f"and {comm} to communicate make {time} for {count(steps, 'local step')}{LIMIT_PHRASES.get(reason, '')}"
                f"{'; it gets a smaller batch, as its speed may differ' if spared else ''}."
            )
        if self.rounds_unanswered[i]:
            sentence += f" It has not replied for {count(int(self.rounds_unanswered[i]), 'round')}."
        if self.rounds_rejected[i]:
            rounds = count(int(self.rounds_rejected[i]), "round")
            sentence += f" It reported for {rounds} a speed that cannot be, which is not used."
        return sentence

    def as_plan(self) -> Plan:
        """Return the part that is asked as an iteration's plan, for metrics: its sizes are those of all local steps.

        Raises a ValueError if no client is asked.
        """
        if not self.participating.any():
            raise ValueError(f"no client is asked in this round: {self.summary}")
        i = np.flatnonzero(self.participating)
        flat = np.zeros(len(i))
        curves = Curves(flat, 1.0 / self.speed[i], self.comm_seconds[i], np.full(len(i), np.inf))
        forecast = Forecast(speed=self.speed[i], spread=self.spread[i], batch_time=curves)
        return Plan(
            **vars(evaluate(curves, self.sizes[i] * self.local_steps)),
            workers=tuple(self.clients[j] for j in i),
            forecast=forecast,
            gain=0.0,
            acted=True,
            reasons=(self.summary.removesuffix("."),),
            iteration=self.round_index,
        )
