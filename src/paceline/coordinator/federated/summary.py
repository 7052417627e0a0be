"""A planned round in a sentence. Axis: W clients of one round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline import _wording
from paceline._arrays import Array, Sizes
from paceline.coordinator.federated.round_reasons import LAST, ForecastSource, Reason

WORTH_NAMING = 1.2
"""A client expected this many times as late as the median is named in the summary of the round."""


def summary_of(names: Sequence[str], size_W: Sizes, seconds_W: Array, source_W: Sizes, reason_W: Sizes) -> str:
    """Return a sentence about a round: clients asked, their samples, the time of replies, and the slowest client."""
    asked_W = size_W > 0
    count = int(asked_W.sum())
    if not count:
        return "Nobody is asked: nobody could reply by the deadline, or has data or memory for a sample."
    who = f"{_wording.count(count, 'client')} asked"
    if count < len(size_W):
        who += f", {len(size_W) - count} left out"
    if np.any(source_W == ForecastSource.NOTHING):
        return f"{who}: equal batches, as nobody has reported yet."
    unseen = int(np.isin(source_W[asked_W], (ForecastSource.DEVICE, ForecastSource.FLEET)).sum())
    cold = f"; {unseen} of them never seen" if unseen else ""
    end, usual = float(seconds_W.max()), float(np.median(seconds_W[asked_W]))
    last = int(np.argmax(seconds_W))
    late = f"; the last is {names[last]}{LAST.get(Reason(reason_W[last]), '')}" if end > WORTH_NAMING * usual else ""
    return (
        f"{who}{cold}, with {size_W[asked_W].min()} to {size_W.max()} samples a step: all replies are expected after "
        f"{_wording.duration(end)}, the median after {_wording.duration(usual)}{late}."
    )
