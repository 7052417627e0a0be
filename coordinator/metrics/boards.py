"""Sinks for existing tools: Python's log and TensorBoard."""

from __future__ import annotations

import atexit
import logging
import math
from pathlib import Path
from typing import Any

from paceline._printable import printable
from paceline._require import require
from paceline.coordinator import why
from paceline.coordinator.iteration import Iteration
from paceline.coordinator.metrics.sink import Sink, of_workers, summary


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
        self._next = 0

    def write(self, iteration: Iteration) -> None:
        """Log the iteration: a warning if the workers had used different plans."""
        if not iteration.agreed:
            logger.warning("iteration %d: the workers had different plans; the first's is used", iteration.index)
        if iteration.plan.acted or iteration.index >= self._next:  # >= because numbers of short iterations may skip
            self._next = (iteration.index // self.every + 1) * self.every
            numbers = summary(iteration)
            logger.info(
                "iteration %d: %s, waiting %s, %s less than with equal batches; sizes %s. %s",
                iteration.index,
                why.duration(numbers["seconds"]),
                why.percent(numbers["waiting_share"]),
                why.percent(numbers["gain"]),
                iteration.sizes.tolist(),
                printable(iteration.plan.why),  # a log is often read on a terminal
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
        """Write the scalars, and the reason as text where sizes changed."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self.folder)
            atexit.register(self.close)  # TensorBoard's writer flushes only every two minutes
        step, when = iteration.index, iteration.time
        for name, value in summary(iteration).items():
            if not math.isnan(value):  # a board would draw it as a point of its own
                self._writer.add_scalar(f"paceline/{name}", value, step, walltime=when)
        for name, values_W in of_workers(iteration).items():
            for worker, value in zip(iteration.workers, values_W, strict=True):
                self._writer.add_scalar(f"paceline_{name}/{worker}", value, step, walltime=when)
        if iteration.plan.acted:
            self._writer.add_text("paceline/why", iteration.plan.why, step, walltime=when)

    def close(self) -> None:
        """Write scalars that are still in memory."""
        if self._writer is not None:
            self._writer.close()


logger = logging.getLogger("paceline.metrics")
