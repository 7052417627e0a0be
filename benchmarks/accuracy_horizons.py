"""How good forecasts and their intervals are 1, 2, 5 and 20 iterations ahead, against peers fitted at that horizon.

Run as ``python benchmarks/accuracy_horizons.py --data FOLDER``; it writes accuracy_horizons.md beside this file, within
ten minutes on two cores. Without a folder of public data, and with ``--sets`` or ``--development``, the page is
printed. The peers are in accuracy_direct.py. Axes: T iterations, W workers.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from accuracy_direct import ridge
from accuracy_scores import geometric
from accuracy_sets import DEVELOPMENT, Set, common_covariates, filled, half, sets
from machine import machine
from numpy.typing import NDArray

from paceline.datasets import Trace
from paceline.predictors import EWMA, Auto, Predictor, Report

Array = NDArray[np.float64]

HORIZONS, MOST_TRACES = (1, 2, 5, 20), 24
"""Horizons, and traces of a set that are taken."""

MOST_OF_PEER = {2: 1.03, 5: 1.02, 20: 1.02}
"""The most that Auto's error should be at a horizon, in that of the better of EWMA and ridge."""

COVERED = (0.88, 0.92)
"""Share of speeds that 90% intervals should hold, mean over the series of a set."""

SHORTEST_BLOCK = 10
"""Iterations that count as independent of others, at least."""

AUTO, AVERAGE, RIDGE = "Auto", "EWMA", "ridge"


MOST_WORKERS, MOST_ITERATIONS = 16, 600
"""Workers of a trace, and its first iterations, that are taken."""

SEED = 28
"""Seed of the made shapes."""

UNLIKE = {
    "speed runs": ("nanogpt-0", "step times of 22 runs that train a small language model as fast as possible"),
    "pipeline": ("spdl-download", "minutes of a data pipeline on 24 ranks"),
    "update": ("genai-update", "latencies of requests on 80 containers, with covariates"),
    "controlnet": ("genai-controlnet", "latencies of other requests on these containers, with covariates"),
}
"""Files of series unlike those of the accuracy page, by the names of their sets."""


@dataclass(frozen=True)
class Found:
    """RMSE over the last value's of each series, by forecaster and horizon, and how often Auto's interval holds.

    ``doubt`` is two standard errors of the mean of the latter.
    """

    data: Set
    rmse: dict[tuple[str, int], Array]
    holds: dict[int, Array]
    doubt: dict[int, float]
    seconds: float

    def mean(self, name: str, horizon: int) -> float:
        """Return the geometric mean over the series."""
        ratio_W = self.rmse[name, horizon]
        return geometric(ratio_W[np.isfinite(ratio_W)])

    def share(self, horizon: int) -> float:
        """Return how often the 90% interval holds, mean over series."""
        return float(np.nanmean(self.holds[horizon]))

    def covers(self, horizon: int) -> str:
        """Return that share, and two standard errors of it."""
        return f"{100 * self.share(horizon):.1f} ± {100 * self.doubt[horizon]:.1f}%"

    def over_peer(self, horizon: int) -> float:
        """Return Auto's error over that of the better of EWMA and ridge."""
        return self.mean(AUTO, horizon) / min(self.mean(AVERAGE, horizon), self.mean(RIDGE, horizon))


def all_sets(folder: Path | None) -> Iterator[Set]:
    """Yield every set; those of public data only if there is a folder of it."""
    yield Set("dips", "near-constant speeds with rare dips, made here", [with_dips(seed) for seed in range(2)])
    yield Set("latencies", "heavy-tailed latencies with a load, made here", [with_load(seed) for seed in range(2)])
    yield from sets(quick=True, folder=folder)
    if folder is not None:
        yield from _unlike(folder / "unlike_2026")


def with_dips(seed: int, workers: int = 7, iterations: int = MOST_ITERATIONS) -> Trace:
    """Workers that always have the same speed, but for one iteration in five to fifteen, which is slow."""
    rng = np.random.default_rng((SEED, seed))
    rare_W = rng.uniform(0.07, 0.2, workers)
    depth_TW = rng.uniform(0.1, 0.7, (iterations, workers))
    return _made("dips", seed, 100.0 * np.where(rng.random(depth_TW.shape) < rare_W, 1.0 - depth_TW, 1.0))


def with_load(seed: int, workers: int = 40, iterations: int = 400) -> Trace:
    """Latencies that grow beyond a knee of the load before, with multiplicative noise and a heavy tail."""
    rng = np.random.default_rng((SEED, 100 + seed))
    load_TW = np.empty((iterations, workers))
    load_TW[0] = rng.uniform(0.2, 0.8, workers)
    for k in range(1, iterations):
        towards_W = 0.15 * (0.5 - load_TW[k - 1]) + rng.normal(0, 0.12, workers)
        load_TW[k] = np.clip(load_TW[k - 1] + towards_W, 0.0, 1.0)
    queue_TW = 2.0 * np.maximum(load_TW - 0.6, 0.0) / (1.1 - load_TW)
    tail_TW = 0.3 * rng.standard_t(4, load_TW.shape)
    usual_W = rng.lognormal(0, 0.25, workers)
    return _made("latencies", seed, 100.0 * usual_W / (1.0 + queue_TW) * np.exp(-tail_TW), load_TW)


def _made(name: str, seed: int, speed_TW: Array, load_TW: Array | None = None) -> Trace:
    covariates = {} if load_TW is None else {"covariates": load_TW[..., None], "covariate_names": ["load"]}
    workers = [f"{name} {seed}/{w}" for w in range(speed_TW.shape[1])]
    seconds_TW = 64.0 / speed_TW
    return Trace(
        np.full_like(seconds_TW, 64.0), seconds_TW, workers=workers, meta={"job": f"{name}-{seed}"}, **covariates
    )  # type: ignore[arg-type]


def _unlike(folder: Path) -> Iterator[Set]:
    if not folder.is_dir():
        return
    import pandas as pd

    for name, (file, about) in UNLIKE.items():
        yield Set(name, about, [Trace.from_frame(pd.read_parquet(folder / f"{file}.parquet"), meta={"job": name})])


def cut(data: Set) -> Set:
    traces = [t.select(slice(0, MOST_ITERATIONS), workers=t.workers[:MOST_WORKERS]) for t in data.traces[:MOST_TRACES]]
    return replace(data, traces=traces)


def measured(data: Set) -> Found:
    """Serve and score one set in this process."""
    warnings.simplefilter("ignore")  # means over no report
    began = time.process_time()
    names = common_covariates(data.traces)
    auto = [served(Auto(names), trace) for trace in data.traces]
    average = [served(EWMA(), trace) for trace in data.traces]
    rmse, holds, doubt = {}, {}, {}
    for h in HORIZONS:
        columns = {
            AUTO: [f[h][0] for f in auto],
            AVERAGE: [f[h][0] for f in average],
            RIDGE: whole(ridge(data, h), data),
        }
        for name, column in columns.items():
            pairs = zip(column, data.traces, strict=True)
            rmse[name, h] = np.concatenate([ratios(speed_TW, trace, h) for speed_TW, trace in pairs])
        inside = [held(f[h], t, h) for f, t in zip(auto, data.traces, strict=True)]
        holds[h] = np.concatenate([np.nanmean(inside_TW, axis=0) for inside_TW in inside])
        doubt[h] = 2.0 * standard_error(inside, h)
    print(f"{data.name}: {time.process_time() - began:.0f} s", flush=True)
    return Found(data, rmse, holds, doubt, time.process_time() - began)


def whole(later: list[Array], data: Set) -> list[Array]:
    """Return forecasts of the second halves as of whole traces, NaN in the first."""
    pairs = zip(later, data.traces, strict=True)
    return [np.pad(p, ((len(t) - len(p), 0), (0, 0)), constant_values=np.nan) for p, t in pairs]


def served(model: Predictor, trace: Trace) -> dict[int, Array]:
    """Return speed and the ends of the 90% interval of each iteration, as forecast at each horizon, ``[3, T, W]``."""
    model.reset(trace.workers)
    covariates_TWD = trace.covariates_named(model.covariate_names)
    found = {h: np.full((3, *trace.speed.shape), np.nan) for h in HORIZONS}
    for k in range(len(trace)):
        covariates_WD = None if covariates_TWD is None else covariates_TWD[k]
        for h in HORIZONS:
            if k + h <= len(trace):
                forecast = model.predict(covariates=covariates_WD, horizon=h)
                found[h][:, k + h - 1] = forecast.speed, forecast.quantile(0.05), forecast.quantile(0.95)
        model.observe(Report(trace.samples[k], trace.seconds[k], covariates=covariates_WD))
    return found


def scored(trace: Trace, horizon: int) -> slice:
    """Return the iterations that are scored: the second half, and none that no report came before."""
    return slice(max(half(trace), horizon), len(trace))


def last_value(trace: Trace, horizon: int) -> Array:
    """Return the newest report that was known that many iterations before each one."""
    known_TW = np.full(trace.speed.shape, np.nan)
    known_TW[horizon:] = filled(trace.speed)[: len(trace) - horizon]
    return known_TW


def ratios(speed_TW: Array, trace: Trace, horizon: int) -> Array:
    """Return each series' RMSE over that of the last value, ``[W]``; 1 where neither errs."""
    part = scored(trace, horizon)
    error_TW, base_TW = (np.square(p - trace.speed)[part] for p in (speed_TW, last_value(trace, horizon)))
    known_TW = np.isfinite(trace.speed[part])
    error_W, base_W = (np.sqrt(np.nanmean(np.where(known_TW, e, np.nan), axis=0)) for e in (error_TW, base_TW))
    return np.where((error_W == 0) & (base_W == 0), 1.0, error_W / base_W)


def held(found_3TW: Array, trace: Trace, horizon: int) -> Array:
    """Return where the interval held a reported speed: 1 or 0, NaN without a report, ``[T, W]``."""
    part = scored(trace, horizon)
    speed_TW = trace.speed[part]
    inside_TW = (found_3TW[1, part] <= speed_TW) & (speed_TW <= found_3TW[2, part])
    return np.where(np.isfinite(speed_TW), inside_TW, np.nan)


def standard_error(inside: list[Array], horizon: int) -> float:
    """Return the standard error of the mean share over series; blocks of two horizons of a trace count as independent.

    Workers of a fleet, and errors that overlap, miss together: single misses would make it far too small.
    """
    mean = np.nanmean(np.concatenate([np.nanmean(i, axis=0) for i in inside]))
    off = [np.nan_to_num((i - mean) / np.isfinite(i).sum(axis=0)) for i in inside]
    length = max(2 * horizon, SHORTEST_BLOCK)
    sums = np.array([o[k : k + length].sum() for o in off for k in range(0, len(o), length)])
    series = sum(i.shape[1] for i in inside)
    return float(np.sqrt(np.square(sums).sum() * len(sums) / max(len(sums) - 1, 1)) / series)


# -- the page ----------------------------------------------------------------------------------------------------------


def page(found: list[Found]) -> Iterator[str]:
    """Yield the lines of the page."""
    spent = sum(each.seconds for each in found) / 60
    yield f"""\
# How good forecasts are further ahead

Command: `python benchmarks/accuracy_horizons.py --data FOLDER`: {spent:.0f} minutes of CPU time.

Machine: {machine()}; one thread.

RMSE of the speed over that of the last value known at that horizon, geometric mean over series, second half of each
series. The sets are those of [accuracy.md](accuracy.md), smaller, and series unlike those, which the program describes;
of each {MOST_TRACES} traces of {MOST_WORKERS} workers and {MOST_ITERATIONS} iterations at most. Horizon 1 is the next
iteration. `Auto` is not fitted, given the names of the set's covariates, and asked for all horizons at every iteration;
covariates are those sampled when the forecast is made. Ridge is fitted at that horizon on the first half: its lags, its
penalty, whether it sees covariates, and one fit for all series or one for each, are chosen for the set on the last
fifth of that half. EWMA is ours, with its defaults. *Holds* is how often Auto's central 90% interval holds the speed,
mean over series, with two standard errors: blocks of two horizons (at least {SHORTEST_BLOCK} iterations) of a trace
count as independent, single iterations and workers of a fleet do not. Where that is above 2%, a set is too short to
tell an interval of 88 from one of 92%. Constants of forecasts further ahead were chosen on the development sets, with
synthetic fleets of other seeds.
"""
    yield from verdict(found)
    for h in HORIZONS:
        yield f"\n## Horizon {h}\n"
        yield "| set | role | Auto | EWMA | ridge | Auto / the better of both | holds |"
        yield "| --- | --- | --- | --- | --- | --- | --- |"
        for each in found:
            cells = [each.data.name, each.data.role, *(f"{each.mean(name, h):.3f}" for name in (AUTO, AVERAGE, RIDGE))]
            yield f"| {' | '.join(cells)} | {each.over_peer(h):.3f} | {each.covers(h)} |"


def verdict(found: list[Found]) -> Iterator[str]:
    """Yield what the tables say of the aims."""
    yield "Aims, each with what misses it:\n"
    for h, most in MOST_OF_PEER.items():
        missed = [f"{each.data.name} ({each.over_peer(h):.3f})" for each in found if each.over_peer(h) > most]
        yield f"- Horizon {h}: at most {most} of the better of EWMA and ridge. {told(missed, found)}"
    for h in HORIZONS:
        missed = [f"{e.data.name} ({e.covers(h)})" for e in found if not COVERED[0] <= e.share(h) <= COVERED[1]]
        yield f"- Horizon {h}: 90% intervals hold {COVERED[0]:.0%} to {COVERED[1]:.0%}. {told(missed, found)}"


def told(missed: list[str], found: list[Found]) -> str:
    return f"Missed on {len(missed)} of {len(found)} sets: {', '.join(missed)}." if missed else "Nothing misses it."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of public data")
    parser.add_argument("--sets", nargs="*", help="names of sets; the page is printed, not written")
    parser.add_argument("--development", action="store_true", help="sets on which rules may be chosen; printed")
    parser.add_argument("--processes", type=int, default=2, help="sets that are measured at once")
    chosen = parser.parse_args()
    wanted = [data for data in all_sets(chosen.data) if not chosen.sets or data.name in chosen.sets]
    wanted = [cut(data) for data in wanted if not chosen.development or data.role == DEVELOPMENT]
    with ProcessPoolExecutor(chosen.processes) as pool:
        text = "\n".join(page(list(pool.map(measured, wanted)))) + "\n"
    if chosen.data is None or chosen.sets or chosen.development:
        print(text)
    else:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
