"""Counters of a log that go back: its job was started again, and counts from a checkpoint or from nothing."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes


def number_runs(step_T: Array) -> Sizes:
    """Return the run that each row belongs to: a step counter that goes back starts a new one."""
    back_T: NDArray[np.bool_] = np.diff(step_T, prepend=step_T[:1]) < 0
    return np.cumsum(back_T, dtype=np.int64)


def continue_steps(step_T: Array, run_T: Sizes) -> Array:
    """Return steps that go on where the run before ended, so that no two runs share an iteration."""
    runs = int(run_T.max(initial=0)) + 1
    first_R, last_R = np.full(runs, np.inf), np.full(runs, -np.inf)
    np.minimum.at(first_R, run_T, step_T)
    np.maximum.at(last_R, run_T, step_T)
    begin_R = first_R[0] + np.concatenate([[0.0], np.cumsum(last_R - first_R + 1)[:-1]])
    return np.asarray(step_T - first_R[run_T] + begin_R[run_T])


def number_row_runs(worker_N: NDArray[Any], step_N: Array) -> Sizes:
    """Return the run of each row of a table of several workers, in the order in which it was written.

    A step that goes back is no restart by itself, as a table may be sorted in any way. A worker that was started again
    writes at least two rows from there, and all of the steps that it had written before, one after the other. Where one
    step back is no such restart, none is claimed.

    >>> number_row_runs(np.array(["a", "b", "a", "b", "a", "a"]), np.array([0, 0, 1, 1, 0, 1.0]))
    array([0, 0, 0, 0, 1, 1])
    """
    run_N = np.zeros(len(step_N), dtype=np.int64)
    if not len(step_N):
        return run_N
    written_N = np.argsort(worker_N, kind="stable")  # by worker, each in the order of writing
    step, worker = step_N[written_N], worker_N[written_N]
    first_N = np.concatenate([[True], worker[1:] != worker[:-1]])
    back_N = ~first_N & (np.diff(step, prepend=step[:1]) < 0)
    if 2 * back_N.sum() > len(step):  # runs of less than two rows
        return run_N
    begins = np.flatnonzero(first_N | back_N)
    begin_of_worker, highest = 0, -np.inf
    for begin, end in pairwise([*begins.tolist(), len(step)]):
        if first_N[begin]:
            begin_of_worker, highest = begin, -np.inf
        elif not _repeats_steps(step[begin_of_worker:begin], step[begin:end], highest):
            return run_N
        highest = max(highest, step[end - 1])
    total_N = np.cumsum(back_N)
    run_N[written_N] = total_N - np.maximum.accumulate(np.where(first_N, total_N, 0))
    return run_N


def _repeats_steps(before: Array, run: Array, highest: float) -> bool:
    """Return whether a run writes again the steps that it goes back over; the first and last may be cut off."""
    if len(run) < 2:
        return False
    over = np.unique(before[(before >= run[0]) & (before <= min(run[-1], highest))])
    return len(over) > 0 and np.isin(over, run).mean() >= 0.9


def increments(total_T: Array, run_T: Sizes) -> Array:
    """Return what each row adds to a total that is counted within each run, or over all of them.

    The first of a run is its own total, if the total began again, and otherwise what it is ahead of the run before; NaN
    if it can be neither.

    >>> runs = np.array([0, 0, 1, 1])
    >>> increments(np.array([8.0, 16.0, 8.0, 16.0]), runs)  # begins again
    array([8., 8., 8., 8.])
    >>> increments(np.array([800.0, 808.0, 816.0, 824.0]), runs)  # goes on
    array([nan,  8.,  8.,  8.])
    """
    first_T = np.diff(run_T, prepend=-1) > 0
    added_T = np.diff(total_T, prepend=np.nan)
    inside_T = added_T[~first_T & (added_T > 0)]
    median = np.median(inside_T) if len(inside_T) else np.inf
    choices = np.stack([np.where(added_T > 0, added_T, np.nan), total_T])[:, first_T]
    # a first increment above 10 median ones is a resumed total
    plausible = np.where(choices <= 10.0 * median, choices, np.nan)
    added_T[first_T] = np.where(np.isnan(plausible[0]), plausible[1], plausible[0])
    return added_T
