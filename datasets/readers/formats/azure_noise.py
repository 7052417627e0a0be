"""Speed of long-lived virtual machines over months: the Azure VM Noise Dataset 2024."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.datasets.readers.csv_rows import NUMBER, TEXT, frame, header_of
from paceline.datasets.readers.format import Format, real
from paceline.datasets.readers.tally import Tally
from paceline.datasets.readers.timestamps import seconds_since_1970
from paceline.datasets.trace import Trace
from paceline.datasets.units import TIMES

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {"value": NUMBER, "runtime": NUMBER, "starttime": TEXT, "VM_id": TEXT}


def read(paths: Sequence[Path], *, least: int = 2) -> Iterator[Trace]:
    """Yield one trace for each virtual machine: row k is its k-th measurement, at irregular times (``start``).

    Machines with fewer than ``least`` measurements lived too short for a series: they are left out, with a warning.
    """
    for path in paths:
        tally = Tally()
        table = _in_order(path, frame(path, COLUMNS, tally), tally)
        machines = table.groupby("VM_id")
        short = machines["value"].transform("size") < least
        if short.any():
            left_out, all_ = table.loc[short, "VM_id"].nunique(), machines.ngroups
            warnings.warn(
                f"{path}: {left_out:,} of {all_:,} machines are left out, as they have fewer than {least} "
                "measurements; least=1 reads them",
                stacklevel=2,
            )
            tally.rows("rows of machines with too few measurements", short.sum())
        for machine, rows in table[~short].groupby("VM_id"):
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
    job, unit = named(path)
    scale = seconds_per(unit)
    value_T = rows[["value"]].to_numpy()
    one_T = np.ones_like(value_T)
    return Trace(
        samples=value_T if scale is None else one_T,
        seconds=one_T if scale is None else value_T * scale,
        start=rows[["start"]].to_numpy(),
        workers=[f"vm {machine}"],
        meta={
            "source": "github.com/Azure/AzurePublicDataset, vm-noise-data",
            "licence": "CC BY 4.0",
            "job": f"{job}-vm{machine}",
            "format": "azure_vm_noise",
            "units": f"samples: {unit} in one second" if scale is None else f"samples: events; seconds: from {unit}",
            **tally.meta(),
        },
    )


def named(path: Path) -> tuple[str, str]:
    """Return what a file is about (benchmark, region, size and unit), and its unit.

    They stand in its name, or, as in the public repository, in its folders.

    >>> named(Path("OSBench__Test__eastus__D8s_v5__us_Per_Event.csv"))
    ('OSBench__Test__eastus__D8s_v5__us_Per_Event', 'us Per Event')
    >>> named(Path("data/OSBench/eastus/D8s_v5/vm_lifespan=long/unit=msec.csv"))
    ('OSBench__eastus__D8s_v5__vm_lifespan=long__unit=msec', 'msec')
    """
    stem = path.name.split(".csv")[0]
    if stem.startswith("unit="):
        folders = [part for part in path.parts[:-1] if part != path.anchor][-4:]
        return "__".join((*folders, stem)), stem.removeprefix("unit=")
    return stem, stem.rpartition("__")[2].replace("_", " ")


def seconds_per(unit: str) -> float | None:
    """Return how many seconds a value of one is, if the unit is a time; None if it is a rate.

    >>> seconds_per("us Per Event"), seconds_per("msec"), seconds_per("MiB s"), seconds_per("TPS")
    (1e-06, 0.001, None, None)
    """
    word = unit.lower().removesuffix(" per event").removesuffix("/event").strip()
    return TIMES.get(word)  # a unit in which a smaller value is faster; all others are rates


FORMATS = (
    Format(
        name="azure_vm_noise",
        about="a benchmark's result on long-lived virtual machines, every few hours over 16 months",
        files="<benchmark>__<region>__<size>__<unit>.csv, or <benchmark>/<region>/<size>/.../unit=<unit>.csv",
        gives="speed",
        seen=real("Azure/AzurePublicDataset, vm-noise-data"),
        read=read,
        columns=tuple(COLUMNS),
        recognises=lambda path, head: set(COLUMNS) <= set(header_of(head)),
    ),
)
