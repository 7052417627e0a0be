"""Speeds of whole jobs from the scalars that they logged: CM-DARE's and Sync-Switch's files, a series a job.

Both start with a job's very first steps. Axis: T logged points.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.datasets import Trace

Array = NDArray[np.float64]

LEAST_STEPS, LEAST_SECONDS = 1.0, 1e-3
"""A resumed run steps back and a clock may stand still: differences below these are no measurement."""


def cm_dare(folder: Path, gpu: str) -> Iterator[Trace]:
    """Yield the logged speed of each job on this kind of GPU, in steps/s."""
    for path in sorted(folder.glob(f"*__{gpu}__*.csv")):
        speed_T = _columns(path)[2]
        yield _trace(path, speed_T[speed_T > 0])


def sync_switch(folder: Path, runs: str) -> Iterator[Trace]:
    """Yield the speed of each job whose number is one of these digits: steps over seconds between two points."""
    for path in sorted(folder.glob(f"*_[{runs}].csv")):
        seconds_T, step_T, _ = _columns(path)
        passed_T, made_T = np.diff(seconds_T), np.diff(step_T)
        usable_T = (made_T >= LEAST_STEPS) & (passed_T >= LEAST_SECONDS)
        yield _trace(path, made_T[usable_T] / passed_T[usable_T])


def _columns(path: Path) -> Array:
    """Return time, step and value, one row each."""
    return np.asarray(np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2).T)


def _trace(path: Path, speed_T: Array) -> Trace:
    seconds = 1.0 / speed_T[:, None]
    return Trace(np.ones_like(seconds), seconds, workers=["job"], meta={"job": path.stem.split("__", 1)[-1]})
