"""Usage of business-critical virtual machines: Bitbrains, GWA-T-12."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from paceline.datasets.readers.csv_rows import NUMBER, frames, header_of
from paceline.datasets.readers.format import MADE, Format
from paceline.datasets.readers.panel import Layout, Rows, usage_traces
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

TIME = "Timestamp [ms]"
"""The column's name in the files, although its values are seconds."""

COVARIATES = {
    "CPU cores": ("cpu_cores", "cores"),
    "CPU capacity provisioned [MHZ]": ("cpu_capacity", "MHz"),
    "CPU usage [MHZ]": ("cpu_usage_mhz", "MHz"),
    "CPU usage [%]": ("cpu_usage", "percent"),
    "Memory capacity provisioned [KB]": ("memory_capacity", "KB"),
    "Memory usage [KB]": ("memory_usage", "KB"),
    "Disk read throughput [KB/s]": ("disk_read", "KB/s"),
    "Disk write throughput [KB/s]": ("disk_write", "KB/s"),
    "Network received throughput [KB/s]": ("net_received", "KB/s"),
    "Network transmitted throughput [KB/s]": ("net_sent", "KB/s"),
}


def read(
    paths: Sequence[Path], *, period: float | None = None, workers: Sequence[str] | None = None
) -> Iterator[Trace]:
    """Yield the usage of virtual machines every 300 s; each file of a folder is one of them, named after it."""
    tally = Tally()
    layout = Layout(
        covariates=dict(COVARIATES.values()),
        period=300.0,
        since_1970=True,
        meta={"source": "Grid Workloads Archive, GWA-T-12 Bitbrains", "format": "bitbrains"},
    )
    blocks = (rows for path in paths for rows in _rows(path, tally))
    yield from usage_traces(paths, blocks, layout, tally, period=period, workers=workers)


def _rows(path: Path, tally: Tally) -> Iterator[Rows]:
    import pandas as pd

    worker = path.name.split(".")[0]
    for block in frames(path, dict.fromkeys((TIME, *COVARIATES), NUMBER), tally, delimiter=";"):
        names = pd.Series(np.full(len(block), worker, dtype=object), dtype="str")
        yield Rows(names, block[TIME].to_numpy(), block[list(COVARIATES)].to_numpy())


FORMATS = (
    Format(
        name="bitbrains",
        about="CPU, memory, disk and network of a virtual machine every 5 minutes (GWA-T-12)",
        files="one <vm>.csv for each machine; a folder's files are one set",
        gives="usage",
        seen=MADE,
        read=read,
        columns=(TIME, *COVARIATES),
        recognises=lambda path, head: {TIME, "CPU usage [%]"} <= set(header_of(head, ";")),
        job=lambda path: str(path.parent),
    ),
)
