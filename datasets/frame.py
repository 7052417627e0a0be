"""Tidy pandas frames of traces: one row per iteration and worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.datasets.columns import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

    from paceline.datasets.trace import Trace

REQUIRED = ("worker", "iteration", "samples", "seconds")

LARGEST_ITERATION = 2**53
"""Beyond this, neighbouring whole numbers are one float64, and a cast to int64 returns garbage from 2**63 on."""

EMPTIEST, FREE_PLACES = 100, 10_000_000
"""A panel of more than ten million places, and of a hundred for each row, is refused: it would only fill memory."""

LONGEST_NAME = 1000
"""Characters in the name of a worker."""

MOST_DIGITS = 18
"""Names of workers with more digits do not fit into int64; they are sorted as text."""


def frame_of(trace: Trace) -> pd.DataFrame:
    """Return a tidy frame: see :meth:`paceline.datasets.Trace.to_frame`."""
    import pandas as pd

    iterations, workers = trace.seconds.shape
    columns: dict[str, object] = {
        "iteration": np.repeat(np.arange(iterations), workers),
        "worker": np.tile(np.array(trace.workers), iterations),
    }
    columns |= {name: panel.ravel() for name in COLUMNS if (panel := getattr(trace, name)) is not None}
    if trace.drivers is not None:
        columns |= {name: trace.drivers[:, :, d].ravel() for d, name in enumerate(trace.driver_names)}
    return pd.DataFrame(columns)


def panels_of(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the parts of a trace: see :meth:`paceline.datasets.Trace.from_frame`."""
    _check(frame)
    workers, column = _sorted_names(frame["worker"])
    if len(workers) and all(name.isascii() and name.isdigit() and len(name) <= MOST_DIGITS for name in workers):
        by_number = np.argsort(workers.astype(int), kind="stable")
        workers, column = workers[by_number], np.argsort(by_number)[column]
    iteration = frame["iteration"].to_numpy(dtype=np.int64)
    if whole := _is_whole(iteration, column, len(workers)):
        place_W = np.argsort(column[: len(workers)])
    else:
        iterations, row = np.unique(iteration, return_inverse=True)
        _check_unique(frame, row, column, len(workers))
        _check_dense(len(frame), len(iterations), len(workers))

    def panel(name: str) -> NDArray[np.float64]:
        if whole:
            return _numbers(frame, name).reshape(-1, len(workers))[:, place_W]
        values = np.full((len(iterations), len(workers)), np.nan)
        values[row, column] = _numbers(frame, name)
        return values

    driver_names = [str(name) for name in frame.columns if name not in (*REQUIRED, *COLUMNS)]
    return {
        **{name: panel(name) for name in COLUMNS if name in frame.columns},
        "drivers": np.stack([panel(name) for name in driver_names], axis=-1) if driver_names else None,
        "driver_names": driver_names,
        "workers": [str(name) for name in workers],
    }


def _is_whole(iteration: NDArray[np.int64], column: NDArray[np.intp], workers: int) -> bool:
    """Whether every iteration has one row of every worker, in the same order: as ``Trace.save`` writes them.

    Such a table is the panel as it lies; sorting its rows again took most of the time of reading.
    """
    if not workers or len(iteration) % workers:
        return False
    iteration_TW, column_TW = iteration.reshape(-1, workers), column.reshape(-1, workers)
    first_T, order_W = iteration_TW[:, 0], column_TW[0]
    return bool(
        (first_T[1:] > first_T[:-1]).all()
        and (iteration_TW == first_T[:, None]).all()
        and len(set(order_W.tolist())) == workers
        and (column_TW == order_W).all()
    )


def _check(frame: pd.DataFrame) -> None:
    missing = [name for name in REQUIRED if name not in frame.columns]
    if missing:
        raise ValueError(f"columns {missing} are missing; a trace needs {list(REQUIRED)}, got {list(frame.columns)}")
    if not len(frame):
        raise ValueError("the frame has no rows; a trace needs at least one")
    iteration = _numbers(frame, "iteration")
    whole = (np.abs(iteration) <= LARGEST_ITERATION) & (iteration == np.round(iteration))  # False for NaN too
    if not whole.all():
        at = _first(~whole)
        raise ValueError(
            f"column 'iteration' must hold whole numbers of at most {LARGEST_ITERATION}, but row {at} holds "
            f"{frame['iteration'].iloc[at]!r}"
        )
    if frame["worker"].isna().any():
        raise ValueError(
            f"column 'worker' must name a worker in every row, but row {_first(frame['worker'].isna())} is empty"
        )
    for name in COLUMNS[:4]:
        if name in frame.columns and (bad := _numbers(frame, name) < 0).any():
            raise ValueError(f"column {name!r} must not be negative, but row {_first(bad)} is")


def _sorted_names(worker: pd.Series[Any]) -> tuple[NDArray[np.str_], NDArray[np.intp]]:
    """Return the different names in order, and which of them each row has."""
    import pandas as pd

    code_of_row, different = pd.factorize(worker)
    names = [str(name) for name in different]
    if (longest := max(map(len, names), default=0)) > LONGEST_NAME:  # an array gives each name the room of the longest
        raise ValueError(f"column 'worker' must hold names of at most {LONGEST_NAME} characters, got one of {longest}")
    workers, place = np.unique(np.array(names, dtype=str), return_inverse=True)
    return workers, place[code_of_row]


def _check_dense(rows: int, iterations: int, workers: int) -> None:
    """Refuse a panel that would be nearly empty and larger than any memory."""
    if iterations * workers > max(FREE_PLACES, EMPTIEST * rows):
        raise ValueError(
            f"{rows} rows name {workers} workers and {iterations} iterations, a panel that would be nearly empty"
        )


def _check_unique(frame: pd.DataFrame, row: NDArray[np.int64], column: NDArray[np.int64], workers: int) -> None:
    pair = row * workers + column
    _, first, count = np.unique(pair, return_index=True, return_counts=True)
    if (count > 1).any():
        again = frame.iloc[int(first[np.argmax(count > 1)])]
        raise ValueError(
            f"worker {again['worker']!s} reports iteration {int(again['iteration'])} more than once; "
            "each pair (worker, iteration) may have only one row"
        )


def _numbers(frame: pd.DataFrame, name: str) -> NDArray[np.float64]:
    import pandas as pd

    if frame[name].dtype == np.float64:
        return frame[name].to_numpy()
    numbers = pd.to_numeric(frame[name], errors="coerce")
    broken = numbers.isna() & frame[name].notna()
    if broken.any():
        at = _first(broken)
        raise ValueError(f"column {name!r} must hold numbers, but row {at} holds {frame[name].iloc[at]!r}")
    return numbers.to_numpy(dtype=np.float64)


def _first(condition: object) -> int:
    return int(np.argmax(np.asarray(condition)))
