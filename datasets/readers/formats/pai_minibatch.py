"""Mini-batch times of production training jobs: ``mini-batch-time`` of Alibaba's GPU trace of 2020."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.datasets.frame import require_dense
from paceline.datasets.readers.csv_rows import NUMBER, frame, header_of
from paceline.datasets.readers.files import head
from paceline.datasets.readers.format import Format, real
from paceline.datasets.readers.restarts import continued, runs_of_rows
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("worker", "gpu", "time", "batch_time_norm")
SOURCE = {"source": "github.com/alibaba/clusterdata, cluster-trace-gpu-v2020/mini-batch-time", "licence": "CC BY 4.0"}


def read(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one trace per job: one mini-batch is one sample, and its time is in thousandths of the job's longest."""
    for path in paths:
        tally = Tally()
        table = frame(path, dict.fromkeys(COLUMNS, NUMBER), tally)
        complete = table[["worker", "time"]].notna().all(axis=1)
        tally.rows("rows without worker or time", (~complete).sum())
        table = table[complete]
        table = _in_one_run(table, tally)
        repeated = table.duplicated(["worker", "time"])
        tally.rows("repeated rows of a worker and time, of which the first counts", repeated.sum())
        table = table[~repeated]
        if table.empty:
            raise ValueError(f"{path}: has no row with a worker and a time")
        require_dense(len(table), table["time"].nunique(), table["worker"].nunique())
        seconds_TW = table.pivot(index="time", columns="worker", values="batch_time_norm").sort_index()
        bad_TW = seconds_TW.to_numpy() <= 0
        tally.cells("mini-batch times that are not positive", bad_TW.sum())
        gpu = sorted({f"{share:g}" for share in table["gpu"].dropna()})
        yield Trace(
            samples=np.where(np.isnan(seconds_TW) | bad_TW, np.nan, 1.0),
            seconds=np.where(bad_TW, np.nan, seconds_TW / 1000.0),
            workers=[f"{worker:g}" for worker in seconds_TW.columns],
            meta={
                **SOURCE,
                "job": f"pai-{path.name.split('.')[0].removesuffix('_norm')}",
                "format": "pai_minibatch",
                "units": "samples: mini-batches; seconds: thousandths of the job's longest / 1000 (the unit is lost)",
                "times": f"{seconds_TW.index[0]:g} to {seconds_TW.index[-1]:g} s from the job's start",
                "gpu_share_percent": ", ".join(gpu),
                **tally.meta(),
            },
        )


def _in_one_run(table: pd.DataFrame, tally: Tally) -> pd.DataFrame:
    """Let the times of a job that was started again go on after its first run."""
    run_N = runs_of_rows(table["worker"].to_numpy(), table["time"].to_numpy())
    tally.restarts(run_N.max(initial=0))
    return table.assign(time=continued(table["time"].to_numpy(), run_N)) if run_N.any() else table


def read_variation(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield how much the workers of each job differed in each iteration; a job is a worker of this trace."""
    for path in paths:
        tally = Tally()
        names = header_of(head(path))
        columns = {name: NUMBER for name in names if name.isdigit()}
        if not columns:
            raise ValueError(f"{path}: has no columns 0, 1, 2, ... of iterations; it has {names}")
        variation_WT = frame(path, columns, tally)
        panel_TW = variation_WT[[name for name in names if name in columns]].to_numpy().T
        none = np.full(panel_TW.shape, np.nan)
        yield Trace(
            samples=none,
            seconds=none,
            covariates=panel_TW[:, :, None],
            covariate_names=["variation"],
            workers=[f"job {k}" for k in range(panel_TW.shape[1])],
            meta={
                **SOURCE,
                "job": "pai-variation",
                "format": "pai_variation",
                "units": "variation: standard deviation / mean of the mini-batch time over a job's 10 workers",
                **tally.meta(),
            },
        )


FORMATS = (
    Format(
        name="pai_minibatch",
        about="mini-batch time of the workers of a production job, every few seconds",
        files="job_<k>_norm.csv",
        gives="speed",
        seen=real("alibaba/clusterdata, mini-batch-time"),
        read=read,
        columns=COLUMNS,
        recognises=lambda path, head: set(COLUMNS) <= set(header_of(head)),
    ),
    Format(
        name="pai_variation",
        about="how much the workers of 100 jobs differed in each iteration",
        files="coefficient_variation.csv",
        gives="usage",
        seen=real("alibaba/clusterdata, mini-batch-time"),
        read=read_variation,
        recognises=lambda path, head: header_of(head)[:4] == ["", "0", "1", "2"],
    ),
)
