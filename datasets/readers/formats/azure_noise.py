"""Speed of long-lived virtual machines over months: the Azure VM Noise Dataset 2024."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.datasets.readers.clock import seconds_since_1970
from paceline.datasets.readers.csv_rows import NUMBER, TEXT, frame, header_of
from paceline.datasets.readers.format import Format
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {"value": NUMBER, "runtime": NUMBER, "starttime": TEXT, "VM_id": TEXT}


def read(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one trace for each virtual machine: row k is its k-th measurement, at irregular times (``start``)."""
    for path in paths:
        tally = Tally()
        table = _in_order(path, frame(path, COLUMNS, tally), tally)
        for machine, rows in table.groupby("VM_id"):
            yield _machine(path, str(machine), rows, tally)


def _in_order(path: Path, table: pd.DataFrame, tally: Tally) -> pd.DataFrame:
    """Return the rows sorted by time; of rows that repeat a machine's time, the first counts."""
    table = table.assign(start=seconds_since_1970(path, table["starttime"], "starttime"))
    bad = ~(table["value"] > 0)
    tally.rows("values that are not positive", bad.sum())
    table = table[~bad].dropna(subset=["VM_id", "start"]).sort_values("start", kind="stable")
    tally.rows("rows without a machine or a time", int((~bad).sum()) - len(table))
    repeated = table.duplicated(["VM_id", "start"])
    tally.rows("repeated rows of a machine and time, of which the first counts", repeated.sum())
    if not len(table):
        raise ValueError(f"{path}: has no row with a machine and a positive value")
    return table[~repeated]


def _machine(path: Path, machine: str, rows: pd.DataFrame, tally: Tally) -> Trace:
    unit = path.name.split(".csv")[0].rpartition("__")[2]
    value_T = rows[["value"]].to_numpy()
    one_T = np.ones_like(value_T)
    per_event = unit.startswith("us_")
    return Trace(
        samples=one_T if per_event else value_T,
        seconds=value_T * 1e-6 if per_event else one_T,
        start=rows[["start"]].to_numpy(),
        workers=[f"vm {machine}"],
        meta={
            "source": "github.com/Azure/AzurePublicDataset, vm-noise-data",
            "licence": "CC BY 4.0",
            "job": f"{path.name.split('.csv')[0]}-vm{machine}",
            "format": "azure_vm_noise",
            "units": "samples: events; seconds: of one event" if per_event else f"samples: {unit} in one second",
            **tally.meta(),
        },
    )


FORMATS = (
    Format(
        name="azure_vm_noise",
        about="a benchmark's result on long-lived virtual machines, every few hours over 16 months",
        files="<benchmark>__<region>__<size>__<unit>.csv; the unit is the last part of the name",
        gives="speed",
        read=read,
        recognises=lambda path, head: set(COLUMNS) <= set(header_of(head)),
    ),
)
