"""The record of an iteration that is over, made of the reports of all ranks. Axis: W workers."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from paceline._arrays import Sizes
from paceline.coordinator.plan import Plan
from paceline.coordinator.work import WorkModel
from paceline.recording.records import Iteration
from paceline.torch.reports import RankReports


def record(
    rows: RankReports, used: Plan, batch_W: Sizes, accumulate: int, work: WorkModel | None, **extra: Any
) -> Iteration:
    """Return the record of an iteration.

    Parameters
    ----------
    rows
        The reports of all ranks.
    used
        The plan in use.
    batch_W
        Samples of each worker in the batch that was computed last, for those whose times are not known, ``[W]``.
    accumulate
        Such batches in a step.
    work
        What samples cost; None where they have no costs.
    **extra
        What this rank knows by itself: other fields of :class:`Iteration`.
    """
    steps_W, known_W = rows["steps"], np.isfinite(rows["samples"])  # a device may not have finished yet
    sizes_W = np.where(known_W, rows["samples"] / steps_W, batch_W * accumulate)
    parts_W = np.where(known_W, rows["micro_batches"] / steps_W, accumulate)
    work_W = sizes_W if work is None else work.work(rows.features_WF) / steps_W
    return Iteration(
        time=time.time(),
        sizes=np.rint(sizes_W).astype(np.int64),
        seconds=rows["seconds"] / steps_W,
        forecast_seconds=used.forecast.curves.busy_seconds(work_W / parts_W) * parts_W,
        comm_seconds=rows["comm_seconds"],
        agreed=rows.together,
        work=None if work is None else work_W,
        **extra,
    )
