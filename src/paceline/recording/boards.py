"""Sinks for existing tools: Python's log and TensorBoard."""

from __future__ import annotations

import atexit
import logging
import math
from pathlib import Path
from typing import Any

from paceline._printable import encodable, printable
from paceline._require import require
from paceline._wording import count, duration, percent
from paceline.recording.iteration import Iteration
from paceline.recording.round import Round
from paceline.recording.sink import Sink, of_workers, of_workers_in_round, summary, summary_of_round


class Logging(Sink):
    """Writes a line to the log ``paceline.metrics`` for each change of sizes, and one every ``every`` iterations.

    Parameters
    ----------
    every
        Iterations between two lines while nothing changes.
    """

    def __init__(self, every: int = 100) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1 iteration, got {every}")
        self.every = every
        self._next = self._disagreed = 0

    def write(self, iteration: Iteration) -> None:
        """Log the iteration: a warning if the workers had used different plans, or drift begins."""
        self._disagreed += not iteration.agreed
        # A disagreement that lasts is told ever more rarely: the first time, the second, the fourth, ...
        if not iteration.agreed and self._disagreed.bit_count() == 1:
            logger.warning(
                "iteration %d: the workers had different plans; the first's is used (so far %s)",
                iteration.index,
                count(self._disagreed, "time"),
            )
        if iteration.plan.drift_began:
            logger.warning("iteration %d: %s", iteration.index, printable(iteration.plan.why))
        if iteration.plan.acted or iteration.index >= self._next:  # >= because numbers of short iterations may skip
            self._next = (iteration.index // self.every + 1) * self.every
            numbers = summary(iteration)
            logger.info(
                "iteration %d: %s, waiting %s, %s less than with equal batches; sizes %s. %s",
                iteration.index,
                duration(numbers["seconds"]),
                percent(numbers["waiting_share"]),
                percent(numbers["gain"]),
                iteration.sizes.tolist(),
                printable(iteration.plan.why),  # a log is often read on a terminal
            )

    def write_round(self, record: Round) -> None:
        """Log the round, if something happened in it, or every ``every`` rounds."""
        if record.acted or record.index >= self._next:
            self._next = (record.index // self.every + 1) * self.every
            logger.info(
                "round %d: version %d, %s applied, %s wasted, stragglers %s; sizes %s. %s",
                record.index,
                record.version,
                count(record.applied, "sample"),
                percent(record.wasted_share),
                list(map(printable, record.stragglers)),
                record.sizes.tolist(),
                printable(record.why),
            )


class TensorBoard(Sink):
    """Writes scalars of each iteration for TensorBoard: the fleet's under ``paceline/``, each worker's beside them.

    Parameters
    ----------
    folder
        The folder in which TensorBoard looks for runs.

    Raises
    ------
    ImportError
        If tensorboard is missing, when the sink is made.
    """

    def __init__(self, folder: str | Path) -> None:
        require("torch", needed_by="TensorBoard", extra="torch")
        require("tensorboard", needed_by="TensorBoard", extra="metrics")
        self.folder = Path(folder)
        self._writer: Any = None

    def write(self, iteration: Iteration) -> None:
        """Write the scalars, and the reason as text where sizes changed or drift begins."""
        self._write(iteration.index, iteration.time, summary(iteration), iteration.workers, of_workers(iteration))
        if iteration.plan.acted or iteration.plan.drift_began:
            self._writer.add_text(
                "paceline/why", encodable(iteration.plan.why), iteration.index, walltime=iteration.time
            )

    def write_round(self, record: Round) -> None:
        """Write the scalars, and the reason as text where something happened."""
        numbers, rows = summary_of_round(record), of_workers_in_round(record)
        self._write(record.index, record.time, numbers, record.workers, rows)
        if record.acted:
            self._writer.add_text("paceline/why", encodable(record.why), record.index, walltime=record.time)

    def close(self) -> None:
        """Write scalars that are still in memory."""
        if self._writer is not None:
            self._writer.close()

    def _write(
        self, step: int, when: float, numbers: dict[str, float], workers: tuple[str, ...], rows: dict[str, list[float]]
    ) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self.folder)
            atexit.register(self.close)  # TensorBoard's writer flushes only every two minutes
        for name, value in numbers.items():
            if not math.isnan(value):  # a board would draw it as a point of its own
                self._writer.add_scalar(f"paceline/{name}", value, step, walltime=when)
        for name, values_W in rows.items():
            for worker, value in zip(workers, values_W, strict=True):
                self._writer.add_scalar(f"paceline_{name}/{encodable(worker)}", value, step, walltime=when)


logger = logging.getLogger("paceline.metrics")
