"""CPU and GPU series of jobs: the MIT Supercloud dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from paceline.datasets.readers.csv_rows import NUMBER, TEXT, frames, header_of
from paceline.datasets.readers.format import MADE, Format
from paceline.datasets.readers.panel import Layout, Rows, usage_traces
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

META = {"source": "MIT Supercloud dataset"}
CPU_COVARIATES = {
    "CPUFrequency": "as in the file",
    "CPUTime": "s",
    "CPUUtilization": "percent of one core, summed over the node's cores",
    "RSS": "KB",
    "VMSize": "KB",
    "Pages": "pages",
    "ReadMB": "MB",
    "WriteMB": "MB",
}
GPU_COVARIATES = {
    "utilization_gpu_pct": "percent",
    "utilization_memory_pct": "percent",
    "memory_free_MiB": "MiB",
    "memory_used_MiB": "MiB",
    "temperature_gpu": "degrees Celsius",
    "temperature_memory": "degrees Celsius",
    "power_draw_W": "W",
}
NO_STEPS = ("-1", "-4")
"""Pseudo-steps: rows of the job as a whole."""


def read_cpu(
    paths: Sequence[Path], *, period: float | None = None, workers: Sequence[str] | None = None
) -> Iterator[Trace]:
    """Yield the CPU series of jobs every 10 s; a worker is ``<node>/<step>/<series>``."""
    for path in paths:
        tally = Tally()
        layout = Layout(
            covariates=CPU_COVARIATES, period=10.0, since_1970=True, meta={**META, "format": "supercloud_cpu"}
        )
        yield from usage_traces([path], _cpu_rows(path, tally), layout, tally, period=period, workers=workers)


def read_gpu(
    paths: Sequence[Path], *, period: float | None = None, workers: Sequence[str] | None = None
) -> Iterator[Trace]:
    """Yield the GPU series of jobs every 0.1 s; a worker is a GPU."""
    for path in paths:
        tally = Tally()
        layout = Layout(
            covariates=GPU_COVARIATES, period=0.1, since_1970=True, meta={**META, "format": "supercloud_gpu"}
        )
        yield from usage_traces([path], _gpu_rows(path, tally), layout, tally, period=period, workers=workers)


def _cpu_rows(path: Path, tally: Tally) -> Iterator[Rows]:
    names = dict.fromkeys(("Step", "Node", "Series"), TEXT)
    columns = {**names, "EpochTime": NUMBER, **dict.fromkeys(CPU_COVARIATES, NUMBER)}
    for block in frames(path, columns, tally):
        no_step = block["Step"].str.strip().isin(NO_STEPS)
        tally.rows("rows of steps -1 and -4", no_step.sum())
        kept = block[~no_step]
        worker = kept["Node"] + "/" + kept["Step"] + "/" + kept["Series"].fillna("")
        yield Rows(worker, kept["EpochTime"].to_numpy(), kept[list(CPU_COVARIATES)].to_numpy())


def _gpu_rows(path: Path, tally: Tally) -> Iterator[Rows]:
    columns = {"timestamp": NUMBER, "gpu_index": TEXT, **dict.fromkeys(GPU_COVARIATES, NUMBER)}
    for block in frames(path, columns, tally):
        yield Rows("gpu " + block["gpu_index"], block["timestamp"].to_numpy(), block[list(GPU_COVARIATES)].to_numpy())


FORMATS = (
    Format(
        name="supercloud_cpu",
        about="CPU, memory and I/O of a job's nodes every 10 s (MIT Supercloud)",
        files="CSV with a header: Step, Node, Series, ElapsedTime, EpochTime, ...",
        gives="usage",
        seen=MADE,
        read=read_cpu,
        columns=("Step", "Node", "Series", "ElapsedTime", "EpochTime", *CPU_COVARIATES),
        recognises=lambda path, head: {"Step", "Node", "EpochTime", "CPUUtilization"} <= set(header_of(head)),
    ),
    Format(
        name="supercloud_gpu",
        about="utilisation, memory, temperature and power of a job's GPUs every 0.1 s (MIT Supercloud)",
        files="CSV with a header: timestamp, gpu_index, utilization_gpu_pct, ...",
        gives="usage",
        seen=MADE,
        read=read_gpu,
        columns=("timestamp", "gpu_index", *GPU_COVARIATES),
        recognises=lambda path, head: {"timestamp", "gpu_index", "utilization_gpu_pct"} <= set(header_of(head)),
    ),
)
