"""What training programs log: PyTorch's examples, TensorBoard, Weights & Biases, hivemind."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paceline.datasets.columns import ColumnMapping, duration_unit
from paceline.datasets.formats import QUOTED_FILES, Format
from paceline.datasets.formats.tables import make_trace, map_table, require_values
from paceline.datasets.frame import unit_seconds
from paceline.datasets.io import NUMBER, TEXT, RowCounts, counted_lines, parse_header, read_csv_frame, read_head
from paceline.datasets.ranks import merge_ranks
from paceline.datasets.restarts import continue_steps, increments, number_runs
from paceline.datasets.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

# --- Lines that PyTorch's examples and GNMT print.


class LogRecord(NamedTuple):
    """One line: its worker, its place within the run (epoch and step), samples, and seconds, of which some for data."""

    worker: str
    epoch: int
    step: int
    samples: float
    seconds: float
    data_seconds: float


def parse_line(line: str) -> LogRecord | None:
    """Return what a line says; ``None`` for a line of another kind."""
    line = line[:4096]  # longer lines are no log's
    number = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"
    # GNMT names the rank in front
    place = r"(?:Epoch: |(?:\b(\d+): )?TRAIN )\[(\d+)\]\[ *(\d+)/ *\d+\][\s,|]*(?:lr:\S+\s+)?"
    found = re.search(f"{place}Time {number}", line)
    if found is None:
        return None
    rate, data = re.search(rf"\b(?:Speed|Tok/s) {number}", line), re.search(rf"\bData {number}", line)
    seconds = float(found[4])
    samples = float(rate[1]) * seconds if rate else 1.0
    data_seconds = float(data[1]) if data else float("nan")
    return LogRecord(found[1] or "0", int(found[2]), int(found[3]), samples, seconds, data_seconds)


def read_pytorch(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one trace per file, or of all ranks' files; row k is a worker's k-th line.

    Covariates are values of the previous line.
    """
    yield from merge_ranks([_read_pytorch_log(path) for path in paths], paths)


def _read_pytorch_log(path: Path) -> Trace:
    import pandas as pd

    row_counts = RowCounts()
    table = pd.DataFrame(_read_records(path, row_counts))
    workers = table.groupby("worker")
    back = (workers["epoch"].diff() < 0) | ((workers["epoch"].diff() == 0) & (workers["step"].diff() < 0))
    run = back.groupby(table["worker"]).cumsum()
    row_counts.count_restarts(run.max())
    rows = table[["worker", "samples", "seconds"]].assign(iteration=workers.cumcount())
    if table["data_seconds"].notna().any():  # the line before a restart belongs to another run
        rows["data_seconds"] = table["data_seconds"].groupby([table["worker"], run]).shift(1)
    meta = {
        "job": path.name.split(".")[0],
        "units": "samples: Speed or Tok/s times seconds, or batches",
        **row_counts.to_meta(),
    }
    return Trace.from_frame(rows, meta=meta)


def _read_records(path: Path, row_counts: RowCounts) -> list[LogRecord]:
    records = []
    for _, line in counted_lines(path, row_counts):
        record = parse_line(line)
        if record is None:
            row_counts.drop_rows("lines of other kinds", 1)
        elif not (np.isfinite(record.samples) and np.isfinite(record.seconds)):
            row_counts.drop_rows("lines with numbers that are not finite", 1)
        else:
            records.append(record)
    if not records:
        raise ValueError(
            f"{path} has no line such as 'Epoch: [0][ 10/100] Time 0.123' of pytorch_log: name another format"
        )
    return records


# --- Histories of runs exported from Weights & Biases as CSV, with any columns that the run logged.

WANDB_COLUMNS = ("_step", "_runtime", "_timestamp")
"""Columns that W&B adds."""


def read_wandb(
    path: Path, row_counts: RowCounts, *, seconds: str | None = None, samples: str | float = 1.0, unit: str = "s"
) -> Iterator[Trace]:
    """Yield one trace per run.

    With ``seconds``, the column of a step's time in a ``unit`` such as ms, its rows are the iterations, ``samples`` the
    column or the number of samples in each, and covariates the newest values of the previous row. Without it every row
    is kept, as usage only, and a warning says so.
    """
    table, left_out = _read_numbers(path, row_counts)
    if seconds in table:
        table[seconds] *= unit_seconds(unit)
    # a run without numbered steps is never seen to be restarted
    steps_T = table["_step"].ffill().fillna(0.0).to_numpy() if "_step" in table else np.zeros(len(table))
    run_T = number_runs(steps_T)
    row_counts.count_restarts(run_T[-1])
    names = [name for name in map(str, table) if name not in {seconds, samples, *WANDB_COLUMNS}]
    names = [name for name in names if name.startswith(("system.", "system/"))] or names
    if seconds is None:
        logged = [name for name in map(str, table) if name not in WANDB_COLUMNS]
        times = [name for name in logged if duration_unit(name.rpartition("/")[2]) is not None]
        likely = f"; likely ones are {times[:5]}" if times else ""
        warnings.warn(
            f"{path}: every speed is NaN, because seconds= does not name the column of step times: pass "
            f"seconds=COLUMN, and unit=ms if it is in ms{likely}",
            stacklevel=2,
        )
        none_T = np.full(len(table), np.nan)
        covariates, start_T, samples_T, seconds_T = table, table["_timestamp"], none_T, none_T
    else:
        for name in [seconds, *([samples] if isinstance(samples, str) else [])]:
            if name not in table:
                numbers = f"columns with numbers: {list(table)}"
                raise ValueError(f"{path}: column {name!r} is missing or has no numbers; {numbers}")
        rows = table[table[seconds].notna()]
        if rows.empty:
            raise ValueError(f"{path}: column {seconds!r} has no values: choose another column")
        # what a run knows dies with it
        covariates = table[names].groupby(run_T).ffill().groupby(run_T).shift(1).loc[rows.index]
        seconds_T = rows[seconds].to_numpy()
        samples_T = rows[samples].to_numpy() if isinstance(samples, str) else np.full(len(rows), float(samples))
        bad_T = ~(seconds_T >= 0) | ~(samples_T >= 0)
        row_counts.drop_cells("steps with negative or unknown seconds or samples", bad_T.sum())
        samples_T, seconds_T = (np.where(bad_T, np.nan, values_T) for values_T in (samples_T, seconds_T))
        start_T = rows["_timestamp"] - seconds_T
    known = [name for name in names if covariates[name].notna().any()]
    yield Trace(
        samples=samples_T[:, None],
        seconds=seconds_T[:, None],
        start=start_T.to_numpy()[:, None],
        covariates=covariates[known].to_numpy()[:, None, :] if known else None,
        covariate_names=known,
        meta={
            "units": "covariates: as in the file",
            **({"columns_dropped": f"{', '.join(left_out)}: no numbers"} if left_out else {}),
        },
    )


def _read_numbers(path: Path, row_counts: RowCounts) -> tuple[pd.DataFrame, list[str]]:
    """Return the purely numeric columns, with the time, and the names of the others."""
    import pandas as pd

    names = [name for name in dict.fromkeys(parse_header(read_head(path))) if name]
    kinds = dict.fromkeys(names, TEXT) | {"_timestamp": NUMBER}
    text = read_csv_frame(path, kinds, row_counts, null_words=["NaN", "nan"])
    numbers = text.apply(pd.to_numeric, errors="coerce").replace([np.inf, -np.inf], np.nan)
    held = [name for name in names if numbers[name].notna().sum() == text[name].notna().sum()]
    timed = numbers["_timestamp"].notna()
    row_counts.drop_rows("rows without a time", (~timed).sum())
    if not timed.any():
        raise ValueError(f"{path}: column '_timestamp' has no values")
    again = text.duplicated()
    row_counts.drop_rows("rows that repeat another one exactly", (timed & again).sum())
    rows = numbers.loc[timed & ~again, held]
    backwards = rows["_timestamp"].diff() < 0
    row_counts.count_changed("rows whose time went backwards were put in order", backwards.sum())
    by = ["_timestamp", *(["_step"] if backwards.any() and "_step" in rows else [])]
    return rows.sort_values(by, kind="stable", ignore_index=True), [name for name in names if name not in held]


# --- A chart exported from Weights & Biases: a line per run.


def read_chart(
    path: Path,
    row_counts: RowCounts,
    *,
    values: str | None = None,
    samples: str | float = 1.0,
    unit: str = "s",
    workers: Sequence[str] | None = None,
) -> Iterator[Trace]:
    """Yield the trace of each file: a run is a worker, a row an iteration."""
    require_values(path, values)
    names = parse_header(read_head(path))
    lines = [name for name in names if f"{name}__MIN" in names]
    # a line is named after its run, or after run and metric where metrics differ
    one_metric = len({line.rpartition(" - ")[2] for line in lines}) == 1
    runs = {line: line.rpartition(" - ")[0] if one_metric and " - " in line else line for line in lines}
    table = read_csv_frame(path, dict.fromkeys(lines, NUMBER), row_counts).rename(columns=runs)
    columns = {"samples": samples} if values == "seconds" else {}
    column_mapping = ColumnMapping(columns=columns, values=values, unit=unit, workers=workers)
    yield make_trace(map_table(path, table, column_mapping, row_counts, {}))


# --- Training steps of workers in several clouds: the W&B exports of cirquit/hivemind-multi-cloud.

STEP_COLUMN, SAMPLES_COLUMN, TIME_COLUMN = "01_general/step", "01_general/locally_processed_samples", "_timestamp"
BUSY_PARTS = ("dataload", "dataload_cuda_move", "forward", "loss_calc", "backward")
BUSY_COLUMNS = [f"02_timing/{part}_time_s" for part in BUSY_PARTS]
"""The worker's busy time; ``step_time_s`` also waits for the averaging of gradients."""
AVERAGING_COLUMN, STEP_TIME_COLUMN = "02_timing/opt_step_time_s", "02_timing/step_time_s"
COVARIATE_COLUMNS = {
    "cpu_load": "cpu/load/avg_sys_load_one_min_percent",
    "memory_used": "memory/used_memory_sys_percent",
    "net_sent": "bandwidth/net_sent_sys_bandwidth_Mbits",
    "net_received": "bandwidth/net_recv_sys_bandwidth_Mbits",
}
PEER_PATTERN = re.compile(r"04_peers/peer_(\d+)_samples_per_second")


def read_hivemind_workers(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one trace of the workers of one experiment; row k is each worker's own k-th step, not a common barrier."""
    import pandas as pd

    row_counts = RowCounts()
    table = pd.concat([_read_worker(path, row_counts) for path in paths], ignore_index=True)
    meta = {
        "source": "github.com/cirquit/hivemind-multi-cloud",
        "licence": "MIT",
        "job": experiment_name(paths[0]),
        "units": "cpu_load: load average of a minute / cores, percent; memory_used: percent; "
        "net_sent, net_received: Mbit/s",
        **row_counts.to_meta(),
        "seconds": "loading, moving, forward, loss and backward; waiting is not in it",
    }
    yield Trace.from_frame(table, meta=meta)


def read_hivemind_monitor(path: Path, row_counts: RowCounts) -> Iterator[Trace]:
    """Yield the speeds of all peers, smoothed by hivemind itself, once a second."""
    peers = {found[1]: name for name in parse_header(read_head(path)) if (found := PEER_PATTERN.fullmatch(name))}
    if not peers:
        raise ValueError(
            f"{path} has no column 04_peers/peer_<k>_samples_per_second of hivemind's monitor: name another format"
        )
    table = read_csv_frame(path, dict.fromkeys((TIME_COLUMN, *peers.values()), NUMBER), row_counts)
    table = row_counts.keep_rows(table, table[TIME_COLUMN].notna(), "rows without a time")
    table = table.groupby(TIME_COLUMN, as_index=False).last()
    rate_TW = table[list(peers.values())].to_numpy()
    yield Trace(
        samples=rate_TW,
        seconds=np.where(np.isnan(rate_TW), np.nan, 1.0),
        start=np.repeat(table[[TIME_COLUMN]].to_numpy(), len(peers), axis=1),
        workers=[f"peer {number}" for number in peers],
        meta={
            "source": "github.com/cirquit/hivemind-multi-cloud",
            "licence": "MIT",
            "job": f"{experiment_name(path)}-monitor",
            "units": "samples in each second, smoothed by hivemind",
        },
    )


def experiment_name(path: Path) -> str:
    """Return the experiment that a file belongs to: ``hivemind-113`` of ``hivemind-113-aws-t4-1.csv``."""
    return "-".join(path.name.split(".")[0].split("-")[:2])


def _read_worker(path: Path, row_counts: RowCounts) -> pd.DataFrame:
    """Return one row per step: some fields of a step are in the row before the one that counts it."""
    needed = [STEP_COLUMN, SAMPLES_COLUMN, TIME_COLUMN, AVERAGING_COLUMN, STEP_TIME_COLUMN, *BUSY_COLUMNS]
    optional = list(COVARIATE_COLUMNS.values())
    rows = read_csv_frame(path, dict.fromkeys([*needed, *optional], NUMBER), row_counts, optional=optional)
    rows = row_counts.keep_rows(rows, rows[TIME_COLUMN].notna(), "rows without a time")
    steps = rows[needed].assign(**{STEP_COLUMN: rows[STEP_COLUMN].bfill()}).dropna(subset=[STEP_COLUMN])
    if steps.empty:
        raise ValueError(f"{path}: column {STEP_COLUMN!r} has no step in any row: log at least one step")
    run_T = number_runs(steps[STEP_COLUMN].to_numpy())
    row_counts.count_restarts(run_T[-1])
    steps = steps.assign(iteration=continue_steps(steps[STEP_COLUMN].to_numpy(), run_T), run=run_T)
    repeats = steps[rows[STEP_COLUMN].reindex(steps.index).notna()].duplicated("iteration").sum()
    row_counts.drop_rows("repeated steps, of which the last value counts", repeats)
    steps = steps.groupby("iteration", as_index=False).last()
    table = steps[["iteration"]].copy()
    table["worker"] = path.name.split(".")[0].removeprefix(f"{experiment_name(path)}-") or path.name
    table["samples"] = increments(steps[SAMPLES_COLUMN].to_numpy(), steps["run"].to_numpy())
    first_T = np.diff(steps["run"], prepend=-1) > 0
    row_counts.drop_cells("resumed totals of samples, which are no increment", table["samples"][first_T].isna().sum())
    table["seconds"] = steps[BUSY_COLUMNS].sum(axis=1, skipna=False)
    table["wait_seconds"] = steps[AVERAGING_COLUMN]
    start_T = steps[TIME_COLUMN] - steps[STEP_TIME_COLUMN]
    table["start"] = start_T.groupby(steps["run"]).cummax()  # accurate to a second only, so forced not to go backwards
    for name in ("samples", "seconds", "wait_seconds"):
        negative = table[name] < 0
        row_counts.drop_cells(f"negative {name}", negative.sum())
        table.loc[negative, name] = np.nan
    return table.join(_covariates_before(rows, table["start"].to_numpy()))


def _covariates_before(log_rows: pd.DataFrame, start_T: np.ndarray) -> pd.DataFrame:
    """Return the newest system row at each step's start, less one second because clocks count whole seconds."""
    import pandas as pd

    columns = {name: column for name, column in COVARIATE_COLUMNS.items() if column in log_rows}
    if not columns:
        return pd.DataFrame(index=range(len(start_T)))
    system = log_rows.dropna(subset=list(columns.values()), how="all").sort_values(TIME_COLUMN, kind="stable")
    unknown = np.full((1, len(columns)), np.nan)  # before the first row
    values = np.concatenate([unknown, system[list(columns.values())].to_numpy()])
    picked_T = np.searchsorted(system[TIME_COLUMN].to_numpy(), start_T - 1.0, side="right")
    return pd.DataFrame(values[picked_T], columns=list(columns))


# --- TensorBoard's CSV export of a scalar.

TENSORBOARD_COLUMNS = ("Wall time", "Step", "Value")
"""The columns used; some exports have others between them, such as ``Relative time (s)``."""


def read_tensorboard(paths: Sequence[Path], *, value_is_rate: bool = False) -> Iterator[Trace]:
    """Yield one trace per training, with steps and their seconds; rows with the same clock reading are merged.

    Several scalars of one training lie in one folder: it is read from the one with the most rows. With
    ``value_is_rate`` the value itself is the speed, steps in one second, and every file is read.
    """
    tables = {
        path: (row_counts := RowCounts(), read_csv_frame(path, dict.fromkeys(TENSORBOARD_COLUMNS, NUMBER), row_counts))
        for path in paths
    }
    groups = [[path] for path in paths] if value_is_rate else group_by_training({p: t for p, (_, t) in tables.items()})
    for path, *others in groups:
        row_counts, table = tables[path]
        table = row_counts.keep_rows(table, table["Wall time"].notna(), "rows without a time")
        if table.empty:
            raise ValueError(f"{path} has no row with a time")
        backwards = table["Wall time"].diff() < 0
        row_counts.count_changed("rows whose time went backwards were put in order", backwards.sum())
        table = table.sort_values("Wall time", kind="stable")
        if value_is_rate:
            first = ~table.duplicated("Wall time")
            table = row_counts.keep_rows(table, first, "repeated rows of a time, of which the first counts")
        wall_T, step_T = table["Wall time"].to_numpy(), table["Step"].to_numpy()
        row_counts.count_restarts((np.diff(step_T) < 0).sum())
        if value_is_rate:
            start_T, steps_T, seconds_T = wall_T, table["Value"].to_numpy(), np.ones(len(table))
            bad_T, why = ~(steps_T > 0), "rates that are not positive"
        else:
            last_T = np.append(np.diff(wall_T) > 0, True)  # a clock of whole seconds repeats its readings
            row_counts.count_changed("rows of the same clock reading were put together", (~last_T).sum())
            wall_T = wall_T[last_T]
            if len(wall_T) < 2:
                raise ValueError(f"{path} must have two rows at different times to compute a rate")
            start_T, steps_T, seconds_T = wall_T[:-1], np.diff(step_T[last_T]), np.diff(wall_T)
            bad_T, why = ~(steps_T >= 0), "differences of steps that went backwards or are unknown"
        row_counts.drop_cells(why, bad_T.sum())
        yield Trace(
            samples=np.where(bad_T, np.nan, steps_T)[:, None],
            seconds=np.where(bad_T, np.nan, seconds_T)[:, None],
            start=start_T[:, None],
            meta={
                "job": path.parent.name if others and path.parent.name else path.name.split(".")[0],
                **({"same_training": ", ".join(other.name for other in others)} if others else {}),
                "units": "samples: steps; " + ("of one second" if value_is_rate else "between two rows"),
                **row_counts.to_meta(),
            },
        )


def group_by_training(tables: Mapping[Path, pd.DataFrame]) -> list[list[Path]]:
    """Return the files of each training, that with the most rows first: they give the same steps at the same times."""
    groups: list[list[Path]] = []
    for path in sorted(tables, key=lambda one: (-len(tables[one]), one.name)):
        group = next((group for group in groups if _is_same_training(tables[group[0]], tables[path])), [])
        if not group:
            groups.append(group)
        group.append(path)
    return groups


def _is_same_training(longer: pd.DataFrame, shorter: pd.DataFrame) -> bool:
    longer, shorter = (one.dropna(subset=["Wall time", "Step"]).sort_values("Wall time") for one in (longer, shorter))
    if len(shorter) < 2:
        return False
    wall_T, step_T = longer["Wall time"].to_numpy(), longer["Step"].to_numpy()
    wall_S, step_S = shorter["Wall time"].to_numpy(), shorter["Step"].to_numpy()
    row = np.median(np.diff(wall_T))
    within_S = (wall_S >= wall_T[0] - row) & (wall_S <= wall_T[-1] + row)
    off_S = np.abs(np.interp(wall_S, wall_T, step_T) - step_S)
    # nine rows in ten agree within two usual increments
    return bool(within_S.mean() >= 0.9 and np.median(off_S) <= 2.0 * np.median(np.abs(np.diff(step_T))))


FORMATS = (
    Format(
        name="pytorch_log",
        description="batch times of PyTorch's examples and of GNMT",
        files="text; lines of other kinds and prefixes such as [1,0]<stderr>: may stand between and before",
        provides="speed",
        tested_on=QUOTED_FILES,
        read=read_pytorch,
        matches=lambda path, head: any(map(parse_line, re.split(r"[\r\n]+", head))),
        per_rank=True,
    ),
    Format(
        name="wandb",
        description="history of a run with free columns (Weights & Biases)",
        files="CSV with the columns _step, _runtime, _timestamp and others",
        provides="speed if the column of step times is named, otherwise usage",
        tested_on="real files of cirquit/hivemind-multi-cloud",
        read=read_wandb,
        matches=lambda path, head: (
            set(WANDB_COLUMNS) <= (names := set(parse_header(head)))
            and not any(name.startswith(("02_timing/", "04_peers/")) for name in names)
        ),
    ),
    Format(
        name="wandb_chart",
        description="a chart exported from Weights & Biases: a line per run",
        files='CSV with the columns "Step", "<run> - <metric>", "<run> - <metric>__MIN", "<run> - <metric>__MAX"',
        provides="speed or usage",
        tested_on=QUOTED_FILES,
        read=read_chart,
        matches=lambda path, head: any(
            {f"{name}__MIN", f"{name}__MAX"} <= set(parse_header(head)) for name in parse_header(head)
        ),
    ),
    Format(
        name="hivemind",
        description="training steps of a worker with CPU, memory and network (W&B export)",
        files="hivemind-<experiment>-<host>.csv; a folder's workers of one experiment are one trace",
        provides="speed",
        tested_on="real files of cirquit/hivemind-multi-cloud",
        read=read_hivemind_workers,
        matches=lambda path, head: {STEP_COLUMN, SAMPLES_COLUMN, *BUSY_COLUMNS} <= set(parse_header(head)),
        job=experiment_name,
    ),
    Format(
        name="hivemind_monitor",
        description="hivemind's own smoothed speed of every peer, once a second",
        files="hivemind-<experiment>-vm-monitor.csv",
        provides="speed",
        tested_on="real files of cirquit/hivemind-multi-cloud",
        read=read_hivemind_monitor,
        matches=lambda path, head: any(map(PEER_PATTERN.fullmatch, parse_header(head))),
    ),
    Format(
        name="tensorboard",
        description="a scalar exported from TensorBoard: steps over wall time, or a rate",
        files="CSV with the columns Wall time, Step and Value",
        provides="speed",
        tested_on="real files of cake-lab/CM-DARE and cake-lab/Sync-Switch",
        read=read_tensorboard,
        job=lambda path: "",
        matches=lambda path, head: set(TENSORBOARD_COLUMNS) <= set(parse_header(head)),
    ),
)
