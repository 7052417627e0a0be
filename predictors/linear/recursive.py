"""Robust recursive least squares for many workers at once. Axes: W workers, F inputs."""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array, all_finite


def learn(
    weights_WF: Array,
    covariance_WFF: Array,
    inputs_WF: Array,
    error_W: Array,
    doubt_W: Array,
    forgetting: float,
    largest_trace: float,
) -> None:
    """Take one weighted step in place, against the error of each worker's forecast.

    Without an error (NaN) a worker learns nothing. ``doubt_W``, at least 1, is by how much an example counts less.
    ``forgetting`` is the factor by which the past shrinks in each step. It inflates the covariance, without end where
    inputs stay zero, so the trace of the covariance is bounded by ``largest_trace``.
    """
    # Blocks, so that the largest fleets need no temporary arrays of their size; smaller ones are slower, although they
    # fit into the cache.
    for first in range(0, len(error_W), 4096):
        of = slice(first, first + 4096)
        noise_W = forgetting * doubt_W[of]
        _step(weights_WF[of], covariance_WFF[of], inputs_WF[of], error_W[of], noise_W, forgetting, largest_trace)


def _step(
    weights_WF: Array,
    covariance_WFF: Array,
    inputs_WF: Array,
    error_W: Array,
    noise_W: Array,
    forgetting: float,
    largest_trace: float,
) -> None:
    seen_W = None
    if not all_finite(error_W):  # of endless noise nothing is learned
        seen_W = np.isfinite(error_W)
        error_W, noise_W = np.where(seen_W, error_W, 0.0), np.where(seen_W, noise_W, np.inf)
    moved_WF = np.einsum("wfg,wg->wf", covariance_WFF, inputs_WF)
    total_W = noise_W + np.add.reduce(inputs_WF * moved_WF, axis=1)
    weights_WF += moved_WF * (error_W / total_W)[:, None]
    learned_WF = moved_WF * (1.0 / np.sqrt(total_W))[:, None]
    covariance_WFF -= learned_WF[:, :, None] * learned_WF[:, None, :]
    trace_W = np.add.reduce(covariance_WFF.diagonal(0, 1, 2), axis=1)
    factor_W = np.minimum(1.0 / forgetting, largest_trace / np.maximum(trace_W, 1e-300))
    if seen_W is not None:
        factor_W = np.where(seen_W, factor_W, 1.0)
    covariance_WFF *= factor_W[:, None, None]
