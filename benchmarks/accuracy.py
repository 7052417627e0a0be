"""How good one-step-ahead forecasts are: every predictor of the library against the last value.

Run as ``python benchmarks/accuracy.py``; it writes accuracy.md beside this file. Fitted on the first half of each
series, scored on the second, served through both. Axes: T iterations, W workers.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

from paceline.datasets import Trace, recorded
from paceline.datasets.synthetic import KINDS as SYNTHETIC
from paceline.datasets.synthetic import oracle_speed, synthetic_fleet
from paceline.predictors import KINDS, Calibrated, LastValue, Predictor, Report

Array = NDArray[np.float64]
Scores = tuple[Array, Array, float]
"""Root mean square error and mean absolute error of each worker, ``[W]``, and the coverage of the 90 % interval."""

WORKERS, ITERATIONS = 20, 1000


def datasets() -> Iterator[tuple[str, list[Trace]]]:
    for kind in SYNTHETIC:
        yield kind, [synthetic_fleet(kind, WORKERS, ITERATIONS)]
    yield "recorded, held out", recorded.load_split("held-out")


def predictors() -> dict[str, Callable[[], Predictor]]:
    found: dict[str, Callable[[], Predictor]] = {kind.__name__: kind for kind in KINDS}
    return found | {"Calibrated(mixture)": lambda: Calibrated("mixture")}


def forecasts(model: Predictor, trace: Trace) -> tuple[Array, Array, Array]:
    """Return speeds and the ends of the 90 % interval forecast in the second half, ``[T, W]`` each."""
    half = len(trace) // 2
    model.fit([trace.select(slice(0, half))])
    model.reset(trace.workers)
    drivers_TWD = trace.drivers_named(model.driver_names)
    rows = []
    for k in range(len(trace)):
        drivers_WD = None if drivers_TWD is None else drivers_TWD[k]
        if k >= half:
            forecast = model.predict(drivers_WD)
            rows.append((forecast.speed, forecast.quantile(0.05), forecast.quantile(0.95)))
        model.observe(Report(trace.samples[k], trace.seconds[k], drivers=drivers_WD))
    speed, low, high = (np.array(column) for column in zip(*rows, strict=True))
    return speed, low, high


def scores(speed_TW: Array, low_TW: Array, high_TW: Array, truth_TW: Array) -> Scores:
    seen_TW = np.isfinite(truth_TW)
    error_TW = np.where(seen_TW, speed_TW - truth_TW, np.nan)
    inside_TW = (low_TW <= truth_TW) & (truth_TW <= high_TW)
    rms_W, mean_W = np.sqrt(np.nanmean(np.square(error_TW), axis=0)), np.nanmean(np.abs(error_TW), axis=0)
    return rms_W, mean_W, float(inside_TW[seen_TW].mean())


def scored(make: Callable[[], Predictor], traces: list[Trace]) -> Scores:
    found = [scores(*forecasts(make(), trace), trace.speed[len(trace) // 2 :]) for trace in traces]
    return (
        np.concatenate([rms_W for rms_W, _, _ in found]),
        np.concatenate([mean_W for _, mean_W, _ in found]),
        float(np.mean([coverage for _, _, coverage in found])),
    )


def oracle(kind: str, traces: list[Trace]) -> Scores:
    truth_TW = traces[0].speed[ITERATIONS // 2 :]
    speed_TW = oracle_speed(kind, WORKERS, ITERATIONS)[ITERATIONS // 2 :]
    unknown_TW = np.full_like(truth_TW, np.nan)
    return scores(speed_TW, unknown_TW, unknown_TW, truth_TW)


def row(name: str, found: Scores, yardstick: Scores) -> str:
    rms_W, mean_W = found[0] / yardstick[0], found[1] / yardstick[1]
    rms, mean = (float(np.exp(np.mean(np.log(ratio_W)))) for ratio_W in (rms_W, mean_W))
    coverage = f"{found[2]:.1%}" if found[2] else "-"
    return f"| {name} | {rms:.3f} | {mean:.3f} | {rms_W.max():.2f} | {coverage} |"


def table(name: str, traces: list[Trace]) -> Iterator[str]:
    series = sum(len(trace.workers) for trace in traces)
    yield f"\n## {name}: {series} series\n"
    yield "| predictor | RMSE | MAE | worst series, RMSE | 90 % interval holds in |\n| --- | --- | --- | --- | --- |"
    yardstick = scored(LastValue, traces)
    for label, make in predictors().items():
        began = time.perf_counter()
        yield row(label, scored(make, traces), yardstick)
        print(f"{name}: {label} {time.perf_counter() - began:.1f} s", flush=True)
    if name in SYNTHETIC:
        yield row("*oracle: knows the hidden state*", oracle(name, traces), yardstick)


def main() -> None:
    began = time.perf_counter()
    lines = [line for name, traces in datasets() if traces for line in table(name, traces)]
    head = f"""# How good forecasts are, one step ahead

Command: `python benchmarks/accuracy.py`

Machine: {platform.machine()}, {os.cpu_count()} cores, one thread used; Python {platform.python_version()},
numpy {np.__version__}; other work ran on it. {time.perf_counter() - began:.0f} s in all.

Errors of the speed over those of the last value, geometric mean over series: below 1 is better. Every predictor is
fitted on the first half of a series and scored on the second; drivers are given to those that read them. Synthetic
fleets are {WORKERS} workers x {ITERATIONS} iterations. Peers
(statsforecast, river) are not scored here.
"""
    Path(__file__).with_name("accuracy.md").write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
