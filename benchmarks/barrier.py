"""How long a job waits for its slowest worker when batches are sized by forecasts: sparing noisy workers.

Run as ``python benchmarks/barrier.py``; it writes barrier.md beside this file. ``--quick`` prints a small table only.
Nothing is fitted: every predictor serves each trace from its first iteration, and the second half is scored. With the
hedging, forecasts are followed as far as that would lately have paid.

Axes: T iterations, W workers.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from machine import machine
from numpy.typing import NDArray

from paceline.coordinator.balanced.hedging import Hedging
from paceline.datasets import Trace, recorded
from paceline.datasets.synthetic import KINDS, oracle_speed, synthetic_fleet
from paceline.predictors import Auto, Forecast, LastValue, Predictor, Report

Array = NDArray[np.float64]

WORKERS, ITERATIONS, SEED = 32, 1000, 0
GROUP, GROUPS = 16, 8
"""Workers in a group, and groups drawn in each iteration."""

PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "LastValue": LastValue,
    "Auto": Auto,
}
CHOSEN = "Auto, hedged"


def forecasts(model: Predictor, trace: Trace) -> tuple[Array, Array]:
    """Return what is forecast one step ahead, and its spread, ``[T, W]`` each."""
    model.reset(trace.workers)
    covariates_TWD = trace.covariates_named(model.covariate_names)
    speed_TW, spread_TW = np.empty(trace.seconds.shape), np.empty(trace.seconds.shape)
    for k in range(len(trace)):
        covariates_WD = None if covariates_TWD is None else covariates_TWD[k]
        forecast = model.predict(covariates=covariates_WD)
        speed_TW[k], spread_TW[k] = forecast.speed, forecast.spread
        model.observe(Report(trace.samples[k], trace.seconds[k], covariates=covariates_WD))
    return speed_TW, spread_TW


def spared(speed_TW: Array, spread_TW: Array, truth_TW: Array) -> Array:
    """Return the forecasts hedged as would have paid before each iteration."""
    hedging, found, before_W = Hedging(), [], np.full(speed_TW.shape[1], np.nan)
    for speed_W, spread_W, truth_W in zip(speed_TW, spread_TW, truth_TW, strict=True):
        forecast = Forecast(speed_W, spread_W)
        hedging.follow(before_W, forecast)
        found.append(speed_W / hedging.stretch(forecast))
        before_W = truth_W
    return np.array(found)


def overhead(forecast_TW: Array, speed_TW: Array) -> float:
    """Return how much longer than the best split an iteration takes on average, over random groups of workers."""
    rng = np.random.default_rng(SEED)
    found = []
    for forecast_W, speed_W in zip(forecast_TW, speed_TW, strict=True):
        for _ in range(GROUPS):
            group = rng.choice(len(speed_W), GROUP, replace=False)
            p, v = forecast_W[group], speed_W[group]
            found.append((p / v).max() * v.sum() / p.sum() - 1.0)
    return float(np.mean(found))


def relative(panel_TW: Array, trace: Trace) -> Array:
    """Return speeds over each worker's median in the first half: workers of all jobs then share one scale."""
    return panel_TW / np.nanmedian(trace.speed[: len(trace) // 2], axis=0)


def sets(workers: int, iterations: int) -> Iterator[tuple[str, list[Trace], list[Array] | None]]:
    for kind in KINDS:
        known = oracle_speed(kind, workers, iterations, SEED)[iterations // 2 :]
        yield kind, [synthetic_fleet(kind, workers, iterations, SEED)], [known]
    yield "recorded, held out", recorded.load_split("held-out"), None


def rows(workers: int, iterations: int) -> Iterator[str]:
    names = [*PREDICTORS, CHOSEN]
    yield "| traces | " + " | ".join(names) + f" | oracle | {CHOSEN} / Auto |"
    yield "| --- |" + " --- |" * (len(names) + 2)
    for name, traces, known in sets(workers, iterations):
        truth_TW = side_by_side([trace.speed for trace in traces], traces)
        late = slice(len(truth_TW) // 2, None)
        found = {}
        for n, make in PREDICTORS.items():
            speed, spread = zip(*[forecasts(make(), trace) for trace in traces], strict=True)
            speed_TW, spread_TW = side_by_side(list(speed), traces), np.hstack([s[: len(truth_TW)] for s in spread])
            found[n] = overhead(speed_TW[late], truth_TW[late])
            if n == "Auto":
                found[CHOSEN] = overhead(spared(speed_TW, spread_TW, truth_TW)[late], truth_TW[late])
        oracle = f"{overhead(side_by_side(known, traces), truth_TW[late]):.1%}" if known else "-"
        cells = " | ".join(f"{found[n]:.1%}" for n in names)
        yield f"| {name} | {cells} | {oracle} | {found[CHOSEN] / found['Auto']:.3f} |"
        print(name, found, flush=True)


def side_by_side(panels: list[Array], traces: list[Trace]) -> Array:
    """Return the workers of several jobs as one fleet; the longer jobs are cut."""
    shortest = min(map(len, panels))
    return np.concatenate([relative(p[:shortest], t) for p, t in zip(panels, traces, strict=True)], axis=1)


def main() -> None:
    began = time.perf_counter()
    if "--quick" in sys.argv:
        print("\n".join(rows(GROUP, 300)))
        return
    table = "\n".join(rows(WORKERS, ITERATIONS))
    Path(__file__).with_name("barrier.md").write_text(f"""# How long a job waits for its slowest worker

Command: `python benchmarks/barrier.py`

Machine: {machine()}, one thread used; other work ran on it. {time.perf_counter() - began:.0f} s in all.

Batches of a group of {GROUP} workers are sized by the forecasts; the overhead is how much longer the iteration then
takes than with the best split for the true speeds: `max(p / v) * sum(v) / sum(p) - 1`, mean over {GROUPS} random groups
in each iteration of the second half. Nothing was fitted to these traces: every predictor serves them from the first
iteration on. Synthetic fleets are {WORKERS} workers x {ITERATIONS} iterations of a seed that
the networks never saw; the oracle knows their hidden state, but not their noise and spikes. The held-out recorded jobs
have four workers each and are placed side by side, each worker in units of its median speed. Lower is better. The
oracle's remaining overhead comes from noise and spikes of single iterations: no forecast can remove it.

{table}
""")


if __name__ == "__main__":
    main()
