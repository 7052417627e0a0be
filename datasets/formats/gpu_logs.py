"""What nvidia-smi logs of the GPUs of a machine: ``nvidia-smi --query-gpu=timestamp,index,... --format=csv -l 1``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.datasets.frame import numbers_in
from paceline.datasets.readers.arrangement import Arrangement
from paceline.datasets.readers.csv_rows import TEXT, frame, header_of
from paceline.datasets.readers.files import head
from paceline.datasets.readers.format import QUOTED, Format
from paceline.datasets.readers.tally import Tally
from paceline.datasets.readers.tidy import traces_of
from paceline.datasets.readers.timestamps import seconds_since_1970
from paceline.datasets.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

GPU = ("index", "pci.bus_id", "gpu_bus_id", "uuid", "gpu_uuid", "gpu_serial", "serial")
"""Columns that name a GPU, the first that is there names the worker."""

UNIT = re.compile(r"\s*\[([^\]]*)\]$")
MISSING = ("[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[GPU is lost]", "ERR!", "[Insufficient Permissions]")


def read_nvidia_smi(
    paths: Sequence[Path], *, period: float | None = None, workers: Sequence[str] | None = None
) -> Iterator[Trace]:
    """Yield the usage of the GPUs of each file; a period is an iteration, by default the median between two rows."""
    for path in paths:
        tally = Tally()
        names = header_of(head(path))
        table = frame(
            path, dict.fromkeys(names, TEXT), tally, missing=["", *(f" {word}" for word in MISSING), *MISSING]
        )
        table = table[(table["timestamp"] != "timestamp").to_numpy()]  # a log that was appended to has another header
        found = next((name for name in GPU if name in names), None)
        found_W = table[found].str.strip() if found else "0"
        times = seconds_since_1970(path, table["timestamp"], "timestamp")
        units = {UNIT.sub("", name): match[1] for name in names if (match := UNIT.search(name))}
        values = _values(path, table.drop(columns=["timestamp", *([found] if found else [])]))
        rows = values.assign(worker=found_W, start=times, samples=np.nan, seconds=np.nan)
        if workers is not None:
            rows = rows[rows["worker"].isin(list(workers))]
        if rows.empty:
            raise ValueError(f"{path}: has no row{' of these workers' if workers is not None else ''}")
        arrangement = Arrangement(period=period or _period(rows))
        meta = {"units": "; ".join(f"{name}: {unit}" for name, unit in units.items())}
        yield from traces_of(path, rows, arrangement, tally, "nvidia_smi", meta=meta)


def _values(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of numbers, without the units in their cells."""
    found = {}
    for name in table:
        cells = table[name].str.extract(r"^\s*(-?[0-9]+(?:\.[0-9]+)?)\s*(?:%|MiB|W|MHz|C|KB/s|MB/s)?\s*$")[0]
        if cells.isna().all():
            continue
        found[UNIT.sub("", str(name))] = cells.where(cells.notna(), table[name])
    values = table.iloc[:, :0].assign(**found)
    values.index = values.index + 2  # as an editor counts rows, from the header
    try:
        return values.assign(**{name: numbers_in(values, name) for name in found}).set_index(table.index)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _period(rows: pd.DataFrame) -> float:
    between = rows.sort_values("start").groupby("worker")["start"].diff()
    between = between[between > 0]
    return max(round(float(between.median()), 2), 0.01) if len(between) else 1.0


def _is_nvidia_smi(path: Path, text: str) -> bool:
    names = header_of(text)
    queried = re.compile(r"(utilization|memory|temperature|power|clocks|fan|pcie|encoder|ecc)\.[.\w]+( \[.*\])?")
    return "timestamp" in names and any(map(queried.fullmatch, names))


FORMATS = (
    Format(
        name="nvidia_smi",
        about="usage of the GPUs of a machine (nvidia-smi --query-gpu=timestamp,index,... --format=csv -l 1)",
        files="CSV with the columns timestamp, index and any of those that nvidia-smi lists, with or without units",
        gives="usage",
        seen=QUOTED,
        read=read_nvidia_smi,
        matches=_is_nvidia_smi,
    ),
)
