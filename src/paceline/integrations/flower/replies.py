"""Replies of the clients of a Flower round: a report to learn from, and weights to check. Axis: W replies."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline._text import SHOWN, listed
from paceline.coordinator.federated.rounds import RoundPlan, RoundReport
from paceline.integrations.flower.record import RECORD, Measured, measured_in

logger = logging.getLogger("paceline.federated")


@dataclass(frozen=True)
class Reply:
    """One client's reply: whose it is, what it measured, and whether it is an error."""

    client: str
    node: int
    measured: Measured
    failed: bool
    out_of_memory: bool


def replies_to(plan: RoundPlan, messages: Sequence[Any]) -> list[Reply]:
    """Return the first reply of each client that was asked; other replies are logged and left out."""
    found: dict[str, Reply] = {}
    strangers = []
    for message in messages:
        reply = _reply(message)
        place = plan.place.get(reply.client)
        if place is None or not plan.participating[place] or reply.client in found:
            strangers.append(reply.client)
        else:
            found[reply.client] = reply
    if strangers:
        named = listed(strangers[:SHOWN], max(len(strangers) - SHOWN, 0))
        logger.warning(
            "replies of %s are left out of the forecasts: not asked in this round, or replied already", named
        )
    return list(found.values())


def report_of(replies: Sequence[Reply], elapsed: Mapping[int, float] | None, waited: float) -> RoundReport:
    """Return the report of a round; ``elapsed`` maps node ids to the seconds from a message to its reply."""
    return RoundReport(
        clients=[reply.client for reply in replies],
        samples=[reply.measured.samples for reply in replies],
        seconds=[reply.measured.seconds for reply in replies],
        elapsed=None if elapsed is None else [elapsed.get(reply.node, math.nan) for reply in replies],
        failed=[reply.failed for reply in replies],
        out_of_memory=[reply.out_of_memory for reply in replies],
        waited=waited,
    )


def weight_by_data(messages: Sequence[Any], key: str) -> list[str]:
    """Put right the weights of replies that count samples processed instead of samples held; return whose they were.

    A client whose weight is the number of samples of its local steps would count the more, the larger its batch: the
    average would lean towards the data of fast clients. Any other weight is the user's own affair.
    """
    corrected = []
    for message in messages:
        if message.has_error():
            continue
        measured = measured_in(message.content.get(RECORD))
        for record in message.content.metric_records.values():
            weight = record.get(key)
            if weight == measured.samples and measured.data >= 1 and weight != measured.data:
                record[key] = measured.data
                corrected.append(str(message.metadata.src_node_id))
    return corrected


def _reply(message: Any) -> Reply:
    node = message.metadata.src_node_id
    if message.has_error():
        # as torch and others word it; Flower passes on the text of a client's exception
        ran_out = "out of memory" in str(message.error.reason).lower()
        return Reply(str(node), node, Measured(), failed=True, out_of_memory=ran_out)
    return Reply(str(node), node, measured_in(message.content.get(RECORD)), failed=False, out_of_memory=False)
