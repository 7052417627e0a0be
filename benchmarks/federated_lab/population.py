"""Clients that take time: phones and FedScale's devices, slowed down as recorded workers were, behind real-like links.

Axes: C clients, W clients of one round, S local steps, T rows of a recording, K recorded
workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from published_profiles import read_published

from paceline._arrays import Array, Sizes
from paceline.datasets import Trace

UNIT_SPREAD = 0.4
"""Log deviation of the speed of two units of one phone model: age, heat and what else runs. Our assumption."""

MEDIAN_BANDWIDTH = 10e6
BANDWIDTH_SPREAD = 0.6
"""Bandwidth is log-normal with this median in bit/s and this log deviation. Our assumption, as no trace is at hand."""

LINK_SPREAD = 0.2
"""Log deviation of one client's bandwidth from round to round. Our assumption."""

LAYER = "lstm"
"""The layer of the phone profiles that stands for the model: the only one that flash and the paper share."""

FULL_SIZE = "in 1000, out 1000, steps 10"
"""The largest layer that was profiled. What a step costs besides its samples counts most in the smallest."""

CALM: Array = np.ones((1, 1))
"""No slowdown: everybody at its own speed all the time."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Population:
    """Devices and links of the clients: times of computing and of communicating.

    Parameters
    ----------
    names, devices
        Id and device type of each client.
    intercept, slope
        Seconds of a local step besides its samples, and per sample, ``[C]``.
    bandwidth
        The median of each client's link, ``[C]``, in bit/s.
    model_bytes
        Size of the model, fetched and sent back each round.
    slowdown
        How much longer a step takes than at a worker's median speed, ``[T, K]``, from recorded workers.
    worker, offset
        Whose recording slows each client down, and from which row on, ``[C]``.
    """

    names: tuple[str, ...]
    devices: tuple[str, ...]
    intercept: Array
    slope: Array
    bandwidth: Array
    model_bytes: float
    slowdown: Array
    worker: NDArray[np.intp]
    offset: Sizes

    def __len__(self) -> int:
        """Return how many clients there are."""
        return len(self.names)

    def compute_seconds(self, rows: NDArray[np.intp], sizes: Sizes, steps: Sizes, position: int) -> Array:
        """Return the time of these local steps, ``[W]``; each takes one row of the recording from ``position`` on."""
        step_S = np.arange(steps.max(initial=0))
        taken_WS = step_S < steps[:, None]
        at_WS = (self.offset[rows, None] + position + step_S) % len(self.slowdown)
        slow_WS = self.slowdown[at_WS, self.worker[rows, None]]
        step_seconds = self.intercept[rows] + self.slope[rows] * sizes
        return np.asarray(step_seconds * np.where(taken_WS, slow_WS, 0.0).sum(axis=1))

    def comm_seconds(self, rows: NDArray[np.intp], generator: np.random.Generator) -> Array:
        """Return the time to fetch and to send the model in one round, ``[W]``."""
        bandwidth = self.bandwidth[rows] * np.exp(LINK_SPREAD * generator.standard_normal(len(rows)))
        return np.asarray(2 * 8 * self.model_bytes / bandwidth)

    def moved_by(self, traces: Sequence[Trace], seed: int) -> Self:
        """Return the same clients, each slowed down as one worker of these traces, from a row drawn at random on."""
        generator = np.random.default_rng(seed)
        slowdown = slowdown_of(traces)
        return replace(
            self,
            slowdown=slowdown,
            worker=generator.integers(slowdown.shape[1], size=len(self)),
            offset=generator.integers(len(slowdown), size=len(self)),
        )


def phones(count: int, profiles: Path, *, seed: int, model_bytes: float = 1e6) -> Population:
    """Return clients that are phones of the flash profiles, half of each model, behind mobile links.

    Parameters
    ----------
    count
        How many clients.
    profiles
        The folder of flash's files, ``<phone>_lstm.json``.
    seed
        Draws the units and their links.
    model_bytes
        Size of the model.

    Raises
    ------
    FileNotFoundError
        If the folder holds no such file.
    """
    files = sorted(profiles.glob(f"*_{LAYER}.json"))
    if not files:
        raise FileNotFoundError(f"there is no phone profile *_{LAYER}.json in {profiles}")
    curves = [_curve(file) for file in files]
    generator = np.random.default_rng(seed)
    kind = np.arange(count) % len(files)
    unit = np.exp(UNIT_SPREAD * generator.standard_normal(count))
    intercept, slope = np.array(curves)[kind].T
    devices = [files[k].stem.removesuffix(f"_{LAYER}") for k in kind]
    return _population(devices, intercept * unit, slope * unit, _links(count, generator), model_bytes)


def fedscale(capacity: Trace, *, model_bytes: float = 1e6) -> Population:
    """Return the clients of FedScale's table, as its reader gives it: seconds a sample, and bandwidth in kbit/s.

    Raises
    ------
    ValueError
        If the trace is not FedScale's, or no client of it is usable.
    """
    if capacity.meta.get("format") != "fedscale" or capacity.covariates is None:
        raise ValueError(f"trace {capacity.name!r} must come from the reader of the format 'fedscale'")
    slope, bandwidth = capacity.seconds[0] / capacity.samples[0], capacity.covariates[0, :, 0] * 1e3
    usable = np.flatnonzero((slope > 0) & (bandwidth > 0) & np.isfinite(slope * bandwidth))
    if not len(usable):
        raise ValueError(f"trace {capacity.name!r} holds no client with a positive computation and communication")
    names = [capacity.workers[int(i)] for i in usable]
    population = _population([""] * len(usable), np.zeros(len(usable)), slope[usable], bandwidth[usable], model_bytes)
    return replace(population, names=tuple(names))


def slowdown_of(traces: Sequence[Trace]) -> Array:
    """Return how much longer each worker took than at its median speed, ``[T, K]``, all cut to the shortest.

    >>> fast_and_slow = Trace(samples=[[8], [8], [8]], seconds=[[1.0], [2.0], [2.0]])
    >>> slowdown_of([fast_and_slow]).ravel()
    array([0.5, 1. , 1. ])
    """
    columns = []
    for trace in traces:
        for speed_T in trace.speed.T:
            known = speed_T[np.isfinite(speed_T)]
            if len(known):
                columns.append(np.median(known) / known)
    if not columns:
        raise ValueError("traces must hold a worker with a speed, got none")
    length = min(map(len, columns))
    return np.stack([column[:length] for column in columns], axis=1)


def _curve(file: Path) -> tuple[float, float]:
    """Return intercept and slope of a phone: the line through the times of its full-size layer."""
    profile = read_published(file, "flash")
    full = profile[profile["held"] == FULL_SIZE]
    if len(full) < 2:
        raise ValueError(f"{file}: holds no curve of the full-size layer {FULL_SIZE!r}")
    slope, intercept = np.polyfit(full["batch"].to_numpy(), full["seconds"].to_numpy(), 1)
    return max(float(intercept), 0.0), float(slope)


def _links(count: int, generator: np.random.Generator) -> Array:
    return np.asarray(MEDIAN_BANDWIDTH * np.exp(BANDWIDTH_SPREAD * generator.standard_normal(count)))


def _population(
    devices: Sequence[str], intercept: Array, slope: Array, bandwidth: Array, model_bytes: float
) -> Population:
    count = len(slope)
    return Population(
        names=tuple(f"client-{i}" for i in range(count)),
        devices=tuple(devices),
        intercept=intercept,
        slope=slope,
        bandwidth=bandwidth,
        model_bytes=model_bytes,
        slowdown=CALM,
        worker=np.zeros(count, dtype=np.intp),
        offset=np.zeros(count, dtype=np.int64),
    )
