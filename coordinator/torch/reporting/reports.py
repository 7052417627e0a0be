"""What the ranks report about their iterations, as rows of numbers, and what the balancer learns from them.

Axes: K exchanges, W workers, F numbers in a row, D drivers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline._arrays import Array
from paceline.predictors import Report

COLUMNS = (
    "samples",
    "micro_batches",
    "steps",
    "seconds",
    "comm_seconds",
    "out_of_memory",
    "checksum",
    "epoch",
    "batches",
    "dealt",
    "plan_seconds",
    "exchange_seconds",
    "log_norm",
    "total",
    "foreign",
)
"""The columns of a row; the drivers follow."""

LEAST = 0.5
"""An epoch's last batch is not learnt from if it is smaller than this share of a full one: its time says too little."""

LEAST_OWN = 0.05
"""At least this share of a worker's seconds is for its work, whatever is taken for fixed."""

PLACE = ("checksum", "epoch", "batches", "dealt")
"""Columns that must be the same on all ranks: the plan in use, and the place in the data."""

_SUMMED = ("samples", "micro_batches", "seconds")
_AT = {name: place for place, name in enumerate(COLUMNS)}
_PLACES = [_AT[name] for name in PLACE]


class RankReports:
    """What all ranks reported in one exchange, ``[W, F]``, in the order of the plan's workers.

    It splits off a column only on request, because this runs in every iteration and most columns are not needed.

    Parameters
    ----------
    report_WF
        The rows.
    features
        How many of their last numbers say what the work is made of.
    """

    def __init__(self, report_WF: Array, features: int = 0) -> None:
        self.report_WF = report_WF
        self.features = features

    def __getitem__(self, name: str) -> Array:
        """Return a column, ``[W]``."""
        column: Array = self.report_WF[:, _AT[name]]
        return column

    @property
    def drivers_WD(self) -> Array:  # noqa: N802 - axes are part of an array's name
        """The drivers, sampled when the report was sent."""
        drivers: Array = self.report_WF[:, len(COLUMNS) : self.report_WF.shape[1] - self.features]
        return drivers

    @property
    def features_WF(self) -> Array:  # noqa: N802
        """What the work is made of, of all samples in the report, ``[W, F]``."""
        features: Array = self.report_WF[:, self.report_WF.shape[1] - self.features :]
        return features

    def at_shares(self, work_W: Array, shares_W: Array, fixed: float) -> RankReports:
        """Return the same rows as if each worker's work had been exactly its share: speeds are work per second.

        Whole samples, and padding, make work differ a little from the shares, and a global batch's from the mean. That
        is no payoff of the shares, which is judged from these rows.

        Parameters
        ----------
        work_W
            Work behind the rows, ``[W]``.
        shares_W
            Work of one micro-batch as it was planned, ``[W]``.
        fixed
            Seconds of a micro-batch that do not depend on its work.
        """
        report_WF, parts_W = self.report_WF.copy(), self["micro_batches"]
        report_WF[:, _AT["seconds"]] = at_shares(self["seconds"], work_W, shares_W * parts_W, fixed * parts_W)
        report_WF[:, _AT["samples"]] = np.where(work_W > 0, shares_W * parts_W, np.nan)
        return RankReports(report_WF, self.features)

    @property
    def together(self) -> bool:
        """Whether all ranks used the same plan, at the same place in the data."""
        places = self.report_WF[:, _PLACES]
        return bool((places == places[0]).all())

    @property
    def any_foreign(self) -> bool:
        """Whether a rank trained on data from elsewhere, or ranks attributed their inputs to different batches."""
        totals = self["total"]
        return bool(self["foreign"].any() or (totals != totals[0]).any())

    @property
    def agreed(self) -> bool:
        """Whether all ranks used the same plan."""
        checksums = self["checksum"]
        return bool((checksums == checksums[0]).all())

    def places(self, names: Sequence[str]) -> Array:
        """Return these columns, ``[W, len(names)]``."""
        places: Array = self.report_WF[:, [_AT[name] for name in names]]
        return places


def at_shares(seconds_W: Array, work_W: Array, shares_W: Array, fixed: float | Array) -> Array:
    """Return the seconds that workers would have taken for their shares, in place of their work, ``[W]``.

    >>> at_shares(np.array([1.0, 2.1]), np.array([9.0, 20.0]), np.array([10.0, 10.0]), fixed=0.1).round(2)
    array([1.1, 1.1])
    """
    fixed_W = np.minimum(fixed, (1 - LEAST_OWN) * seconds_W)
    with np.errstate(invalid="ignore", divide="ignore"):
        seconds: Array = fixed_W + (seconds_W - fixed_W) * (shares_W / work_W)
    return seconds


class ReportTally:
    """Adds up reports until the balancer learns from them, so that no measurement between plans is lost.

    Examples
    --------
    Two exchanges, each of one step with two micro-batches; the second worker took 0.5 s and 0.7 s:

    >>> tally = ReportTally()
    >>> for seconds in (0.5, 0.7):
    ...     rest = [0, 0, 1, 0, 1, 1, 0, 0, 0, 96, 0]
    ...     tally.add(RankReports(np.array([[64, 2, 1, 0.5, *rest], [32, 2, 1, seconds, *rest]])))
    >>> report = tally.take(None)
    >>> report.samples, report.seconds
    (array([32., 16.]), array([0.25, 0.3 ]))
    """

    def __init__(self) -> None:
        self._rows: list[RankReports] = []

    def __len__(self) -> int:
        """Return the number of exchanges added since the last report was taken."""
        return len(self._rows)

    def add(self, rows: RankReports) -> None:
        """Add the rows of one exchange."""
        self._rows.append(rows)

    def take(self, drivers_WD: Array | None) -> Report:
        """Return the mean micro-batch since the last report (NaN for workers without one), and start again."""
        report_KWF = np.stack([rows.report_WF for rows in self._rows])
        self._rows = []
        samples_KW, seconds_KW = report_KWF[..., _AT["samples"]], report_KWF[..., _AT["seconds"]]
        # A row counts as a whole or not at all: samples without seconds would make the worker look fast.
        known_KW = np.isfinite(samples_KW) & np.isfinite(seconds_KW) & (seconds_KW > 0)
        sums = {
            name: np.where(known_KW, np.nan_to_num(report_KWF[..., _AT[name]]), 0.0).sum(axis=0) for name in _SUMMED
        }
        with np.errstate(invalid="ignore", divide="ignore"):
            means = {name: sums[name] / sums["micro_batches"] for name in _SUMMED}  # 0 / 0 is NaN: nothing is known
        # One exchange of gradients each, however many steps and micro-batches a row is about.
        comm_KW = report_KWF[..., _AT["comm_seconds"]]
        timed_KW = np.isfinite(comm_KW)
        with np.errstate(invalid="ignore"):
            comm_W = np.where(timed_KW, comm_KW, 0.0).sum(axis=0) / timed_KW.sum(axis=0)
        ran_out_W = (report_KWF[..., _AT["out_of_memory"]] > 0).any(axis=0)
        return Report(means["samples"], means["seconds"], comm_W, drivers_WD, out_of_memory=ran_out_W)
