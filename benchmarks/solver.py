"""How fast and how good `split` is: against other exact solvers, at scale, and what its caution gains.

Run as ``python benchmarks/solver.py``; it writes solver.md beside this file. ``--quick`` prints a part. CP-SAT takes
part when ``ortools`` is installed. Axis: W workers.
"""

from __future__ import annotations

import heapq
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# One thread for everybody: set before numpy and the solvers start theirs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from machine import machine
from numpy.typing import NDArray

from paceline.predictors import Curves
from paceline.solver import split

Array = NDArray[np.float64]
Solver = Callable[[Curves, int], Array]

SAMPLES_PER_WORKER = 64
SLOW_SOLVER_SECONDS = 60.0
"""A solver that took longer than this is left out of larger fleets."""

TURN_SECONDS = 0.02

QUICK = "--quick" in sys.argv


def plain_speeds(workers: int) -> Curves:
    return Curves.from_speed(np.random.default_rng(workers).lognormal(5.0, 0.6, workers))


def equal_speeds(workers: int) -> Curves:
    return Curves.from_speed(np.full(workers, 100.0))


def mixed_curves(workers: int) -> Curves:
    """Half with a floor, half with an intercept, a fifth with a memory limit."""
    rng = np.random.default_rng(workers)
    slope, intercept = 1 / rng.lognormal(5.0, 0.6, workers), rng.uniform(0, 0.05, workers)
    intercept *= rng.random(workers) < 0.5
    floor = (intercept + slope * rng.uniform(8, 64, workers)) * (rng.random(workers) < 0.5)
    limit = np.where(rng.random(workers) < 0.2, rng.integers(64, 512, workers), np.inf)
    return Curves(floor, slope, intercept, limit)


def equal_floors(workers: int) -> Curves:
    return Curves(np.ones(workers), np.full(workers, 0.01), np.zeros(workers), np.full(workers, np.inf))


def ours(curves: Curves, batch: int) -> Array:
    return split(curves, batch, lower=1).sizes.astype(np.float64)


def heap_greedy(curves: Curves, batch: int) -> Array:
    """Sample after sample to whoever would end first, in plain Python: exact, and slow."""
    floor, slope, intercept, limit = (
        column.tolist() for column in (curves.floor, curves.slope, curves.intercept, curves.limit)
    )
    sizes = [1] * len(slope)
    queue = [(max(floor[i], intercept[i] + slope[i] * 2), i) for i in range(len(slope)) if limit[i] >= 2]
    heapq.heapify(queue)
    for _ in range(batch - len(sizes)):
        _, i = queue[0]
        sizes[i] += 1
        if sizes[i] < limit[i]:
            heapq.heapreplace(queue, (max(floor[i], intercept[i] + slope[i] * (sizes[i] + 1)), i))
        else:
            heapq.heappop(queue)
    return np.array(sizes, dtype=np.float64)


def scipy_milp(curves: Curves, batch: int) -> Array:
    """The mixed-integer programme, by HiGHS."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array, diags_array, hstack

    count = len(curves.slope)
    lines = hstack([diags_array(curves.slope), csr_array(-np.ones((count, 1)))], format="csr")
    whole = csr_array(np.r_[np.ones(count), 0.0][None])
    found = milp(
        np.r_[np.zeros(count), 1.0],
        integrality=np.r_[np.ones(count), 0],
        bounds=Bounds(np.r_[np.ones(count), curves.floor.max()], np.r_[np.minimum(curves.limit, batch), np.inf]),
        constraints=[LinearConstraint(lines, ub=-curves.intercept), LinearConstraint(whole, lb=batch, ub=batch)],
        options={"mip_rel_gap": 0.0, "time_limit": SLOW_SOLVER_SECONDS},
    )
    if found.x is None:
        raise TimeoutError
    return np.round(np.asarray(found.x)[:-1])


def cp_sat(curves: Curves, batch: int) -> Array:
    """The same with times in whole nanoseconds, by OR-tools CP-SAT with one worker thread."""
    from ortools.sat.python import cp_model

    nano = 1e9
    model = cp_model.CpModel()
    most = np.minimum(curves.limit, batch).astype(int).tolist()
    sizes = [model.new_int_var(1, high, "") for high in most]
    end = model.new_int_var(round(curves.floor.max() * nano), 10**15, "")
    for size, slope, intercept in zip(sizes, curves.slope.tolist(), curves.intercept.tolist(), strict=True):
        model.add(end >= round(intercept * nano) + round(slope * nano) * size)
    model.add(sum(sizes) == batch)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = SLOW_SOLVER_SECONDS
    if solver.solve(model) != cp_model.OPTIMAL:
        raise TimeoutError
    return np.array([solver.value(size) for size in sizes], dtype=np.float64)


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def medians(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each call; they take turns, so that other load on the machine hits all.

    A quick call is repeated within its turn: the first after another solver's turn finds cold caches.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            turn = time.perf_counter()
            while True:
                start = time.perf_counter()
                call()
                end = time.perf_counter()
                seconds[name].append(end - start)
                if end - turn > TURN_SECONDS:
                    break
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def written(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def compared() -> Iterator[str]:
    """Yield the table against other exact solvers; every makespan is checked against ours."""
    rivals: dict[str, Solver] = {"heap greedy": heap_greedy, "scipy milp": scipy_milp}
    if installed("ortools"):
        rivals["CP-SAT"] = cp_sat
    yield f"| workers | batch | ours | {' | '.join(rivals)} |"
    yield "| --- " * (3 + len(rivals)) + "|"
    for workers in (8, 64) if QUICK else (8, 64, 1000, 10_000):
        curves, batch = mixed_curves(workers), SAMPLES_PER_WORKER * workers
        best = curves.seconds(ours(curves, batch)).max()
        times = medians({"ours": lambda c=curves, b=batch: ours(c, b)}, 15)  # type: ignore[misc]
        cells = []
        for name, rival in list(rivals.items()):
            try:
                start = time.perf_counter()
                found = float(curves.seconds(rival(curves, batch)).max())
                once = time.perf_counter() - start
            except TimeoutError:
                cells.append(f"not done in {SLOW_SOLVER_SECONDS:.0f} s")
                del rivals[name]
                continue
            exact = name == "heap greedy"
            assert found == best if exact else abs(found / best - 1) < 1e-6, (name, found, best)
            both = {
                "ours": lambda c=curves, b=batch: ours(c, b),  # type: ignore[misc]
                "rival": lambda c=curves, b=batch, r=rival: r(c, b),  # type: ignore[misc]
            }
            times = medians(both, 5 if once < 2 else 1)
            cells.append(f"{written(times['rival'])} ({times['rival'] / times['ours']:,.0f}x)")
            if once > SLOW_SOLVER_SECONDS:
                del rivals[name]
        cells += ["not run"] * (2 + bool(installed("ortools")) - len(cells))
        yield f"| {workers:,} | {batch:,} | {written(times['ours'])} | {' | '.join(cells)} |"


def scaled() -> Iterator[str]:
    """Yield the table of fleets of every kind and size, beside one selection over an array of the same size."""
    kinds = (plain_speeds, equal_speeds, mixed_curves, equal_floors)
    yield f"| workers | np.partition | {' | '.join(kind.__name__.replace('_', ' ') for kind in kinds)} |"
    yield "| --- " * (2 + len(kinds)) + "|"
    for workers in (8, 1000) if QUICK else (8, 64, 1000, 10_000, 100_000):
        batch = SAMPLES_PER_WORKER * workers + 3
        numbers = np.random.default_rng(0).random(workers)
        calls: dict[str, Callable[[], object]] = {"partition": lambda a=numbers: np.partition(a, len(a) // 2)}
        for kind in kinds:
            curves = kind(workers)
            calls[kind.__name__] = lambda c=curves, b=batch: split(c, b)  # type: ignore[misc]
        times = medians(calls, 15)
        base = times.pop("partition")
        cells = (f"{written(taken)} ({taken / base:.0f}x)" for taken in times.values())
        yield f"| {workers:,} | {written(base)} | {' | '.join(cells)} |"


def gained() -> Iterator[str]:
    """Yield by how much caution shortens the mean iteration, simulated with log-normal errors."""
    cases = {"half 0.3": (0.05, 0.3), "half 0.4": (0.05, 0.4), "half 0.5": (0.05, 0.5), "all 0.3": (0.3, 0.3)}
    risks = (0.5, 1.0, 1.5)
    yield f"| workers | spread | {' | '.join(f'risk {risk}' for risk in risks)} |"
    yield "| --- " * (2 + len(risks)) + "|"
    for workers in (8,) if QUICK else (2, 8, 32, 128):
        for name, (calm, noisy) in cases.items():
            spread = np.where(np.arange(workers) % 2, noisy, calm)
            gains = [_mean_gain(workers, spread, risk) for risk in risks]
            yield f"| {workers} | {name} | {' | '.join(f'{100 * gain:.1f}%' for gain in gains)} |"


def _mean_gain(workers: int, spread: Array, risk: float) -> float:
    plain, cautious = 0.0, 0.0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        speed = rng.lognormal(5.0, 0.4, workers)
        errors = np.exp(np.sqrt(np.log1p(spread**2)) * rng.standard_normal((2000, workers)))
        for level in (0.0, risk):
            sizes = split(Curves.from_speed(speed), 256 * workers, spread=spread, risk=level).sizes
            mean = float((sizes / speed * errors).max(axis=1).mean())
            plain, cautious = (plain + mean, cautious) if level == 0 else (plain, cautious + mean)
    return 1 - cautious / plain


def report() -> Iterator[str]:
    yield "# How fast and how good the solver is\n"
    yield "Command: `python benchmarks/solver.py`\n"
    packages = [name for name in ("scipy", "ortools") if installed(name)]
    yield f"Machine: {machine(*packages)}; one thread; other work ran on it. Medians; compared solvers took turns.\n"
    yield "## Against other exact solvers\n"
    yield "Mixed curves (half with a floor, half with an intercept, a fifth with a memory limit), at least one"
    yield "sample each. The makespan is asserted to be the same: bit for bit for the heap greedy, to 1e-6 for"
    yield "the two that work with tolerances or whole nanoseconds. In brackets: how many times slower than ours.\n"
    yield from compared()
    if not installed("ortools"):
        yield "\nCP-SAT was left out, as `ortools` is not installed (`pip install ortools`)."
    yield "\n## At scale\n"
    yield f"{SAMPLES_PER_WORKER} samples per worker and 3 more. In brackets: times one `np.partition` over W numbers.\n"
    yield from scaled()
    yield "\n## What caution gains\n"
    yield "Mean reduction of the makespan by `split(..., spread=spread, risk=...)`, log-normal errors, 20 fleets of"
    yield '2,000 iterations each. "half 0.4": every second worker has a spread of 0.4, the others 0.05. Equally'
    yield 'noisy fleets ("all") get the identical split.\n'
    yield from gained()


if __name__ == "__main__":
    text = []
    for row in report():
        print(row, flush=True)
        text.append(row)
    if not QUICK:
        Path(__file__).with_suffix(".md").write_text("\n".join(text) + "\n")
