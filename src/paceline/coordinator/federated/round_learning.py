"""Learns from the replies of a federated round: speeds, communication, silence and memory.

Axes: W clients that replied, N rows for all known clients.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from paceline._arrays import Mask
from paceline._wording import SHOWN, listed
from paceline.coordinator.federated.client_table import BRIEFEST_COMM, Known
from paceline.coordinator.federated.clients import Rows
from paceline.coordinator.federated.round_plan import RoundPlan
from paceline.coordinator.federated.round_report import RoundReport
from paceline.coordinator.federated.validation import plausible_comm, plausible_speeds

logger = logging.getLogger("paceline.federated")

NOT_FOLLOWING = (
    "the time of %s does not follow the batch, which stays at the mean: let clients train the local steps and the "
    "batch that they are asked for, and not epochs"
)
FOLLOWING = "the time of %s follows the batch by now, which is balanced"

SHRINK = 0.8
"""A client that ran out of memory gets at most this share of the batch that it ran out with."""


@dataclass(frozen=True)
class RoundLearning:
    """Settings that say how replies are read: see `FederatedBalancer`."""

    batch: int
    plausible: float

    def learn(self, known: Known, plan: RoundPlan, report: RoundReport, rows: Rows, place: Rows) -> None:
        """Learn from the clients that replied; ``rows`` are those of the whole plan, ``place`` of the report in it."""
        rows = rows[place]
        accepted_W = plausible_speeds(report, known.usual("speed"), self.plausible)
        timed_W = plausible_comm(report, accepted_W, known.usual("comm"), self.plausible)
        samples_W, seconds_W = report.processed[accepted_W], report.compute_seconds[accepted_W]
        # A predictor of curves is to learn them over the samples of a step.
        known.observe("speed", rows[accepted_W], samples_W / plan.local_steps, seconds_W / plan.local_steps)
        comm_W = np.maximum(report.communication[timed_W], BRIEFEST_COMM)
        known.observe("comm", rows[timed_W], np.ones(len(comm_W)), comm_W)
        size_W = plan.sizes[place[accepted_W]].astype(np.float64)
        mean_size = float(plan.sizes[plan.asked].mean()) if plan.asked.any() else float(self.batch)
        found, cleared = known.following.learn(rows[accepted_W], samples_W, seconds_W, size_W, mean_size)
        _warn_of(found, NOT_FOLLOWING, rows, report)
        _warn_of(cleared, FOLLOWING, rows, report)
        _count_rejected(known, plan, report, rows, accepted_W)
        _limit_memory(known, plan, report, rows, place)

    def slow_down(self, known: Known, plan: RoundPlan, waited: float, rows: Rows, silent_W: Mask) -> None:
        """Cap the speed of clients that were silent for the whole wait at the most that this silence allows."""
        left_W = np.maximum(waited - plan.comm_seconds, 0.01 * waited)
        most_W = plan.sizes * plan.local_steps / left_W
        ceiling, silent = known.clients.column("ceiling"), rows[silent_W]
        ceiling[silent] = np.minimum(ceiling[silent], most_W[silent_W])


def _warn_of(found: Rows, sentence: str, rows: Rows, report: RoundReport) -> None:
    names = [report.names[i] for i in np.flatnonzero(np.isin(rows, found))]
    if names:
        logger.warning(sentence, listed(names[:SHOWN], max(len(names) - SHOWN, 0)))


def _count_rejected(known: Known, plan: RoundPlan, report: RoundReport, rows: Rows, accepted_W: Mask) -> None:
    doubtful_W = np.isfinite(report.speed) & ~accepted_W
    rejected = known.clients.column("rejected")
    rejected[rows[doubtful_W]] += 1
    rejected[rows[accepted_W]] = 0
    for i in np.flatnonzero(doubtful_W)[:SHOWN]:
        logger.warning(
            "round %d: %s reported %.3g samples/s, which cannot be; it is forecast without",
            plan.round_index,
            report.names[i],
            report.speed[i],
        )


def _limit_memory(known: Known, plan: RoundPlan, report: RoundReport, rows: Rows, place: Rows) -> None:
    """Hold clients that ran out of memory below the batch that they ran out with."""
    ran_out_W = report.ran_out
    held_W = np.maximum(SHRINK * plan.sizes[place[ran_out_W]], 1.0)
    fits = known.clients.column("fits")
    fits[rows[ran_out_W]] = np.minimum(fits[rows[ran_out_W]], held_W)
