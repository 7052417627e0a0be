"""CPU of virtual machines: the Azure public dataset of 2019 (V2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from paceline.datasets.readers.csv_rows import NUMBER, TEXT, frames, headed, header_of
from paceline.datasets.readers.format import MADE, Format
from paceline.datasets.readers.panel import Layout, Rows, usage_traces
from paceline.datasets.readers.tables import csv_table
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

NAMES = ("timestamp", "vmid", "mincpu", "maxcpu", "avgcpu")
COVARIATES = ("mincpu", "maxcpu", "avgcpu")


def read(
    paths: Sequence[Path], *, period: float | None = None, workers: Sequence[str] | None = None
) -> Iterator[Trace]:
    """Yield the CPU of virtual machines, every 300 s; the files of one folder are parts of one set."""
    tally = Tally()
    layout = Layout(
        covariates=dict.fromkeys(COVARIATES, "percent"),
        period=300.0,
        meta={
            "source": "github.com/Azure/AzurePublicDataset, V2",
            "licence": "CC BY 4.0",
            "format": "azure_vm_cpu",
        },
    )
    blocks = (rows for path in paths for rows in _rows(path, tally))
    yield from usage_traces(paths, blocks, layout, tally, period=period, workers=workers)


def _rows(path: Path, tally: Tally) -> Iterator[Rows]:
    columns = {"timestamp": NUMBER, "vmid": TEXT, **dict.fromkeys(COVARIATES, NUMBER)}
    for block in frames(path, columns, tally, names=NAMES, skip=int(headed(path, NAMES))):
        yield Rows(block["vmid"], block["timestamp"].to_numpy(), block[list(COVARIATES)].to_numpy())


def _is(path: Path, head: str) -> bool:
    first = header_of(head)
    return first == list(NAMES) or (path.name.startswith("vm_cpu_readings") and len(first) == len(NAMES))


FORMATS = (
    Format(
        name="azure_vm_cpu",
        about="least, largest and mean CPU of virtual machines every 5 minutes (Azure V2)",
        files="vm_cpu_readings-file-<i>-of-<n>.csv[.gz] without a header; a folder's files are one set",
        gives="usage",
        seen=MADE,
        read=read,
        columns=NAMES,
        recognises=_is,
        job=lambda path: str(path.parent),
    ),
)

TABLES = (
    csv_table(
        "azure_vmtable",
        "vmtable*.csv",
        "vmid subscriptionid deploymentid vmcreated vmdeleted maxcpu avgcpu p95maxcpu vmcategory vmcorecountbucket "
        "vmmemorybucket",
        texts="vmid subscriptionid deploymentid vmcategory vmcorecountbucket vmmemorybucket",  # buckets can read ">24"
    ),
    csv_table("azure_deployments", "deployments*.csv", "deploymentid deploymentsize", texts="deploymentid"),
)
