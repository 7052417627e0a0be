"""Saving that a job would have from balancing, before anything is attached: replayed by the balancer of a live job.

The interval is for a job that resembles this one and is as long. Where batch sizes never change, no log tells how much
of a time is fixed: the answer is then a range over all fixed shares. Axes: T iterations, W workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array, Mask
from paceline._curves import Curves
from paceline._text import count, percent, to_printable
from paceline.coordinator.policy import Policy, default_batch_multiple
from paceline.datasets import Trace
from paceline.datasets.profiles import read_profiles
from paceline.datasets.waiting_time import (
    MAX_WALL_SPREAD,
    Waiting,
    has_measured_waiting,
    holds_wall_times,
    waiting_of,
)
from paceline.eval.replay import EQUAL_SCHEME, ORACLE_SCHEME, Balanced, replay
from paceline.eval.significance import Estimate
from paceline.predictors import Auto, BatchTime

MIN_SAVING = 0.02
"""A smaller saving is less than the cost of the change and the error of the replay's simplifications."""

MIN_ITERATIONS = 20
"""Shorter jobs are not replayed: each worker is then taken to keep its mean speed."""

MAX_REPORTS = 500_000
"""Number of reports of all workers together that are replayed, which bounds time and memory."""

WARMUP_ITERATIONS = 50
"""Iterations before the scored ones, at most a quarter of all, so that forecasts have a start."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """The saving from balancing; ``str`` of it is a text to read.

    Savings are shares of the time with equal batches, with the exchange of gradients where it was recorded. For jobs of
    20 recorded iterations or more, the millisecond or so that balancing adds to each iteration is subtracted.

    Parameters
    ----------
    workers, iterations, global_batch
        Workers, replayed iterations that count, samples of one.
    saving
        The saving by the balancer of a live job; NaN where ``low`` and ``high`` are all that can be known.
    low, high
        Its 90% interval; or the range over all fixed shares, where the log does not tell how time depends on the
        batch.
    max_saving
        The saving if all of the time follows the batch, where the log does not tell; ``saving`` elsewhere.
    hindsight_saving
        The saving if all speeds were known in advance, and time followed the batch as far as the log allows.
    slowest_worker
        The worker that the others wait for in most iterations; empty where they take turns.
    waiting
        How much workers wait, and for what.
    paused_share
        Share of the time that is spent in pauses, which do not follow the batch.
    job_batch, accumulate
        Global batch of the job itself, for each of this many micro-batches of a step; None if unknown.
    command
        The job's command, where ``paceline record`` recorded it.
    assumptions
        Assumptions beyond the measurements, one sentence each.
    """

    workers: int
    iterations: int
    global_batch: int
    saving: float
    low: float
    high: float
    max_saving: float
    hindsight_saving: float
    slowest_worker: str
    waiting: Waiting = field(default_factory=Waiting)
    paused_share: float = 0.0
    job_batch: int | None = None
    accumulate: int = 1
    command: str = ""
    assumptions: tuple[str, ...] = ()

    @property
    def pays(self) -> bool:
        """True if the lower end of the interval is worth a change of the script."""
        return self.low >= MIN_SAVING

    @property
    def needs_probe(self) -> bool:
        """True if only batches of two sizes can tell whether balancing pays."""
        return bool(np.isnan(self.saving))

    @property
    def gain(self) -> tuple[str, ...]:
        """Sentences on what balancing would gain."""
        more = self.assumptions
        if self.paused_share >= MIN_SAVING / 2:
            pauses = "Pauses (checkpoints, evaluations, preemptions)"
            more = (f"{pauses} take {percent(self.paused_share)}: no batch changes them.", *more)
        if self.needs_probe:
            low, high = round(100 * self.low), round(100 * self.max_saving)
            what = f"Balancing would save {low} to {high}% of the time, depending on "
            whose = f"{_worker_label(self.slowest_worker)}'s" if self.slowest_worker else "slow workers'"
            what += f"how much of {whose} extra time scales with its batch"
            text = f"If all of it does: {percent(self.max_saving)} (90% interval: up to {percent(self.high)}). The log "
            text += "cannot show it, because no worker's batch size changes."
            return (f"{what}.", text, *more)
        what = f"Balancing would save {percent(self.saving)} of the time "
        what += f"(90% interval: {percent(self.low)} to {percent(self.high)})"
        if not self.pays:
            if self.high >= MIN_SAVING:
                what += ", too little to be sure of"
            elif self.saving < -MIN_SAVING / 4:
                what += ", as it takes about a millisecond of each iteration itself"
            else:
                what += ", next to nothing"
        bound = f"With all speeds known in advance it would save {percent(self.hindsight_saving)}"
        if self.slowest_worker and self.hindsight_saving >= MIN_SAVING:
            bound += f", mostly the wait for {_worker_label(self.slowest_worker)}"
        return (f"{what}.", f"{bound}.", *more)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences that say the same."""
        batch = "" if self.job_batch else ", as the log does not say how many"
        each = f"{self.global_batch} samples each{batch}"
        replayed = f"Replayed: {self.iterations} iterations of {self.workers} workers, {each}."
        return (*self.gain, *(self.waiting.sentences if self.waiting.of else ()), replayed)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; ``None`` for unknown numbers."""
        about = {key: value for key, value in asdict(self).items() if key != "waiting"}
        about = {key: None if isinstance(one, float) and np.isnan(one) else one for key, one in about.items()}
        words = {"needs_probe": self.needs_probe, "pays": self.pays, "sentences": list(self.sentences)}
        return about | {"waiting": self.waiting.to_dict()} | words

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def simulate(trace: Trace, *, global_batch: int | None = None, noise: float = 0.05) -> Simulation:
    """Return what balancing would save on a recorded job, with an interval, and how much workers wait.

    Where batch sizes change in the log, as in a recording of ``paceline record --probe``, they tell how much of each
    worker's time is fixed. Where they never do, the answer is a range: from 0, if all of it is, up to the saving if
    none is.

    Parameters
    ----------
    trace
        The recorded job. With fewer than 20 iterations each worker is taken to keep its mean speed.
    global_batch
        Samples of an iteration over all workers; ``None`` takes the job's own, or 100 a worker where that is unknown.
    noise
        Spread of speeds from one iteration to the next, for a trace of fewer than 20 iterations.

    Raises
    ------
    ValueError
        If there is nothing to divide (no speeds, one worker, hardly a sample for each), the times are wall times, which
        are the same on all workers, or there are more than 20,000 workers.

    Examples
    --------
    One of four machines takes twice as long as the others; equal batches always wait for it:

    >>> rng = np.random.default_rng(0)
    >>> seconds = [0.1, 0.1, 0.1, 0.2] * rng.uniform(0.98, 1.02, (300, 4))
    >>> found = simulate(Trace(np.full((300, 4), 64), seconds, workers=["a", "b", "c", "d"]))
    >>> print(found.gain[0])
    Balancing would save 0 to 41% of the time, depending on how much of d's extra time scales with its batch.
    """
    complete_T = _require_reports(trace)
    if holds_wall_times(trace):
        raise ValueError(
            "all workers have the same time in every iteration: these are wall times, which include waiting for each "
            "other and do not show who is slow; record busy time: paceline record -- "
            + trace.meta.get("command", "torchrun --nproc-per-node 2 train.py")
        )
    of_step = trace.meta.get("global_batch", "")
    replayed_batch = int(of_step) if global_batch is None and of_step.isdecimal() else global_batch
    if complete_T.sum() < MIN_ITERATIONS:
        found = _widen_to_all_shares(_simulate_steady(trace, replayed_batch, None, noise))
    else:
        comm = None if trace.comm_seconds is None else trace.comm_seconds[complete_T]
        job = Trace(trace.samples[complete_T], trace.seconds[complete_T], comm_seconds=comm, workers=trace.workers)
        limit = min(1000 + WARMUP_ITERATIONS, max(MAX_REPORTS // len(job.workers), MIN_ITERATIONS))
        found = _simulate_recorded(job[-limit:], replayed_batch)
    return _add_job_facts(found, trace, replayed_batch)


def from_speeds(speeds: ArrayLike, *, global_batch: int | None = None, noise: float = 0.05) -> Simulation:
    """Return what balancing would save with workers of these usual speeds, ``[W]``, in any unit.

    >>> from_speeds([100, 100, 50]).saving.__round__(2)
    0.38
    """
    speed_W = np.atleast_1d(np.asarray(speeds, dtype=np.float64))
    if speed_W.ndim != 1 or not (np.isfinite(speed_W) & (speed_W > 0)).all():
        raise ValueError(f"speeds must be positive numbers, one for each worker, got {speeds!r}")
    trace = Trace(np.ones((1, len(speed_W))), 1.0 / speed_W[None, :])
    _require_reports(trace)
    found = _simulate_steady(trace, global_batch, None, noise)
    follows = "Assumed: a worker's time is proportional to its batch; if a part of it is fixed, balancing saves less."
    return replace(found, job_batch=global_batch, assumptions=(*found.assumptions, follows))


def from_profiles(profiles: Mapping[str | Path, int], *, global_batch: int, noise: float = 0.05) -> Simulation:
    """Return what balancing would save on devices of which ``paceline profile`` measured the batch time curves.

    Parameters
    ----------
    profiles
        The file of each device, and how many workers have such a device.
    global_batch
        Samples of an iteration over all workers.
    noise
        Spread of a worker's speed from one iteration to the next.

    Raises
    ------
    ValueError
        If a file does not hold one device's curve, or an equal share of the batch does not fit into its memory.
    """
    import pandas as pd

    loaded = {Path(path): read_profiles(path) for path in profiles}
    devices: dict[str, str] = {}
    for (path, rows), number in zip(loaded.items(), profiles.values(), strict=True):
        rows["device"] = str(path)
        devices |= {f"{path.stem}-{k}": str(path) for k in range(number)}
    model = BatchTime(devices=devices).fit_profiles(pd.concat(loaded.values()))
    model.reset(list(devices))
    curves = model.predict().curves
    share = -(-global_batch // len(devices))
    if (small := np.flatnonzero(curves.limit < share)).size:
        w = int(small[0])
        raise ValueError(
            f"an equal share of {share} samples does not fit into the memory of {list(devices)[w]}, whose largest "
            f"batch is {curves.limit[w]:.0f}: pass a smaller global batch"
        )
    one = np.ones((1, len(devices)))
    trace = Trace(one, one, workers=list(devices))
    _require_reports(trace)
    return replace(_simulate_steady(trace, global_batch, curves, noise), job_batch=global_batch)


def _require_reports(trace: Trace) -> Mask:
    """Return in which iterations all workers reported; refuse a trace that does not tell what balancing would gain."""
    prefix = "what balancing would gain cannot be estimated: "
    if not np.isfinite(trace.speed).any():
        raise ValueError(f"{prefix}the trace holds no measured speed: record samples and seconds of each worker")
    workers = len(trace.workers)
    if workers == 1:
        raise ValueError("there is nothing to balance: the job has one worker")
    # a replay of 20 iterations of so many workers takes some seconds
    if workers > 20_000:
        raise ValueError(
            f"simulate replays at most 20,000 workers, and the job has {workers:,}: take trace.select(workers=...)"
        )
    complete_T = np.asarray(np.isfinite(trace.speed).all(axis=1))
    if not complete_T.any():
        missing_W = np.isnan(trace.speed).sum(axis=0)
        w = int(np.argmax(missing_W))
        raise ValueError(
            f"{prefix}all workers must report a speed in the same iteration, and never do; leave out workers that "
            f"rarely report ({_worker_label(trace.workers[w])} is missing in {missing_W[w]} of {len(trace)} iterations)"
        )
    return complete_T


def _add_job_facts(simulation: Simulation, trace: Trace, global_batch: int | None) -> Simulation:
    accumulate, batch = max(int(trace.meta.get("accumulate", "1")), 1), global_batch
    if batch is None:
        # the usual samples of an iteration; of those that a probe did not cut, the upper half
        samples_T = trace.samples[np.isfinite(trace.samples).all(axis=1)].sum(axis=1)
        quantile = 0.75 if trace.meta.get("probe") else 0.5
        recorded = round(float(np.quantile(samples_T, quantile, method="nearest"))) if samples_T.size else 0
        known = recorded > len(trace.workers) and not trace.meta.get("derived") and recorded % accumulate == 0
        batch = recorded // accumulate if known else None
    assumptions = simulation.assumptions
    # times so alike that they may be wall times
    seconds_TW = trace.seconds[np.isfinite(trace.seconds).all(axis=1)]
    apart = float(np.median(np.ptp(seconds_TW, axis=1) / seconds_TW.max(axis=1))) if len(seconds_TW) >= 3 else np.inf
    if not has_measured_waiting(trace) and apart <= MAX_WALL_SPREAD:
        same = f"Workers' times differ by only {percent(apart)}, as those of whole iterations do, whoever is slow"
        assumptions = (*assumptions, f"Assumed: times are each worker's own, without waiting. {same}.")
    return replace(
        simulation,
        assumptions=assumptions,
        waiting=waiting_of(trace),
        job_batch=batch,
        accumulate=accumulate,
        command=trace.meta.get("command", ""),
    )


def _simulate_steady(trace: Trace, global_batch: int | None, curves: Curves | None, noise: float) -> Simulation:
    """Simulate workers that keep their mean speeds, with an assumed noise, and with half and twice as much."""
    if not 0 <= noise <= 1:
        raise ValueError(f"noise must lie in [0, 1], as a share of the speed, got {noise}")
    speed_W = 1.0 / np.nanmean(1.0 / trace.speed, axis=0)
    # speeds are drawn for 300 iterations, fewer in large jobs
    iterations = min(300 + WARMUP_ITERATIONS, max(MAX_REPORTS // len(speed_W), MIN_ITERATIONS))
    noise_TW = np.random.default_rng(0).standard_normal((iterations, len(speed_W)))
    batch = global_batch
    if batch is None and np.nanmax(trace.samples) > 1:
        batch = round(float(np.nansum(np.nanmedian(trace.samples, axis=0))))
    runs = [
        _replay_job(
            Trace(np.ones_like(noise_TW), np.exp(spread * noise_TW) / speed_W, workers=trace.workers), batch, curves
        )
        for spread in (noise, noise / 2, 2 * noise)
    ]
    assumption = (
        f"Assumed: each worker keeps its mean speed over {count(len(trace), 'measurement')}, with "
        f"{percent(noise)} noise per iteration (the interval covers half to twice as much)."
    )
    return replace(_widen_to_runs(runs), assumptions=(assumption,))


def _simulate_recorded(job: Trace, global_batch: int | None) -> Simulation:
    """Replay a job, with all that its batches of several sizes tell of fixed parts."""
    paused_TW = find_pauses(job.seconds)
    busy_TW = job.seconds - paused_TW
    share = fit_fixed_share(job.samples, busy_TW)
    if not share.is_known:
        found = _replay_job(replace(job, seconds=busy_TW), global_batch, None, paused_TW=paused_TW)
        return _widen_to_all_shares(_subtract_overhead(found, job.seconds))
    recorded_TW = np.broadcast_to(share.samples, busy_TW.shape)
    seconds_W = np.median(busy_TW / share.at(job.samples, share.value), axis=0)  # of each worker's own batch
    slow_W = seconds_W > np.median(seconds_W)
    best_W, worst_W = np.where(slow_W, share.low, share.high), np.where(slow_W, share.high, share.low)
    runs = [
        _replay_job(
            replace(job, samples=recorded_TW, seconds=busy_TW / share.at(job.samples, fixed_W)),
            global_batch,
            None,
            fixed_W=np.minimum(fixed_W, 0.999),  # a time without any part that follows the batch has nothing to solve
            paused_TW=paused_TW,
        )
        for fixed_W in (share.value, best_W, worst_W)
    ]
    return _subtract_overhead(_widen_to_runs(runs), job.seconds)


def _widen_to_runs(runs: Sequence[Simulation]) -> Simulation:
    """Return the first run, with an interval that holds those of all."""
    return replace(runs[0], low=min(run.low for run in runs), high=max(run.high for run in runs))


def _subtract_overhead(simulation: Simulation, seconds_TW: Array) -> Simulation:
    """Return what is saved once the time that balancing takes in every iteration is subtracted."""
    # seconds that balancing adds to an iteration: at least, usually and at most (benchmarks/simulate.md)
    min_overhead, overhead, max_overhead = (
        seconds / float(seconds_TW.max(axis=1).mean()) for seconds in (0.0004, 0.001, 0.002)
    )
    return replace(
        simulation,
        saving=simulation.saving - overhead,
        max_saving=simulation.max_saving - overhead,
        low=simulation.low - max_overhead,
        high=simulation.high - min_overhead,
    )


def _widen_to_all_shares(simulation: Simulation) -> Simulation:
    """Return the range of savings over all fixed shares: nothing is saved if all of the time is fixed."""
    if simulation.high < MIN_SAVING or simulation.saving < MIN_SAVING / 2:
        return simulation
    return replace(simulation, saving=float("nan"), low=min(simulation.low, 0.0))


def _replay_job(
    job: Trace,
    global_batch: int | None,
    curves: Curves | None,
    *,
    fixed_W: Array | None = None,
    paused_TW: Array | None = None,
) -> Simulation:
    workers, warmup = len(job.workers), min(WARMUP_ITERATIONS, len(job) // 4)
    recorded = round(float(np.median(job.samples.sum(axis=1))))
    batch = global_batch if global_batch is not None else recorded if recorded > workers else None
    if batch is not None and batch <= workers:
        raise ValueError(
            f"there is nothing to divide: a global batch of {batch} is at most one sample for each of the {workers} "
            "workers; set a larger one (--global-batch) to see what balancing would gain with it"
        )
    multiple = default_batch_multiple(batch, workers) if batch else 1
    limits = [] if curves is None else [int(min(limit, 2**31)) for limit in curves.limit]
    upper = dict(zip(job.workers, limits, strict=True)) if limits else None
    live = Balanced(Auto(), Policy(batch_multiple=multiple, upper=upper))
    true_curves = curves if fixed_W is None else _curves_with_fixed_part(job, fixed_W)
    replayed = replay({"live": live}, job, global_batch=batch, warmup=warmup, curves=true_curves)
    scored = job.select(slice(warmup, None))
    # the usual seconds of an exchange, which batch sizes do not change
    known = scored.comm_seconds is not None and np.isfinite(scored.comm_seconds).any()
    exchange = float(np.nanmedian(np.asarray(scored.comm_seconds))) if known else 0.0
    if recorded and fixed_W is None:
        exchange *= replayed.global_batch / recorded
    equal_T, balanced_T = replayed.seconds(EQUAL_SCHEME) + exchange, replayed.seconds("live") + exchange
    low, high = _saving_interval(equal_T, balanced_T)
    longest_T = (job.seconds if paused_TW is None else job.seconds + paused_TW).max(axis=1)
    paused = float((longest_T - job.seconds.max(axis=1)).mean())
    computing = float(equal_T.mean()) / (float(equal_T.mean()) + paused)
    saving = computing * float(1.0 - balanced_T.sum() / equal_T.sum())
    best_T = replayed.seconds(ORACLE_SCHEME) + exchange
    seconds_TW = np.stack([one.seconds for one in replayed.iterations[EQUAL_SCHEME]])
    times_W = np.bincount(seconds_TW.argmax(axis=1), minlength=workers)
    return Simulation(
        workers=workers,
        iterations=len(equal_T),
        global_batch=replayed.global_batch,
        saving=saving,
        max_saving=saving,
        low=computing * low,
        high=computing * high,
        hindsight_saving=computing * max(float(1.0 - best_T.sum() / equal_T.sum()), 0.0),
        paused_share=1.0 - computing,
        slowest_worker=job.workers[int(times_W.argmax())] if times_W.max() > len(equal_T) / 2 else "",
    )


def _curves_with_fixed_part(job: Trace, fixed_W: Array) -> list[Curves]:
    """Return the curves of each iteration, if this share of the workers' times is fixed."""
    fixed_TW = fixed_W * job.seconds
    slope_TW = (job.seconds - fixed_TW) / job.samples
    none_W, unlimited_W = np.zeros_like(fixed_W), np.full_like(fixed_W, np.inf)
    return [Curves(none_W, *line, unlimited_W) for line in zip(slope_TW, fixed_TW, strict=True)]


def _saving_interval(equal_T: Array, balanced_T: Array) -> tuple[float, float]:
    """Return the ends of the interval for the saving of another job that resembles this one and is as long."""
    from scipy.stats import t

    ratio = float(balanced_T.sum() / equal_T.sum())
    # the three slowest cosines: slow machines come and go in stretches of many iterations
    error, degrees = Estimate(ratio, (balanced_T - ratio * equal_T) / equal_T.mean()).error(3)
    both = np.sqrt(2) * error  # of this job, and of that one
    # the interval holds the savings of 90% of jobs
    # a replay leaves out some 1%: rounding, the hooks' time, sizes that are not moved
    reach = float(np.hypot(t.isf((1 - 0.90) / 2, degrees) * both, 0.01))
    return 1.0 - ratio - reach, 1.0 - ratio + reach


def _worker_label(worker: str) -> str:
    return f"worker {worker}" if worker.isdigit() else to_printable(worker)


def find_pauses(seconds_TW: Array) -> Array:
    """Return the seconds of each worker's time that are a pause, ``[T, W]``; 0 where there is none."""
    from scipy.ndimage import median_filter

    # what lasts for more than half of 11 iterations is a slow worker, not a pause
    median_TW = median_filter(seconds_TW, size=(min(11, len(seconds_TW)), 1), mode="nearest")
    # a pause, such as an evaluation or a checkpoint, takes more than 3 times the running median
    excess_TW: Array = np.where(seconds_TW > 3.0 * median_TW, seconds_TW - median_TW, 0.0)
    return excess_TW


@dataclass(frozen=True, eq=False)
class FixedShare:
    """Share of each worker's time that does not follow its batch, at the job's own batch ``samples``, ``[W]`` each.

    ``low`` and ``high`` are the ends of its 90% interval: 0 and 1 where nothing is known.
    """

    value: Array
    low: Array
    high: Array
    samples: Array

    @property
    def is_known(self) -> bool:
        """Whether the log tells it for every worker: the sizes of all batches changed often enough."""
        return bool((self.high - self.low < 1.0).all())

    def at(self, samples_TW: Array, share_W: Array) -> Array:
        """Return the time of batches over that of the job's own, ``[T, W]``, if these shares are fixed."""
        time_TW: Array = share_W + (1.0 - share_W) * samples_TW / self.samples
        return time_TW


def fit_fixed_share(samples_TW: Array, seconds_TW: Array) -> FixedShare:
    """Return how much of each worker's time is fixed, from what its time did when its batch changed.

    Each change compares the iterations just before with those just after, so that speeds that drift do not count.
    """
    from scipy.stats import t

    workers = seconds_TW.shape[1]
    value_W, reach_W = np.zeros(workers), np.full(workers, np.inf)
    batch_W = np.quantile(samples_TW, 0.9, axis=0, method="nearest")
    for w in range(workers):
        found = _fixed_shares_at_size_changes(samples_TW[:, w] / batch_W[w], seconds_TW[:, w])
        if len(found) < 3:
            continue
        share, weight = found.T
        value_W[w] = np.average(share, weights=weight)
        error = np.sqrt(np.square(weight * (share - value_W[w])).sum()) / weight.sum()
        reach_W[w] = t.isf(0.05, len(found) - 1) * error + 0.01
    value_W = np.clip(value_W, 0.0, 1.0)
    return FixedShare(value_W, np.clip(value_W - reach_W, 0.0, 1.0), np.clip(value_W + reach_W, 0.0, 1.0), batch_W)


def _fixed_shares_at_size_changes(size_T: Array, seconds_T: Array) -> Array:
    """Return the fixed share that each change of the batch shows, and its weight, ``[changes, 2]``."""
    # a batch that changes by more than 10% shows how time depends on it, from 3 iterations on either side
    changes = np.flatnonzero(np.abs(np.diff(size_T)) > 0.1 * np.minimum(size_T[1:], size_T[:-1])) + 1
    found, ends = [], [0, *changes, len(size_T)]
    for before, at, after in zip(ends, ends[1:-1], ends[2:], strict=False):
        past, now = slice(max(before, at - 3), at), slice(at, min(after, at + 3))
        size, size_now = float(np.median(size_T[past])), float(np.median(size_T[now]))
        seconds, seconds_now = float(np.median(seconds_T[past])), float(np.median(seconds_T[now]))
        # seconds / seconds_now = (share + (1 - share) size) / (share + (1 - share) size_now), solved for the share
        weight = (seconds * (1 - size_now) - seconds_now * (1 - size)) / (seconds + seconds_now)
        if weight * (size - size_now) > 0:
            share = (seconds_now * size - seconds * size_now) / (seconds + seconds_now) / weight
            found.append((float(np.clip(share, -0.5, 1.5)), abs(weight)))
    return np.array(found).reshape(-1, 2)
