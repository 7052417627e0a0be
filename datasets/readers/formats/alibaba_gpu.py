"""Jobs, instances and their mean usage: Alibaba's GPU trace of 2020 (``cluster-trace-gpu-v2020``)."""

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

CORES, GPUS, GIGABYTES = "percent of one core", "percent of one GPU", "GB"
COLUMNS = {
    "sensor": "job_name task_name worker_name inst_id machine gpu_name cpu_usage gpu_wrk_util avg_mem max_mem "
    "avg_gpu_wrk_mem max_gpu_wrk_mem read write read_count write_count",
    "machine_metric": "worker_name machine start_time end_time machine_cpu_iowait machine_cpu_kernel machine_cpu_usr "
    "machine_gpu machine_load_1 machine_net_receive machine_num_worker machine_cpu",
}
FILES = {"sensor": "pai_sensor_table", "machine_metric": "pai_machine_metric"}
COVARIATES = {
    "sensor": {
        "cpu_usage": CORES,
        "gpu_wrk_util": GPUS,
        "avg_mem": GIGABYTES,
        "max_mem": GIGABYTES,
        "avg_gpu_wrk_mem": GIGABYTES,
        "max_gpu_wrk_mem": GIGABYTES,
        "read": "bytes",
        "write": "bytes",
        "read_count": "operations",
        "write_count": "operations",
    },
    "machine_metric": {
        "machine_cpu_iowait": "percent",
        "machine_cpu_kernel": "percent",
        "machine_cpu_usr": "percent",
        "machine_gpu": "percent",
        "machine_load_1": "load average of a minute",
        "machine_net_receive": "bytes/s",
        "machine_num_worker": "instances",
        "machine_cpu": "percent",
    },
}


def read(table: str, paths: Sequence[Path], *, workers: Sequence[str] | None = None) -> Iterator[Trace]:
    """Yield traces of a single iteration: the averages over the whole life of each instance (``worker_name``)."""
    layout = Layout(
        covariates=COVARIATES[table],
        period=1.0,
        meta={
            "source": "github.com/alibaba/clusterdata, cluster-trace-gpu-v2020",
            "licence": "CC BY 4.0",
            "format": f"alibaba_gpu_{table}",
            "averages": "one iteration: the mean over an instance's life, not a series",
        },
    )
    tally = Tally()
    blocks = (rows for path in paths for rows in _rows(path, table, tally))
    yield from usage_traces(paths, blocks, layout, tally, workers=workers)


def _rows(path: Path, table: str, tally: Tally) -> Iterator[Rows]:
    covariates, names = list(COVARIATES[table]), COLUMNS[table].split()
    columns = {"worker_name": TEXT, **dict.fromkeys(covariates, NUMBER)}
    for block in frames(path, columns, tally, names=names, skip=int(headed(path, names))):
        yield Rows(block["worker_name"], np.zeros(len(block)), block[covariates].to_numpy())


def _is(table: str, path: Path, head: str) -> bool:
    first, names = header_of(head), COLUMNS[table].split()
    return first == names or (path.name.startswith(FILES[table]) and len(first) == len(names))


FORMATS = tuple(
    Format(
        name=f"alibaba_gpu_{table}",
        about=f"mean usage over the life of each instance, {table.replace('_', ' ')}s (Alibaba GPU 2020)",
        files=f"{FILES[table]}.csv without a header",
        gives="usage",
        seen=MADE,
        read=partial(read, table),
        columns=tuple(COLUMNS[table].split()),
        recognises=partial(_is, table),
    )
    for table in COLUMNS
)

TABLES = (
    csv_table(
        "alibaba_gpu_job",
        "pai_job_table*.csv",
        "job_name inst_id user status start_time end_time",
        texts="job_name inst_id user status",
    ),
    csv_table(
        "alibaba_gpu_task",
        "pai_task_table*.csv",
        "job_name task_name inst_num status start_time end_time plan_cpu plan_mem plan_gpu gpu_type",
        texts="job_name task_name status gpu_type",
    ),
    csv_table(
        "alibaba_gpu_instance",
        "pai_instance_table*.csv",
        "job_name task_name inst_name worker_name inst_id status start_time end_time machine",
        texts="job_name task_name inst_name worker_name inst_id status machine",
    ),
    csv_table(
        "alibaba_gpu_group_tag",
        "pai_group_tag_table*.csv",
        "inst_id user gpu_type_spec group workload",
        texts="inst_id user gpu_type_spec group workload",
    ),
    csv_table(
        "alibaba_gpu_machine_spec",
        "pai_machine_spec*.csv",
        "machine gpu_type cap_cpu cap_mem cap_gpu",
        texts="machine gpu_type",
    ),
)
