"""Synthetic fleets whose hidden state is known, to compare a forecast with the best possible one.

Axes: T iterations, W workers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline.datasets.trace import Trace

FLEET_KINDS = ("mixed", "noexog", "walk")
"""Kinds of fleets: all effects at once; covariates that explain nothing; speeds that wander and never return."""


def synthetic_fleet(kind: str, workers: int = 100, iterations: int = 2000, seed: int = 0) -> Trace:
    """Return the trace of a simulated fleet; the same arguments give the same trace.

    The logarithm of a worker's speed is the sum of its hardware, a hidden regime that changes every hundred iterations
    or so, a second-order autoregression, the effect of its share of the CPU (none above a knee), the effect of memory
    pressure, Student-t noise, and rare spikes of one iteration.

    Parameters
    ----------
    kind
        ``"mixed"``: all effects. ``"noexog"``: the covariates are reported, and explain nothing. ``"walk"``: a random
        walk instead of the autoregression.
    workers, iterations
        Size of the trace, at least 1 each.
    seed
        Seed of the random numbers.

    Raises
    ------
    ValueError
        If there is no such kind, or a size is below 1.

    Examples
    --------
    >>> fleet = synthetic_fleet("mixed", workers=4, iterations=100)
    >>> fleet
    <Trace 'synthetic-mixed': 100 iterations x 4 workers; cpu_share, memory_pressure>
    >>> fleet.meta["source"]
    'synthetic'
    """
    _, log_speed_TW, cpu_TW, memory_TW = _simulate_fleet(kind, workers, iterations, seed)
    return Trace(
        samples=np.full((iterations, workers), 64.0),
        seconds=64.0 / np.exp(log_speed_TW),
        covariates=np.stack([cpu_TW, memory_TW], axis=-1),
        covariate_names=("cpu_share", "memory_pressure"),
        meta={"job": f"synthetic-{kind}", "source": "synthetic", "seed": str(seed)},
    )


def oracle_speed(kind: str, workers: int = 100, iterations: int = 2000, seed: int = 0) -> Array:
    """Return the speeds of the same fleet without noise and spikes, ``[T, W]``: no predictor can beat them."""
    return np.asarray(np.exp(_simulate_fleet(kind, workers, iterations, seed)[0]))


def _simulate_fleet(kind: str, workers: int, iterations: int, seed: int) -> tuple[Array, Array, Array, Array]:
    """Return log speed without and with noise and spikes, and the two covariates, ``[T, W]`` each."""
    if kind not in FLEET_KINDS:
        raise ValueError(f"kind must be one of {FLEET_KINDS}, got {kind!r}")
    if workers < 1 or iterations < 1:
        raise ValueError(f"workers and iterations must be at least 1, got {workers} and {iterations}")
    rng = np.random.default_rng([FLEET_KINDS.index(kind), seed])
    shape = (iterations, workers)
    # the share of the CPU that neighbors leave, in (0, 1]: constant levels with a little jitter
    level_TW = np.array([1.0, 0.8, 0.5])[_draw_held_values(rng, shape, 3, 0.03)]
    cpu_TW = np.clip(level_TW + rng.normal(0.0, 0.04, shape), 0.05, 1.0)
    # the share of the memory in use, in [0, 1]: it grows and is freed again
    phase_W, period_W = rng.uniform(0.0, 1.0, workers), rng.uniform(50.0, 300.0, workers)
    climbing_TW = np.mod(phase_W + np.arange(iterations)[:, None] / period_W, 1.0)
    memory_TW = np.clip(0.4 + 0.6 * climbing_TW + rng.normal(0.0, 0.02, shape), 0.0, 1.0)
    hardware_W = np.log(100.0) + rng.normal(0.0, 0.5, workers)
    expected_TW = hardware_W + np.array([0.0, -0.25, -0.7])[_draw_held_values(rng, shape, 3, 0.01)]
    if kind == "walk":
        expected_TW += np.cumsum(rng.normal(0.0, 0.03, shape), axis=0)
    else:
        past_TW = np.zeros((iterations + 2, workers))
        past_TW[2:] = rng.normal(0.0, 0.03, shape)
        for k in range(2, len(past_TW)):
            past_TW[k] += 1.1 * past_TW[k - 1] - 0.2 * past_TW[k - 2]
        expected_TW += past_TW[2:]
    if kind != "noexog":
        knee_W = rng.uniform(0.5, 0.9, workers)
        expected_TW += np.log(np.minimum(1.0, cpu_TW / knee_W)) - 2.0 * np.maximum(memory_TW - 0.8, 0.0)
    noise_TW = 0.06 * rng.standard_t(4.0, shape)
    spikes_TW = (rng.random(shape) < 0.01) * rng.uniform(0.5, 1.5, shape)
    return expected_TW, expected_TW + noise_TW - spikes_TW, cpu_TW, memory_TW


def _draw_held_values(
    rng: np.random.Generator, shape: tuple[int, int], num_values: int, change: float
) -> NDArray[np.int64]:
    """Draw one of ``num_values`` values and hold it until it changes, ``[T, W]``."""
    index_TW = rng.integers(num_values, size=shape)
    changed_TW = rng.random(shape) < change
    changed_TW[0] = True
    since_TW = np.maximum.accumulate(np.where(changed_TW, np.arange(shape[0])[:, None], 0), axis=0)
    return np.take_along_axis(index_TW, since_TW, axis=0)
