"""How long one optimizer step of the network takes, beside neuralforecast's MLP, on 100 workers and 2000 iterations."""

from __future__ import annotations

import logging
import time

import numpy as np

from paceline.datasets import Trace
from paceline.predictors import GatedNARX
from paceline.predictors.network import Training

WORKERS, ITERATIONS, BATCH, STEPS = 100, 2000, 1024, 300


def ours(workers: int, iterations: int) -> float:
    """Return seconds for each step of GatedNARX: a fit of eleven epochs less one of a single epoch."""
    rng = np.random.default_rng(0)
    seconds_TW = np.exp(rng.normal(0.0, 0.1, (iterations, workers)))
    trace = Trace(
        samples=np.full_like(seconds_TW, 64.0),
        seconds=seconds_TW,
        covariates=rng.random((iterations, workers, 2)),
        covariate_names=["cpu_share", "memory_pressure"],
    )
    _fit(trace, 1)  # torch takes its time once
    taken = [_seconds(lambda epochs=epochs: _fit(trace, epochs)) for epochs in (1, 11)]
    return (taken[1] - taken[0]) / (10 * max(1, int(0.8 * iterations * workers / BATCH)))


def _fit(trace: Trace, epochs: int) -> None:
    GatedNARX(training=Training(epochs=epochs, batch_size=BATCH, patience=99)).fit([trace])


def neuralforecast_mlp(workers: int, iterations: int, steps: int) -> float:
    """Return seconds for each step of neuralforecast's MLP with the same batch, as many steps less few."""
    import pandas as pd
    from neuralforecast import NeuralForecast
    from neuralforecast.models import MLP

    for name in ("pytorch_lightning", "lightning", "lightning.pytorch", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "unique_id": np.repeat(np.arange(workers), iterations),
            "ds": np.tile(np.arange(iterations), workers),
            "y": np.exp(rng.normal(0.0, 0.1, workers * iterations)),
            "cpu_share": rng.random(workers * iterations),
            "memory_pressure": rng.random(workers * iterations),
        }
    )

    def fit(count: int) -> None:
        model = MLP(
            h=1,
            input_size=8,
            max_steps=count,
            num_layers=1,
            hidden_size=16,
            windows_batch_size=BATCH,
            futr_exog_list=["cpu_share", "memory_pressure"],
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        NeuralForecast(models=[model], freq=1).fit(table)

    few = max(1, steps // 10)
    taken = [_seconds(lambda count=count: fit(count)) for count in (few, steps)]
    return (taken[1] - taken[0]) / (steps - few)


def fit_sentence(quick: bool) -> str:
    """Return what a step takes, and how that compares where neuralforecast is installed."""
    import torch

    torch.set_num_threads(1)
    workers, iterations, steps = (20, 300, 60) if quick else (WORKERS, ITERATIONS, STEPS)
    mine = ours(workers, iterations)
    told = f"GatedNARX on {workers} workers x {iterations:,} iterations: {1e3 * mine:.2f} ms a step of {BATCH} examples"
    try:
        theirs = neuralforecast_mlp(workers, iterations, steps)
    except ImportError:
        return f"{told}; neuralforecast is not installed."
    return (
        f"{told},\nneuralforecast's MLP of one layer of 16 units with the same batch: {1e3 * theirs:.2f} ms, "
        f"{theirs / mine:.1f} times as long."
    )


def _seconds(work) -> float:  # type: ignore[no-untyped-def]  # takes and returns nothing
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
