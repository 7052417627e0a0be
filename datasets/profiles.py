"""Batch-time profiles: how long a training step takes for each batch size, in one tidy frame.

One row is one measurement. Rows of the same ``source``, ``device``, ``model`` and ``held`` are one curve. A row without
``seconds`` (NaN) is a batch that did not fit into memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline._files import atomic_write
from paceline.datasets.io import describe_csv_error

if TYPE_CHECKING:
    import pandas as pd

PROFILE_COLUMNS = ("source", "device", "model", "batch", "seconds", "comm_seconds", "held")
"""Source, device, model, samples, own compute time in s, communication in s, and what was held constant."""

UNCERTAINTY_COLUMN = "uncertainty"
"""A further column of profiles measured in several passes: half the 95% interval of the median, as a share of it."""

CURVE_COLUMNS = ["source", "device", "model", "held"]
"""The columns that identify a curve."""


def read_profiles(path: str | Path) -> pd.DataFrame:
    r"""Read the batch-time profiles that ``paceline profile`` writes, as a frame with :data:`PROFILE_COLUMNS`.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a column is missing or a row holds an unexpected value; the message names the file and the row.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "t4.csv"
    ...     _ = file.write_text("source,device,model,batch,seconds,comm_seconds,held\nmine,t4,bert,8,0.75,,\n")
    ...     read_profiles(file)[["device", "model", "batch", "seconds"]]
      device model  batch  seconds
    0     t4  bert    8.0     0.75
    """
    import pandas as pd

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no profile {path}")
    try:
        written = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {describe_csv_error(error)}") from None
    if missing := [name for name in PROFILE_COLUMNS if name not in written]:
        raise ValueError(f"{path}: columns {missing} are missing, it has {list(written)}")
    if written.empty:
        raise ValueError(f"{path}: holds no measurement")
    table = written[[name for name in (*PROFILE_COLUMNS, UNCERTAINTY_COLUMN) if name in written]].copy()
    positive = {"batch": True, "seconds": True, "comm_seconds": False, UNCERTAINTY_COLUMN: False}
    for name in positive.keys() & set(table):
        table[name] = _parse_numbers(path, table[name], positive=positive[name], required=name == "batch")
    return table


def _parse_numbers(path: Path, column: pd.Series[str], *, positive: bool, required: bool) -> pd.Series[float]:
    """Return cells as numbers, NaN for an empty one."""
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce").astype(np.float64)
    right = np.isfinite(numbers) & ((numbers > 0) if positive else (numbers >= 0))
    bad = ~right & ((column != "") | required)
    if bad.any():
        row = int(np.argmax(bad))
        wanted = "positive" if positive else "at least 0"
        raise ValueError(f"{path}, row {row + 2}: {column.name} must be a number, {wanted}, got {column.iloc[row]!r}")
    return numbers


def save_profile(profile: pd.DataFrame, path: str | Path) -> Path:
    """Write a profile as tidy CSV, whole or not at all, and return its path."""
    missing = [name for name in PROFILE_COLUMNS if name not in profile.columns]
    if missing:
        raise ValueError(f"profile must have the columns {list(PROFILE_COLUMNS)}, but {missing} are missing")
    path = Path(path)
    columns = [name for name in (*PROFILE_COLUMNS, UNCERTAINTY_COLUMN) if name in profile.columns]
    with atomic_write(path) as temporary:
        profile[columns].to_csv(temporary, index=False)
    return path
