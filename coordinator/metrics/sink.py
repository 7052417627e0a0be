"""What all sinks share: who writes, what is written, and what happens when that fails. Axis: W workers."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from paceline.coordinator.iteration import Iteration

logger = logging.getLogger("paceline.metrics")


class Sink:
    """Something that takes in the record of each iteration; add it to ``on_iteration``.

    Every rank may hold one: only that of the fleet's first worker writes. A disk that is full or a file that cannot be
    written ends the metrics, with a line in the log, and not the training.
    """

    _ended = False

    def __call__(self, iteration: Iteration) -> None:
        """Write the record of an iteration, if this is the fleet's first worker."""
        if self._ended or iteration.worker != iteration.workers[0]:
            return
        try:
            self.write(iteration)
        except OSError as error:
            self._ended = True
            logger.error("no more metrics are written by %s: %s", type(self).__name__, error)

    def write(self, iteration: Iteration) -> None:
        """Write the record of an iteration."""
        raise TypeError(f"{type(self).__name__} must define write")

    def close(self) -> None:
        """Finish what was written. A process that ends in good order need not call it."""


def summary(iteration: Iteration) -> dict[str, float]:
    """Return the numbers of the whole fleet, NaN where they are not known: what every dashboard shows.

    Returns
    -------
    dict
        ``seconds``, the slowest worker's; ``forecast_seconds``, what they were expected to be; ``equal_seconds``, an
        estimate of what they would have been with equal batches; ``gain``, the share of the time saved against that;
        ``waiting_share``; ``forecast_error``, relative, the mean over the workers; ``wall_seconds``;
        ``overhead_seconds``.

    Examples
    --------
    One worker is half as fast, and got half as much:

    >>> from paceline.coordinator import LoadBalancer
    >>> from paceline.predictors import EWMA, Report
    >>> balancer = LoadBalancer(EWMA(), workers=["gpu0", "gpu1"], global_batch=60)
    >>> plan = balancer.step(Report(samples=[40, 20], seconds=[0.4, 0.4]))
    >>> iteration = Iteration(
    ...     index=7, time=1.7e9, worker="gpu0", sizes=np.array([40, 20]), seconds=np.array([0.4, 0.4]),
    ...     forecast_seconds=np.array([0.4, 0.44]), comm_seconds=np.array([0.01, 0.01]),
    ...     wall_seconds=0.42, overhead_seconds=0.0002, agreed=True, plan=plan,
    ... )
    >>> numbers = summary(iteration)
    >>> round(numbers["equal_seconds"], 3), round(numbers["gain"], 3), round(numbers["forecast_error"], 3)
    (0.6, 0.333, 0.05)
    """
    reported = np.where(np.isfinite(iteration.seconds), iteration.seconds, np.nan)
    iteration = replace(iteration, seconds=reported)  # a report of garbage is none
    equal = _equal_seconds(iteration)
    with np.errstate(divide="ignore", invalid="ignore"):
        error_W = np.abs(iteration.forecast_seconds / reported - 1.0)
    known_W = np.isfinite(error_W)
    return {
        "seconds": iteration.makespan,
        "forecast_seconds": float(np.max(iteration.forecast_seconds)),
        "equal_seconds": equal,
        "gain": 1.0 - iteration.makespan / equal if equal > 0 else float("nan"),
        "waiting_share": iteration.waiting_share,
        "forecast_error": float(error_W[known_W].mean()) if known_W.any() else float("nan"),
        "wall_seconds": float(iteration.wall_seconds),
        "overhead_seconds": float(iteration.overhead_seconds),
    }


def _equal_seconds(iteration: Iteration) -> float:
    """Return what the slowest would have taken with equal batches: the times measured, moved along the curves."""
    curves, sizes_W = iteration.plan.forecast.curves, iteration.sizes
    used_W = curves.busy_seconds(sizes_W)
    equal_W = curves.busy_seconds(np.full(len(sizes_W), sizes_W.mean()))  # a fraction will do
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.fmax.reduce(np.where(used_W > 0, iteration.seconds * equal_W / used_W, np.nan)))
