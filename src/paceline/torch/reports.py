"""Rows of numbers that ranks report of their iterations, and the report that a balancer learns from.

Axes: W workers, F numbers in a row, D covariates.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from paceline._arrays import Array, Sizes
from paceline.coordinator.plan import Plan
from paceline.coordinator.work import WorkModel
from paceline.predictors import Report
from paceline.predictors.protocol import MAX_VALUE, MIN_SECONDS
from paceline.recording.records import Iteration

REPORT_COLUMNS = (
    "samples",
    "micro_batches",
    "steps",
    "seconds",
    "comm_seconds",
    "out_of_memory",
    "checksum",
    "epoch",
    "batches",
    "assigned",
    "log_norm",
    "buffers",
    "planning_seconds",
)
"""The columns of a row; the covariates follow."""

MIN_BATCH_SHARE = 0.5
"""An epoch's last batch teaches nothing if it is smaller than this share of a full one: its time says too little."""


_COLUMN_INDEX = {name: place for place, name in enumerate(REPORT_COLUMNS)}
_SHARED_COLUMNS = slice(_COLUMN_INDEX["checksum"], _COLUMN_INDEX["assigned"] + 1)
"""Neighboring columns: the plan in use and the place in the data, which all ranks share."""

_SAMPLES, _PARTS, _STEPS, _SECONDS = (_COLUMN_INDEX[name] for name in ("samples", "micro_batches", "steps", "seconds"))
_OUT_OF_MEMORY = _COLUMN_INDEX["out_of_memory"]


class RankReports:
    """Rows that all ranks reported in one exchange, ``[W, F]``, in the order of the plan's workers.

    A rank that says what no rank can measure, such as a step without samples or of no time, has measured nothing (NaN).
    The last ``features`` numbers of a row say what the work is made of. They are consistent if all ranks used the same
    plan, at the same place in the data; ``ran_out`` says whether a rank's batch did not fit into memory.
    """

    def __init__(self, report_WF: Array, features: int = 0) -> None:
        self.report_WF = report_WF
        self.features = features
        # Plain numbers: comparing columns of a few ranks takes numpy several times as long.
        rows = report_WF.tolist()
        first, self.is_consistent, self.ran_out = rows[0], True, False
        unmeasured = []
        for rank, row in enumerate(rows):
            if row[_SHARED_COLUMNS] != first[_SHARED_COLUMNS]:
                self.is_consistent = False
            if row[_OUT_OF_MEMORY]:
                self.ran_out = True
            if not (
                0 < row[_SAMPLES] < MAX_VALUE
                and 1 <= row[_STEPS] <= row[_PARTS] < MAX_VALUE
                and MIN_SECONDS <= row[_SECONDS] < inf
                and (not features or all(0 <= number < MAX_VALUE for number in row[-features:]))
            ):
                unmeasured.append(rank)
        if unmeasured:
            self.report_WF = report_WF = report_WF.copy()
            report_WF[unmeasured, slice(_SAMPLES, _SECONDS + 1)] = np.nan
            report_WF[unmeasured, report_WF.shape[1] - features :] = np.nan
        self.has_norms = first[_COLUMN_INDEX["log_norm"]] == first[_COLUMN_INDEX["log_norm"]]
        self.has_buffers = first[_COLUMN_INDEX["buffers"]] == first[_COLUMN_INDEX["buffers"]]

    def __getitem__(self, name: str) -> Array:
        """Return a column, ``[W]``."""
        column: Array = self.report_WF[:, _COLUMN_INDEX[name]]
        return column

    @property
    def covariates_WD(self) -> Array:  # noqa: N802 - axes are part of an array's name
        """The covariates, sampled when the report was sent."""
        covariates: Array = self.report_WF[:, len(REPORT_COLUMNS) : self.report_WF.shape[1] - self.features]
        return covariates

    @property
    def features_WF(self) -> Array:  # noqa: N802
        """Features of the work of all samples in the report, ``[W, F]``."""
        features: Array = self.report_WF[:, self.report_WF.shape[1] - self.features :]
        return features

    @property
    def has_same_plan(self) -> bool:
        """True if all ranks used the same plan."""
        checksums = self["checksum"]
        return bool((checksums == checksums[0]).all())

    def positions(self, *, with_checksum: bool) -> Array:
        """Return epoch and batches of every rank, ``with_checksum`` also a checksum of their data, ``[W, 2 or 3]``."""
        places: Array = self.report_WF[:, _COLUMN_INDEX["epoch"] : _COLUMN_INDEX["assigned"] + 1]
        return places if with_checksum else places[:, :2]

    def scale_to_shares(self, work_W: Array, shares_W: Array, fixed_seconds: float) -> RankReports:
        """Return the rows with each worker's work scaled to exactly its share: speeds are then work per second.

        Whole samples, and padding, make work differ a little from the shares, which are judged from these rows. Shares
        are work of one micro-batch, and ``fixed_seconds`` those of a micro-batch that do not depend on its work.
        """
        report_WF, parts_W = self.report_WF.copy(), self["micro_batches"]
        report_WF[:, _COLUMN_INDEX["seconds"]] = scale_to_shares(
            self["seconds"], work_W, shares_W * parts_W, fixed_seconds * parts_W
        )
        report_WF[:, _COLUMN_INDEX["samples"]] = np.where(work_W > 0, shares_W * parts_W, np.nan)
        return RankReports(report_WF, self.features)

    def report(self, covariates_WD: Array | None) -> Report:
        """Return the mean micro-batch of every worker, NaN without one, with the covariates sampled before it."""
        samples_W, parts_W, _, seconds_W, comm_W, ran_out_W = self.report_WF.T[: _COLUMN_INDEX["checksum"]]
        out_of_memory = ran_out_W == 1 if self.ran_out else None
        return Report(samples_W / parts_W, seconds_W / parts_W, comm_W, covariates_WD, out_of_memory=out_of_memory)


def merge_ranks(report_GF: Array) -> Array:
    """Return the report of ranks that are one worker: the slowest one's; or that of one which looped differently."""
    shared_GF = report_GF[:, _SHARED_COLUMNS]
    if (different_G := (shared_GF != shared_GF[0]).any(axis=1)).any():
        return np.array(report_GF[different_G.argmax()])
    slowest = int(np.argmax(report_GF[:, _SECONDS]))  # NaN counts as the slowest: nothing is known of the worker then
    report_F: Array = report_GF[slowest].copy()
    report_F[_OUT_OF_MEMORY] = report_GF[:, _OUT_OF_MEMORY].max()
    report_F[_COLUMN_INDEX["planning_seconds"]] = report_GF[:, _COLUMN_INDEX["planning_seconds"]].max()
    return report_F


def mean_reports(reports_N: Sequence[RankReports]) -> RankReports:
    """Return the mean micro-batch that each worker measured in several iterations, as one row each."""
    if len(reports_N) == 1:
        return reports_N[0]
    rows_NWF, report_WF = np.stack([rows.report_WF for rows in reports_N]), reports_N[-1].report_WF.copy()
    parts_NW, measured_NW = rows_NWF[..., _PARTS], np.isfinite(rows_NWF[..., _SECONDS])
    report_WF[:, _PARTS] = report_WF[:, _STEPS] = 1
    for column, divisor_NW in ((_SAMPLES, parts_NW), (_SECONDS, parts_NW), (_COLUMN_INDEX["comm_seconds"], 1.0)):
        known_NW = np.where(measured_NW, rows_NWF[..., column] / divisor_NW, 0.0)
        with np.errstate(invalid="ignore"):  # 0 / 0 is NaN, where a worker measured nothing
            report_WF[:, column] = known_NW.sum(axis=0) / measured_NW.sum(axis=0)
    return RankReports(report_WF, reports_N[-1].features)


def scale_to_shares(seconds_W: Array, work_W: Array, shares_W: Array, fixed_seconds: float | Array) -> Array:
    """Return the seconds that workers would have taken for their shares, in place of their work, ``[W]``.

    >>> scale_to_shares(np.array([1.0, 2.1]), np.array([9.0, 20.0]), np.array([10.0, 10.0]), fixed_seconds=0.1).round(2)
    array([1.1, 1.1])
    """
    # leave at least 5% for the samples: too large a fixed part would leave none
    fixed_W = np.minimum(fixed_seconds, 0.95 * seconds_W)
    with np.errstate(invalid="ignore", divide="ignore"):
        seconds: Array = fixed_W + (seconds_W - fixed_W) * (shares_W / work_W)
    return seconds


def make_iteration(
    reports: RankReports, used_plan: Plan, batch_W: Sizes, accumulate: int, work: WorkModel | None, **extra: Any
) -> Iteration:
    """Return the record of an iteration; ``extra`` is what this rank knows by itself.

    ``batch_W`` are the samples in the last batch, ``accumulate`` to a step, of workers whose times are not known.
    """
    steps_W, known_W = reports["steps"], np.isfinite(reports["samples"])  # a device may not have finished yet
    sizes_W = np.where(known_W, reports["samples"] / steps_W, batch_W * accumulate)
    parts_W = np.where(known_W, reports["micro_batches"] / steps_W, accumulate)
    work_W = sizes_W if work is None else work.work(reports.features_WF) / steps_W
    return Iteration(
        time=time.time(),
        sizes=np.rint(sizes_W).astype(np.int64),
        seconds=reports["seconds"] / steps_W,
        forecast_seconds=used_plan.forecast.curves.busy_seconds(work_W / parts_W) * parts_W,
        comm_seconds=reports["comm_seconds"],
        agreed=reports.is_consistent,
        work=None if work is None else work_W,
        **extra,
    )
