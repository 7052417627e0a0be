"""Measure the time to serve one iteration of a fleet, and the size of the state per worker.

Run as ``python benchmarks/speed.py``; it writes speed.md beside this file. ``--quick`` tries small fleets only. river
takes part where it is installed. Axes: T iterations, W workers, D covariates.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

# One thread for everybody: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from machine import machine
from numpy.typing import NDArray

from paceline.predictors import RLS, Auto, Forecast, GatedNARX, Report
from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.named import named

Array = NDArray[np.float64]
Step = Callable[[Array, Array], object]
"""Takes the speeds of the iteration just finished, ``[W]``, and the covariates now, ``[W, D]``."""

COVARIATES = ("cpu_share", "memory_pressure")
OURS = ("last-value", "ewma", "RLS", "gated NARX", "Auto")
SIZES = (1, 8, 32, 100, 1000, 10_000, 100_000)
PEER, MOST_OF_PEER = "river HoltWinters", 10_000
"""Another library, and the largest fleet that it is measured on: it takes too long on larger ones."""

SETTLED = 40
"""Iterations before the first that is timed: every memory is full then."""

TURNS, CALLS = 5, 10
"""How often everybody takes a turn, and calls in a turn at most; the median over all of them is shown."""

TURN_SECONDS = 0.15
"""A turn ends after this, however few its calls were."""


def fleet(workers: int, iterations: int) -> tuple[Array, Array]:
    """Return synthetic speeds ``[T, W]``, and two covariates ``[T, W, D]``."""
    rng = np.random.default_rng(workers)
    return 100.0 * np.exp(rng.normal(0.0, 0.1, (iterations, workers))), rng.random(
        (iterations, workers, len(COVARIATES))
    )


def predictor(name: str) -> FleetPredictor:
    """Return one of ours by the name to show."""
    made = {
        "RLS": RLS(covariates=COVARIATES),
        "gated NARX": GatedNARX(pretrained=True),
        "Auto": Auto(covariates=COVARIATES),
    }
    return made[name] if name in made else named(name)


def served(model: FleetPredictor, workers: int) -> Step:
    """Return one iteration of ours: names of the workers once, then arrays in and a forecast out."""
    model.reset([str(w) for w in range(workers)])
    places = [model.covariate_names.index(name) for name in COVARIATES if name in model.covariate_names]
    samples_W = np.full(workers, 64.0)
    known_WD = np.full((workers, len(model.covariate_names)), np.nan)

    def step(speed_W: Array, covariates_WD: Array) -> Forecast:
        nonlocal known_WD
        model.observe(Report(samples_W, samples_W / speed_W, covariates=known_WD))
        known_WD = known_WD.copy()
        known_WD[:, places] = covariates_WD[:, : len(places)]
        return model.predict(covariates=known_WD)

    speed_TW, covariates_TWD = fleet(workers, min(SETTLED, max(12, 200_000 // workers)))
    for speed_W, covariates_WD in zip(speed_TW, covariates_TWD, strict=True):
        step(speed_W, covariates_WD)
    return step


def holt_winters(speed_TW: Array, covariates_TWD: Array) -> Step:
    """River's level and trend, one model for each worker."""
    from river.time_series import HoltWinters

    models = [HoltWinters(0.3, 0.1) for _ in speed_TW[0]]

    def step(speed_W: Array, covariates_WD: Array) -> list[list[float]]:
        for model, speed in zip(models, speed_W.tolist(), strict=True):
            model.learn_one(speed)
        return [model.forecast(1) for model in models]

    for speed_W in speed_TW[-8:]:
        step(speed_W, covariates_TWD[0])
    return step


def contestants(workers: int) -> dict[str, Step]:
    """Return everybody who takes part in a fleet of this size."""
    steps = {name: served(predictor(name), workers) for name in OURS}
    if workers <= MOST_OF_PEER:
        try:
            steps[PEER] = holt_winters(*fleet(workers, 200 if workers <= 1000 else 20))
        except ImportError:
            print(f"{PEER} is not installed", file=sys.stderr)
    return steps


def microseconds(steps: dict[str, Step], workers: int) -> dict[str, float]:
    """Return the median time of one iteration of each, taken in turns."""
    speed_TW, covariates_TWD = fleet(workers, CALLS)
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(TURNS):
        for name, step in steps.items():
            begun = time.perf_counter()
            for speed_W, covariates_WD in zip(speed_TW, covariates_TWD, strict=True):
                start = time.perf_counter()
                step(speed_W, covariates_WD)
                taken[name].append(1e6 * (time.perf_counter() - start))
                if time.perf_counter() - begun > TURN_SECONDS:
                    break
    return {name: statistics.median(times) for name, times in taken.items()}


def state_bytes(name: str) -> float:
    """Return the size of a settled worker's part of the state."""
    workers = 100
    model = predictor(name)
    served(model, workers)
    return sum(v.nbytes for n, v in model.state_dict().items() if n.startswith("rows/")) / workers


# -- the report --------------------------------------------------------------------------------------------------


def tables(sizes: tuple[int, ...]) -> Iterator[str]:
    taken = {}
    for workers in sizes:
        taken[workers] = microseconds(contestants(workers), workers)
    names = list(dict.fromkeys(name for times in taken.values() for name in times))
    head = "| | " + " | ".join(f"{workers:,}" for workers in sizes) + " |\n| --- |" + " --- |" * len(sizes)
    yield "## Microseconds per worker\n\n" + head
    for name in names:
        yield f"| {name} | " + " | ".join(_cell(taken[w].get(name), w) for w in sizes) + " |"
    yield "\n## Microseconds per call\n\n" + head
    for name in OURS:
        yield f"| {name} | " + " | ".join(f"{taken[w][name]:,.0f}" for w in sizes) + " |"


def _cell(call: float | None, workers: int) -> str:
    return "" if call is None else f"{call / workers:.3g}" if call / workers < 100 else f"{call / workers:,.0f}"


def report(quick: bool) -> Iterator[str]:
    yield "# The time to serve a fleet, and the state per worker\n"
    yield "Command: `python benchmarks/speed.py`\n"
    yield f"Machine: {machine(*(['river'] if find_spec('river') else []))}; one thread.\n"
    yield "One iteration learns the newest speeds and forecasts the next, with the covariates cpu_share and"
    yield "memory_pressure (covariates) where supported; inputs and outputs are arrays. Medians, all in turns."
    yield "river HoltWinters is left out of fleets on which it takes too long; it takes no covariates and mixes"
    yield "nothing: compare it with `ewma`.\n"
    yield from tables(SIZES[:4] if quick else SIZES)
    yield "\n## Bytes of state per worker\n\n| | bytes |\n| --- | --- |"
    for name in OURS:
        yield f"| {name} | {state_bytes(name):,.0f} |"


def main() -> None:
    quick = "--quick" in sys.argv[1:]
    text = "\n".join(report(quick)) + "\n"
    if not quick:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
