"""The plan of one round: which client computes with which batch, until when, and why. Axis: W clients of one round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paceline._arrays import Array, Mask, Sizes
from paceline._wording import said
from paceline.coordinator.balanced.plan import Plan
from paceline.coordinator.federated.round_reasons import Reason, reason_of
from paceline.predictors import Curves, Forecast
from paceline.solver import evaluate


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundPlan:
    """The batch sizes of a round to come, with the forecasts behind them.

    Parameters
    ----------
    clients
        Those chosen for the round, in the order of every array.
    sizes
        Samples of each client in each local step, ``[W]`` int64; 0 for one that is not asked.
    local_steps
        Local steps of every client: the same for all, as is the learning rate.
    speed
        Forecast of each client's computing, ``[W]``, in samples/s.
    spread
        Relative standard deviation of that forecast's error, ``[W]``; infinite where nothing is known.
    comm_seconds
        Forecast of the time to fetch the model and send the update, ``[W]``, in seconds.
    source
        Basis of the forecast of the speed, ``[W]``, as `ForecastSource`.
    seconds
        When each is expected to have replied, ``[W]``, in seconds after the round began; 0 if it is not asked.
    caution
        How many times as slow as forecast each was taken to be, because its speed is uncertain, ``[W]``.
    upper
        The most samples a step that its data, its memory, ``largest`` and the deadline allow, ``[W]``.
    reasons
        What decided each size, ``[W]``, as `Reason`.
    silent, rejected
        For how many rounds in a row each did not reply, or reported a speed that cannot be, ``[W]``.
    is_reduced
        Whether all batches are less than the mean one, as nobody has replied so far.
    round_index
        How many rounds had been reported when it was made.
    summary
        The whole round in a sentence.
    """

    clients: tuple[str, ...]
    sizes: Sizes
    local_steps: int
    speed: Array
    spread: Array
    comm_seconds: Array
    source: Sizes
    seconds: Array
    caution: Array
    upper: Array
    reasons: Sizes
    silent: Sizes
    rejected: Sizes
    deadline: float | None
    is_reduced: bool
    round_index: int
    summary: str

    @cached_property
    def asked(self) -> Mask:
        """Mask of the clients that are asked to compute, ``[W]``."""
        asked: Mask = self.sizes > 0
        return asked

    @property
    def makespan(self) -> float:
        """Seconds until the last reply is expected; 0 if nobody is asked."""
        return float(self.seconds.max(initial=0.0))

    @cached_property
    def place(self) -> dict[str, int]:
        """Index of each client in the arrays."""
        return {client: i for i, client in enumerate(self.clients)}

    def why(self, client: object) -> str:
        """Return why a client computes with its batch, in a sentence.

        Raises
        ------
        ValueError
            If it was not chosen for this round.
        """
        i = self.place.get(str(client))
        if i is None:
            raise ValueError(f"client {str(client)!r} was not chosen for this round of {len(self.clients)}")
        asked = self.sizes[self.asked]
        return reason_of(
            self.clients[i],
            Reason(self.reasons[i]),
            size=int(self.sizes[i]),
            mean=float(asked.mean()) if len(asked) else float("nan"),
            local_steps=self.local_steps,
            speed=float(self.speed[i]),
            source=int(self.source[i]),
            comm=float(self.comm_seconds[i]),
            seconds=float(self.seconds[i]),
            deadline=self.deadline,
            silent=int(self.silent[i]),
            rejected=int(self.rejected[i]),
            is_reduced=self.is_reduced,
            caution=float(self.caution[i]),
        )

    def as_plan(self) -> Plan:
        """Return the part that is asked as an iteration's plan, for metrics: its sizes are those of all local steps.

        Raises
        ------
        ValueError
            If nobody is asked.
        """
        if not self.asked.any():
            raise ValueError(f"nobody is asked in this round: {self.summary}")
        i = np.flatnonzero(self.asked)
        flat = np.zeros(len(i))
        curves = Curves(flat, 1.0 / self.speed[i], self.comm_seconds[i], np.full(len(i), np.inf))
        forecast = Forecast(speed=self.speed[i], spread=self.spread[i], batch_time=curves)
        workers = tuple(self.clients[j] for j in i)
        split = evaluate(curves, self.sizes[i] * self.local_steps)
        return Plan(workers, split, forecast, 0.0, True, ((said, (self.summary,)),), self.round_index)
