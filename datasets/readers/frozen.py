"""Covariates that stopped moving, as readers note in ``meta``.

Axes: T iterations, W workers, D covariates, R runs of equal rows.
"""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array, Sizes
from paceline.datasets.trace import Trace


def frozen(trace: Trace) -> dict[str, int]:
    """Return for how many iterations all covariates of a worker stand still; other workers are left out.

    A single covariate that rests, such as used memory, is nothing unusual while others move. A worker whose covariates
    never change has no frozen stretch.

    Examples
    --------
    A load that is measured for 50 iterations, and stays at its last value for 30 more:

    >>> load_T = np.append(np.sin(np.arange(50)), np.full(30, np.sin(49)))
    >>> ones = np.ones((80, 1))
    >>> frozen(Trace(ones, ones, workers=["a"], covariates=load_T[:, None, None], covariate_names=["load"]))
    {'a': 31}
    """
    if trace.covariates is None or len(trace) <= 20:
        return {}
    rows_W = _frozen_rows(trace.covariates)
    return {name: int(rows) for name, rows in zip(trace.workers, rows_W, strict=True) if rows}


def frozen_sentence(rows: dict[str, int]) -> str:
    """Return the counts of :func:`frozen` in words.

    >>> frozen_sentence({"a": 31, "b": 20})
    'all covariates stand still for 31 iterations of a, 20 iterations of b'
    """
    named = [f"{count} iterations of {name}" for name, count in rows.items()]
    more = [f"and others of {len(named) - 5} more workers"] if len(named) > 5 else []
    return "all covariates stand still for " + ", ".join([*named[:5], *more])


def _frozen_rows(covariates_TWD: Array) -> Sizes:
    iterations, workers, _ = covariates_TWD.shape
    known_TWD = np.isfinite(covariates_TWD)
    equal_TWD = (covariates_TWD[1:] == covariates_TWD[:-1]) | ~(known_TWD[1:] | known_TWD[:-1])
    new_TW = np.ones((iterations, workers), dtype=bool)
    new_TW[1:] = ~equal_TWD.all(axis=2)
    start_R = np.flatnonzero(new_TW.T)  # the workers' rows end to end
    length_R = np.diff(start_R, append=iterations * workers)
    known_run_R = known_TWD.any(axis=2).T.ravel()[start_R]
    worker_R, length_R = start_R[known_run_R] // iterations, length_R[known_run_R]
    runs_W = np.bincount(worker_R, minlength=workers)
    longest_W = np.zeros(workers, dtype=np.int64)
    np.maximum.at(longest_W, worker_R, length_R)
    others_W = np.bincount(worker_R, weights=length_R, minlength=workers) - longest_W
    minimum_W = np.maximum(20, 10.0 * others_W / np.maximum(runs_W - 1, 1))
    frozen_R = (length_R >= minimum_W[worker_R]) & (runs_W[worker_R] > 1)
    return np.bincount(worker_R[frozen_R], weights=length_R[frozen_R], minlength=workers).astype(np.int64)
