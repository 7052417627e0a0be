"""Public traces of clusters and machines: Alibaba, Google, Azure, ByteDance."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.datasets.formats import SYNTHETIC_FILES, Format
from paceline.datasets.formats.tables import read_column_names
from paceline.datasets.frame import SECONDS_PER_UNIT, numeric_column, require_dense
from paceline.datasets.io import (
    NUMBER,
    TEXT,
    RowCounts,
    counted_lines,
    iter_csv_frames,
    parse_header,
    read_csv_frame,
    read_head,
    seconds_since_1970,
)
from paceline.datasets.parquet import read_table
from paceline.datasets.restarts import continue_steps, number_row_runs
from paceline.datasets.trace import Trace
from paceline.datasets.usage import UsageDescription, UsageRows, iter_usage_traces

if TYPE_CHECKING:
    import pandas as pd

# --- Usage: rows of (worker, time, values) of Alibaba's trace of 2018 and Google's of 2019.


def _read_usage(
    iter_rows: Callable[[UsageDescription, Path, RowCounts], Iterator[UsageRows]],
    description: UsageDescription,
    paths: Sequence[Path],
    *,
    period: float | None = None,
    workers: Sequence[str] | None = None,
) -> Iterator[Trace]:
    """Yield the usage of workers; the files of one job are parts of one set."""
    row_counts = RowCounts()
    blocks = (block for path in paths for block in iter_rows(description, path, row_counts))
    yield from iter_usage_traces(paths, blocks, description, row_counts, period=period, workers=workers)


ALIBABA_UNITS = {
    **dict.fromkeys(("cpu_util_percent", "mem_util_percent"), "percent"),
    "cpi": "cycles per instruction",
    "mem_gps": "memory bandwidth, normalized to [0, 100]",
    **dict.fromkeys(("mkpi", "mpki"), "cache misses per thousand instructions"),
    "net_in": "incoming traffic, normalized to [0, 100]",
    "net_out": "outgoing traffic, normalized to [0, 100]",
    "disk_io_percent": "percent",
}
"""Units of both tables, in the order of their columns; each spells the cache misses its way."""


def _iter_alibaba_rows(
    id_columns: Sequence[str], description: UsageDescription, path: Path, row_counts: RowCounts
) -> Iterator[UsageRows]:
    """Yield blocks of rows; the files have no header, but some copies of them have one."""
    covariates = list(description.covariates)
    names = [*id_columns, "time_stamp", *covariates]
    columns = {names[0]: TEXT, "time_stamp": NUMBER, **dict.fromkeys(covariates, NUMBER)}
    has_header = parse_header(read_head(path))[:1] == names[:1]
    for block in iter_csv_frames(path, columns, row_counts, names=names, skip=int(has_header)):
        values_ND = block[covariates].to_numpy(copy=True)
        # -1 and 101 mean "not measured", in percentages and normalized columns
        invalid_ND = np.isin(values_ND, (-1.0, 101.0))
        row_counts.drop_cells("values of -1 or 101, which are invalid", invalid_ND.sum())
        values_ND[invalid_ND] = np.nan
        yield UsageRows(block[names[0]], block["time_stamp"].to_numpy(), values_ND)


def _alibaba_format(table: str, id_columns: Sequence[str], lacking: Sequence[str]) -> Format:
    covariates = {name: unit for name, unit in ALIBABA_UNITS.items() if name not in lacking}
    names = [*id_columns, "time_stamp", *covariates]
    description = UsageDescription(
        covariates=covariates, period=10.0, meta={"source": "github.com/alibaba/clusterdata, cluster-trace-v2018"}
    )
    return Format(
        name=f"alibaba_{table}",
        description=f"{table.partition('_')[0]}s' CPU, memory, network and disk, every 10 s at best (Alibaba 2018)",
        files=f"{table}.csv without a header",
        provides="usage",
        tested_on=SYNTHETIC_FILES,
        read=partial(_read_usage, partial(_iter_alibaba_rows, id_columns), description),
        job=str,
        matches=lambda path, head: (
            (first := parse_header(head)) == names or (path.name.startswith(table) and len(first) == len(names))
        ),
    )


# --- Mini-batch times of production training jobs: ``mini-batch-time`` of Alibaba's GPU trace of 2020.


def read_pai_minibatch(path: Path, row_counts: RowCounts) -> Iterator[Trace]:
    """Yield one trace per job: one mini-batch is one sample, and its time is in thousandths of the job's longest."""
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
        },
    )


# --- Usage of task instances: Google's cluster trace of 2019 (version 3).


GOOGLE_COVARIATES = {
    "average_usage.cpus": "normalized compute units",
    "average_usage.memory": "normalized bytes",
    "maximum_usage.cpus": "normalized compute units",
    "maximum_usage.memory": "normalized bytes",
    "random_sample_usage.cpus": "normalized compute units",
    "assigned_memory": "normalized bytes",
    "page_cache_memory": "normalized bytes",
    "cycles_per_instruction": "cycles per instruction",
    "memory_accesses_per_instruction": "accesses per instruction",
    "sample_rate": "share of seconds that were sampled",
}


def _iter_google_rows(description: UsageDescription, path: Path, row_counts: RowCounts) -> Iterator[UsageRows]:
    """Yield the usage of instances; a worker is ``<collection_id>/<instance_index>``."""
    import pandas as pd

    names = ["start_time", *description.covariates]
    lines = counted_lines(path, row_counts)
    while block := list(islice(lines, 50_000)):
        workers, values = [], []
        for number, line in block:
            try:
                one = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}: line {number} must be one JSON object, but is not: {error}") from error
            if not isinstance(one, dict):
                raise ValueError(f"{path}: line {number} must be one JSON object, got a {type(one).__name__}")
            known = one.get("collection_id") is not None and one.get("instance_index") is not None
            workers.append(f"{one['collection_id']}/{one['instance_index']}" if known else None)
            values.append([_look_up(one, name) for name in names])
        # 64-bit integers may be strings
        table = pd.DataFrame(values, [number for number, _ in block], names, dtype=object)
        time_N, *values_DN = (numeric_column(table, name) for name in names)
        values_ND = np.stack(values_DN, axis=1)
        # 0 and 2**63 - 1 mean before the start and after the end of the trace
        outside_N = (time_N <= 0) | (time_N >= float(2**63 - 1))
        row_counts.drop_rows("rows before or after the trace's time", outside_N.sum())
        values_ND[np.isinf(values_ND)] = np.nan
        worker_N = pd.Series(workers, dtype="str")
        yield UsageRows(worker_N[~outside_N], time_N[~outside_N] * 1e-6, values_ND[~outside_N])


def _look_up(record: dict[str, Any], name: str) -> Any:
    """Return a field by its dotted name; None where it is missing."""
    outer, _, inner = name.partition(".")
    found = record.get(outer)
    return found.get(inner) if inner and isinstance(found, dict) else None if inner else found


# --- Speed of long-lived virtual machines over months: the Azure VM Noise Dataset 2024.


def read_azure_noise(path: Path, row_counts: RowCounts) -> Iterator[Trace]:
    """Yield one trace for each virtual machine: row k is its k-th measurement, at irregular times (``start``).

    Machines with a single measurement are left out, with a warning.
    """
    table = read_csv_frame(path, {"value": NUMBER, "runtime": NUMBER, "starttime": TEXT, "VM_id": TEXT}, row_counts)
    table = table.assign(start=seconds_since_1970(path, table["starttime"], "starttime"))
    table = row_counts.keep_rows(table, table["value"] > 0, "values that are not positive")
    complete = table[["VM_id", "start"]].notna().all(axis=1)
    table = row_counts.keep_rows(table, complete, "rows without a machine or a time")
    table = table.sort_values("start", kind="stable")
    first = ~table.duplicated(["VM_id", "start"])
    table = row_counts.keep_rows(table, first, "repeated rows of a machine and time, of which the first counts")
    if not len(table):
        raise ValueError(f"{path} has no row with a machine and a positive value: is it a file of this format?")
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
    units = f"samples: {unit} in one second" if scale is None else f"samples: events; seconds: from {unit}"
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
                "units": units,
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


def read_bytedance(path: Path, row_counts: RowCounts, *, micro_batches: bool = False) -> Iterator[Trace]:
    """Yield one trace per pipeline stage and window of steps, because stages do different work.

    An iteration is a step with the time of all its computing; with ``micro_batches`` it is one forward micro-batch.
    """
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
    _alibaba_format("machine_usage", ["machine_id"], lacking=["cpi", "mpki"]),
    _alibaba_format("container_usage", ["container_id", "machine_id"], lacking=["mkpi"]),
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
        name="google_2019",
        description="CPU and memory of task instances every 5 minutes (Google 2019, version 3)",
        files="instance_usage-*.json[.gz]; a folder's files are one set",
        provides="usage",
        tested_on=SYNTHETIC_FILES,
        read=partial(
            _read_usage,
            _iter_google_rows,
            UsageDescription(
                covariates=GOOGLE_COVARIATES,
                period=300.0,
                meta={"source": "github.com/google/cluster-data, ClusterData2019", "licence": "CC BY 4.0"},
            ),
        ),
        matches=lambda path, head: '"collection_id"' in head and '"average_usage' in head,
        job=lambda path: str(path.parent),
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
