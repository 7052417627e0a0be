"""Small traces and predictors that the tests of fitting share."""

import numpy as np

from paceline.datasets import Trace
from paceline.predictors import LSTM, NARX, GatedNARX, Training

QUICK = Training(epochs=3, batch_size=64)


def wavy(seed, workers=("a", "b", "c"), iterations=80, job=None):
    """Return a job whose speeds wander around levels of their own, with one covariate that tells of the next."""
    rng = np.random.default_rng(seed)
    shape = (iterations, len(workers))
    covariate_TW = rng.uniform(0.5, 1.0, shape)
    speed_TW = rng.uniform(20, 90, shape[1]) * covariate_TW * np.exp(rng.normal(0, 0.05, shape))
    return Trace(
        samples=np.full(shape, 32.0),
        seconds=32.0 / speed_TW,
        covariates=covariate_TW[:, :, None],
        covariate_names=["cpu_busy"],
        workers=workers,
        meta={"job": job or f"job{seed}"},
    )


def folder_of(path, count, **arguments):
    """Write some jobs as Parquet files, and return their folder."""
    path.mkdir(exist_ok=True)
    for seed in range(count):
        wavy(seed, **arguments).save(path / f"job{seed:02}.parquet")
    return path


def networks():
    """Return one small network of each kind of training."""
    return [
        NARX(lags=3, covariate_lags=1, hidden=4, training=QUICK),
        GatedNARX(hidden=4, covariate_lags=1, training=QUICK),
        LSTM(hidden=3, training=QUICK),
    ]


def learned(predictor):
    """Return what a predictor learned, as bytes by name."""
    return {n: v.tobytes() for n, v in predictor.state_dict().items() if n.startswith("learned/")}
