"""Doubts about a forward pass: sentences for gradients whose weight may be wrong."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.torch.weighting.batch import Turn
from paceline.torch.weighting.handed import Handed

Doubt = tuple[str, str]
"""A subject, and a sentence about it."""

DISORDERED = (
    "A batch is computed after one that was fetched later. The gradients are those of equal batches where all ranks "
    "compute them in the same order, and nowhere else."
)

FOREIGN = (
    "The model was given {rows} rows in training, which the balanced loader did not hand out. Their gradients are "
    "weighted by the number of rows on each rank: right for the mean over all rows where steps on them come beside "
    "those on the loader's batches. A step that has them in place of a batch, or mixed with one, is so only once the "
    'ranks have exchanged their next reports. With other losses use attach(..., loss="scaled") and balance.scale().'
)

UNSEEN = (
    "The model was given {rows} rows in training, in which no batch of the balanced loader can be seen. Losses are "
    "weighted as if batches were computed in the order in which they were fetched."
)

GUESSED = (
    "Several batches are in use at once (fetched ahead, computed again or skipped), and the data that the model is "
    "given does not tell which it is, as copies and what is computed from a batch do not. It is taken for the {which} "
    "one: gradients of another have a wrong weight. Fetch the next batch after the last forward pass over this one, or "
    "give the model what the loader handed out."
)

BESIDE_A_BATCH = (
    "The model was given {rows} rows beside a batch, which look like samples, and which the loader did not hand out. "
    "Their gradients count by this rank's share of the batch. If the loss has terms of them, use "
    'attach(..., loss="scaled"), and balance.scale() for the terms of the balanced batch alone.'
)


def guessed(handed: Handed) -> Doubt:
    """Return the doubt of a pass that may have been given another batch."""
    return "order", GUESSED.format(which="next" if handed.fresh else "last")


def beside(handed: Handed) -> Doubt:
    """Return the doubt of a pass that was given rows beside its batch."""
    return "beside", BESIDE_A_BATCH.format(rows=handed.beside)


def doubts(handed: Handed, turn: Turn, rows: Sequence[int], *, scaled: bool) -> list[Doubt]:
    """Return what to warn of once gradients of the newest pass are computed.

    Parameters
    ----------
    handed
        What is known of the pass.
    turn
        Its batch.
    rows
        Lengths of its inputs.
    scaled
        Whether the loop scales its loss, which may have terms of other data.
    """
    found, number = [], rows[0] if rows else "unknown"
    if handed.disordered:
        found.append(("disordered", DISORDERED))
    if turn.known and handed.guessed:
        found.append(guessed(handed))
    if not turn.known and not scaled:
        found.append(("rows", FOREIGN.format(rows=number)))
    elif not turn.known and handed.fresh:
        found.append(("unseen", UNSEEN.format(rows=number)))
    if handed.beside:
        found.append(beside(handed))
    return found
