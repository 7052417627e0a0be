"""Batch-time profiles: how long a training step takes for each batch size, in one tidy frame.

One row is one measurement. Rows of the same ``source``, ``device``, ``model`` and ``held`` are one curve. A row without
``seconds`` (NaN) is a batch that did not fit into memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

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
        raise ValueError(f"{path}: columns {missing} are missing; it has {list(written)}")
    if written.empty:
        raise ValueError(f"{path} has no rows: measure at least one batch size")
    table = written[[name for name in (*PROFILE_COLUMNS, UNCERTAINTY_COLUMN) if name in written]].copy()
    for name in {"batch", "seconds", "comm_seconds", UNCERTAINTY_COLUMN} & set(table):
        numbers, positive = pd.to_numeric(table[name], errors="coerce").astype(np.float64), name in ("batch", "seconds")
        right = np.isfinite(numbers) & ((numbers > 0) if positive else (numbers >= 0))
        if (bad := ~right & ((table[name] != "") | (name == "batch"))).any():  # an empty cell is NaN
            row = int(np.argmax(bad))
            raise ValueError(
                f"{path}: {name} must be a number {'above 0' if positive else 'of at least 0'}, but row {row + 2} "
                f"holds {table[name].iloc[row]!r}"
            )
        table[name] = numbers
    return table
