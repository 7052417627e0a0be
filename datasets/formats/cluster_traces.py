"""Public traces of clusters and machines: Alibaba, Google, Azure, Bitbrains, Philly, Supercloud, ByteDance, ..."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline._arrays import Array
from paceline.datasets.formats import MADE_FILES, Format
from paceline.datasets.frame import SECONDS_PER_UNIT, require_dense
from paceline.datasets.io import (
    NUMBER,
    TEXT,
    RowCounts,
    has_header,
    iter_csv_frames,
    numbered_lines,
    open_bytes,
    parse_header,
    read_csv_frame,
    read_head,
    read_json,
    seconds_since_1970,
)
from paceline.datasets.parquet import read_table
from paceline.datasets.restarts import continue_steps, number_row_runs
from paceline.datasets.trace import Trace
from paceline.datasets.usage import UsageLayout, UsageRows, iter_usage_traces

if TYPE_CHECKING:
    import pandas as pd

# --- Usage: all formats of rows (worker, time, values), each with its rows; their table is at the end of this file.


def _usage_format(
    name: str,
    about: str,
    files: str,
    *,
    rows: Callable[[list[str], Path, RowCounts], Iterator[UsageRows]],
    matches: Callable[[Path, str], bool],
    covariates: Mapping[str, str | tuple[str, str]],
    period: float,
    since_1970: bool = False,
    source: str,
    licence: str = "",
    per_file: bool = False,
    job: Callable[[Path], str] = str,
) -> Format:
    """Return a format of usage; ``covariates`` are its columns with their units, or with other names and units."""
    with_units = dict((column, unit) if isinstance(unit, str) else unit for column, unit in covariates.items())
    layout = UsageLayout(
        covariates=with_units,
        period=period,
        since_1970=since_1970,
        meta={"source": source, **({"licence": licence} if licence else {})},
    )
    read = partial(_read_usage, partial(rows, list(covariates)), layout, per_file)
    return Format(
        name=name, about=about, files=files, gives="usage", seen=MADE_FILES, read=read, matches=matches, job=job
    )


def _read_usage(
    rows: Callable[[Path, RowCounts], Iterator[UsageRows]],
    layout: UsageLayout,
    per_file: bool,
    paths: Sequence[Path],
    *,
    period: float | None = None,
    workers: Sequence[str] | None = None,
) -> Iterator[Trace]:
    """Yield the usage of workers; the files of one job are parts of one set unless each is one ``per_file``."""
    for files in [[path] for path in paths] if per_file else [paths]:
        counts = RowCounts()
        blocks = (block for path in files for block in rows(path, counts))
        yield from iter_usage_traces(files, blocks, layout, counts, period=period, workers=workers)


def _is_headerless(prefix: str, names: Sequence[str], path: Path, head: str) -> bool:
    """Return whether a file has these columns: by its header, or by its name if it has none."""
    first = parse_header(head)
    return first == list(names) or (path.name.startswith(prefix) and len(first) == len(names))


ALIBABA_TRAFFIC = {
    "net_in": "incoming traffic, normalized to [0, 100]",
    "net_out": "outgoing traffic, normalized to [0, 100]",
    "disk_io_percent": "percent",
}


def _rows_alibaba_2018(
    names: Sequence[str], covariates: list[str], path: Path, counts: RowCounts
) -> Iterator[UsageRows]:
    columns = {names[0]: TEXT, "time_stamp": NUMBER, **dict.fromkeys(covariates, NUMBER)}
    for block in iter_csv_frames(path, columns, counts, names=names, skip=int(has_header(path, names))):
        values_ND = block[covariates].to_numpy(copy=True)
        # -1 and 101 mean "not measured", in percentages and normalized columns
        invalid_ND = np.isin(values_ND, (-1.0, 101.0))
        counts.drop_cells("values of -1 or 101, which are invalid", invalid_ND.sum())
        values_ND[invalid_ND] = np.nan
        yield UsageRows(block[names[0]], block["time_stamp"].to_numpy(), values_ND)


# --- Mini-batch times of production training jobs: ``mini-batch-time`` of Alibaba's GPU trace of 2020.

PAI_SOURCE = {
    "source": "github.com/alibaba/clusterdata, cluster-trace-gpu-v2020/mini-batch-time",
    "licence": "CC BY 4.0",
}


def read_pai_minibatch(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one trace per job: one mini-batch is one sample, and its time is in thousandths of the job's longest."""
    for path in paths:
        counts = RowCounts()
        table = read_csv_frame(path, dict.fromkeys(("worker", "gpu", "time", "batch_time_norm"), NUMBER), counts)
        complete = table[["worker", "time"]].notna().all(axis=1)
        counts.drop_rows("rows without worker or time", (~complete).sum())
        table = table[complete]
        run_N = number_row_runs(table["worker"].to_numpy(), table["time"].to_numpy())
        counts.count_restarts(run_N.max(initial=0))
        if run_N.any():  # times of a restarted job go on after its first run
            table = table.assign(time=continue_steps(table["time"].to_numpy(), run_N))
        repeated = table.duplicated(["worker", "time"])
        counts.drop_rows("repeated rows of a worker and time, of which the first counts", repeated.sum())
        table = table[~repeated]
        if table.empty:
            raise ValueError(f"{path}: has no row with a worker and a time")
        require_dense(len(table), table["time"].nunique(), table["worker"].nunique())
        seconds_TW = table.pivot(index="time", columns="worker", values="batch_time_norm").sort_index()
        bad_TW = seconds_TW.to_numpy() <= 0
        counts.drop_cells("mini-batch times that are not positive", bad_TW.sum())
        gpu = sorted({f"{share:g}" for share in table["gpu"].dropna()})
        yield Trace(
            samples=np.where(np.isnan(seconds_TW) | bad_TW, np.nan, 1.0),
            seconds=np.where(bad_TW, np.nan, seconds_TW / 1000.0),
            workers=[f"{worker:g}" for worker in seconds_TW.columns],
            meta={
                **PAI_SOURCE,
                "job": f"pai-{path.name.split('.')[0].removesuffix('_norm')}",
                "units": "samples: mini-batches; seconds: thousandths of the job's longest / 1000 (the unit is lost)",
                "times": f"{seconds_TW.index[0]:g} to {seconds_TW.index[-1]:g} s from the job's start",
                "gpu_share_percent": ", ".join(gpu),
                **counts.to_meta(),
            },
        )


def read_pai_variation(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield how much the workers of each job differed in each iteration; a job is a worker of this trace."""
    for path in paths:
        counts = RowCounts()
        names = parse_header(read_head(path))
        columns = {name: NUMBER for name in names if name.isdigit()}
        if not columns:
            raise ValueError(f"{path}: has no columns 0, 1, 2, ... of iterations; it has {names}")
        variation_WT = read_csv_frame(path, columns, counts)
        panel_TW = variation_WT[[name for name in names if name in columns]].to_numpy().T
        none = np.full(panel_TW.shape, np.nan)
        yield Trace(
            samples=none,
            seconds=none,
            covariates=panel_TW[:, :, None],
            covariate_names=["variation"],
            workers=[f"job {k}" for k in range(panel_TW.shape[1])],
            meta={
                **PAI_SOURCE,
                "job": "pai-variation",
                "units": "variation: standard deviation / mean of the mini-batch time over a job's 10 workers",
                **counts.to_meta(),
            },
        )


# --- Usage of task instances: Google's cluster trace of 2019 (version 3).


def _rows_google(covariates: list[str], path: Path, counts: RowCounts) -> Iterator[UsageRows]:
    """Yield the usage of instances; a worker is ``<collection_id>/<instance_index>``."""
    blocks = _google_json if ".json" in path.name else _google_csv
    for rows in blocks(covariates, path, counts):
        # 0 and 2**63 - 1 mean before the start and after the end of the trace
        outside_N = (rows.time <= 0) | (rows.time >= float(2**63 - 1))
        counts.drop_rows("rows before or after the trace's time", outside_N.sum())
        yield UsageRows(rows.worker[~outside_N], rows.time[~outside_N] * 1e-6, rows.values[~outside_N])


def _google_csv(covariates: list[str], path: Path, counts: RowCounts) -> Iterator[UsageRows]:
    columns = {"start_time": NUMBER, "collection_id": TEXT, "instance_index": TEXT}
    for block in iter_csv_frames(path, {**columns, **dict.fromkeys(covariates, NUMBER)}, counts, optional=covariates):
        values_ND = block.reindex(columns=covariates).to_numpy(dtype=np.float64)
        yield UsageRows(
            block["collection_id"] + "/" + block["instance_index"], block["start_time"].to_numpy(), values_ND
        )


def _google_json(covariates: list[str], path: Path, counts: RowCounts) -> Iterator[UsageRows]:
    import pandas as pd

    lines = (numbered for numbered in numbered_lines(path) if numbered[1].strip())
    while block := list(islice(lines, 50_000)):
        workers, times, values = [], [], []
        for number, line in block:
            try:
                one = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}: line {number}: must be one JSON object, but {error}") from error
            if not isinstance(one, dict):
                raise ValueError(f"{path}: line {number}: must be one JSON object, got a {type(one).__name__}")
            known = one.get("collection_id") is not None and one.get("instance_index") is not None
            workers.append(f"{one['collection_id']}/{one['instance_index']}" if known else None)
            times.append(_parse_float(path, number, one, "start_time"))
            values.append([_parse_float(path, number, one, name) for name in covariates])
        counts.count_read(len(block))
        yield UsageRows(pd.Series(workers, dtype="str"), np.array(times), np.array(values))


def _parse_float(path: Path, line: int, one: dict[str, Any], name: str) -> float:
    """Return a number by its dotted name, nested or flat, NaN where it is missing; 64-bit integers may be strings."""
    outer, _, inner = name.partition(".")
    value = one.get(name)
    if inner and name not in one and isinstance(nested := one.get(outer), dict):
        value = nested.get(inner)
    if value is None or value == "":
        return float("nan")
    try:
        number = float(value)
    except (ValueError, OverflowError, TypeError):
        raise ValueError(f"{path}: line {line}, field {name!r}: must be a number, got {value!r:.100}") from None
    return number if np.isfinite(number) else float("nan")


# --- CPU of virtual machines: the Azure public dataset of 2019 (V2).


def _rows_azure(covariates: list[str], path: Path, counts: RowCounts) -> Iterator[UsageRows]:
    names = ("timestamp", "vmid", *covariates)
    columns = {"timestamp": NUMBER, "vmid": TEXT, **dict.fromkeys(covariates, NUMBER)}
    for block in iter_csv_frames(path, columns, counts, names=names, skip=int(has_header(path, names))):
        yield UsageRows(block["vmid"], block["timestamp"].to_numpy(), block[covariates].to_numpy())


# --- Speed of long-lived virtual machines over months: the Azure VM Noise Dataset 2024.


def read_azure_noise(paths: Sequence[Path], *, min_measurements: int = 2) -> Iterator[Trace]:
    """Yield one trace for each virtual machine: row k is its k-th measurement, at irregular times (``start``).

    Machines with fewer than ``min_measurements`` rows are left out, with a warning.
    """
    for path in paths:
        counts = RowCounts()
        table = read_csv_frame(path, {"value": NUMBER, "runtime": NUMBER, "starttime": TEXT, "VM_id": TEXT}, counts)
        table = table.assign(start=seconds_since_1970(path, table["starttime"], "starttime"))
        bad = ~(table["value"] > 0)
        counts.drop_rows("values that are not positive", bad.sum())
        table = table[~bad].dropna(subset=["VM_id", "start"]).sort_values("start", kind="stable")
        counts.drop_rows("rows without a machine or a time", int((~bad).sum()) - len(table))
        repeated = table.duplicated(["VM_id", "start"])
        counts.drop_rows("repeated rows of a machine and time, of which the first counts", repeated.sum())
        if not len(table):
            raise ValueError(f"{path}: has no row with a machine and a positive value")
        table = table[~repeated]
        machines = table.groupby("VM_id")
        short = machines["value"].transform("size") < min_measurements
        if short.any():
            left_out, all_ = table.loc[short, "VM_id"].nunique(), machines.ngroups
            warnings.warn(
                f"{path}: {left_out:,} of {all_:,} machines are left out, as they have fewer than {min_measurements} "
                "measurements; min_measurements=1 reads them",
                stacklevel=2,
            )
            counts.drop_rows("rows of machines with too few measurements", short.sum())
        job, unit = benchmark_and_unit(path)
        # a unit of time, of which less is faster; others, for which there are no seconds, are rates
        scale = SECONDS_PER_UNIT.get(unit.lower().removesuffix(" per event").removesuffix("/event").strip())
        for machine, rows in table[~short].groupby("VM_id"):
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
                    **counts.to_meta(),
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


# --- Usage of business-critical virtual machines: Bitbrains, GWA-T-12.


def _rows_bitbrains(covariates: list[str], path: Path, counts: RowCounts) -> Iterator[UsageRows]:
    """Yield the usage of a virtual machine, which is named after its file."""
    import pandas as pd

    worker, time = path.name.split(".")[0], "Timestamp [ms]"  # in seconds, whatever its name is
    for block in iter_csv_frames(path, dict.fromkeys((time, *covariates), NUMBER), counts, delimiter=";"):
        names = pd.Series(np.full(len(block), worker, dtype=object), dtype="str")
        yield UsageRows(names, block[time].to_numpy(), block[covariates].to_numpy())


# --- Usage of GPU machines and a log of jobs: Microsoft's Philly traces.


def _rows_philly(machine: str, covariates: list[str], path: Path, counts: RowCounts) -> Iterator[UsageRows]:
    """Yield blocks of rows; the header may be missing, and rows may end with a comma."""
    names = ("time", machine, *covariates)
    first = read_head(path)
    headed = _has_header(first, names)
    row = parse_header("\n".join(first.splitlines()[1:2] if headed else first.splitlines()[:1]))
    ends_with_comma = len(row) == len(names) + 1 and row[-1] == ""
    columns = {"time": TEXT, machine: TEXT, **dict.fromkeys(covariates, NUMBER)}
    first_row = 2 if headed else 1
    found = [*names, *(["after the last comma"] if ends_with_comma else [])]
    for block in iter_csv_frames(path, columns, counts, names=found, skip=int(headed), missing=["NA"]):
        seconds = seconds_since_1970(path, block["time"], "time", first_row)
        first_row += len(block)
        yield UsageRows(block[machine], seconds, block[covariates].to_numpy())


def _has_header(head: str, names: Sequence[str]) -> bool:
    first = [name for name in parse_header(head) if name]
    return [name.lower() for name in first] == [name.lower() for name in names]


def _is_philly(kind: str, names: Sequence[str], path: Path, head: str) -> bool:
    named = path.name.startswith(f"cluster_{kind}_util") and len(parse_header(head)) - len(names) in (0, 1)
    return named or _has_header(head, names)


# --- CPU and GPU series of jobs: the MIT Supercloud dataset.


def _cpu_rows(covariates: list[str], path: Path, counts: RowCounts) -> Iterator[UsageRows]:
    """Yield the CPU series of a job; a worker is ``<node>/<step>/<series>``."""
    names = dict.fromkeys(("Step", "Node", "Series"), TEXT)
    columns = {**names, "EpochTime": NUMBER, **dict.fromkeys(covariates, NUMBER)}
    for block in iter_csv_frames(path, columns, counts):
        # pseudo-steps: rows of the job as a whole
        no_step = block["Step"].str.strip().isin(("-1", "-4"))
        counts.drop_rows("rows of steps -1 and -4", no_step.sum())
        used = block[~no_step]
        worker = used["Node"] + "/" + used["Step"] + "/" + used["Series"].fillna("")
        yield UsageRows(worker, used["EpochTime"].to_numpy(), used[covariates].to_numpy())


def _gpu_rows(covariates: list[str], path: Path, counts: RowCounts) -> Iterator[UsageRows]:
    columns = {"timestamp": NUMBER, "gpu_index": TEXT, **dict.fromkeys(covariates, NUMBER)}
    for block in iter_csv_frames(path, columns, counts):
        yield UsageRows("gpu " + block["gpu_index"], block["timestamp"].to_numpy(), block[covariates].to_numpy())


# --- Compute times of ranks in jobs that train language models: ByteDance's straggler traces.

BYTEDANCE_COLUMNS = ("rank", "stage", "step", "optype", "duration", "seq_id")


def read_bytedance(paths: Sequence[Path], *, micro_batches: bool = False) -> Iterator[Trace]:
    """Yield one trace per pipeline stage and window of steps, because stages do different work.

    An iteration is a step with the time of all its computing; with ``micro_batches`` it is one forward micro-batch.
    """
    for path in paths:
        counts = RowCounts()
        for stage, rows in _read_operations(path, counts).groupby("stage"):
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
                        **counts.to_meta(),
                    },
                )


def _read_operations(path: Path, counts: RowCounts) -> pd.DataFrame:
    import pandas as pd

    with open_bytes(path):
        pass  # refuses pickles and archives before pyarrow reads the file
    try:
        table = read_table(path, BYTEDANCE_COLUMNS).to_pandas(ignore_metadata=True)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if lacking := [name for name in BYTEDANCE_COLUMNS if name not in table]:
        raise ValueError(f"{path}: columns {lacking} are missing; it has {list(table)}")
    texts = [name for name in BYTEDANCE_COLUMNS if name != "optype" and not pd.api.types.is_numeric_dtype(table[name])]
    if texts:
        raise ValueError(f"{path}: columns {texts} must hold numbers")
    counts.count_read(len(table))
    computing = table["optype"].astype(str).isin(("forward-compute", "backward-compute"))
    counts.drop_rows("operations other than forward and backward computing", (~computing).sum())
    bad = computing & ~((table["duration"] >= 0) & np.isfinite(table["duration"]))
    counts.drop_rows("operations with a negative or unknown duration", bad.sum())
    used: pd.DataFrame = table[computing & ~bad].dropna()
    if used.empty:
        raise ValueError(f"{path}: holds no forward or backward computation")
    # steps of a restarted job go on after its first run: summed, they would count twice
    operation = used["rank"].astype(str) + "/" + used["optype"].astype(str) + "/" + used["seq_id"].astype(str)
    step_N = used["step"].to_numpy(dtype=np.float64)
    run_N = number_row_runs(operation.to_numpy(dtype=str), step_N)
    counts.count_restarts(run_N.max(initial=0))
    if run_N.any():
        used = used.assign(step=continue_steps(step_N, run_N).astype(np.int64))
    require_dense(len(used), used["step"].nunique(), used["rank"].nunique())
    return used.sort_values(["step", "seq_id"], kind="stable")


def _is_bytedance(path: Path, head: str) -> bool:
    import pyarrow.parquet as pq

    if not head.startswith("PAR1"):
        return False
    try:
        return {"optype", "rank", "stage", "step"} <= set(pq.read_schema(path).names)
    except Exception:  # pyarrow raises many kinds on damaged files
        return False


# --- Capacity of federated clients: FedScale's table, exported as JSON or CSV.


def read_fedscale(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one iteration of all clients: one sample each, the time for it, and their bandwidth."""
    for path in paths:
        counts = RowCounts()
        clients, milliseconds_W, kbps_W = (_fedscale_json if path.suffix == ".json" else _fedscale_csv)(path, counts)
        bad_W = ~(milliseconds_W > 0)
        counts.drop_cells("clients whose computation is not positive", bad_W.sum())
        yield Trace(
            samples=np.where(bad_W, np.nan, 1.0)[None, :],
            seconds=np.where(bad_W, np.nan, milliseconds_W * 1e-3)[None, :],
            covariates=kbps_W[None, :, None],
            covariate_names=["bandwidth"],
            workers=clients,
            meta={
                "source": "github.com/SymbioticLab/FedScale",
                "job": path.name.split(".")[0],
                "units": "seconds: of one sample; bandwidth: kbit/s",
                "averages": "one iteration: a client's usual speed, not a series",
                **counts.to_meta(),
            },
        )


def _fedscale_csv(path: Path, counts: RowCounts) -> tuple[list[str], Array, Array]:
    table = read_csv_frame(path, {"client": TEXT, "computation": NUMBER, "communication": NUMBER}, counts)
    named = table["client"].notna()
    counts.drop_rows("rows without a client", (~named).sum())
    repeated = named & table["client"].duplicated()
    counts.drop_rows("repeated rows of a client, of which the first counts", repeated.sum())
    table = table[named & ~repeated]
    if table.empty:
        raise ValueError(f"{path}: has no row with a client")
    return table["client"].tolist(), table["computation"].to_numpy(), table["communication"].to_numpy()


def _fedscale_json(path: Path, counts: RowCounts) -> tuple[list[str], Array, Array]:
    # JSON is read into memory at once
    clients = read_json(path, 1 << 29, "export it as CSV")
    if not isinstance(clients, dict) or not clients:
        raise ValueError(f"{path}: must hold a JSON object with a client in each field")
    counts.count_read(len(clients))
    columns: dict[str, list[float]] = {"computation": [], "communication": []}
    for client, one in clients.items():
        for key, column in columns.items():
            value = one.get(key) if isinstance(one, Mapping) else None
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
                raise ValueError(f"{path}: client {client!r}: {key!r} must be a number, got {value!r:.100}")
            column.append(float(value))
    return list(clients), np.array(columns["computation"]), np.array(columns["communication"])


FORMATS = (
    *(
        _usage_format(
            f"alibaba_{table}",
            f"{table.partition('_')[0]}s' CPU, memory, network and disk, every 10 s at the finest (Alibaba 2018)",
            f"{table}.csv without a header",
            rows=partial(_rows_alibaba_2018, (*identities, "time_stamp", *covariates)),
            matches=partial(_is_headerless, table, (*identities, "time_stamp", *covariates)),
            covariates=covariates,
            period=10.0,
            source="github.com/alibaba/clusterdata, cluster-trace-v2018",
        )
        for table, identities, covariates in (
            (
                "machine_usage",
                ("machine_id",),
                {
                    **dict.fromkeys(("cpu_util_percent", "mem_util_percent"), "percent"),
                    "mem_gps": "memory bandwidth, normalized to [0, 100]",
                    "mkpi": "cache misses per thousand instructions",
                    **ALIBABA_TRAFFIC,
                },
            ),
            (
                "container_usage",
                ("container_id", "machine_id"),
                {
                    **dict.fromkeys(("cpu_util_percent", "mem_util_percent"), "percent"),
                    "cpi": "cycles per instruction",
                    "mem_gps": "memory bandwidth, normalized to [0, 100]",
                    "mpki": "cache misses per thousand instructions",
                    **ALIBABA_TRAFFIC,
                },
            ),
        )
    ),
    Format(
        name="pai_minibatch",
        about="mini-batch time of the workers of a production job, every few seconds",
        files="job_<k>_norm.csv",
        gives="speed",
        seen="real files of alibaba/clusterdata, mini-batch-time",
        read=read_pai_minibatch,
        matches=lambda path, head: {"worker", "gpu", "time", "batch_time_norm"} <= set(parse_header(head)),
    ),
    Format(
        name="pai_variation",
        about="how much the workers of 100 jobs differed in each iteration",
        files="coefficient_variation.csv",
        gives="usage",
        seen="real files of alibaba/clusterdata, mini-batch-time",
        read=read_pai_variation,
        matches=lambda path, head: parse_header(head)[:4] == ["", "0", "1", "2"],
    ),
    _usage_format(
        "google_2019",
        "CPU and memory of task instances every 5 minutes (Google 2019, version 3)",
        "instance_usage-*.json[.gz], or CSV from BigQuery with dotted names; a folder's files are one set",
        rows=_rows_google,
        matches=lambda path, head: (
            '"collection_id"' in head and '"average_usage' in head
            if head.lstrip().startswith("{")
            else {"start_time", "collection_id", "instance_index", "average_usage.cpus"} <= set(parse_header(head))
        ),
        covariates={
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
        },
        period=300.0,
        source="github.com/google/cluster-data, ClusterData2019",
        licence="CC BY 4.0",
        job=lambda path: str(path.parent),
    ),
    _usage_format(
        "azure_vm_cpu",
        "least, largest and mean CPU of virtual machines every 5 minutes (Azure V2)",
        "vm_cpu_readings-file-<i>-of-<n>.csv[.gz] without a header; a folder's files are one set",
        rows=_rows_azure,
        matches=partial(_is_headerless, "vm_cpu_readings", ("timestamp", "vmid", "mincpu", "maxcpu", "avgcpu")),
        covariates={"mincpu": "percent", "maxcpu": "percent", "avgcpu": "percent"},
        period=300.0,
        source="github.com/Azure/AzurePublicDataset, V2",
        licence="CC BY 4.0",
        job=lambda path: str(path.parent),
    ),
    Format(
        name="azure_vm_noise",
        about="a benchmark's result on long-lived virtual machines, every few hours over 16 months",
        files="<benchmark>__<region>__<size>__<unit>.csv, or <benchmark>/<region>/<size>/.../unit=<unit>.csv",
        gives="speed",
        seen="real files of Azure/AzurePublicDataset, vm-noise-data",
        read=read_azure_noise,
        matches=lambda path, head: {"value", "runtime", "starttime", "VM_id"} <= set(parse_header(head)),
    ),
    _usage_format(
        "bitbrains",
        "CPU, memory, disk and network of a virtual machine every 5 minutes (GWA-T-12)",
        "one <vm>.csv for each machine; a folder's files are one set",
        rows=_rows_bitbrains,
        matches=lambda path, head: {"Timestamp [ms]", "CPU usage [%]"} <= set(parse_header(head, ";")),
        covariates={
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
        },
        period=300.0,
        since_1970=True,
        source="Grid Workloads Archive, GWA-T-12 Bitbrains",
        job=lambda path: str(path.parent),
    ),
    *(
        _usage_format(
            f"philly_{kind}",
            f"{kind.upper()} of machines every minute (Philly)",
            f"cluster_{kind}_util",
            rows=partial(_rows_philly, machine),
            matches=partial(_is_philly, kind, ("time", machine, *covariates)),
            covariates=covariates,
            period=60.0,
            since_1970=True,
            source="github.com/msr-fiddle/philly-traces",
            licence="CC BY 4.0",
        )
        for kind, machine, covariates in (
            ("cpu", "machine_id", {"cpu_util": "percent"}),
            ("mem", "machine_id", {"mem_total": "as in the file", "mem_free": "as in the file"}),
            ("gpu", "machineId", {f"gpu{k}_util": "percent" for k in range(8)}),
        )
    ),
    _usage_format(
        "supercloud_cpu",
        "CPU, memory and I/O of a job's nodes every 10 s (MIT Supercloud)",
        "CSV with a header: Step, Node, Series, ElapsedTime, EpochTime, ...",
        rows=_cpu_rows,
        matches=lambda path, head: {"Step", "Node", "EpochTime", "CPUUtilization"} <= set(parse_header(head)),
        covariates={
            "CPUFrequency": "as in the file",
            "CPUTime": "s",
            "CPUUtilization": "percent of one core, summed over the node's cores",
            "RSS": "KB",
            "VMSize": "KB",
            "Pages": "pages",
            "ReadMB": "MB",
            "WriteMB": "MB",
        },
        period=10.0,
        since_1970=True,
        source="MIT Supercloud dataset",
        per_file=True,
    ),
    _usage_format(
        "supercloud_gpu",
        "utilization, memory, temperature and power of a job's GPUs every 0.1 s (MIT Supercloud)",
        "CSV with a header: timestamp, gpu_index, utilization_gpu_pct, ...",
        rows=_gpu_rows,
        matches=lambda path, head: {"timestamp", "gpu_index", "utilization_gpu_pct"} <= set(parse_header(head)),
        covariates={
            "utilization_gpu_pct": "percent",
            "utilization_memory_pct": "percent",
            "memory_free_MiB": "MiB",
            "memory_used_MiB": "MiB",
            "temperature_gpu": "degrees Celsius",
            "temperature_memory": "degrees Celsius",
            "power_draw_W": "W",
        },
        period=0.1,
        since_1970=True,
        source="MIT Supercloud dataset",
        per_file=True,
    ),
    Format(
        name="bytedance_llm",
        about="compute time of every rank in every recorded step of a language model's training",
        files="trace-<job>.parquet",
        gives="speed",
        seen="real files of ByteDance-Seed/StragglerAnalysis",
        read=read_bytedance,
        matches=_is_bytedance,
    ),
    Format(
        name="fedscale",
        about="computation and bandwidth of federated clients (FedScale)",
        files="JSON {client: {computation, communication}} or CSV client,computation,communication; never the pickle",
        gives="speed",
        seen=MADE_FILES,
        read=read_fedscale,
        matches=lambda path, head: (
            (path.suffix == ".json" and '"computation"' in head and '"communication"' in head)
            or {"client", "computation", "communication"} <= set(parse_header(head))
        ),
    ),
)
