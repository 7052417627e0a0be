"""Tidy pandas frames of traces, one row per iteration and worker: columns, units, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd


BASE_COLUMNS = ("samples", "seconds", "comm_seconds", "wait_seconds", "start")
"""The measured columns, in the order of storage; the last three are optional."""

WORK_COLUMN = "work"
"""A further optional one: what a worker's samples cost."""

MEASURED_COLUMNS = (*BASE_COLUMNS, WORK_COLUMN)

MAX_VALUE = 1e15
"""Largest measured value (in seconds 30 million years): what is larger is an error, and no sum of it overflows."""

COLUMN_UNITS = {
    "samples": "samples",
    "seconds": "s",
    "comm_seconds": "s",
    "wait_seconds": "s",
    "start": "s since 1970-01-01 UTC",
    WORK_COLUMN: "any, the same for all workers",
}

SECONDS_PER_UNIT = {
    **dict.fromkeys(("ns", "nsec", "nanoseconds"), 1e-9),
    **dict.fromkeys(("us", "usec", "microseconds"), 1e-6),
    **dict.fromkeys(("ms", "msec", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "seconds"), 1.0),
    **dict.fromkeys(("min", "minutes"), 60.0),
    **dict.fromkeys(("h", "hours"), 3600.0),
}
"""Seconds of each unit."""


def unit_seconds(unit: str) -> float:
    """Return how many seconds one of this unit is."""
    if unit not in SECONDS_PER_UNIT:
        raise ValueError(f"unit must be one of {list(SECONDS_PER_UNIT)}, got {unit!r}")
    return SECONDS_PER_UNIT[unit]


REQUIRED_COLUMNS = ("worker", "iteration", "samples", "seconds")

MAX_TIME = 4_102_444_800.0
"""The first second of 2100."""

MAX_ITERATION = 2**53 - 1
"""Beyond this, neighboring whole numbers are one float64, and a cast to int64 returns garbage from 2**63 on."""


def rename_columns(frame: pd.DataFrame, columns: Mapping[str, str | float]) -> pd.DataFrame:
    """Return the frame with a trace's names for its columns; a number is the value of every row."""
    known = list(dict.fromkeys((*REQUIRED_COLUMNS, *MEASURED_COLUMNS)))
    if unknown := [name for name in columns if name not in known]:
        raise ValueError(f"columns {unknown} are not columns of a trace; those that can be mapped are {known}")
    named = {name: column for name, column in columns.items() if isinstance(column, str)}
    if lacking := [column for column in named.values() if column not in frame.columns]:
        raise ValueError(f"columns {lacking} are missing; the table has {list(frame.columns)}")
    if twice := [name for name, column in columns.items() if name in frame.columns and column != name]:
        raise ValueError(
            f"columns {twice} exist already and would be replaced: drop them, or leave them out of columns="
        )
    numbers = {name: float(value) for name, value in columns.items() if not isinstance(value, str)}
    return frame.rename(columns={column: name for name, column in named.items()}).assign(**numbers)


def convert_to_seconds(frame: pd.DataFrame, unit: str = "s", start_unit: str = "s") -> pd.DataFrame:
    """Return the frame with all times in seconds: datetimes since 1970 (UTC), timedeltas, and numbers of a unit.

    Numbers are never taken for nanoseconds because they are large: a ``start`` beyond the year 2100 is refused.
    """
    import pandas as pd

    found = frame.infer_objects().rename(columns=str)  # Python's own times are objects, and names may be numbers
    if twice := sorted(set(found.columns[found.columns.duplicated()])):
        raise ValueError(f"columns {twice} appear more than once; rename all but one")
    for name, column in list(found.items()):
        moment = isinstance(column.dtype, pd.DatetimeTZDtype) or column.dtype.kind == "M"
        span = column.dtype.kind == "m"
        if moment and name in (*REQUIRED_COLUMNS, "comm_seconds", "wait_seconds"):
            raise ValueError(f"column {name!r} must hold numbers or durations, got dates ({column.dtype})")
        if span and name in ("worker", "iteration", "samples", "start"):
            wanted = "names" if name == "worker" else "numbers"
            raise ValueError(f"column {name!r} must hold {wanted}, got durations ({column.dtype}): is it another one?")
        if moment:
            found[name] = (pd.to_datetime(column, utc=True) - datetime(1970, 1, 1, tzinfo=UTC)).dt.total_seconds()
        elif span:
            found[name] = column.dt.total_seconds()
        elif name in ("seconds", "comm_seconds", "wait_seconds") and unit != "s":
            found[name] = numeric_column(found, str(name)) * unit_seconds(unit)
        elif name == "start" and start_unit != "s":
            found[name] = numeric_column(found, str(name)) * unit_seconds(start_unit)
    start_N = numeric_column(found, "start") if "start" in found.columns else np.empty(0)
    if (implausible := start_N > MAX_TIME).any():
        at = _first_index(implausible)
        fits = next((unit for unit in ("ms", "us") if start_N[at] * unit_seconds(unit) <= MAX_TIME), "ns")
        raise ValueError(
            f"column 'start' must hold seconds since 1970, but row {found.index[at]} holds "
            f"{_cell_text(found['start'], at)}, after the year 2100; name its unit: start_unit={fits}"
        )
    return found


def frame_to_panels(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the parts of a trace: see :meth:`paceline.datasets.Trace.from_frame`."""
    if missing := [name for name in REQUIRED_COLUMNS if name not in frame.columns]:
        raise ValueError(
            f"columns {missing} are missing; a trace needs {list(REQUIRED_COLUMNS)}, got {list(frame.columns)}: rename "
            "them, or pass columns={'seconds': 'your_column', 'samples': 8}, where a number holds for every row"
        )
    if not len(frame):
        raise ValueError("the frame has no rows; a trace needs at least one")
    number_N = numeric_column(frame, "iteration")
    integer_N = (np.abs(number_N) <= MAX_ITERATION) & (number_N == np.round(number_N))
    if not integer_N.all():
        at = _first_index(~integer_N)
        raise ValueError(
            f"column 'iteration' must hold whole numbers of at most {MAX_ITERATION}, but row {frame.index[at]} "
            f"holds {_cell_text(frame['iteration'], at)}"
        )
    _check_names_and_ranges(frame)
    workers, column_N = _sort_names(frame["worker"])
    row_N = number_N.astype(np.int64)
    row_N = row_N - row_N.min()  # a number that is absent for all workers is a gap, not a neighbor
    iterations = int(row_N.max()) + 1
    require_dense(len(frame), iterations, len(workers))  # before pairs are numbered: a far row would overflow
    _, first, count = np.unique(row_N * len(workers) + column_N, return_index=True, return_counts=True)
    if (count > 1).any():
        again = frame.iloc[int(first[np.argmax(count > 1)])]
        raise ValueError(
            f"worker {again['worker']!s} reports iteration {int(again['iteration'])} more than once; "
            "each pair (worker, iteration) may have only one row: keep one of them"
        )
    empty = iterations - len(np.unique(row_N))

    def panel(name: str) -> NDArray[np.float64]:
        """Return the panel of a column, ``[T, W]``, read-only: a trace takes such without a copy."""
        values = np.full((iterations, len(workers)), np.nan)
        values[row_N, column_N] = numeric_column(frame, name)
        values.setflags(write=False)
        return values

    covariate_names = [str(name) for name in frame.columns if name not in (*REQUIRED_COLUMNS, *MEASURED_COLUMNS)]
    return {
        "meta": {"absent": f"{empty} of {iterations} iterations, for all workers"} if empty else {},
        **{name: panel(name) for name in MEASURED_COLUMNS if name in frame.columns},
        "covariates": np.stack([panel(name) for name in covariate_names], axis=-1) if covariate_names else None,
        "covariate_names": covariate_names,
        "workers": [str(name) for name in workers],
    }


def _check_names_and_ranges(frame: pd.DataFrame) -> None:
    if (nameless := frame["worker"].isna()).any():
        raise ValueError(
            f"column 'worker' must name a worker in every row, but row {frame.index[_first_index(nameless)]} is empty"
        )
    for name in (name for name in MEASURED_COLUMNS if name in frame.columns and name != "start"):
        values = numeric_column(frame, name)
        if (bad := (values < 0) | (values > MAX_VALUE)).any():
            at = _first_index(bad)
            raise ValueError(
                f"column {name!r} must hold numbers from 0 to {MAX_VALUE:g}, but row {frame.index[at]} holds "
                f"{_cell_text(frame[name], at)}: check its unit, or leave the cell empty"
            )


def _sort_names(worker: pd.Series[Any]) -> tuple[NDArray[np.str_], NDArray[np.intp]]:
    """Return the workers in order, and which of them each row is of."""
    import pandas as pd

    name_N, different = pd.factorize(worker)
    names = [str(name) for name in different]
    if (longest := max(map(len, names), default=0)) > 1000:  # an array gives each name the room of the longest
        raise ValueError(f"column 'worker' must hold names of at most 1000 characters, got one of {longest}")
    workers, place_C = np.unique(np.array(names, dtype=str), return_inverse=True)  # 1 and "1" are one worker
    # longer numbers do not fit into int64 and are sorted as text
    if all(name.isascii() and name.isdigit() and len(name) <= 18 for name in names):
        by_number = np.argsort(workers.astype(int), kind="stable")
        workers, place_C = workers[by_number], np.argsort(by_number)[place_C]
    return workers, place_C[name_N]


def require_dense(num_rows: int, iterations: int, workers: int) -> None:
    """Refuse a panel that would be nearly empty and larger than any memory."""
    if iterations * workers > max(10_000_000, 100 * num_rows):
        raise ValueError(
            f"{num_rows} rows name {workers} workers and {iterations} iterations, so that the trace would be nearly "
            "empty: check the columns worker and iteration"
        )


def numeric_column(frame: pd.DataFrame, column_name: str) -> NDArray[np.float64]:
    """Return a column as numbers."""
    import pandas as pd

    column = frame[column_name]
    if column.dtype == np.float64 or (isinstance(column.dtype, np.dtype) and column.dtype.kind in "iu"):
        return column.to_numpy(dtype=np.float64)
    numbers = pd.to_numeric(column, errors="coerce")
    broken = numbers.isna() & column.notna()
    if broken.any():
        at = _first_index(broken)
        raise ValueError(
            f"column {column_name!r} must hold numbers, but row {frame.index[at]} holds {_cell_text(column, at)}"
        )
    return numbers.to_numpy(dtype=np.float64)


def _cell_text(column: pd.Series[Any], row: int) -> str:
    """Return a cell as it was written: numpy's numbers without the name of their type."""
    value = column.iloc[row]
    return repr(value.item() if isinstance(value, np.generic) else value)


def _first_index(condition: object) -> int:
    return int(np.argmax(np.asarray(condition)))
