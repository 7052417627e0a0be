"""Robust recursive least squares for many workers at once. Axes: W workers, F inputs."""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array, Mask, everywhere

BLOCK = 4096
"""Workers processed at a time, so that the largest fleets need no temporary arrays of their size. Small blocks are
slower, although they fit into the cache."""


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
    for first in range(0, len(error_W), BLOCK):
        block = slice(first, first + BLOCK)
        _step(weights_WF[block], covariance_WFF[block], inputs_WF[block], error_W[block], forgetting * doubt_W[block])
        _inflate(covariance_WFF[block], np.isfinite(error_W[block]), forgetting, largest_trace)


def _step(weights_WF: Array, covariance_WFF: Array, inputs_WF: Array, error_W: Array, noise_W: Array) -> None:
    seen_W = np.isfinite(error_W)
    if not everywhere(seen_W):  # of endless noise nothing is learnt
        error_W, noise_W = np.where(seen_W, error_W, 0.0), np.where(seen_W, noise_W, np.inf)
    moved_WF = np.einsum("wfg,wg->wf", covariance_WFF, inputs_WF)
    total_W = noise_W + (inputs_WF * moved_WF).sum(axis=1)
    weights_WF += moved_WF * (error_W / total_W)[:, None]
    learnt_WF = moved_WF * (1.0 / np.sqrt(total_W))[:, None]
    covariance_WFF -= learnt_WF[:, :, None] * learnt_WF[:, None, :]


def _inflate(covariance_WFF: Array, seen_W: Mask, forgetting: float, largest_trace: float) -> None:
    trace_W = np.einsum("wff->w", covariance_WFF)
    factor_W = np.minimum(1.0 / forgetting, largest_trace / np.maximum(trace_W, 1e-300))
    if not everywhere(seen_W):
        factor_W = np.where(seen_W, factor_W, 1.0)
    covariance_WFF *= factor_W[:, None, None]
