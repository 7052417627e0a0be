"""Training steps of workers in several clouds: the W&B exports of cirquit/hivemind-multi-cloud."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.datasets.readers.csv_rows import NUMBER, frame, header_of
from paceline.datasets.readers.files import head as head_of
from paceline.datasets.readers.format import Format, real
from paceline.datasets.readers.restarts import continued, increments, runs_of
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

STEP, SAMPLES, TIME = "01_general/step", "01_general/locally_processed_samples", "_timestamp"
OWN = [f"02_timing/{part}_time_s" for part in ("dataload", "dataload_cuda_move", "forward", "loss_calc", "backward")]
"""The worker's busy time; ``step_time_s`` also waits for the averaging of gradients."""
AVERAGING, WHOLE = "02_timing/opt_step_time_s", "02_timing/step_time_s"
COVARIATES = {
    "cpu_load": "cpu/load/avg_sys_load_one_min_percent",
    "memory_used": "memory/used_memory_sys_percent",
    "net_sent": "bandwidth/net_sent_sys_bandwidth_Mbits",
    "net_received": "bandwidth/net_recv_sys_bandwidth_Mbits",
}
UNITS = "cpu_load: load average of a minute / cores, percent; memory_used: percent; net_sent, net_received: Mbit/s"
PEER = re.compile(r"04_peers/peer_(\d+)_samples_per_second")
LICENCE = {"source": "github.com/cirquit/hivemind-multi-cloud", "licence": "MIT"}


def read_workers(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one trace of the workers of one experiment; row k is each worker's own k-th step, not a common barrier."""
    import pandas as pd

    tally = Tally()
    parts = [_worker(path, tally) for path in paths]
    table = pd.concat(parts, ignore_index=True)
    meta = {**LICENCE, "job": experiment(paths[0]), "format": "hivemind", "units": UNITS, **tally.meta()}
    yield Trace.from_frame(
        table,
        meta={**meta, "seconds": "loading, moving, forward, loss and backward; waiting is not in it"},
    )


def read_monitor(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield the speeds of all peers, smoothed by hivemind itself, once a second."""
    for path in paths:
        tally = Tally()
        peers = {found[1]: name for name in header_of(head_of(path)) if (found := PEER.fullmatch(name))}
        if not peers:
            raise ValueError(f"{path}: has no column 04_peers/peer_<k>_samples_per_second")
        table = frame(path, dict.fromkeys((TIME, *peers.values()), NUMBER), tally)
        table = _without_time(table, tally).groupby(TIME, as_index=False).last()
        rate_TW = table[list(peers.values())].to_numpy()
        yield Trace(
            samples=rate_TW,
            seconds=np.where(np.isnan(rate_TW), np.nan, 1.0),
            start=np.repeat(table[[TIME]].to_numpy(), len(peers), axis=1),
            workers=[f"peer {number}" for number in peers],
            meta={
                **LICENCE,
                "job": f"{experiment(path)}-monitor",
                "format": "hivemind_monitor",
                "units": "samples in each second, smoothed by hivemind",
                **tally.meta(),
            },
        )


def experiment(path: Path) -> str:
    """Return the experiment that a file belongs to.

    >>> experiment(Path("hivemind-113-aws-t4-1.csv"))
    'hivemind-113'
    """
    return "-".join(path.name.split(".")[0].split("-")[:2])


def _worker(path: Path, tally: Tally) -> pd.DataFrame:
    """Return one row per step: some fields of a step are in the row before the one that counts it."""
    needed = dict.fromkeys((STEP, SAMPLES, TIME, AVERAGING, WHOLE, *OWN), NUMBER)
    rows = frame(path, needed | dict.fromkeys(COVARIATES.values(), NUMBER), tally, optional=list(COVARIATES.values()))
    rows = _without_time(rows, tally)
    steps = rows[list(needed)].assign(**{STEP: rows[STEP].bfill()}).dropna(subset=[STEP])
    if steps.empty:
        raise ValueError(f"{path}: column {STEP!r} counts no step")
    run_T = runs_of(steps[STEP].to_numpy())
    tally.restarts(run_T[-1])
    steps = steps.assign(iteration=continued(steps[STEP].to_numpy(), run_T), run=run_T)
    repeats = steps[rows[STEP].reindex(steps.index).notna()].duplicated("iteration").sum()
    tally.rows("repeated steps, of which the last value counts", repeats)
    steps = steps.groupby("iteration", as_index=False).last()
    table = steps[["iteration"]].copy()
    table["worker"] = path.name.split(".")[0].removeprefix(f"{experiment(path)}-") or path.name
    table["samples"] = increments(steps[SAMPLES].to_numpy(), steps["run"].to_numpy())
    first_T = np.diff(steps["run"], prepend=-1) > 0
    tally.cells("resumed totals of samples, which are no increment", table["samples"][first_T].isna().sum())
    table["seconds"] = steps[OWN].sum(axis=1, skipna=False)
    table["wait_seconds"] = steps[AVERAGING]
    start_T = steps[TIME] - steps[WHOLE]
    table["start"] = start_T.groupby(steps["run"]).cummax()  # accurate to a second only, so forced not to go backwards
    return _cleaned(table, tally).join(_covariates_before(rows, table["start"].to_numpy()))


def _cleaned(table: pd.DataFrame, tally: Tally) -> pd.DataFrame:
    for name in ("samples", "seconds", "wait_seconds"):
        negative = table[name] < 0
        tally.cells(f"negative {name}", negative.sum())
        table.loc[negative, name] = np.nan
    return table


def _covariates_before(rows: pd.DataFrame, start_T: np.ndarray) -> pd.DataFrame:
    """Return the newest system row at each step's start, less one second because clocks count whole seconds."""
    import pandas as pd

    columns = {name: column for name, column in COVARIATES.items() if column in rows}
    if not columns:
        return pd.DataFrame(index=range(len(start_T)))
    system = rows.dropna(subset=list(columns.values()), how="all").sort_values(TIME, kind="stable")
    unknown = np.full((1, len(columns)), np.nan)  # before the first row
    values = np.concatenate([unknown, system[list(columns.values())].to_numpy()])
    picked_T = np.searchsorted(system[TIME].to_numpy(), start_T - 1.0, side="right")
    return pd.DataFrame(values[picked_T], columns=list(columns))


def _without_time(rows: pd.DataFrame, tally: Tally) -> pd.DataFrame:
    timed = rows[TIME].notna()
    tally.rows("rows without a time", (~timed).sum())
    return rows[timed]


FORMATS = (
    Format(
        name="hivemind",
        about="training steps of a worker with CPU, memory and network (W&B export)",
        files="hivemind-<experiment>-<host>.csv; a folder's workers of one experiment are one trace",
        gives="speed",
        seen=real("cirquit/hivemind-multi-cloud"),
        read=read_workers,
        columns=(TIME, STEP, SAMPLES, *OWN),
        recognises=lambda path, head: {STEP, SAMPLES, *OWN} <= set(header_of(head)),
        job=experiment,
    ),
    Format(
        name="hivemind_monitor",
        about="hivemind's own smoothed speed of every peer, once a second",
        files="hivemind-<experiment>-vm-monitor.csv",
        gives="speed",
        seen=real("cirquit/hivemind-multi-cloud"),
        read=read_monitor,
        recognises=lambda path, head: any(map(PEER.fullmatch, header_of(head))),
    ),
)
