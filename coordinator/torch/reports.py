"""What the ranks report of an iteration, as rows of numbers, and what the balancer learns from them.

Axes: W workers, D drivers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.predictors import Report

Array = NDArray[np.float64]
Sizes = NDArray[np.int64]

COLUMNS = ("samples", "micro_batches", "seconds", "comm_seconds", "out_of_memory", "checksum")
"""What a report holds; the drivers follow."""

LEAST = 0.5
"""A batch smaller than this share of a full one, at an epoch's end, says too little about full ones to learn from."""


class Learnt(NamedTuple):
    """What all ranks reported of an iteration, in the order of the plan's workers, and whether they had agreed."""

    columns: dict[str, Array]
    order: Sizes
    agreed: bool


def report_of(columns: Mapping[str, Array], drivers_WD: Array | None, global_batch: int) -> Report:
    """Return what the balancer learns from: one micro-batch, the mean of those accumulated.

    >>> numbers = {"samples": [64, 32], "micro_batches": [2, 2], "seconds": [0.5, 0.5], "comm_seconds": [0, 0]}
    >>> columns = {name: np.array(values, dtype=float) for name, values in numbers.items()}
    >>> report = report_of({**columns, "out_of_memory": np.zeros(2)}, None, global_batch=48)
    >>> report.samples, report.seconds
    (array([32., 16.]), array([0.25, 0.25]))
    """
    parts_W = columns["micro_batches"]
    samples_W, seconds_W = columns["samples"] / parts_W, columns["seconds"] / parts_W
    if np.nansum(samples_W) < LEAST * global_batch:
        seconds_W = np.full_like(seconds_W, np.nan)
    return Report(samples_W, seconds_W, columns["comm_seconds"] / parts_W, drivers_WD, columns["out_of_memory"] > 0)
