"""Convert written times to seconds since 1970 (UTC)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

OFFSET = re.compile(r"([+-])(\d\d)(?::?([0-5]\d))?")
ZONES = {"": 0, "Z": 0, "UTC": 0, "GMT": 0, "PDT": -7, "PST": -8}
"""Hours that a zone's clock is ahead of UTC; a time without a zone is taken as UTC."""


def seconds_since_1970(path: Path, texts: pd.Series, column: str, first_row: int = 2) -> NDArray[np.float64]:
    """Return the seconds since 1970 of times such as ``2017-10-03 00:08:00 PDT``; NaN where the cell is empty.

    A zone may be an offset as well, as ``datetime.isoformat`` writes it: ``2017-10-03T00:08:00.5-07:00``.

    Raises
    ------
    ValueError
        If a cell holds no such time; the message names file, row (``first_row`` is the first row's) and column.

    Examples
    --------
    >>> import pandas as pd
    >>> seconds_since_1970(Path("x"), pd.Series(["1970-01-01 00:00:01.5", "1970-01-01 00:00:00 PDT"]), "time").tolist()
    [1.5, 25200.0]
    >>> seconds_since_1970(Path("x"), pd.Series(["1970-01-01T02:00:01+02:00"]), "time").tolist()
    [1.0]
    """
    import pandas as pd

    time = r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d([.,]\d{1,9})?"
    parts = texts.astype("str").str.extract(rf"^\s*({time})\s*([A-Z]*|{OFFSET.pattern})\s*$")
    hours = parts[2].map({zone: _hours(zone) for zone in parts[2].dropna().unique()})
    written = parts[0].str.replace(",", ".").str.replace("T", " ").str.replace("/", "-")
    times = pd.to_datetime(written, format="ISO8601", errors="coerce")
    bad = (texts.notna() & (times.isna() | hours.isna())).to_numpy(dtype=bool)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"{path}: row {first_row + row}, column {column!r}: must be a time like 2017-10-03 00:08:00 with a zone of "
            f"{[zone for zone in ZONES if zone]}, an offset like +02:00, or none, got {texts.iloc[row]!r}"
        )
    microseconds = times.to_numpy(dtype="datetime64[us]")
    seconds = np.where(np.isnat(microseconds), np.nan, microseconds.astype(np.int64) * 1e-6)
    return np.asarray(seconds - 3600.0 * hours.to_numpy(dtype=np.float64), dtype=np.float64)


def _hours(zone: str) -> float:
    """Return the hours that a zone is ahead of UTC; NaN if it is not known.

    >>> _hours("PDT"), _hours("+0530"), _hours("-08"), _hours("CET")
    (-7.0, 5.5, -8.0, nan)
    """
    if offset := OFFSET.fullmatch(zone):
        hours = int(offset[2]) + int(offset[3] or 0) / 60.0
        return -hours if offset[1] == "-" else hours
    return float(ZONES.get(zone, np.nan))
