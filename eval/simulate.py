"""Saving that a job would have from balancing, before anything is attached: replayed by the balancer of a live job.

The interval is for the saving of a job that resembles this one and is as long: it holds what varies here and what will
vary there. Axes: T iterations, W workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array
from paceline._curves import Curves
from paceline.coordinator.balanced.policy import Policy, default_batch_multiple
from paceline.datasets import Trace
from paceline.datasets.profiles import load_profile
from paceline.eval.replay.synchronous import EQUAL, ORACLE, replay
from paceline.eval.replay.synchronous_schemes import Balanced
from paceline.eval.saving import Simulation, percent
from paceline.eval.significance import Estimate
from paceline.eval.waiting_costs import costs_of_waiting
from paceline.eval.worth import FEWEST, LONGEST, WARMUP, indivisible, obstacle
from paceline.predictors import Auto, BatchTime

LIVE = "live"

LEVEL = 0.90
"""Share of jobs whose saving the interval holds."""

COSINES = 3
"""The interval is made of so few of the slowest: slow machines come and go in stretches of many iterations."""

MODEL = 0.01
"""Reach of the interval for what a replay leaves out: sizes that a job happens to keep, rounding, the hooks' time."""

STEADY = 300
"""Iterations that are drawn for workers of which only the usual speed is known."""

NOISE = 0.05
"""Spread of a worker's speed from one iteration to the next where only its usual speed is known."""


def simulate(
    trace: Trace, *, global_batch: int | None = None, curves: Curves | None = None, noise: float = NOISE
) -> Simulation:
    """Return what balancing would save on a recorded job, with an interval, and where the waiting comes from.

    Parameters
    ----------
    trace
        The recorded job. With fewer than 20 iterations each worker is taken to keep its mean speed.
    global_batch
        Samples of an iteration over all workers; ``None`` takes the job's own, or 100 a worker where that is unknown.
    curves
        Batch time curves of the workers; the trace's speeds are then relative to them.
    noise
        Spread of speeds from one iteration to the next, for a trace of fewer than 20 iterations.

    Raises
    ------
    ValueError
        If there is nothing to divide: no speeds, one worker, or hardly a sample for each.

    Examples
    --------
    One of four machines has half the speed of the others; equal batches always wait for it:

    >>> rng = np.random.default_rng(0)
    >>> seconds = [0.1, 0.1, 0.1, 0.2] * rng.uniform(0.98, 1.02, (300, 4))
    >>> print(simulate(Trace(np.full((300, 4), 64), seconds, workers=["a", "b", "c", "d"])))
    Balancing would save 41.7 % of the time (90 % interval: 40.7 to 42.7 %).
    Waiting costs 42.5 % of the time: slow machines 42.1 %, uneven samples 0.0 %, noise 0.4 %; mostly for d.
    Replayed: 250 iterations of 4 workers, 256 samples each.
    """
    complete_T = np.asarray(np.isfinite(trace.speed).all(axis=1))
    if len(trace.workers) > 1 and 0 < int(complete_T.sum()) < FEWEST:
        return _steady(trace, global_batch, curves, noise)
    if found := obstacle(trace, trace.speed, complete_T):
        raise ValueError(found)
    work = None if trace.work is None else trace.work[complete_T]
    comm = None if trace.comm_seconds is None else trace.comm_seconds[complete_T]
    job = Trace(
        trace.samples[complete_T], trace.seconds[complete_T], work=work, comm_seconds=comm, workers=trace.workers
    )
    return _simulated(job.select(slice(-LONGEST - WARMUP, None)), global_batch, curves)


def from_speeds(
    speeds: ArrayLike, *, workers: Sequence[str] = (), global_batch: int | None = None, noise: float = NOISE
) -> Simulation:
    """Return what balancing would save with workers of these usual speeds, ``[W]``, in any unit.

    >>> from_speeds([100, 100, 50]).saving.__round__(2)
    0.38
    """
    speed_W = np.atleast_1d(np.asarray(speeds, dtype=np.float64))
    if speed_W.ndim != 1 or not (np.isfinite(speed_W) & (speed_W > 0)).all():
        raise ValueError(f"speeds must be positive numbers, one for each worker, got {speeds!r}")
    trace = Trace(np.ones((1, len(speed_W))), 1.0 / speed_W[None, :], workers=workers)
    return simulate(trace, global_batch=global_batch, noise=noise)


def from_profiles(profiles: Mapping[str | Path, int], *, global_batch: int, noise: float = NOISE) -> Simulation:
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

    loaded = {Path(path): load_profile(path) for path in profiles}
    devices: dict[str, str] = {}
    for (path, rows), count in zip(loaded.items(), profiles.values(), strict=True):
        rows["device"] = str(path)
        devices |= {f"{path.stem}-{k}": str(path) for k in range(count)}
    model = BatchTime(devices=devices).fit_profiles(pd.concat(loaded.values()))
    model.reset(list(devices))
    curves = model.predict().curves
    share = -(-global_batch // len(devices))
    if (small := np.flatnonzero(curves.limit < share)).size:
        w = int(small[0])
        raise ValueError(
            f"an equal share of {share} samples does not fit into the memory of {list(devices)[w]}, whose largest "
            f"batch is {curves.limit[w]:.0f}: give a smaller global batch"
        )
    one = np.ones((1, len(devices)))
    return simulate(Trace(one, one, workers=list(devices)), global_batch=global_batch, curves=curves, noise=noise)


def _steady(trace: Trace, global_batch: int | None, curves: Curves | None, noise: float) -> Simulation:
    """Simulate workers that keep their mean speeds, with noise that is assumed: half as much and twice as much too."""
    if not 0 <= noise <= 1:
        raise ValueError(f"noise must lie in [0, 1], as a share of the speed, got {noise}")
    speed_W = 1.0 / np.nanmean(1.0 / trace.speed, axis=0)
    drawn_TW = np.random.default_rng(0).standard_normal((STEADY + WARMUP, len(speed_W)))
    batch = global_batch
    if batch is None and np.nanmax(trace.samples) > 1:
        batch = round(float(np.nansum(np.nanmedian(trace.samples, axis=0))))
    one, half, twice = (
        _simulated(
            Trace(np.ones_like(drawn_TW), np.exp(spread * drawn_TW) / speed_W, workers=trace.workers), batch, curves
        )
        for spread in (noise, noise / 2, 2 * noise)
    )
    assumed = (
        f"Assumed: each worker keeps its speed of {len(trace)} measurement{'s' * (len(trace) > 1)}, and varies by "
        f"{percent(noise)} from one iteration to the next (the interval: by half to twice as much)."
    )
    low, high = min(one.low, half.low, twice.low), max(one.high, half.high, twice.high)
    return replace(one, low=low, high=high, assumed=(assumed,))


def _simulated(job: Trace, global_batch: int | None, curves: Curves | None) -> Simulation:
    workers, warmup = len(job.workers), min(WARMUP, len(job) // 4)
    own = round(float(np.median(job.samples.sum(axis=1))))
    batch = global_batch if global_batch is not None else own if own > workers else None
    if batch is not None and batch <= workers:
        raise ValueError(indivisible(batch, workers))
    multiple = default_batch_multiple(batch, workers) if batch else 1
    upper = None if curves is None else dict(zip(job.workers, _whole(curves.limit), strict=True))
    policy = Policy(batch_multiple=multiple, upper=upper)
    live = Balanced(Auto(), policy)
    replayed = replay({LIVE: live}, job, global_batch=batch, warmup=warmup, curves=curves)
    scored = job.select(slice(warmup, None))
    exchange = _exchange(scored) * replayed.global_batch / own if own else 0.0
    equal_T, balanced_T = replayed.seconds(EQUAL) + exchange, replayed.seconds(LIVE) + exchange
    low, high = _interval(equal_T, balanced_T)
    seconds_TW = np.stack([one.seconds for one in replayed.iterations[EQUAL]])
    cost_TW = None if scored.work is None else scored.work / scored.samples
    waiting = costs_of_waiting(seconds_TW, cost_TW, foreseen=float(replayed.seconds(ORACLE).sum()))
    samples, machines, noise = (share * (1.0 - exchange / equal_T.mean()) for share in waiting)
    return Simulation(
        workers=workers,
        iterations=len(equal_T),
        global_batch=replayed.global_batch,
        saving=float(1.0 - balanced_T.sum() / equal_T.sum()),
        low=low,
        high=high,
        hindsight=samples + machines + noise,
        slow_machines=machines,
        uneven_samples=samples,
        noise=noise,
        slowest=job.workers[int(np.bincount(seconds_TW.argmax(axis=1)).argmax())],
    )


def _exchange(job: Trace) -> float:
    """Return the usual seconds of an exchange, which batch sizes do not change; 0 where it was not recorded."""
    known = job.comm_seconds is not None and bool(np.isfinite(job.comm_seconds).any())
    return float(np.nanmedian(job.comm_seconds)) if known else 0.0  # type: ignore[arg-type]


def _whole(limit: Array) -> list[int]:
    return [int(min(one, 2**31)) for one in limit]


def _interval(equal_T: Array, balanced_T: Array) -> tuple[float, float]:
    """Return the ends of the interval for the saving of another job that resembles this one and is as long."""
    from scipy.stats import t

    kept = float(balanced_T.sum() / equal_T.sum())
    error, degrees = Estimate(kept, (balanced_T - kept * equal_T) / equal_T.mean()).error(COSINES)
    both = np.sqrt(2) * error  # of this job, and of that one
    reach = float(np.hypot(t.isf((1 - LEVEL) / 2, degrees) * both, MODEL))
    return 1.0 - kept - reach, 1.0 - kept + reach
