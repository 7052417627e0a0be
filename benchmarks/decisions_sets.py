"""The jobs that decisions are measured on: the sets of the accuracy page, series unlike those, and two made shapes.

Axes: T iterations, W workers.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from accuracy_sets import DEVELOPMENT, Set, sets
from numpy.typing import NDArray

from paceline.datasets import Trace

Array = NDArray[np.float64]

MOST_WORKERS, MOST_ITERATIONS, MOST_JOBS = 16, 600, 3
"""Workers of a job, its first iterations that are replayed, and jobs of a set."""

SEED = 28
"""Seed of the draw of series and jobs, and of the made shapes."""

UNLIKE = {
    "speed runs": ("nanogpt-0", "step times of 22 runs that train a small language model as fast as possible"),
    "pipeline": ("spdl-download", "minutes of a data pipeline on 24 ranks"),
    "update": ("genai-update", "latencies of requests on 80 containers, with covariates"),
    "controlnet": ("genai-controlnet", "latencies of other requests on these containers, with covariates"),
}
"""Files of series unlike those of the accuracy page, by the names of their sets."""


def all_sets(folder: Path | None) -> Iterator[Set]:
    """Yield every set; those of public data only if there is a folder of it."""
    yield Set("dips", "near-constant speeds with rare dips, made here", [with_dips(seed) for seed in range(2)])
    yield Set("latencies", "heavy-tailed latencies with a load, made here", [with_load(seed) for seed in range(2)])
    yield from sets(quick=True, folder=folder)
    if folder is not None:
        yield from _unlike(folder / "unlike_2026")


def options(description: str | None, processes: int) -> argparse.Namespace:
    """Return the options of a program that measures these sets."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, help="folder of public data")
    parser.add_argument("--sets", nargs="*", help="names of sets; the page is printed, not written")
    parser.add_argument("--development", action="store_true", help="sets on which rules may be chosen; printed")
    parser.add_argument("--processes", type=int, default=processes, help="sets that are measured at once")
    return parser.parse_args()


def wanted(chosen: argparse.Namespace) -> list[Set]:
    """Return the sets that the options ask for."""
    named = [data for data in all_sets(chosen.data) if not chosen.sets or data.name in chosen.sets]
    return [data for data in named if not chosen.development or data.role == DEVELOPMENT]


def put(text: str, chosen: argparse.Namespace, page: Path) -> None:
    """Write a page of all sets; print one of some."""
    if chosen.data is None or chosen.sets or chosen.development:
        print(text)
    else:
        page.write_text(text, encoding="utf-8")


def jobs(data: Set) -> list[Trace]:
    """Return jobs of a set: of its traces of several workers, or of fleets of its single series of about one length."""
    rng = np.random.default_rng(SEED)
    traces = data.traces if len(data.traces[0].workers) > 1 else list(_together(data.traces))
    found = [job for trace in traces for job in _parts(trace, rng)]
    return [found[i] for i in sorted(rng.permutation(len(found))[:MOST_JOBS])]


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


def _together(traces: list[Trace]) -> Iterator[Trace]:
    """Yield fleets of single series, those of about one length in one fleet, as long as the shortest of them."""
    ordered = sorted(traces, key=len)
    for places in np.array_split(np.arange(len(ordered)), -(-len(ordered) // MOST_WORKERS)):
        members = [ordered[i] for i in places]
        shortest = len(members[0])
        columns = [np.concatenate([t.samples[:shortest] for t in members], axis=1)]
        columns.append(np.concatenate([t.seconds[:shortest] for t in members], axis=1))
        yield Trace(*columns, workers=[worker for t in members for worker in t.workers], meta={"job": members[0].name})


def _parts(trace: Trace, rng: np.random.Generator) -> Iterator[Trace]:
    """Yield fleets of a trace's workers; those left over, and those that never report, are in none."""
    reported_W = np.isfinite(trace.speed[:MOST_ITERATIONS]).any(axis=0)
    workers = [w for w, known in zip(trace.workers, reported_W, strict=True) if known]
    size = min(len(workers), MOST_WORKERS)
    drawn = rng.permutation(len(workers))
    for first in range(0, len(workers) - size + 1, size):
        members = sorted(drawn[first : first + size])
        part = trace.select(slice(0, MOST_ITERATIONS), workers=[workers[i] for i in members])
        yield replace(part, meta={**trace.meta, "job": f"{trace.name}, {first // size}"})
