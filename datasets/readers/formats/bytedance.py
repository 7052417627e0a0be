"""Compute times of ranks in jobs that train language models: ByteDance's straggler traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.datasets.bounded_parquet import read_table
from paceline.datasets.frame import require_dense
from paceline.datasets.readers.files import opened
from paceline.datasets.readers.format import Format, real
from paceline.datasets.readers.restarts import continued, runs_of_rows
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("rank", "stage", "step", "optype", "duration", "seq_id")
COMPUTE = ("forward-compute", "backward-compute")
WINDOW_GAP = 100
"""Recorded steps come in windows; a gap of more steps than this starts a new window."""


def read(paths: Sequence[Path], *, micro_batches: bool = False) -> Iterator[Trace]:
    """Yield one trace per pipeline stage and window of steps, because stages do different work.

    An iteration is a step with the time of all its computing; with ``micro_batches`` it is one forward micro-batch.
    """
    for path in paths:
        tally = Tally()
        table = _operations(path, tally)
        for stage, rows in table.groupby("stage"):
            for window, part in enumerate(_windows(rows)):
                seconds = _micro_batches(part) if micro_batches else _steps(part)
                yield _trace(path, int(str(stage)), window, seconds, sorted(part["step"].unique()), tally)


def _operations(path: Path, tally: Tally) -> pd.DataFrame:
    """Return the computing of all ranks, in the order of steps."""
    import pandas as pd

    with opened(path):
        pass  # refuses pickles and archives before pyarrow reads the file
    try:
        table = read_table(path, COLUMNS).to_pandas(ignore_metadata=True)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if lacking := [name for name in COLUMNS if name not in table]:
        raise ValueError(f"{path}: columns {lacking} are missing; it has {list(table)}")
    texts = [name for name in COLUMNS if name != "optype" and not pd.api.types.is_numeric_dtype(table[name])]
    if texts:
        raise ValueError(f"{path}: columns {texts} must hold numbers")
    tally.read(len(table))
    computing = table["optype"].astype(str).isin(COMPUTE)
    tally.rows("operations other than forward and backward computing", (~computing).sum())
    bad = computing & ~((table["duration"] >= 0) & np.isfinite(table["duration"]))
    tally.rows("operations with a negative or unknown duration", bad.sum())
    kept: pd.DataFrame = table[computing & ~bad].dropna()
    if kept.empty:
        raise ValueError(f"{path}: holds no forward or backward computing")
    kept = _in_one_run(kept, tally)
    require_dense(len(kept), kept["step"].nunique(), kept["rank"].nunique())
    in_order: pd.DataFrame = kept.sort_values(["step", "seq_id"], kind="stable")
    return in_order


def _in_one_run(rows: pd.DataFrame, tally: Tally) -> pd.DataFrame:
    """Let the steps of a job that was started again go on after its first run: summed, they would count twice."""
    operation = rows["rank"].astype(str) + "/" + rows["optype"].astype(str) + "/" + rows["seq_id"].astype(str)
    run_N = runs_of_rows(operation.to_numpy(dtype=str), rows["step"].to_numpy(dtype=np.float64))
    tally.restarts(run_N.max(initial=0))
    if not run_N.any():
        return rows
    return rows.assign(step=continued(rows["step"].to_numpy(dtype=np.float64), run_N).astype(np.int64))


def _windows(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    steps = np.sort(rows["step"].unique())
    window_of = dict(zip(steps, np.cumsum(np.diff(steps, prepend=steps[0]) > WINDOW_GAP), strict=True))
    for _, part in rows.groupby(rows["step"].map(window_of)):
        yield part


def _steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds of all computing of a step, one column per rank."""
    seconds: pd.DataFrame = rows.pivot_table(index="step", columns="rank", values="duration", aggfunc="sum")
    return seconds


def _micro_batches(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds of each forward micro-batch in the order of steps, one column per rank."""
    forward = rows[rows["optype"].astype(str) == COMPUTE[0]]
    order = forward.groupby(["rank", "step"]).cumcount()
    seconds: pd.DataFrame = forward.assign(order=order).pivot_table(
        index=["step", "order"], columns="rank", values="duration"
    )
    return seconds


def _trace(path: Path, stage: int, window: int, seconds: pd.DataFrame, steps: Sequence[int], tally: Tally) -> Trace:
    seconds_TW = seconds.to_numpy(dtype=np.float64)
    job = path.name.split(".")[0].removeprefix("trace-")
    return Trace(
        samples=np.where(np.isnan(seconds_TW), np.nan, 1.0),
        seconds=seconds_TW,
        workers=[f"rank {rank}" for rank in seconds.columns],
        meta={
            "source": "github.com/ByteDance-Seed/StragglerAnalysis",
            "licence": "Apache-2.0",
            "job": f"bytedance-{job}-stage{stage}-window{window}",
            "format": "bytedance_llm",
            "units": "samples: one step or micro-batch; seconds: its forward and backward computing",
            "steps": f"{len(steps)} recorded of {steps[0]} to {steps[-1]}",
            **tally.meta(),
        },
    )


def _is(path: Path, head: str) -> bool:
    import pyarrow.parquet as pq

    if not head.startswith("PAR1"):
        return False
    try:
        return {"optype", "rank", "stage", "step"} <= set(pq.read_schema(path).names)
    except Exception:  # pyarrow raises many kinds on damaged files
        return False


FORMATS = (
    Format(
        name="bytedance_llm",
        about="compute time of every rank in every recorded step of a language model's training",
        files="trace-<job>.parquet",
        gives="speed",
        seen=real("ByteDance-Seed/StragglerAnalysis"),
        read=read,
        columns=COLUMNS,
        recognises=_is,
    ),
)
