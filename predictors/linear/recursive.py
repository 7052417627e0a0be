"""Robust recursive least squares for many workers at once. Axes: W workers, F inputs."""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array


def learn(
    weights_WF: Array,
    covariance_WFF: Array,
    inputs_WF: Array,
    error_W: Array,
    doubt_W: Array,
    forgetting: float,
    largest_trace: float,
) -> None:
    """Take one weighted step in place, against the error of the forecast; without one (NaN) nothing is learnt.

    ``doubt_W`` is by how much an example counts less. Forgetting inflates the covariance, without end where inputs stay
    zero: its trace is bounded.
    """
    seen_W = np.isfinite(error_W)
    moved_WF = np.einsum("wfg,wg->wf", covariance_WFF, inputs_WF)
    total_W = forgetting * np.where(seen_W, doubt_W, 1.0) + (inputs_WF * moved_WF).sum(axis=1)
    weights_WF += moved_WF * np.where(seen_W, error_W / total_W, 0.0)[:, None]
    learnt_WF = moved_WF * (seen_W / np.sqrt(total_W))[:, None]
    covariance_WFF -= learnt_WF[:, :, None] * learnt_WF[:, None, :]
    trace_W = np.einsum("wff->w", covariance_WFF)
    bound_W = np.minimum(1.0 / forgetting, largest_trace / np.maximum(trace_W, 1e-300))
    covariance_WFF *= np.where(seen_W, bound_W, 1.0)[:, None, None]
