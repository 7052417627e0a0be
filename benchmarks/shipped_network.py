"""Make the network that comes with the library: ``python benchmarks/shipped_network.py``.

It is fitted to the recorded jobs whose split is ``"fit"`` and to synthetic fleets, many of them varied: other
amplitudes of noise, only every few iterations, measurements repeated for a while. Seeds begin at 1000; benchmarks and
tests use smaller ones. The command takes about three minutes on one core. Axes: T iterations, W workers.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from paceline.datasets import Trace, recorded
from paceline.datasets.synthetic import FLEET_KINDS, synthetic_fleet
from paceline.predictors.gated_narx import DEFAULT_TRAINING, GatedNARX
from paceline.training.model_files import save_model

FIRST_SEED, FLEETS, WORKERS, ITERATIONS = 1000, 8, 25, 2000
"""Number of synthetic fleets of each kind, and their size."""

NEW_WORKERS, FIRST_ITERATIONS = 400, 60
"""Short fleets, so that the first iterations of a worker are learned too."""

logger = logging.getLogger(__name__)


def traces() -> list[Trace]:
    """Return the traces that the shipped network is fitted to.

    >>> any(trace.name == "digits-cnn-bursty" for trace in traces())  # held out
    False
    """
    rng = np.random.default_rng(FIRST_SEED)
    made_up = []
    for kind in FLEET_KINDS:
        seeds = range(FIRST_SEED, FIRST_SEED + FLEETS)
        fleets = [synthetic_fleet(kind, WORKERS, ITERATIONS, seed) for seed in seeds]
        made_up += fleets + [varied(fleet, rng) for fleet in fleets[::4]]
        made_up.append(synthetic_fleet(kind, NEW_WORKERS, FIRST_ITERATIONS, FIRST_SEED + FLEETS))
    measured = recorded.load_split("fit")
    return made_up + 3 * measured + [varied(trace, rng) for trace in measured]


def varied(trace: Trace, rng: np.random.Generator) -> Trace:
    """Return a variation of the trace: with fewer iterations, more or less noise, and repeated measurements.

    >>> fleet = synthetic_fleet("mixed", workers=3, iterations=100)
    >>> len(varied(fleet, np.random.default_rng(0)).workers)
    3
    """
    thinned = trace.select(slice(None, None, int(rng.integers(1, 5))))
    log_speed_TW = np.log(thinned.speed)
    center_W = np.nanmedian(log_speed_TW, axis=0)
    amplitude_W = np.exp(rng.uniform(np.log(0.05), np.log(1.5), len(trace.workers)))
    log_speed_TW = center_W + amplitude_W * (log_speed_TW - center_W)
    held_TW = rng.random(log_speed_TW.shape) < 0.4 * (rng.random(len(trace.workers)) < 0.3)
    held_TW[0] = False
    since_TW = np.maximum.accumulate(np.where(held_TW, 0, np.arange(len(thinned))[:, None]), axis=0)
    log_speed_TW = np.take_along_axis(log_speed_TW, since_TW, axis=0)
    return replace(thinned, seconds=thinned.samples / np.exp(log_speed_TW))


def main() -> None:
    """Fit the network and write its file."""
    folder = Path(__file__).parent.parent / "predictors" / "fitted"
    folder.mkdir(exist_ok=True)
    about = f"recorded jobs to fit and synthetic fleets, seeds {FIRST_SEED} and up, of benchmarks/shipped_network.py"
    chosen = traces()
    covariates = ("cpu_share", "memory_pressure", "cpu_busy", "run_delay", "throttled", "cpu_pressure", "runnable")
    mean = GatedNARX(
        hidden=32,
        covariates=covariates,
        training=replace(DEFAULT_TRAINING, epochs=30, batch_size=4096, learning_rate=1e-2),
    ).fit(chosen)
    save_model(mean, folder / "gated-narx.safetensors", fitted_on=about)


if __name__ == "__main__":
    main()
