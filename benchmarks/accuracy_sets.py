"""The data that accuracy is measured on: synthetic fleets, the recorded jobs, and real sets if available.

Axes: T iterations, W workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.datasets import Trace, read_traces, recorded
from paceline.datasets.synthetic import KINDS as SYNTHETIC
from paceline.datasets.synthetic import oracle_speed, synthetic_fleet

Array = NDArray[np.float64]

DATA = Path(os.environ.get("PACELINE_DATA", Path(__file__).parents[2] / "shared" / "data"))

WORKERS, ITERATIONS, SEED = 100, 2000, 1000
"""Size and seed of the synthetic fleets: nothing that ships was fitted to them."""

AZURE_ITERATIONS = 2000
"""Number of first results of the first machine that are taken from each of the 14 measurements."""


@dataclass(frozen=True)
class Set:
    """Traces under one name; the workers' names differ throughout, and each is fitted on its first half."""

    name: str
    about: str
    traces: list[Trace]

    @property
    def fitting(self) -> list[Trace]:
        """The first half of every trace."""
        return [trace.select(slice(0, half(trace))) for trace in self.traces]

    @property
    def series(self) -> int:
        """How many workers there are."""
        return sum(len(trace.workers) for trace in self.traces)


def half(trace: Trace) -> int:
    """The first iteration that is scored."""
    return len(trace) // 2


def sets(quick: bool) -> Iterator[Set]:
    """Yield every set that is there."""
    size = (20, 600) if quick else (WORKERS, ITERATIONS)
    for kind in SYNTHETIC:
        about = f"synthetic, {size[0]} workers x {size[1]} iterations, seed {SEED}"
        yield Set(kind, about, [synthetic_fleet(kind, *size, seed=SEED)])
    jobs = recorded.load_split("held-out")
    yield Set("recorded", "the held-out jobs that ship with the library", _unique(jobs))
    yield from _real()


def oracle(kind: str, trace: Trace) -> Array:
    """Return the speeds without noise of a synthetic fleet, ``[T, W]``."""
    return oracle_speed(kind, len(trace.workers), len(trace), seed=SEED)


def _real() -> Iterator[Set]:
    if (DATA / "hivemind_multicloud").is_dir():
        jobs = read_traces(DATA / "hivemind_multicloud", "hivemind")
        yield Set("hivemind", "training steps of five jobs in several clouds", _unique(jobs))
    if (DATA / "azure_vm_noise").is_dir():
        jobs = [t for t in read_traces(DATA / "azure_vm_noise", "azure_vm_noise") if t.workers == ("vm 0",)]
        jobs = [_in_own_units(trace.select(slice(0, AZURE_ITERATIONS))) for trace in jobs]
        about = f"14 measurements of a cloud machine, the first {AZURE_ITERATIONS} results of each"
        yield Set("azure_vm", about, _unique(jobs))
    if (DATA / "pai_minibatch").is_dir():
        jobs = read_traces(DATA / "pai_minibatch", "pai_minibatch")
        yield Set("pai", "mini-batches of two production jobs, every 10 s", _unique(jobs))


def _unique(traces: list[Trace]) -> list[Trace]:
    return [replace(trace, workers=tuple(f"{trace.name}/{worker}" for worker in trace.workers)) for trace in traces]


def _in_own_units(trace: Trace) -> Trace:
    """Measure speed in units of the median of the first half: these series are of different kinds."""
    unit_W = np.nanmedian(trace.speed[: half(trace)], axis=0)
    return replace(trace, samples=trace.samples / unit_W)
