"""The data that accuracy is measured on: synthetic fleets of two families, the recorded jobs, and real sets if there.

Axes: T iterations, W workers, D covariates.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from accuracy_hosted import KINDS as HOSTED
from accuracy_hosted import hosted_fleet
from numpy.typing import NDArray

from paceline.datasets import Trace, read_traces, recorded
from paceline.datasets.synthetic import FLEET_KINDS as SYNTHETIC
from paceline.datasets.synthetic import oracle_speed, synthetic_fleet

Array = NDArray[np.float64]

DATA = Path(os.environ.get("PACELINE_DATA", Path(__file__).parents[2] / "shared" / "data"))

WORKERS, ITERATIONS, SEED = 100, 2000, 5000
"""Size and seed of the synthetic fleets: the shipped networks were fitted to the seeds 1000 to 1008."""

HOSTED_WORKERS, HOSTED_ITERATIONS = 40, 1000
"""Size of the fleets of the second generator."""

CHOSEN_ON, OTHER_SEED = "queues", 7001
"""Kind and seed of the fleet of the second generator on which an idea was chosen; the page measures another seed."""

AZURE_ITERATIONS = 2000
"""Number of first results of the first machine that are taken from each of the 14 measurements."""

DEVELOPMENT, HELD_OUT = "development", "held out"
"""Whether ideas were chosen on a set, or nobody looked at it before they were."""

LEAST_STEPS, LEAST_SECONDS = 1.0, 1e-3
"""A resumed run steps back and a clock may stand still: differences below these are no measurement."""

FEW_WORKERS = 12
"""Number of first workers of a large trace that peers are fitted to if each series has a fit of its own."""

FEW_OF_MANY = 2
"""The same of a set of many traces, such as the 22 windows of bytedance."""


FARTHEST = 4.0
"""Covariates count as at most this many deviations from their mean, as in our own predictors."""

FARTHEST_FORECAST = 3.0
"""A peer's forecast counts as at most this far, in log speed, outside what the worker has shown before."""

VALIDATION = 5
"""The last fifth of the first half decides between a peer's configurations."""


@dataclass(frozen=True)
class Set:
    """Traces under one name; the workers' names differ throughout, and each is fitted on its first half."""

    name: str
    about: str
    traces: list[Trace]
    role: str = DEVELOPMENT

    @property
    def fitting(self) -> list[Trace]:
        """The first half of every trace."""
        return [trace.select(slice(0, half(trace))) for trace in self.traces]

    @property
    def series(self) -> int:
        """How many workers there are."""
        return sum(len(trace.workers) for trace in self.traces)

    def first(self, count: int) -> Set:
        """Return the set with only so many first workers of each trace."""
        return replace(self, traces=[t.select(workers=t.workers[:count]) for t in self.traces])

    def few(self) -> Set:
        """Return the series for peers that are slow to fit."""
        return self.first(FEW_OF_MANY if self.series > 20 * FEW_OF_MANY and len(self.traces) > 1 else FEW_WORKERS)

    def places(self, part: Set) -> NDArray[np.intp]:
        """Return where the series of a part lie among this set's."""
        names = [worker for trace in self.traces for worker in trace.workers]
        return np.array([names.index(worker) for trace in part.traces for worker in trace.workers], np.intp)


def common_covariates(traces: list[Trace]) -> list[str]:
    """Return the names of the covariates that all traces have."""
    return [name for name in traces[0].covariate_names if all(name in trace.covariate_names for trace in traces)]


def half(trace: Trace) -> int:
    """The first iteration that is scored."""
    return len(trace) // 2


def sets(quick: bool, folder: Path | None = DATA) -> Iterator[Set]:
    """Yield every set that is there; those of public data lie in the folder."""
    size = (20, 600) if quick else (WORKERS, ITERATIONS)
    for kind in SYNTHETIC:
        about = f"synthetic, {size[0]} workers x {size[1]} iterations, seed {SEED}"
        yield Set(kind, about, [_unique(synthetic_fleet(kind, *size, seed=SEED))])
    size = (8, 400) if quick else (HOSTED_WORKERS, HOSTED_ITERATIONS)
    for kind in HOSTED:
        about = f"synthetic, of the second generator, {size[0]} workers x {size[1]} iterations"
        role = DEVELOPMENT if kind == CHOSEN_ON else HELD_OUT
        yield Set(kind, about, [_unique(hosted_fleet(kind, *size, seed=SEED))], role)
    jobs = [_unique(trace) for trace in recorded.load_split("held-out")]
    yield Set("recorded", "the held-out jobs that ship with the library", jobs, HELD_OUT)
    for data in [] if folder is None else _real(folder):
        yield replace(data, traces=[_unique(trace) for trace in data.traces])


def chosen_on() -> Set:
    """Return the fleet of the second generator on which an idea was chosen."""
    fleet = hosted_fleet(CHOSEN_ON, HOSTED_WORKERS, HOSTED_ITERATIONS, seed=OTHER_SEED)
    return Set(CHOSEN_ON, f"synthetic, of the second generator, seed {OTHER_SEED}", [_unique(fleet)])


def oracle(kind: str, trace: Trace) -> Array:
    """Return the speeds without noise of a synthetic fleet, ``[T, W]``."""
    return oracle_speed(kind, len(trace.workers), len(trace), seed=SEED)


def _real(folder: Path) -> Iterator[Set]:
    if (folder / "hivemind_multicloud").is_dir():
        jobs = read_traces(folder / "hivemind_multicloud", "hivemind")
        yield Set("hivemind", "training steps of five jobs in several clouds", jobs)
    if (folder / "azure_vm_noise").is_dir():
        jobs = [t for t in read_traces(folder / "azure_vm_noise", "azure_vm_noise") if t.workers == ("vm 0",)]
        jobs = [_in_own_units(trace.select(slice(0, AZURE_ITERATIONS))) for trace in jobs]
        about = f"14 measurements of a cloud machine, the first {AZURE_ITERATIONS} results of each"
        yield Set("azure_vm", about, jobs, HELD_OUT)
    if (folder / "pai_minibatch").is_dir():
        jobs = read_traces(folder / "pai_minibatch", "pai_minibatch")
        yield Set("pai", "mini-batches of two production jobs, every 10 s", jobs)
    if (folder / "bytedance_llm").is_dir():
        jobs = read_traces(folder / "bytedance_llm", "bytedance_llm", micro_batches=True)
        about = "forward micro-batches of two jobs that train language models, by pipeline stage and window of steps"
        yield Set("bytedance", about, jobs, HELD_OUT)
    if (folder / "cmdare_syncswitch").is_dir():
        yield from _from_the_first_step(folder / "cmdare_syncswitch")


def _from_the_first_step(folder: Path) -> Iterator[Set]:
    for gpu, role in (("k80", DEVELOPMENT), ("p100", HELD_OUT)):
        about = f"logged speeds of 32 jobs on {gpu.upper()} GPUs of a cloud from the first step on (CM-DARE)"
        yield Set(f"cmdare {gpu}", about, list(cm_dare(folder / "cmdare", gpu)), role)
    for runs, role in (("135", DEVELOPMENT), ("24", HELD_OUT)):
        about = f"runs {', '.join(runs)} of each synchronization scheme, every 100 steps (Sync-Switch)"
        yield Set(f"syncswitch {runs}", about, list(sync_switch(folder / "syncswitch", runs)), role)


def cm_dare(folder: Path, gpu: str) -> Iterator[Trace]:
    """Yield the logged speed of each job on this kind of GPU, in steps/s, from its very first steps on."""
    for path in sorted(folder.glob(f"*__{gpu}__*.csv")):
        speed_T = _columns(path)[2]
        yield _job(path, speed_T[speed_T > 0])


def sync_switch(folder: Path, runs: str) -> Iterator[Trace]:
    """Yield the speed of each job whose number is one of these digits: steps over seconds between two points."""
    for path in sorted(folder.glob(f"*_[{runs}].csv")):
        seconds_T, step_T, _ = _columns(path)
        passed_T, made_T = np.diff(seconds_T), np.diff(step_T)
        usable_T = (made_T >= LEAST_STEPS) & (passed_T >= LEAST_SECONDS)
        yield _job(path, made_T[usable_T] / passed_T[usable_T])


def _columns(path: Path) -> Array:
    """Return time, step and value, one row each."""
    return np.asarray(np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2).T)


def _job(path: Path, speed_T: Array) -> Trace:
    seconds = 1.0 / speed_T[:, None]
    return Trace(np.ones_like(seconds), seconds, workers=["job"], meta={"job": path.stem.split("__", 1)[-1]})


def _unique(trace: Trace) -> Trace:
    return replace(trace, workers=tuple(f"{trace.name}/{worker}" for worker in trace.workers))


def _in_own_units(trace: Trace) -> Trace:
    """Measure speed in units of the median of the first half: these series are of different kinds."""
    unit_W = np.nanmedian(trace.speed[: half(trace)], axis=0)
    return replace(trace, samples=trace.samples / unit_W)


# -- series as other libraries take them: logarithms, no gaps, covariates in deviations --------------------------------


def tuning(start: int) -> int:
    """Return the first iteration of the part that decides, given the first that is scored."""
    return start - max(start // VALIDATION, 1)


def filled(values_TW: Array) -> Array:
    """Return the values with gaps at the last value before them, or the first after the beginning."""
    last_TW = np.where(np.isfinite(values_TW), np.arange(len(values_TW))[:, None], 0)
    panel_TW = np.take_along_axis(values_TW, np.maximum.accumulate(last_TW, axis=0), axis=0)
    first_W = panel_TW[np.argmax(np.isfinite(panel_TW), axis=0), np.arange(panel_TW.shape[1])]
    return np.where(np.isfinite(panel_TW), panel_TW, first_W)


def log_speed(trace: Trace) -> Array:
    """Return log speeds without gaps, ``[T, W]``."""
    return np.log(filled(trace.speed))


def covariates_of(trace: Trace) -> Array:
    """Return the covariates, ``[T, W, D]``, in standard deviations of the first half, clipped; gaps at the mean."""
    values_TWD = trace.covariates_named(trace.covariate_names)
    if values_TWD is None:
        return np.zeros((*trace.speed.shape, 0))
    values_TWD = np.where(np.isfinite(values_TWD), values_TWD, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a covariate that was never sampled
        past = values_TWD[: half(trace)]
        mean_WD, deviation_WD = np.nanmean(past, axis=0), np.nanstd(past, axis=0)
    standard_TWD = (values_TWD - mean_WD) / np.where(deviation_WD > 1e-9, deviation_WD, 1.0)
    return np.clip(np.nan_to_num(standard_TWD), -FARTHEST, FARTHEST)


def speeds(forecast_TW: Array, trace: Trace) -> Array:
    """Return speeds of log forecasts of the second half, bounded by what each worker has shown before.

    What is not a number counts as the last value.
    """
    log_TW, start = log_speed(trace), half(trace)
    low_TW = np.minimum.accumulate(log_TW, axis=0)[start - 1 : -1] - FARTHEST_FORECAST
    high_TW = np.maximum.accumulate(log_TW, axis=0)[start - 1 : -1] + FARTHEST_FORECAST
    known_TW = np.where(np.isfinite(forecast_TW), forecast_TW, log_TW[start - 1 : -1])
    return np.asarray(np.exp(np.clip(known_TW, low_TW, high_TW)))


def squared(forecast: Array, truth: Array) -> float:
    """Return the mean squared error by which configurations are chosen; infinite for what is not a number."""
    error = float(np.mean(np.square(forecast - truth)))
    return error if np.isfinite(error) else np.inf
