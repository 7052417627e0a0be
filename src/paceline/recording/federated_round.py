"""A finished round as the record that all metrics take. Axis: W clients that were asked."""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array
from paceline.coordinator.federated.round_plan import RoundPlan
from paceline.coordinator.federated.round_report import RoundReport
from paceline.predictors import Report
from paceline.recording.iteration import Iteration


def iteration_of(plan: RoundPlan, report: RoundReport, *, time: float, wall_seconds: float) -> Iteration:
    """Return a round as an iteration, for sinks, ``paceline watch`` and ``paceline report``.

    Its sizes are the samples of all local steps, and its seconds are those until a reply is there: computing and
    communication, as that is what a round waits for.

    Parameters
    ----------
    plan, report
        Plan and report of the round; at least one client was asked.
    time
        When the round ended, in seconds since the epoch.
    wall_seconds
        How long the round took by the server's clock.

    Examples
    --------
    >>> from paceline.coordinator.federated import FederatedBalancer
    >>> plan = FederatedBalancer(batch=10, local_steps=5).plan(["a", "b"])
    >>> report = RoundReport(clients=["b"], samples=[50], seconds=[2.0], comm_seconds=[0.5])
    >>> iteration_of(plan, report, time=1.7e9, wall_seconds=3.0).seconds
    array([nan, 2.5])
    """
    as_plan = plan.as_plan()
    place = {worker: i for i, worker in enumerate(as_plan.workers)}
    seconds, comm = np.full(len(place), np.nan), np.full(len(place), np.nan)
    rows = [place[name] for name in report.names]
    comm[rows] = report.communication
    seconds[rows] = _until_reply(report)
    told = Report(samples=as_plan.sizes, seconds=seconds, comm_seconds=comm)
    return Iteration.of(as_plan, told, as_plan, index=plan.round_index, time=time, wall_seconds=wall_seconds)


def _until_reply(report: RoundReport) -> Array:
    """Return computing and communication of each client, ``[W]``; NaN for a reply that could not be used."""
    seconds_W = np.where(np.isfinite(report.compute_seconds), report.compute_seconds, np.nan)
    return np.where(report.used, seconds_W + np.nan_to_num(report.communication), np.nan)
