"""Which workers of a recorded job are slow, and in which phase, as a sentence. Axes: T iterations, W workers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.recording.merging import merge, phase_table


def describe_slow_workers(paths: Iterable[str | Path]) -> str:
    """Return a sentence about which workers are slow, by how much and in which phase, or that none is.

    A worker is slow if the median of its time without waits exceeds that of the slowest of the faster half by more than
    5%, and by more than twice the uncertainty of the difference.
    """
    paths = list(paths)
    trace = merge(paths)
    seconds_TW = np.asarray(trace.seconds)[1:]  # the first iteration of many jobs compiles and allocates
    seconds_TW = seconds_TW[np.isfinite(seconds_TW).all(axis=1)]
    workers = list(trace.workers)
    if len(workers) < 2 or len(seconds_TW) < 10:
        return f"cannot tell which worker is slow from {len(seconds_TW)} iterations of {len(workers)} workers"
    median_W = np.median(seconds_TW, axis=0)
    middle = int(np.argsort(median_W)[(len(workers) - 1) // 2])
    slow = [w for w in np.argsort(-median_W).tolist() if _is_slower(seconds_TW[:, w], seconds_TW[:, middle])]
    if not slow:
        communication = np.nanmedian(np.asarray(trace.comm_seconds))
        return (
            f"no worker is slow: each takes {1e3 * median_W.min():.3g} to {1e3 * median_W.max():.3g} ms per iteration "
            f"without waits, plus {1e3 * communication:.3g} ms of communication"
        )
    sentences = [
        f"worker {workers[w]} is slow: it takes {1e3 * median_W[w]:.3g} ms per iteration without waits, worker "
        f"{workers[middle]} takes {1e3 * median_W[middle]:.3g} ms"
        f"{_slow_phase_clause(paths, workers[w], workers[middle])}"
        for w in slow[:3]
    ]
    if len(slow) > 3:
        sentences.append(f"{len(slow) - 3} further workers are slow")
    return "; ".join(sentences)


def _slow_phase_clause(paths: list[str | Path], worker: str, reference: str) -> str:
    """Return the end of a sentence: in which phase a worker is slower than another. Empty without phases."""
    try:
        table = phase_table(paths)
    except ValueError:
        return ""
    medians = table[table["iteration"] > table["iteration"].min()].groupby("worker")[list(table.columns[3:])].median()
    beyond = medians.loc[worker] - medians.loc[reference]
    phases = {
        "between_seconds": "loading data or in the loop between steps",
        "forward_seconds": "the forward pass",
        "backward_seconds": "the backward pass",
        "optimizer_seconds": "the optimizer's step",
    }
    phase = phases.get(str(beyond.idxmax()), beyond.idxmax())
    return f", with {1e3 * beyond.max():.3g} ms of the difference in {phase}"


def _is_slower(worker_T: NDArray[np.float64], other_T: NDArray[np.float64]) -> bool:
    ratio_T = np.log(worker_T) - np.log(other_T)
    median = float(np.median(ratio_T))
    standard_error = 1.2533 * 1.4826 * float(np.median(np.abs(ratio_T - median))) / len(ratio_T) ** 0.5
    return bool(np.expm1(median) > max(0.05, 2 * standard_error))
