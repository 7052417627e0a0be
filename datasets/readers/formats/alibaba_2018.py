"""Usage of machines and containers: Alibaba's cluster trace of 2018 (``cluster-trace-v2018``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from paceline.datasets.readers.csv_rows import NUMBER, TEXT, frames, headed, header_of
from paceline.datasets.readers.format import MADE, Format
from paceline.datasets.readers.panel import Layout, Rows, usage_traces
from paceline.datasets.readers.tables import csv_table
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

META = {"source": "github.com/alibaba/clusterdata, cluster-trace-v2018"}
PERCENT, NORMALISED = "percent", "normalised to [0, 100]"
INVALID = (-1.0, 101.0)
"""Values that mean "not measured", in percentages and normalised columns."""

COVARIATES = {
    "cpu_util_percent": PERCENT,
    "mem_util_percent": PERCENT,
    "cpi": "cycles per instruction",
    "mem_gps": f"memory bandwidth, {NORMALISED}",
    "mkpi": "cache misses per thousand instructions",
    "mpki": "cache misses per thousand instructions",
    "net_in": f"incoming traffic, {NORMALISED}",
    "net_out": f"outgoing traffic, {NORMALISED}",
    "disk_io_percent": PERCENT,
}
SHARED = ("time_stamp", "cpu_util_percent", "mem_util_percent")
COLUMNS = {
    "machine_usage": ("machine_id", *SHARED, "mem_gps", "mkpi", "net_in", "net_out", "disk_io_percent"),
    "container_usage": (
        *("container_id", "machine_id", *SHARED),
        *("cpi", "mem_gps", "mpki", "net_in", "net_out", "disk_io_percent"),
    ),
}
PERIOD = {"machine_usage": 10.0, "container_usage": 10.0}


def read(
    table: str, paths: Sequence[Path], *, period: float | None = None, workers: Sequence[str] | None = None
) -> Iterator[Trace]:
    """Yield the usage of machines or containers; a container is a worker."""
    names = COLUMNS[table]
    layout = Layout(
        covariates={name: COVARIATES[name] for name in names if name in COVARIATES},
        period=PERIOD[table],
        meta={**META, "format": f"alibaba_{table}"},
    )
    tally = Tally()
    blocks = (rows for path in paths for rows in _rows(path, names, list(layout.covariates), tally))
    yield from usage_traces(paths, blocks, layout, tally, period=period, workers=workers)


def _rows(path: Path, names: Sequence[str], covariates: list[str], tally: Tally) -> Iterator[Rows]:
    columns = {names[0]: TEXT, "time_stamp": NUMBER, **dict.fromkeys(covariates, NUMBER)}
    for block in frames(path, columns, tally, names=names, skip=int(headed(path, names))):
        values_ND = block[covariates].to_numpy(copy=True)
        invalid_ND = np.isin(values_ND, INVALID)
        tally.cells("values of -1 or 101, which are invalid", invalid_ND.sum())
        values_ND[invalid_ND] = np.nan
        yield Rows(block[names[0]], block["time_stamp"].to_numpy(), values_ND)


def _is(table: str, path: Path, head: str) -> bool:
    first, names = header_of(head), COLUMNS[table]
    return first == list(names) or (path.name.startswith(table) and len(first) == len(names))


FORMATS = tuple(
    Format(
        name=f"alibaba_{table}",
        about=f"{table.partition('_')[0]}s' CPU, memory, network and disk, every 10 s at the finest (Alibaba 2018)",
        files=f"{table}.csv without a header",
        gives="usage",
        seen=MADE,
        read=partial(read, table),
        columns=COLUMNS[table],
        recognises=partial(_is, table),
    )
    for table in COLUMNS
)

TABLES = (
    csv_table(
        "alibaba_machine_meta",
        "machine_meta*.csv",
        "machine_id time_stamp failure_domain_1 failure_domain_2 cpu_num mem_size status",
        texts="machine_id failure_domain_1 failure_domain_2 status",
    ),
    csv_table(
        "alibaba_container_meta",
        "container_meta*.csv",
        "container_id machine_id time_stamp app_du status cpu_request cpu_limit mem_size",
        texts="container_id machine_id app_du status",
    ),
)
