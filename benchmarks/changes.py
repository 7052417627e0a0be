"""What a change-point detector is worth: speeds that jump every hundred iterations or so.

Run as ``python benchmarks/changes.py``; it writes changes.md beside this file. Axes: T iterations, W workers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from machine import machine
from numpy.typing import NDArray

from paceline.datasets import Trace
from paceline.predictors import EWMA, RLS, ChangePoint, LastValue, Mixture, Predictor, Report, RunningMedian
from paceline.predictors.mixture import EXPERTS

Array = NDArray[np.float64]

WORKERS, ITERATIONS, NOISES, SEED = 60, 600, (0.02, 0.06), 5
NEAR, SOON, LATEST = 0.05, 20, 60
"""A forecast within so much of the new log level has arrived; the iterations that count as soon after a jump; who has
not arrived by then counts as that late."""

SIMPLE = tuple(name for name in EXPERTS if name not in ("arima", "narx"))
"""The mixture's experts that need no fitting."""


class Jumps(NamedTuple):
    """The true log level ``[T, W]``, where it jumps, and the trace with noise and spikes."""

    level_TW: Array
    jumps_TW: NDArray[np.bool_]
    trace: Trace


def jumps(noise: float) -> Jumps:
    rng = np.random.default_rng(SEED)
    level_TW = np.zeros((ITERATIONS, WORKERS))
    jumps_TW = np.zeros(level_TW.shape, dtype=bool)
    for w in range(WORKERS):
        k, level = 0, 0.0
        while k < ITERATIONS:
            held = int(rng.integers(60, 140))
            level_TW[k : k + held, w], jumps_TW[k, w] = level, k > 0
            level = level + rng.choice([-1, 1]) * rng.uniform(0.2, 0.9) if abs(level) < 1 else 0.0
            k += held
    spikes_TW = (rng.random(level_TW.shape) < 0.01) * rng.uniform(0.5, 1.5, level_TW.shape)
    log_speed_TW = level_TW + noise * rng.standard_t(4, size=level_TW.shape) - spikes_TW
    return Jumps(level_TW, jumps_TW, Trace(np.full(level_TW.shape, 64.0), 64.0 / np.exp(log_speed_TW)))


def row(name: str, model: Predictor, data: Jumps) -> str:
    model.reset(data.trace.workers)
    found = []
    for samples_W, seconds_W in zip(data.trace.samples, data.trace.seconds, strict=True):
        found.append(np.log(model.predict().speed))
        model.observe(Report(samples_W, seconds_W))
    forecast_TW = np.array(found)
    near_TW = np.abs(forecast_TW - data.level_TW) < NEAR
    soon_TW = np.zeros_like(data.jumps_TW)
    delays = []
    for k, w in zip(*np.nonzero(data.jumps_TW), strict=True):
        arrived = near_TW[k : k + LATEST, w]
        delays.append(int(arrived.argmax()) if arrived.any() else LATEST)
        soon_TW[k : k + SOON, w] = True
    square_TW = np.square(forecast_TW - np.log(data.trace.speed))
    square_TW[:50] = np.nan  # all are still learning
    soon, later, whole = (np.sqrt(np.nanmean(square_TW[part])) for part in (soon_TW, ~soon_TW, soon_TW | True))
    return f"| {name} | {np.mean(delays):.1f} | {soon:.3f} | {later:.3f} | {whole:.3f} |"


def models() -> dict[str, Predictor]:
    return {
        "LastValue": LastValue(),
        "EWMA(0.05)": EWMA(0.05),
        "EWMA(0.2)": EWMA(0.2),
        "RunningMedian": RunningMedian(),
        "RLS": RLS(),
        "ChangePoint": ChangePoint(),
        "ChangePoint(threshold=6)": ChangePoint(threshold=6.0),
        "Mixture of simple ones and RLS": Mixture(SIMPLE),
        "the same with ChangePoint": Mixture((*SIMPLE, "change-point")),
    }


def main() -> None:
    lines = []
    for noise in NOISES:
        data = jumps(noise)
        lines.append(
            f"\n## Noise of {noise:.0%}\n\n| predictor | iterations to the new level | RMSE soon | later | all |"
        )
        lines.append("| --- | --- | --- | --- | --- |")
        lines += [row(name, model, data) for name, model in models().items()]
    head = f"""# What a change-point detector is worth

Command: `python benchmarks/changes.py`

Machine: {machine()}; one thread.

{WORKERS} workers x {ITERATIONS} iterations (seed {SEED}): a level that jumps by 20 to 90 % in log speed every 60 to 140
iterations, Student-t noise with 4 degrees of freedom, a spike in one iteration of a hundred. "Iterations to the new
level": until a forecast is within {NEAR:.0%} of it, at most {LATEST}. RMSE in log speed: in the {SOON} iterations
from a jump on, in all others, in all.
"""
    Path(__file__).with_suffix(".md").write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
