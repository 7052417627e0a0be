"""Public traces of clusters and machines: Alibaba, Azure, ByteDance."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.datasets.formats import Format
from paceline.datasets.formats.tables import read_column_names
from paceline.datasets.frame import SECONDS_PER_UNIT, require_dense
from paceline.datasets.io import (
    NUMBER,
    TEXT,
    RowCounts,
    parse_header,
    read_csv_frame,
    seconds_since_1970,
)
from paceline.datasets.parquet import read_table
from paceline.datasets.restarts import continue_steps, number_row_runs
from paceline.datasets.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

# --- Mini-batch times of production training jobs: ``mini-batch-time`` of Alibaba's GPU trace of 2020.


def read_pai_minibatch(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one trace per job: one mini-batch is one sample, and its time is in thousandths of the job's longest."""
    for path in paths:
        row_counts = RowCounts()
        table = read_csv_frame(path, dict.fromkeys(("worker", "time", "batch_time_norm"), NUMBER), row_counts)
        complete = table[["worker", "time"]].notna().all(axis=1)
        table = row_counts.keep_rows(table, complete, "rows without worker or time")
        run_N = number_row_runs(table["worker"].to_numpy(), table["time"].to_numpy())
        row_counts.count_restarts(run_N.max(initial=0))
        if run_N.any():  # times of a restarted job go on after its first run
            table = table.assign(time=continue_steps(table["time"].to_numpy(), run_N))
        first = ~table.duplicated(["worker", "time"])
        table = row_counts.keep_rows(table, first, "repeated rows of a worker and time, of which the first counts")
        if table.empty:
            raise ValueError(f"{path} has no row with a worker and a time: check that it is the file of this format")
        require_dense(len(table), table["time"].nunique(), table["worker"].nunique())
        seconds_TW = table.pivot(index="time", columns="worker", values="batch_time_norm").sort_index()
        bad_TW = seconds_TW.to_numpy() <= 0
        row_counts.drop_cells("mini-batch times that are not positive", bad_TW.sum())
        yield Trace(
            samples=np.where(np.isnan(seconds_TW) | bad_TW, np.nan, 1.0),
            seconds=np.where(bad_TW, np.nan, seconds_TW / 1000.0),
            workers=[f"{worker:g}" for worker in seconds_TW.columns],
            meta={
                "source": "github.com/alibaba/clusterdata, cluster-trace-gpu-v2020/mini-batch-time",
                "licence": "CC BY 4.0",
                "job": f"pai-{path.name.split('.')[0].removesuffix('_norm')}",
                "units": "samples: mini-batches; seconds: thousandths of the job's longest / 1000 (the unit is lost)",
                **row_counts.to_meta(),
            },
        )


# --- Speed of long-lived virtual machines over months: the Azure VM Noise Dataset 2024.


def read_azure_noise(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one trace for each virtual machine: row k is its k-th measurement, at irregular times (``start``).

    Machines with a single measurement are left out, with a warning.
    """
    for path in paths:
        row_counts = RowCounts()
        table = read_csv_frame(path, {"value": NUMBER, "runtime": NUMBER, "starttime": TEXT, "VM_id": TEXT}, row_counts)
        table = table.assign(start=seconds_since_1970(path, table["starttime"], "starttime"))
        table = row_counts.keep_rows(table, table["value"] > 0, "values that are not positive")
        complete = table[["VM_id", "start"]].notna().all(axis=1)
        table = row_counts.keep_rows(table, complete, "rows without a machine or a time")
        table = table.sort_values("start", kind="stable")
        first = ~table.duplicated(["VM_id", "start"])
        table = row_counts.keep_rows(table, first, "repeated rows of a machine and time, of which the first counts")
        if not len(table):
            raise ValueError(
                f"{path} has no row with a machine and a positive value: check that it is the file of this format"
            )
        single = ~table["VM_id"].duplicated(keep=False)
        if single.any():
            machines = table["VM_id"].nunique()
            warnings.warn(
                f"{path}: {single.sum():,} of {machines:,} machines are left out, as they have only one measurement",
                stacklevel=2,
            )
            row_counts.drop_rows("rows of machines with a single measurement", single.sum())
        job, unit = benchmark_and_unit(path)
        # a unit of time, of which less is faster; others, for which there are no seconds, are rates
        scale = SECONDS_PER_UNIT.get(unit.lower().removesuffix(" per event").removesuffix("/event").strip())
        for machine, rows in table[~single].groupby("VM_id"):
            value_T = rows[["value"]].to_numpy()
            one_T = np.ones_like(value_T)
            yield Trace(
                samples=value_T if scale is None else one_T,
                seconds=one_T if scale is None else value_T * scale,
                start=rows[["start"]].to_numpy(),
                workers=[f"vm {machine}"],
                meta={
                    "source": "github.com/Azure/AzurePublicDataset, vm-noise-data",
                    "licence": "CC BY 4.0",
                    "job": f"{job}-vm{machine}",
                    "units": f"samples: {unit} in one second"
                    if scale is None
                    else f"samples: events; seconds: from {unit}",
                    **row_counts.to_meta(),
                },
            )


def benchmark_and_unit(path: Path) -> tuple[str, str]:
    """Return what a file is about (benchmark, region, size and unit), and its unit.

    They stand in its name, or, as in the public repository, in its folders.

    >>> benchmark_and_unit(Path("OSBench__Test__eastus__D8s_v5__us_Per_Event.csv"))
    ('OSBench__Test__eastus__D8s_v5__us_Per_Event', 'us Per Event')
    >>> benchmark_and_unit(Path("data/OSBench/eastus/D8s_v5/vm_lifespan=long/unit=msec.csv"))
    ('OSBench__eastus__D8s_v5__vm_lifespan=long__unit=msec', 'msec')
    """
    stem = path.name.split(".csv")[0]
    if stem.startswith("unit="):
        folders = [part for part in path.parts[:-1] if part != path.anchor][-4:]
        return "__".join((*folders, stem)), stem.removeprefix("unit=")
    return stem, stem.rpartition("__")[2].replace("_", " ")


# --- Compute times of ranks in jobs that train language models: ByteDance's straggler traces.

BYTEDANCE_COLUMNS = ("rank", "stage", "step", "optype", "duration", "seq_id")


def read_bytedance(paths: Sequence[Path], *, micro_batches: bool = False) -> Iterator[Trace]:
    """Yield one trace per pipeline stage and window of steps, because stages do different work.

    An iteration is a step with the time of all its computing; with ``micro_batches`` it is one forward micro-batch.
    """
    for path in paths:
        row_counts = RowCounts()
        for stage, rows in _read_operations(path, row_counts).groupby("stage"):
            steps = np.sort(rows["step"].unique())
            # recorded steps come in windows, with gaps of more than 100 steps between them
            window_of = dict(zip(steps, np.cumsum(np.diff(steps, prepend=steps[0]) > 100), strict=True))
            for window, (_, part) in enumerate(rows.groupby(rows["step"].map(window_of))):
                in_window = sorted(part["step"].unique())
                if micro_batches:
                    part = part[part["optype"].astype(str) == "forward-compute"]
                    part = part.assign(order=part.groupby(["rank", "step"]).cumcount())
                    seconds = part.pivot_table(index=["step", "order"], columns="rank", values="duration")
                else:
                    seconds = part.pivot_table(index="step", columns="rank", values="duration", aggfunc="sum")
                seconds_TW = seconds.to_numpy(dtype=np.float64)
                job = path.name.split(".")[0].removeprefix("trace-")
                yield Trace(
                    samples=np.where(np.isnan(seconds_TW), np.nan, 1.0),
                    seconds=seconds_TW,
                    workers=[f"rank {rank}" for rank in seconds.columns],
                    meta={
                        "source": "github.com/ByteDance-Seed/StragglerAnalysis",
                        "licence": "Apache-2.0",
                        "job": f"bytedance-{job}-stage{int(str(stage))}-window{window}",
                        "units": "samples: one step or micro-batch; seconds: its forward and backward computing",
                        "steps": f"{len(in_window)} recorded of {in_window[0]} to {in_window[-1]}",
                        **row_counts.to_meta(),
                    },
                )


def _read_operations(path: Path, row_counts: RowCounts) -> pd.DataFrame:
    import pandas as pd

    table = read_table(path, BYTEDANCE_COLUMNS).to_pandas(ignore_metadata=True)
    if lacking := [name for name in BYTEDANCE_COLUMNS if name not in table]:
        raise ValueError(f"{path}: columns {lacking} are missing; it has {list(table)}")
    texts = [name for name in BYTEDANCE_COLUMNS if name != "optype" and not pd.api.types.is_numeric_dtype(table[name])]
    if texts:
        raise ValueError(f"{path}: columns {texts} must hold numbers")
    row_counts.count_read(len(table))
    computing = table["optype"].astype(str).isin(("forward-compute", "backward-compute"))
    row_counts.drop_rows("operations other than forward and backward computing", (~computing).sum())
    bad = computing & ~((table["duration"] >= 0) & np.isfinite(table["duration"]))
    row_counts.drop_rows("operations with a negative or unknown duration", bad.sum())
    used: pd.DataFrame = table[computing & ~bad].dropna()
    if used.empty:
        raise ValueError(f"{path} has no row of a forward or backward computation: check columns optype and duration")
    # steps of a restarted job go on after its first run: summed, they would count twice
    operation = used["rank"].astype(str) + "/" + used["optype"].astype(str) + "/" + used["seq_id"].astype(str)
    step_N = used["step"].to_numpy(dtype=np.float64)
    run_N = number_row_runs(operation.to_numpy(dtype=str), step_N)
    row_counts.count_restarts(run_N.max(initial=0))
    if run_N.any():
        used = used.assign(step=continue_steps(step_N, run_N).astype(np.int64))
    require_dense(len(used), used["step"].nunique(), used["rank"].nunique())
    return used.sort_values(["step", "seq_id"], kind="stable")


FORMATS = (
    Format(
        name="pai_minibatch",
        description="mini-batch time of the workers of a production job, every few seconds",
        files="job_<k>_norm.csv",
        provides="speed",
        tested_on="real files of alibaba/clusterdata, mini-batch-time",
        read=read_pai_minibatch,
        matches=lambda path, head: {"worker", "gpu", "time", "batch_time_norm"} <= set(parse_header(head)),
    ),
    Format(
        name="azure_vm_noise",
        description="a benchmark's result on long-lived virtual machines, every few hours over 16 months",
        files="<benchmark>__<region>__<size>__<unit>.csv, or <benchmark>/<region>/<size>/.../unit=<unit>.csv",
        provides="speed",
        tested_on="real files of Azure/AzurePublicDataset, vm-noise-data",
        read=read_azure_noise,
        matches=lambda path, head: {"value", "runtime", "starttime", "VM_id"} <= set(parse_header(head)),
    ),
    Format(
        name="bytedance_llm",
        description="compute time of every rank in every recorded step of a language model's training",
        files="trace-<job>.parquet",
        provides="speed",
        tested_on="real files of ByteDance-Seed/StragglerAnalysis",
        read=read_bytedance,
        matches=lambda path, head: (
            head.startswith("PAR1") and {"optype", "rank", "stage", "step"} <= set(read_column_names(path, head))
        ),
    ),
)
