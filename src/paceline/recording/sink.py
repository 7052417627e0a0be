"""Base class of all sinks: which worker writes, what it writes, and what happens if that fails. Axis: W workers."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from paceline._printable import printable
from paceline.datasets.waiting_time import waiting
from paceline.recording.iteration import Iteration
from paceline.recording.round import Round

logger = logging.getLogger("paceline.metrics")


class Sink:
    """Writes the record of each iteration somewhere; add it to ``on_iteration``.

    Every rank may have one; only that of the fleet's first worker writes. If writing fails, for whatever reason, the
    sink logs an error and stops, and the training continues.
    """

    _ended = False

    def __call__(self, record: Iteration | Round) -> None:
        """Write the record of an iteration, if this is the fleet's first worker, or of an asynchronous round."""
        if self._ended or (isinstance(record, Iteration) and record.worker != record.workers[0]):
            return
        try:
            if isinstance(record, Round):
                self.write_round(record)
            else:
                self.write(record)
        except Exception as error:  # of any kind: a dashboard is never worth a training
            self._ended = True
            name = type(self).__name__
            logger.error("no more metrics are written by %s: %s", name, printable(f"{type(error).__name__}: {error}"))

    def write(self, iteration: Iteration) -> None:
        """Write the record of an iteration."""
        raise TypeError(f"{type(self).__name__} must define write")

    def write_round(self, record: Round) -> None:
        """Write the record of a round of asynchronous training."""
        raise TypeError(f"{type(self).__name__} must define write_round to watch asynchronous training")

    def close(self) -> None:
        """Finish writing. A process that ends normally need not call it."""


def summary(iteration: Iteration) -> dict[str, float]:
    """Return the numbers of the whole fleet that every dashboard shows; NaN where they are not known.

    Returns
    -------
    dict
        ``seconds``, those of the slowest worker; ``forecast_seconds``, their forecast; ``equal_seconds``, an estimate
        of them with equal batches; ``gain``, the share of the time saved over that; ``waiting_share``;
        ``waiting_from_workers`` and ``waiting_from_work``, its parts as ``paceline.datasets.waiting_time`` does;
        ``forecast_error``, the mean relative error over the workers; ``wall_seconds``; ``overhead_seconds``;
        ``drift``, the share of the latest speeds or covariates that is unlike what the predictor was fitted on.

    Examples
    --------
    One worker is half as fast, and got half as many samples; a part of the times is taken to be fixed:

    >>> from paceline.coordinator import LoadBalancer
    >>> from paceline.predictors import EWMA, Report
    >>> balancer = LoadBalancer(EWMA(), workers=["gpu0", "gpu1"], global_batch=60)
    >>> used, report = balancer.plan, Report(samples=[40, 20], seconds=[0.4, 0.4])
    >>> numbers = summary(Iteration.of(used, report, balancer.step(report)))
    >>> round(numbers["equal_seconds"], 3), round(numbers["gain"], 3)
    (0.543, 0.264)
    """
    reported = np.where(np.isfinite(iteration.seconds), iteration.seconds, np.nan)
    iteration = replace(iteration, seconds=reported)  # an infinite time counts as no report
    equal = _equal_seconds(iteration)
    with np.errstate(divide="ignore", invalid="ignore"):
        error_W = np.abs(iteration.forecast_seconds / reported - 1.0)
    known_W = np.isfinite(error_W)
    waited = waiting(reported[None], None if iteration.work is None else iteration.work[None])
    return {
        "seconds": iteration.makespan,
        "forecast_seconds": float(np.max(iteration.forecast_seconds)),
        "equal_seconds": equal,
        "gain": 1.0 - iteration.makespan / equal if equal > 0 else float("nan"),
        "waiting_share": iteration.waiting_share,
        "waiting_from_workers": waited.from_workers,
        "waiting_from_work": waited.from_work,
        "forecast_error": float(error_W[known_W].mean()) if known_W.any() else float("nan"),
        "wall_seconds": float(iteration.wall_seconds),
        "overhead_seconds": float(iteration.overhead_seconds),
        "drift": iteration.plan.drift,
    }


def of_workers(iteration: Iteration) -> dict[str, list[float]]:
    """Return the numbers of each worker, in the order of the fleet, by their names; work only where it is known."""
    with np.errstate(invalid="ignore"):  # a worker may have reported an infinite time
        waited_W = iteration.wait_seconds
    names = ("samples", "work", "seconds", "forecast_seconds", "wait_seconds")
    rows = (iteration.sizes, iteration.work, iteration.seconds, iteration.forecast_seconds, waited_W)
    known = {name: row for name, row in zip(names, rows, strict=True) if row is not None}
    return {name: np.asarray(row, dtype=float).tolist() for name, row in known.items()}


def summary_of_round(record: Round) -> dict[str, float]:
    """Return the numbers of the whole fleet that every dashboard shows of asynchronous training.

    Returns
    -------
    dict
        ``version`` and ``applied_samples``; ``dropped_samples``, ``abandoned_samples``, ``refused_samples`` and the
        ``wasted_share`` that they make; ``stragglers``; ``largest_staleness``; ``forecast_staleness`` and
        ``actual_staleness``, their means, and ``forecast_covered``, NaN without a forecast.
    """
    return {
        "version": float(record.version),
        "applied_samples": float(record.applied),
        "dropped_samples": float(record.dropped),
        "abandoned_samples": float(record.abandoned),
        "refused_samples": float(record.refused),
        "wasted_share": record.wasted_share,
        "stragglers": float(len(record.stragglers)),
        "largest_staleness": float(record.largest),
        "forecast_staleness": record.forecast,
        "actual_staleness": record.actual,
        "forecast_covered": record.covered,
    }


def of_workers_in_round(record: Round) -> dict[str, list[float]]:
    """Return the numbers of each worker, in the order of the fleet, by their names."""
    rows = {
        "next_samples": record.sizes,
        "staleness": record.staleness,
        "expected_staleness": record.expected,
        "applied_samples": record.done,
        "samples_wasted": record.wasted,
        "waited_seconds": record.waited,
    }
    return {name: np.asarray(row, dtype=float).tolist() for name, row in rows.items()}


def _equal_seconds(iteration: Iteration) -> float:
    """Return the slowest worker's time with equal batches: measured times, moved along the forecast curves."""
    curves = iteration.plan.forecast.curves
    # Where samples have costs, curves are about work; fractions of it suit an estimate.
    known = iteration.work is not None and bool(np.isfinite(iteration.work).all())
    amount_W = iteration.work if known and iteration.work is not None else iteration.sizes
    used_W = curves.busy_seconds(amount_W)
    equal_W = curves.busy_seconds(np.full(len(amount_W), amount_W.mean()))
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.fmax.reduce(np.where(used_W > 0, iteration.seconds * equal_W / used_W, np.nan)))
