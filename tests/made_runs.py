"""Runs of random numbers, balanced and asynchronous, for the tests of what is drawn of them."""

import numpy as np

from paceline.runs import AsyncRun, Run
from paceline.runs.json_rounds import OF_FLEET, OF_WORKERS

NAN = float("nan")


def made_run(iterations, workers, *, changes=0.1, gaps=0.1, drift=0.0, seed=0, unit=1.0):
    """A run of random numbers, with gaps; ``unit`` scales its times."""
    rng, shape = np.random.default_rng(seed), (iterations, workers)
    sizes = rng.integers(8, 64, shape).astype(float)
    sizes[rng.random(shape) < gaps / 4] = NAN
    seconds = np.where(
        rng.random(shape) < gaps, NAN, sizes / rng.normal(1000, 50, workers) * rng.lognormal(0, 0.1, shape)
    )
    seconds[iterations // 2 :, 1] *= 2.5
    panels = {"sizes": sizes, "seconds": seconds, "forecast_seconds": seconds * rng.lognormal(0, 0.2, shape)}
    panels = {name: rows * unit if "seconds" in name else rows for name, rows in panels.items()}
    panels |= {"comm_seconds": seconds * unit / 9, "planned": sizes, "work": np.full(shape, NAN)}
    walls = rng.uniform(0.1, 0.2, iterations)
    fleet = {"index": np.arange(3.0, 3 + iterations), "time": 1.7e9 + np.cumsum(walls), "wall_seconds": walls}
    fleet |= {
        "equal_seconds": rng.uniform(0.05, 0.2, iterations),
        "overhead_seconds": rng.uniform(1e-4, 2e-4, iterations),
    }
    fleet |= {name: unit * rows for name, rows in fleet.items() if "seconds" in name}
    acted = rng.random(iterations) < changes
    fleet |= {"gain": np.where(acted, rng.uniform(0, 0.2, iterations), NAN), "drift": np.full(iterations, drift)}
    names = tuple(f"gpu{k}" for k in range(workers))
    why = tuple(
        f"Moved {k} samples from gpu0 to gpu1." if moved else "Kept the sizes." for k, moved in enumerate(acted)
    )
    agreed = rng.random(iterations) < 0.9
    return Run("folder/made.jsonl", names, panels, fleet, agreed, acted, why, skipped=2, lost=3)


def made_async_run(rounds, workers, *, bound=4, wasted=0.1, seed=0):
    """An asynchronous run of random numbers: totals that grow, with gaps where a worker pushed nothing."""
    rng, shape = np.random.default_rng(seed), (rounds, workers)
    totals = {name: np.cumsum(rng.integers(1, 9, shape), axis=0).astype(float) for name in OF_WORKERS}
    for name in ("staleness", "expected", "sizes"):
        totals[name] = np.where(rng.random(shape) < 0.2, NAN, rng.integers(1, 9, shape) + np.arange(workers) / 8)
    fleet = {name: np.cumsum(rng.integers(1, 9, rounds)).astype(float) for name in OF_FLEET}
    fleet |= {"index": np.arange(float(rounds)), "wasted_share": np.full(rounds, wasted) * np.linspace(0.5, 1, rounds)}
    fleet |= {"covered": np.full(rounds, 0.875), "largest": np.full(rounds, 9.0)}
    names = tuple(f"{k}" for k in range(workers))
    slow = tuple(tuple(name for name in names[:2] if rng.random() < 0.3) for _ in range(rounds))
    acted = tuple(bool(one) for one in rng.random(rounds) < 0.6)
    why = tuple(f"Dropped {k}." if one else "" for k, one in enumerate(acted))
    facts = {"name": "runs/async.jsonl", "scheme": "saps", "bound": bound, "batch": 64, "skipped": 1, "lost": 2}
    return AsyncRun(**facts, workers=names, of_workers=totals, of_fleet=fleet, stragglers=slow, acted=acted, why=why)


RUNS = {
    "small": made_run(24, 3),
    "without changes": made_run(12, 2, changes=0.0, gaps=0.0),
    "of a day": made_run(620, 25, gaps=0.3, seed=1),
    "drifted": made_run(30, 4, drift=0.2, gaps=0.0, seed=2),
    "of one": made_run(9, 2, gaps=1.0),
    "of microseconds": made_run(30, 3, seed=3, unit=1e-4),
}

ASYNC_RUNS = {
    "small": made_async_run(12, 3),
    "without a bound": made_async_run(40, 9, bound=None, wasted=0.05, seed=1),
    "without stragglers": made_async_run(3, 1, wasted=0.01, seed=5),
}
