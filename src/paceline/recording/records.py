"""What a run records: iterations of a balanced job, rounds of an asynchronous one, rounds of federated clients."""

from __future__ import annotations

import time as clock
from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array, Sizes
from paceline.coordinator.federated.rounds import RoundPlan, RoundReport
from paceline.coordinator.plan import Plan
from paceline.predictors.protocol import Report


@dataclass(frozen=True, eq=False, kw_only=True)
class Iteration:
    """Record of one iteration of a live run: the measurements, the forecast for it, and the plan for the next.

    Every worker holds the same record of an iteration, except for ``time``, ``worker``, ``wall_seconds`` and
    ``overhead_seconds``, which are its own. All arrays are in the order of ``workers``.

    Examples
    --------
    >>> from paceline.coordinator import LoadBalancer
    >>> from paceline.predictors import EWMA
    >>> balancer = LoadBalancer(EWMA(), workers=["gpu0", "gpu1"], global_batch=512)
    >>> used, report = balancer.plan, Report(samples=[256, 256], seconds=[0.25, 0.5])
    >>> iteration = Iteration.of(used, report, balancer.step(report))
    >>> iteration.global_batch, iteration.makespan
    (512, 0.5)
    >>> iteration.wait_seconds, iteration.waiting_share
    (array([0.25, 0.  ]), 0.25)
    """

    index: int  # from 0 on
    time: float  # when it was over, in seconds since the epoch, by this worker's clock
    worker: str  # the one that holds the record
    sizes: Sizes  # samples that each worker processed, of all micro-batches of the optimizer step, [W]
    # Own compute time of each worker for them, [W]; NaN where there was no report. Under a CPU quota it is what they
    # take if the quota lasts (paceline.recording.control_group.sustained_seconds).
    seconds: Array
    forecast_seconds: Array  # what the plan in use expected each worker to take for these sizes, [W]
    # From each worker's last gradient being ready to the sum over all workers being there, [W], waiting included. Of
    # the previous iteration, because it is known only after the report was sent; NaN where it is not known.
    comm_seconds: Array
    wall_seconds: float  # from the start of this iteration to the start of the next; NaN where it is not known
    overhead_seconds: float  # of balancing on the critical path: exchange of reports, forecast, plan
    agreed: bool  # all workers had used the same plan; otherwise they adopted the first worker's
    plan: Plan  # for the next iteration; plan.why gives the reason
    work: Array | None = None  # what the samples cost, [W], in average samples; None where all cost the same

    @classmethod
    def of(
        cls,
        used_plan: Plan,
        report: Report,
        plan: Plan,
        *,
        index: int | None = None,
        time: float | None = None,
        wall_seconds: float = float("nan"),
        overhead_seconds: float = 0.0,
    ) -> Iteration:
        """Return the record of an iteration of your own coordinator, for sinks, from what it holds anyway.

        These are the plan that the workers followed, the report that was passed to ``step``, and the plan that it
        returned. By default the record is of the iteration of the first plan, and ends now. ``ValueError`` if the
        plans differ in workers: make it before workers join or leave.
        """
        if used_plan.workers != plan.workers:
            raise ValueError(
                f"used_plan and plan must have the same workers, got {list(used_plan.workers)} and "
                f"{list(plan.workers)}: make the record before workers join or leave"
            )
        comm_seconds = np.full(len(used_plan.workers), np.nan) if report.comm_seconds is None else report.comm_seconds
        return cls(
            index=used_plan.iteration if index is None else index,
            time=clock.time() if time is None else time,
            worker=used_plan.workers[0],  # sinks write on the first worker only, which a coordinator stands for
            sizes=np.rint(np.asarray(report.samples, dtype=np.float64)).astype(np.int64),
            seconds=np.asarray(report.seconds, dtype=np.float64),
            forecast_seconds=used_plan.seconds,
            comm_seconds=np.asarray(comm_seconds, dtype=np.float64),
            wall_seconds=wall_seconds,
            overhead_seconds=overhead_seconds,
            agreed=True,
            plan=plan,
        )

    @property
    def workers(self) -> tuple[str, ...]:
        """The fleet, in the order of every array."""
        return self.plan.workers

    @property
    def global_batch(self) -> int:
        """Samples of all workers together."""
        return int(self.sizes.sum())

    @property
    def makespan(self) -> float:
        """Own compute seconds of the slowest worker; NaN without any report."""
        return float(np.fmax.reduce(self.seconds))

    @property
    def wait_seconds(self) -> Array:
        """Seconds each worker waited for the slowest, ``[W]``, if all began together; NaN where it did not report."""
        return self.makespan - self.seconds

    @property
    def waiting_share(self) -> float:
        """Share of the workers' time, up to the slowest's end, spent waiting; NaN without any report."""
        waited = self.wait_seconds[~np.isnan(self.seconds)]
        return float(waited.mean() / self.makespan) if self.makespan > 0 else float("nan")


@dataclass(frozen=True, eq=False, kw_only=True)
class Round:
    """Record of a round at the server: at least as many pushes as there are workers. Arrays are in their order.

    ``dropped``, ``abandoned`` and ``refused`` are samples whose steps ended like this; all went back to be drawn again.
    ``applied`` counts those of a resumed run too, and ``wasted_share`` does not.
    """

    index: int  # from 0 on
    time: float  # when it ended, in seconds since the epoch, by the server's clock
    scheme: str
    bound: int | None  # in versions
    batch: int  # samples of a full one
    workers: tuple[str, ...]
    version: int  # updates applied so far
    applied: int  # samples applied so far
    sizes: Sizes  # samples of each worker's next step, [W]
    staleness: Array  # mean of the pushes of this round, [W], in versions; NaN where there was none that counted
    expected: Array  # staleness forecast for the next push, [W]; NaN without a forecast
    done: Sizes  # samples of each worker that were applied so far, [W]
    wasted: Sizes  # samples of each that were computed for nothing so far, [W]
    waited: Array  # seconds that each has waited for others so far, [W]
    dropped: int
    abandoned: int
    refused: int
    wasted_share: float  # of the samples computed since the server started
    largest: int  # staleness applied so far
    stragglers: tuple[str, ...]  # by measured or by forecast staleness
    acted: bool  # workers, sizes or stragglers changed, or a step came to nothing
    why: str  # what happened and why, in a sentence or a few


def iteration_from_round(plan: RoundPlan, report: RoundReport, *, time: float, wall_seconds: float) -> Iteration:
    """Return a round that asked at least one client as an iteration, for sinks, ``paceline watch`` and ``report``.

    Its sizes are the samples of all local steps, and its seconds are those until a reply is there: computing and
    communication, as that is what a round waits for. ``time`` is when it ended, in seconds since the epoch.

    >>> from paceline.coordinator.federated import FederatedBalancer
    >>> plan = FederatedBalancer(batch=10, local_steps=5).plan(["a", "b"])
    >>> report = RoundReport(clients=["b"], samples=[50], seconds=[2.0], comm_seconds=[0.5])
    >>> iteration_from_round(plan, report, time=1.7e9, wall_seconds=3.0).seconds
    array([nan, 2.5])
    """
    as_plan = plan.as_plan()
    place = {worker: i for i, worker in enumerate(as_plan.workers)}
    seconds, comm = np.full(len(place), np.nan), np.full(len(place), np.nan)
    rows = [place[name] for name in report.clients]
    comm[rows] = report.communication
    # NaN for a reply that could not be used
    compute_W = np.where(np.isfinite(report.seconds), report.seconds, np.nan)
    seconds[rows] = np.where(report.used, compute_W + np.nan_to_num(report.communication), np.nan)
    as_report = Report(samples=as_plan.sizes, seconds=seconds, comm_seconds=comm)
    return Iteration.of(as_plan, as_report, as_plan, index=plan.round_index, time=time, wall_seconds=wall_seconds)
