"""What the ranks report of their iterations, as rows of numbers, and what the balancer learns from them.

Axes: W workers, F numbers in a row, D drivers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from paceline.predictors import Report

Array = NDArray[np.float64]

COLUMNS = (
    "samples",
    "micro_batches",
    "steps",
    "seconds",
    "comm_seconds",
    "out_of_memory",
    "checksum",
    "epoch",
    "batches",
    "dealt",
    "plan_seconds",
    "log_norm",
)
"""What a row holds; the drivers follow."""

LEAST = 0.5
"""A batch smaller than this share of a full one, at an epoch's end, says too little about full ones to learn from."""


def columns_of(report_WF: Array) -> dict[str, Array]:
    """Return the columns of all ranks' rows by name, ``[W]`` each."""
    return dict(zip(COLUMNS, report_WF.T, strict=False))


class Tally:
    """Adds up reports until the balancer is to learn from them: nothing that was measured between plans is lost.

    Examples
    --------
    Two exchanges, of one step with two micro-batches each:

    >>> tally = Tally(workers=2)
    >>> row = {"samples": [64, 32], "micro_batches": [2, 2], "comm_seconds": [0, 0], "out_of_memory": [0, 0]}
    >>> for seconds in ([0.5, 0.5], [0.5, 0.7]):
    ...     tally.add({name: np.array(values, dtype=float) for name, values in {**row, "seconds": seconds}.items()})
    >>> report = tally.take(None)
    >>> report.samples, report.seconds
    (array([32., 16.]), array([0.25, 0.3 ]))
    """

    SUMMED = ("samples", "micro_batches", "seconds", "comm_seconds")

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._clear()

    @property
    def holds_any(self) -> bool:
        """Whether anything was added since the last report was taken."""
        return self._count > 0

    def add(self, columns: Mapping[str, Array]) -> None:
        """Add what one exchange brought; a worker without a measure in it adds nothing."""
        known = np.isfinite(columns["samples"]) & np.isfinite(columns["seconds"]) & (columns["seconds"] > 0)
        for name in self.SUMMED:
            self._sums[name] += np.where(known, np.nan_to_num(columns[name]), 0.0)
        self._out_of_memory |= columns["out_of_memory"] > 0
        self._count += 1

    def take(self, drivers_WD: Array | None) -> Report:
        """Return the mean micro-batch since the last report, NaN for workers without one, and begin anew."""
        sums, parts_W = self._sums, self._sums["micro_batches"]
        with np.errstate(invalid="ignore", divide="ignore"):
            means = {name: np.where(parts_W > 0, sums[name] / parts_W, np.nan) for name in self.SUMMED}
        report = Report(
            means["samples"], means["seconds"], means["comm_seconds"], drivers_WD, out_of_memory=self._out_of_memory
        )
        self._clear()
        return report

    def _clear(self) -> None:
        self._sums = {name: np.zeros(self._workers) for name in self.SUMMED}
        self._out_of_memory = np.zeros(self._workers, dtype=bool)
        self._count = 0
