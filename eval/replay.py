"""Replay: what a recorded job would have gained from other batch sizes. Axes: T iterations, W workers, D covariates.

A replay keeps the recorded speeds and chooses new batch sizes. It makes two simplifications, the same for all schemes:
time follows the batch, or the caller's curves, and communication is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline._arrays import Array, Sizes
from paceline.coordinator.load_balancer import LoadBalancer
from paceline.coordinator.policy import Policy
from paceline.datasets import Trace
from paceline.datasets.waiting_time import waiting
from paceline.eval.backtest import require_forecasts, require_warmup, traces_by_name
from paceline.predictors import Curves, Forecast, Predictor, Report
from paceline.solver import split

if TYPE_CHECKING:
    import pandas as pd

EQUAL_SCHEME, ORACLE_SCHEME = "equal batches", "oracle"


@dataclass(frozen=True, eq=False)
class ReplayedIteration:
    """One replayed iteration: its number, the chosen sizes, and each worker's time for them, ``[W]``, in seconds."""

    number: int
    sizes: NDArray[np.int64]
    seconds: Array

    @property
    def makespan(self) -> float:
        """Seconds until the last worker is done."""
        return float(self.seconds.max())

    @property
    def waiting(self) -> float:
        """Mean share of the iteration that workers spend waiting for the slowest."""
        return float(1.0 - self.seconds.mean() / self.makespan)


@dataclass(frozen=True, eq=False)
class Replay:
    """One job under several schemes, all over the same iterations.

    Parameters
    ----------
    trace
        Name of the job.
    iterations
        The scored iterations of each scheme, in order.
    global_batch
        Samples per iteration over all workers.
    note
        What the reader of the tables must know; empty if nothing.
    """

    trace: str
    iterations: Mapping[str, list[ReplayedIteration]] = field(repr=False)
    global_batch: int = 0
    note: str = ""

    def seconds(self, scheme: str) -> Array:
        """Return the time of each scored iteration under a scheme, in seconds."""
        return np.array([iteration.makespan for iteration in self.iterations[scheme]])

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per scheme, fastest first.

        ``mean`` and ``p95`` seconds of an iteration, ``waiting`` share, ``speed-up`` over equal batches, ``regret``:
        by how much the mean exceeds the oracle's.
        """
        import pandas as pd

        means = {name: float(self.seconds(name).mean()) for name in self.iterations}
        rows = [
            {
                "trace": self.trace,
                "scheme": name,
                "mean": means[name],
                "p95": float(np.quantile(self.seconds(name), 0.95)),
                "waiting": waiting(np.stack([iteration.seconds for iteration in iterations]), None).share,
                "speed-up": means[EQUAL_SCHEME] / means[name],
                "regret": means[name] / means[ORACLE_SCHEME] - 1.0,
            }
            for name, iterations in self.iterations.items()
        ]
        return pd.DataFrame(rows).sort_values("mean", ignore_index=True)


@dataclass(frozen=True, eq=False)
class Replays:
    """Several jobs under the same schemes."""

    replays: Mapping[str, Replay]

    @cached_property
    def per_trace(self) -> pd.DataFrame:
        """The tables of all jobs, concatenated."""
        import pandas as pd

        return pd.concat([replay.table for replay in self.replays.values()], ignore_index=True)

    @property
    def notes(self) -> list[str]:
        """Remarks on single jobs that a reader of the tables must know."""
        return [replay.note for replay in self.replays.values() if replay.note]

    @cached_property
    def overall(self) -> pd.DataFrame:
        """One row per scheme: geometric means of speed-up and of 1 + regret over the jobs, mean waiting share."""
        groups = self.per_trace.groupby("scheme")
        table = groups[["waiting"]].mean()
        table["speed-up"] = np.exp(groups["speed-up"].agg(lambda ratios: np.log(ratios).mean()))
        table["regret"] = np.expm1(groups["regret"].agg(lambda regrets: np.log1p(regrets).mean()))
        return table.reset_index().sort_values("speed-up", ascending=False, ignore_index=True)


def iter_replay(
    scheme: SizeScheme,
    trace: Trace,
    *,
    global_batch: int,
    curves: Curves | Sequence[Curves] | None = None,
) -> Iterator[ReplayedIteration]:
    """Run one scheme over a recorded job, without iterations in which a worker did not report.

    Each worker takes its size divided by its recorded speed, and the iteration takes as long as the slowest worker.
    With batch time ``curves`` it takes the time of its size on its curve divided by that speed, which is then relative;
    with the curves of each iteration, just the time on them.

    Raises
    ------
    ValueError
        If the scheme does not hand out the global batch, at least one sample to each worker.

    Examples
    --------
    >>> trace = Trace(samples=[[30, 30]] * 2, seconds=[[1.0, 2.0]] * 2)
    >>> [iteration.makespan for iteration in iter_replay(EqualBatches(), trace, global_batch=60)]
    [2.0, 2.0]
    >>> [iteration.sizes for iteration in iter_replay(Oracle(trace.speed), trace, global_batch=60)]
    [array([40, 20]), array([40, 20])]
    """
    scheme.reset(trace.workers, global_batch)
    covariates_TWD = trace.covariates_named(scheme.covariate_names)
    for k, speed_W in enumerate(trace.speed):
        if np.isnan(speed_W).any():
            continue
        covariates_WD = None if covariates_TWD is None else covariates_TWD[k]
        sizes = scheme.sizes(k, covariates_WD)
        if sizes.sum() != global_batch or sizes.min() < 1:
            raise ValueError(
                f"{type(scheme).__name__} must assign {global_batch} samples, at least one to each worker, got "
                f"{sizes.tolist()}, which is {sizes.sum()}"
            )
        if isinstance(curves, Sequence):
            seconds = curves[k].busy_seconds(sizes)
        else:
            seconds = (sizes if curves is None else curves.busy_seconds(sizes)) / speed_W
        yield ReplayedIteration(k, sizes, seconds)
        scheme.observe(sizes, seconds, covariates_WD)


def replay(
    schemes: Mapping[str, SizeScheme],
    trace: Trace,
    *,
    global_batch: int | None = None,
    warmup: int = 50,
    curves: Curves | Sequence[Curves] | None = None,
) -> Replay:
    """Replay one job under schemes, always beside equal batches and the oracle split.

    Parameters
    ----------
    schemes
        Schemes by the names to show, such as ``{"narx": Balanced(model)}``.
    trace
        The recorded job.
    global_batch
        Samples per iteration over all workers; ``None`` takes the job's own, or 100 a worker if the job's own leaves
        too few to divide: the result's ``note`` then says so.
    warmup
        Iterations at the start that are run but not scored.
    curves
        Batch time curves of the workers, to which the trace's speeds are then relative; or those of each iteration.

    Raises
    ------
    ValueError
        If the global batch is smaller than the number of workers, nothing is left to score, or a scheme is named
        like one of the two built-in ones.

    Examples
    --------
    Two workers, one half as fast as the other: with equal batches one waits, with hindsight none does.

    >>> trace = Trace(samples=[[30, 30]] * 3, seconds=[[1.0, 2.0]] * 3)
    >>> replay({}, trace, warmup=0).table[["scheme", "mean", "waiting", "speed-up"]].round(2)
              scheme  mean  waiting  speed-up
    0    oracle  1.33     0.00       1.5
    1  equal batches  2.00     0.25       1.0
    """
    require_warmup(warmup, trace)
    complete = np.asarray(np.isfinite(trace.speed).all(axis=1))
    if not complete[warmup:].any():
        raise ValueError(
            f"trace {trace.name!r} has no iteration after a warm-up of {warmup} in which all workers reported: "
            "select workers that did, or shorten the warm-up"
        )
    recorded = round(trace.samples[complete][0].sum())
    batch, note = _replay_global_batch(trace, recorded) if global_batch is None else (global_batch, "")
    if batch < len(trace.workers):
        raise ValueError(
            f"global_batch must be at least a sample for each of {len(trace.workers)} workers, got {batch}"
        )
    if reserved := sorted({EQUAL_SCHEME, ORACLE_SCHEME} & set(schemes)):
        raise ValueError(f"schemes must not use the names {reserved}, which are always in the table: rename them")
    everyone: dict[str, SizeScheme] = {
        EQUAL_SCHEME: EqualBatches(),
        **schemes,
        ORACLE_SCHEME: Oracle(trace.speed, curves),
    }
    ran = {name: list(iter_replay(one, trace, global_batch=batch, curves=curves)) for name, one in everyone.items()}
    scored = {name: [i for i in iterations if i.number >= warmup] for name, iterations in ran.items()}
    return Replay(trace.name, scored, global_batch=batch, note=note)


def replay_all(
    schemes: Mapping[str, SizeScheme], traces: Iterable[Trace], *, global_batch: int | None = None, warmup: int = 50
) -> Replays:
    """Replay several jobs with different names under the same schemes: see :func:`replay`.

    Examples
    --------
    >>> jobs = [Trace([[30, 30]] * 2, [[1, slow]] * 2, meta={"job": f"slow-{slow}"}) for slow in (2, 3)]
    >>> replay_all({}, jobs, warmup=0).overall[["scheme", "speed-up"]].round(2)
              scheme  speed-up
    0    oracle      1.73
    1  equal batches      1.00
    """
    jobs = traces_by_name(traces)
    return Replays({name: replay(schemes, job, global_batch=global_batch, warmup=warmup) for name, job in jobs.items()})


def _replay_global_batch(trace: Trace, recorded_batch: int) -> tuple[int, str]:
    """Return a global batch that can be divided, and what to say if it is not the job's own."""
    workers = len(trace.workers)
    if recorded_batch >= 10 * workers:  # with fewer, the steps of a split are coarser than 10%
        return recorded_batch, ""
    # Speeds of a replay do not depend on the batch, so another one changes the unit of time and nothing else.
    batch = 100 * workers
    return batch, (
        f"{trace.name}: replayed with a global batch of {batch}, because the recorded {recorded_batch} cannot be "
        f"divided finely among {workers} workers; pass another global_batch"
    )


class SizeScheme(Protocol):
    """Chooses batch sizes at every barrier, from past measurements.

    In each iteration, ``sizes`` is called first, with the covariates sampled at the boundary, and ``observe``
    afterwards. A scheme that inherits from this class and reads or learns nothing need not define that.
    """

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """The covariates it reads."""
        return ()

    def reset(self, workers: Sequence[str], global_batch: int) -> None:
        """Start a job with these workers and this global batch; nothing is carried over."""

    def sizes(self, iteration: int, covariates: Array | None) -> Sizes:
        """Choose the sizes of this iteration, ``[W]``: at least one sample each, summing to the global batch."""

    def observe(self, sizes: Sizes, seconds: Array, covariates: Array | None) -> None:
        """Learn the workers' times in the iteration just finished, ``[W]``, in seconds."""
        return


class EqualBatches(SizeScheme):
    """Bulk-synchronous parallel (BSP): all workers get the same, up to one sample."""

    def reset(self, workers: Sequence[str], global_batch: int) -> None:
        self._sizes = split(Curves.from_speed(np.ones(len(workers))), global_batch, lower=1).sizes

    def sizes(self, iteration: int, covariates: Array | None) -> Sizes:
        return self._sizes


class Balanced:
    """Load-balanced BSP (LB-BSP) as a job runs it: the sizes that a load balancer plans with this predictor.

    Parameters
    ----------
    predictor
        Any predictor, fitted if it needs fitting.
    policy
        When the balancer changes sizes; by default as in a job.
    """

    def __init__(self, predictor: Predictor, policy: Policy | None = None) -> None:
        self.predictor = predictor
        self.policy = policy

    @property
    def covariate_names(self) -> tuple[str, ...]:
        return self.predictor.covariate_names

    def reset(self, workers: Sequence[str], global_batch: int) -> None:
        self._checked_predictor = _CheckedPredictor(self.predictor, tuple(workers))
        predictor = self._checked_predictor
        self.balancer = LoadBalancer(predictor, workers=workers, global_batch=global_batch, policy=self.policy)
        self._report: Report | None = None

    def sizes(self, iteration: int, covariates: Array | None) -> Sizes:
        if self._report is not None:
            self._checked_predictor.iteration = iteration
            self.balancer.step(self._report, covariates)
        return self.balancer.plan.sizes

    def observe(self, sizes: Sizes, seconds: Array, covariates: Array | None) -> None:
        self._report = Report(samples=sizes, seconds=seconds, covariates=covariates)


class _CheckedPredictor:
    """A predictor whose forecasts are checked against the contract before any decision uses them."""

    iteration = 0

    def __init__(self, predictor: Predictor, workers: tuple[str, ...]) -> None:
        self._predictor, self._fleet = predictor, workers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._predictor, name)

    def predict(self, *, covariates: ArrayLike | None = None, horizon: int = 1) -> Forecast:
        ahead = self._predictor.predict(covariates=covariates, horizon=horizon)
        require_forecasts(self._predictor, ahead.speed[None], ahead.spread[None], self._fleet, self.iteration)
        return ahead


class Oracle(SizeScheme):
    """The best possible sizing: sizes solved from the speeds of the iteration to come.

    Parameters
    ----------
    speed
        The whole job's recorded speeds, ``[T, W]``, in samples/s, such as ``trace.speed``.
    curves
        Batch time curves of the workers, if the speeds are relative to these; or those of each iteration.
    """

    def __init__(self, speed: Array, curves: Curves | Sequence[Curves] | None = None) -> None:
        self.speed = speed
        self.curves = curves

    def reset(self, workers: Sequence[str], global_batch: int) -> None:
        self._global_batch = global_batch

    def sizes(self, iteration: int, covariates: Array | None) -> Sizes:
        speed_W, curves = self.speed[iteration], self.curves
        if isinstance(curves, Sequence):
            true = curves[iteration]
        elif curves is None:
            true = Curves.from_speed(speed_W)
        else:
            true = Curves(curves.floor / speed_W, curves.slope / speed_W, curves.intercept / speed_W, curves.limit)
        return split(true, self._global_batch, lower=1).sizes
