"""Synthetic fleets of another family than those of :mod:`paceline.datasets.synthetic`: delays add up, on shared hosts.

They are for measuring: nothing that ships was fitted to them, and one idea alone was chosen on one, queues of another
seed than those that are measured on. Axes: T iterations, W workers, H hosts, D covariates.
"""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array
from paceline.datasets.trace import Trace

KINDS = ("seasons", "queues", "misled", "heated")
SAMPLES = 32.0
"""Batch size of every worker in every iteration."""

PER_HOST = 4
"""Workers on one host: they wait in the same queue and share its slow waves."""

COVARIATE_NAMES = ("queue_length", "temperature")
HEAT_NAMES = ("temperature", "fan_speed")
"""Covariates of the first kinds that have any, and of heated hosts."""

NOISE_SHAPE = (20.0, 400.0)
"""Range of the gamma distribution's shape for the noise of computing: deviations of 22 to 5%, skewed to slow."""

WARM_UP = (1.0, 6.0)
"""Range of the time constant, in iterations, with which the first iterations' extra time fades."""

PERIODS, PERIOD_COST = (5, 60), (0.3, 2.0)
"""Ranges of the iterations between two events such as an evaluation, and of their cost in usual iterations."""

WAVES, WAVE_DEPTH = (100.0, 800.0), (0.05, 0.4)
"""Ranges of the period of a host's slow wave of load, in iterations, and of how much time it takes at most."""

LOAD, JOB_COST = (0.3, 0.9), 0.15
"""Range of a host's load, in jobs per iteration, and the share of an iteration that each waiting job costs."""

LATEST, LOST = 3, (0.0, 0.3)
"""Most iterations by which a covariate lags, and range of the share of its samples that are missing."""

COOL, HOT, TURNS = 45.0, 90.0, 0.02
"""Temperatures that an idle and a busy host approach, and the chance per iteration that it changes."""

HEATING, FAN = (5.0, 60.0), 0.1
"""Range of a host's time constant in iterations, and how fast its fan follows the temperature."""

LIMIT, CLOCK_COST = (58.0, 85.0), (0.005, 0.05)
"""Ranges of the temperature above which a worker's clock falls, and by how much per degree."""

TAIL, STALL_CHANCE = 1.8, 0.01
"""Exponent of the Pareto distribution of stalls, of infinite variance, and their chance per iteration."""


def hosted_fleet(kind: str, workers: int = 100, iterations: int = 1000, seed: int = 0) -> Trace:
    """Return the trace of a simulated fleet on shared hosts, from its first iteration on.

    The time of an iteration is the sum of computing with gamma noise, a warm-up that fades, and what the kind adds:

    - ``"seasons"``: an event every few iterations and a slow wave of load, no covariates;
    - ``"queues"``: jobs wait on the host for many iterations; a covariate reports the queue, up to three iterations
      late and with gaps;
    - ``"misled"``: a covariate moves with the speed for a third of the trace and against it afterwards, another means
      nothing, and stalls have heavy tails;
    - ``"heated"``: hosts heat up while other work runs on them, and above a temperature that differs between workers a
      clock falls; covariates report the temperature and a fan that follows it.
    """
    rng, shape = np.random.default_rng([KINDS.index(kind), seed, 15]), (iterations, workers)
    computing_TW, covariates_TWD, names = _computing(rng, shape), None, COVARIATE_NAMES
    if kind == "seasons":
        seconds_TW = computing_TW * (1.0 + _wave(rng, shape)) + _events(rng, shape)
    elif kind == "queues":
        queue_TW = _queue(rng, shape)
        seconds_TW = computing_TW * (1.0 + JOB_COST * queue_TW)
        covariates_TWD = _sampled(rng, queue_TW)
    elif kind == "heated":
        degrees_TW = _temperature(rng, shape)
        seconds_TW = computing_TW * _clock_cost(rng, degrees_TW)
        covariates_TWD, names = (
            np.stack([degrees_TW + rng.normal(0.0, 1.0, shape), _fan(degrees_TW)], axis=-1),
            HEAT_NAMES,
        )
    else:
        wave_TW = _wave(rng, shape)
        seconds_TW = computing_TW * (1.0 + wave_TW) + (rng.random(shape) < STALL_CHANCE) * rng.pareto(TAIL, shape)
        sign_T1 = np.where(np.arange(iterations) < iterations // 3, 1.0, -1.0)[:, None]
        covariates_TWD = _sampled(rng, sign_T1 * wave_TW)
    seconds_TW = (seconds_TW + _warm_up(rng, shape)) * np.exp(rng.normal(0.0, 0.7, workers))
    return Trace(
        samples=np.full(shape, SAMPLES),
        seconds=seconds_TW,
        covariates=covariates_TWD,
        covariate_names=() if covariates_TWD is None else names,
        meta={"job": f"hosted-{kind}", "source": "synthetic", "seed": str(seed)},
    )


def _computing(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return times around 1 with gamma noise, narrow for some workers and wide for others."""
    shape_W = np.exp(rng.uniform(np.log(NOISE_SHAPE[0]), np.log(NOISE_SHAPE[1]), shape[1]))
    return np.asarray(rng.gamma(shape_W, 1.0 / shape_W, shape))


def _warm_up(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    extra_W, fading_W = rng.exponential(2.0, shape[1]), rng.uniform(*WARM_UP, shape[1])
    return np.asarray(extra_W * np.exp(-np.arange(shape[0])[:, None] / fading_W))


def _events(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return the time of an evaluation or a checkpoint every few iterations, nearly the same each time."""
    period_W = rng.integers(PERIODS[0], PERIODS[1] + 1, shape[1])
    phase_W, cost_W = rng.integers(period_W), rng.uniform(*PERIOD_COST, shape[1])
    due_TW = (np.arange(shape[0])[:, None] + phase_W) % period_W == 0
    return np.asarray(due_TW * cost_W * rng.gamma(100.0, 0.01, shape))


def _wave(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return the extra time of each host's slow wave, at least 0, for each of its workers."""
    hosts = -(-shape[1] // PER_HOST)
    period_H, phase_H = rng.uniform(*WAVES, hosts), rng.uniform(0.0, 1.0, hosts)
    angle_TH = 2.0 * np.pi * (np.arange(shape[0])[:, None] / period_H + phase_H)
    wave_TH = rng.uniform(*WAVE_DEPTH, hosts) * (1.0 + np.sin(angle_TH))
    return _of_hosts(wave_TH, shape[1])


def _queue(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return how many jobs wait on each worker's host: arrivals come in bursts, and one job leaves at a time."""
    hosts = -(-shape[1] // PER_HOST)
    # Bursts of three jobs on average: single arrivals would hardly ever queue at these loads.
    chance_H = rng.uniform(*LOAD, hosts) / 3.0
    arriving_TH = (rng.random((shape[0], hosts)) < chance_H) * rng.geometric(1.0 / 3.0, (shape[0], hosts))
    queue_TH = np.zeros((shape[0], hosts))
    for k in range(1, shape[0]):
        queue_TH[k] = np.maximum(queue_TH[k - 1] + arriving_TH[k] - 1.0, 0.0)
    return _of_hosts(queue_TH, shape[1])


def _temperature(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return the temperature of each worker's host, which follows the other work on it slowly."""
    hosts = -(-shape[1] // PER_HOST)
    busy_TH = np.cumsum(rng.random((shape[0], hosts)) < TURNS, axis=0) % 2
    target_TH = np.where(busy_TH, HOT, COOL)
    rate_H, degrees_TH = 1.0 / rng.uniform(*HEATING, hosts), np.full((shape[0], hosts), COOL)
    for k in range(1, shape[0]):
        degrees_TH[k] = degrees_TH[k - 1] + rate_H * (target_TH[k] - degrees_TH[k - 1])
    return _of_hosts(degrees_TH, shape[1])


def _clock_cost(rng: np.random.Generator, degrees_TW: Array) -> Array:
    """Return the factor by which heat lengthens each worker's iterations, at least 1."""
    limit_W, cost_W = rng.uniform(*LIMIT, degrees_TW.shape[1]), rng.uniform(*CLOCK_COST, degrees_TW.shape[1])
    return np.asarray(1.0 + cost_W * np.maximum(degrees_TW - limit_W, 0.0))


def _fan(degrees_TW: Array) -> Array:
    """Return each fan's speed in turns per minute: late, and without noise."""
    speed_TW = np.empty_like(degrees_TW)
    speed_TW[0] = degrees_TW[0]
    for k in range(1, len(degrees_TW)):
        speed_TW[k] = speed_TW[k - 1] + FAN * (degrees_TW[k] - speed_TW[k - 1])
    return np.round(1000.0 + 50.0 * (speed_TW - COOL), -1)


def _of_hosts(values_TH: Array, workers: int) -> Array:
    return np.asarray(values_TH[:, np.arange(workers) // PER_HOST])


def _sampled(rng: np.random.Generator, cause_TW: Array) -> Array:
    """Return the cause, late and noisy, and a wandering number without meaning, with gaps, ``[T, W, 2]``."""
    iterations, workers = cause_TW.shape
    late_W = rng.integers(LATEST + 1, size=workers)
    at_TW = np.maximum(np.arange(iterations)[:, None] - late_W, 0)
    noisy_TW = np.take_along_axis(cause_TW, at_TW, axis=0) + rng.normal(
        0.0, 0.1 * (cause_TW.std() + 1e-9), (cause_TW.shape)
    )
    wandering_TW = 60.0 + np.cumsum(rng.normal(0.0, 0.5, cause_TW.shape), axis=0)
    covariates_TWD = np.stack([noisy_TW, wandering_TW], axis=-1)
    lost_TW = rng.random(cause_TW.shape) < rng.uniform(*LOST, workers)
    covariates_TWD[lost_TW] = np.nan
    return covariates_TWD
