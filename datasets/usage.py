"""Resource usage: rows of (worker, time, values) to panels on a regular grid, and a model that makes speeds of usage.

Rows may come in any order, and are read in bounded memory: they are first distributed to files by their worker, so that
a worker's rows end up together; then each file is made into traces of as many workers as fit.

Axes: N rows, T iterations, W workers, D covariates, G groups (rows of one worker and one iteration).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paceline._arrays import Array
from paceline.datasets.io import RowCounts
from paceline.datasets.trace import Trace

if TYPE_CHECKING:
    import pandas as pd


def speed_from_usage(
    trace: Trace,
    covariate: str,
    *,
    capacity: float = 100.0,
    needed: float = 50.0,
    minimum: float = 5.0,
) -> Trace:
    """Return the trace with the speeds that a training worker would have under this usage.

    The worker needs ``needed`` of the machine. The others leave it ``capacity - usage``, but at least ``minimum``,
    because schedulers starve no process. Its speed is 100 samples/s times the share of its need that it gets.

    Parameters
    ----------
    trace
        A trace without speeds.
    covariate
        The covariate that measures what others use, such as ``cpu_util_percent``.
    capacity, needed, minimum
        Capacity of the machine, in the covariate's unit; ``0 < minimum <= needed <= capacity``.

    Raises
    ------
    ValueError
        If the trace has measured speeds or lacks the covariate, or a number is out of its range.

    Examples
    --------
    >>> none = [[float("nan")]] * 3
    >>> usage = Trace(none, none, covariates=[[[20.0]], [[80.0]], [[100.0]]], covariate_names=["cpu"])
    >>> derived = speed_from_usage(usage, "cpu", needed=50, minimum=5)
    >>> derived.speed.ravel()
    array([100.,  40.,  10.])
    >>> derived.meta["derived"]
    'speed = 100 samples/s x min(1, max(100 - cpu, 5) / 50)'
    """
    if np.isfinite(trace.speed).any():
        raise ValueError(f"trace {trace.name!r} already has measured speeds: use it without speed_from_usage()")
    if covariate not in trace.covariate_names or trace.covariates is None:
        raise ValueError(f"trace {trace.name!r} has no covariate {covariate!r}; it has {list(trace.covariate_names)}")
    if not 0 < minimum <= needed <= capacity < np.inf:
        raise ValueError(
            f"minimum, needed and capacity must be above 0 and in ascending order, got {minimum}, {needed}, {capacity}"
        )
    usage_TW = trace.covariates[:, :, list(trace.covariate_names).index(covariate)]
    speed_TW = 100.0 * np.minimum(1.0, np.maximum(capacity - usage_TW, minimum) / needed)
    model = f"speed = 100 samples/s x min(1, max({capacity:g} - {covariate}, {minimum:g}) / {needed:g})"
    return replace(
        trace,
        samples=np.where(np.isnan(speed_TW), np.nan, 64.0),
        seconds=64.0 / speed_TW,
        meta={**trace.meta, "derived": model},
    )


@dataclass(frozen=True, kw_only=True)
class UsageDescription:
    """The content of the rows of a usage format: covariates with their units, in the order of the values.

    Rows of a worker within one ``period``, in seconds, are averaged. Times count from 1970 (UTC) or from the start of
    the trace. ``meta`` holds facts about the format: source, licence, ...
    """

    covariates: Mapping[str, str]
    period: float
    since_1970: bool = False
    meta: Mapping[str, str] = field(default_factory=dict)


class UsageRows(NamedTuple):
    """A block of rows: the worker of each, its time in seconds, ``[N]``, and its values, ``[N, D]``."""

    worker: pd.Series
    time: Array
    values: Array


def iter_usage_traces(
    paths: Sequence[Path],
    blocks: Iterable[UsageRows],
    description: UsageDescription,
    row_counts: RowCounts,
    *,
    period: float | None = None,
    workers: Sequence[str] | None = None,
) -> Iterator[Trace]:
    """Yield traces that only have covariates: one for a small file, or one for each group of workers that fits."""
    import pyarrow as pa

    step = description.period if period is None else float(period)
    if not (np.isfinite(step) and step > 0):
        raise ValueError(f"period must be a positive number of seconds, got {period}")
    path = paths[0]
    size = sum(path.stat().st_size * (10 if path.suffix == ".gz" else 1) for path in paths)
    # each bucket is an open file, and a process may commonly open 1024
    count = min(1 + size // (8 << 20), 200)
    with TemporaryDirectory(prefix="paceline-", ignore_cleanup_errors=True) as folder:
        files = [Path(folder) / f"{bucket}.arrow" for bucket in range(count)]
        names = _fill_buckets(path, blocks, files, description, row_counts, workers)
        if not names:
            raise ValueError(
                f"{path} has no row left with a worker and a time: check which columns hold them; dropped: "
                f"{row_counts.to_meta()['dropped']}"
            )
        part = 0
        for file in files:
            with pa.OSFile(str(file), "rb") as stored:
                rows = _sort_rows(pa.ipc.open_stream(stored).read_all().to_pandas(), row_counts)
            file.unlink()
            groups = list(_split_by_size(path, rows, step))
            for group in groups:
                part += 1
                job = path.name.split(".")[0] + ("" if count == len(groups) == 1 else f"-part{part}")
                yield _make_trace(job, group, names, step, description, row_counts)


def _fill_buckets(
    path: Path,
    blocks: Iterable[UsageRows],
    files: Sequence[Path],
    description: UsageDescription,
    row_counts: RowCounts,
    workers: Sequence[str] | None,
) -> list[str]:
    """Write all rows to the files of their workers, numbered, and return the workers' names in that order."""
    import pandas as pd
    import pyarrow as pa

    numbers: dict[str, int] = {}
    floats = [(str(d), pa.float64()) for d in range(len(description.covariates))]
    schema = pa.schema([("worker", pa.int64()), ("time", pa.float64()), *floats])
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with ExitStack() as stack:
        stored = [stack.enter_context(pa.OSFile(str(file), "wb")) for file in files]
        writers = [stack.enter_context(pa.ipc.new_stream(one, schema, options=options)) for one in stored]
        for block in blocks:
            known_N = block.worker.notna().to_numpy(dtype=bool) & np.isfinite(block.time)
            row_counts.drop_rows("rows without worker or time", (~known_N).sum())
            if workers is not None:
                wanted_N = block.worker.isin(list(workers)).to_numpy(dtype=bool)
                row_counts.drop_rows("rows of workers that were not asked for", (known_N & ~wanted_N).sum())
                known_N &= wanted_N
            code_N, names = pd.factorize(block.worker[known_N])
            number = np.array([numbers.setdefault(str(name), len(numbers)) for name in names], dtype=np.int64)
            if len(code_N):
                rows = pd.DataFrame(block.values[known_N]).rename(columns=str)
                rows.insert(0, "worker", number[code_N])
                rows.insert(1, "time", block.time[known_N])
                for bucket, part in rows.groupby(rows["worker"] % len(files)):
                    writers[bucket].write(pa.RecordBatch.from_pandas(part, schema, preserve_index=False))
    return list(numbers)


def _sort_rows(rows: pd.DataFrame, row_counts: RowCounts) -> pd.DataFrame:
    """Return rows sorted by worker and time; of rows that repeat both, the first counts."""
    back = rows.groupby("worker")["time"].diff() < 0
    row_counts.count_changed("rows whose time went backwards were put in order", back.sum())
    rows = rows.iloc[np.lexsort((rows["time"], rows["worker"]))]
    first = ~rows.duplicated(["worker", "time"])
    return row_counts.keep_rows(rows, first, "repeated rows of a worker and time, of which the first counts")


def _split_by_size(path: Path, rows: pd.DataFrame, period: float) -> Iterator[pd.DataFrame]:
    """Cut rows in the order of their workers into groups whose panels are not too large."""
    if rows.empty:
        return
    first, last = rows["time"].min(), rows["time"].max()
    length = 1 + (last - first) / period
    # Beyond what float64 can tell apart, rounding alone would make a panel of millions of empty iterations.
    is_rounded = np.spacing(max(abs(first), abs(last))) > period / 1000
    # of more than a million iterations, and four per row, a time must be wrong
    if is_rounded or length > max(1_000_000, 4 * len(rows)):
        raise ValueError(
            f"{path}: {len(rows)} rows from {first:g} s to {last:g} s do not fit into iterations of {period:g} s: "
            "check the times and their unit, or set a longer period"
        )
    # at most 3 million numbers in one trace, unless a single worker has more
    fitting = max(1, int(3_000_000 // (int(length) * len(rows.columns))))
    starts = np.flatnonzero(rows["worker"].diff() != 0)[::fitting]
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        yield rows.iloc[start:end]


def _make_trace(
    job: str,
    rows: pd.DataFrame,
    worker_names: Sequence[str],
    period: float,
    description: UsageDescription,
    row_counts: RowCounts,
) -> Trace:
    worker_W, column_N = np.unique(rows["worker"], return_inverse=True)
    origin = np.floor(rows["time"].min() / period) * period
    row_N = np.floor((rows["time"] - origin) / period + 1e-3).to_numpy(dtype=np.int64)
    shape = (int(row_N.max()) + 1, len(worker_W))
    mean_GD = rows.drop(columns=["worker", "time"]).groupby([row_N, column_N]).mean()
    panel_TWD = np.full((*shape, mean_GD.shape[1]), np.nan)
    panel_TWD[mean_GD.index.get_level_values(0), mean_GD.index.get_level_values(1)] = mean_GD
    none_TW = np.full(shape, np.nan)
    row_counts.count_changed("rows were averaged with others of their period", len(rows) - len(mean_GD))
    beginning = "1970 (UTC)" if description.since_1970 else "the beginning of the set"
    start_TW = origin + period * np.arange(shape[0])[:, None] + np.zeros(shape) if description.since_1970 else None
    return Trace(
        samples=none_TW,
        seconds=none_TW,
        start=start_TW,
        covariates=panel_TWD,
        covariate_names=list(description.covariates),
        workers=[worker_names[int(number)] for number in worker_W],
        meta={
            **description.meta,
            "job": job,
            "units": "; ".join(f"{name}: {unit}" for name, unit in description.covariates.items()),
            "period_seconds": f"{period:g}",
            "first_time": f"{origin:.17g} s since {beginning}",
            **row_counts.to_meta(),
        },
    )
