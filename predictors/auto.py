"""Auto: the predictor to take when nothing is known about the fleet yet. It needs no fitting. Axis: W workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

import numpy as np

from paceline._arrays import Array, Mask, any_true
from paceline.predictors.calibrated import Calibrated
from paceline.predictors.driven import CorrectedEWMAs
from paceline.predictors.events import PeriodicEvents
from paceline.predictors.fleet import hide_workers, validated_covariate_names
from paceline.predictors.gated_narx import GatedNARX
from paceline.predictors.mixture import Mixture
from paceline.predictors.pooled import Pooled
from paceline.predictors.protocol import Report
from paceline.predictors.seasonal import Seasonal

SMOOTHINGS, FADING = (1.0, 0.5, 0.1, 0.03), 2.0
"""Its averages, the first of which is the last value; their first weights grow linearly, as a worker warms up."""

WARM_UP_REPORTS = 5
"""Reports after which a worker has warmed up, and times it may start again before."""

MIN_JUMP = np.log(1.5)
"""A jump is two errors in a row to the same side, each beyond this in log speed and six times the usual error. A single
one may be a stall."""


class Auto(Calibrated):
    """The library's default: averages, periods, and the shipped GatedNARX with a correction learned while it serves.

    It serves any fleet from the first report on, without fitting: the network was fitted to other jobs. A linear
    correction of it is learned from all workers together, and so is the share of the speed that covariates take or give
    back. For each worker and horizon, the experts that forecast it best gain the trust, and quantiles are corrected
    online. Events that return after equal numbers of iterations, such as evaluations, are foreseen and kept from the
    experts (:class:`PeriodicEvents`).

    First iterations may be slow, by loading and compiling, or too fast, where a clock does not wait for the device: a
    worker that turns out more than 20% faster, or half as fast, as forecast within five reports starts again, up to
    five times. So does one whose speed jumps later, and stays there, but it keeps its intervals. A single report that
    is five times as fast as any before is not learned from. ``fit`` is optional: it trains the network further on your
    traces (which needs torch).

    Parameters
    ----------
    covariates
        Names of the covariates, such as the CPU share, whose effects it learns; they may mean anything. It also reads
        those that the network was fitted with.

    Examples
    --------
    Two workers; one of them alternates between two speeds:

    >>> from paceline.predictors import Auto, Report
    >>> model = Auto()
    >>> model.reset(["steady", "alternates"])
    >>> for k in range(101):
    ...     model.observe(Report(samples=[64, 64], seconds=[0.5, 0.5 + 0.5 * (k % 2)]))
    >>> steady, alternates = model.predict().speed
    >>> bool(abs(steady - 128) < 1), bool(alternates < 70)
    (True, True)
    """

    skipped_checks: ClassVar[Mapping[str, str]] = {
        "a_silent_worker_leaves_others_alone": "its correction of the network is learned from all workers together"
    }

    _no_large_errors: bool = False
    _unconfirmed_rise_W: Mask | None = None

    def __init__(self, covariates: Sequence[str] = ()) -> None:
        self.covariates = validated_covariate_names(covariates)
        network = Pooled(GatedNARX(pretrained=True), self.covariates)
        averages = CorrectedEWMAs(SMOOTHINGS, FADING, SMOOTHINGS.index(0.1), network.covariate_names)
        super().__init__(PeriodicEvents(HeadStartMixture([averages, Seasonal(), network])))
        self._mixture = cast("HeadStartMixture", cast("PeriodicEvents", self._inner[0])._inner[0])

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        return super().initial_state(num_workers) | {
            "forgotten": np.zeros(num_workers),
            "far": np.zeros(num_workers),
            "fastest": np.full(num_workers, np.nan),
        }

    def update_from_report(self, report: Report, speed_W: Array, covariates_WD: Array) -> None:
        """Learn from a report; hide from the experts a speed that is far too fast until the next report confirms it."""
        fastest_W, self._mixture.hidden_W = self.state["fastest"], None
        accepted_W = speed_W
        if self._unconfirmed_rise_W is not None:
            # Compared with all before: a worker that is fast again after a dip is as fast as it was. At 3 times,
            # speed-ups that last are followed late: 2% on jobs that change their synchronization.
            self._mixture.hidden_W = hidden_W = self._unconfirmed_rise_W & (speed_W > 5.0 * fastest_W)
            accepted_W = np.where(hidden_W, np.nan, speed_W)
        self.state["fastest"] = np.fmax(fastest_W, accepted_W)
        super().update_from_report(report, speed_W, covariates_WD)

    def _track_error(self, error_W: Array) -> None:
        """Forget, before this report is learned, what was seen in a warm-up or before a jump; track the quantiles."""
        any_young = np.minimum.reduce(self.state["compared"]) < WARM_UP_REPORTS
        if any_young and any_true(warming_W := self._find_warming_up(error_W)):
            self._forget(warming_W)
            error_W = np.where(warming_W, np.nan, error_W)
        self._unconfirmed_rise_W = None
        # Nobody is far off now, or was before: nobody has jumped.
        if not (self._no_large_errors and np.maximum.reduce(np.abs(error_W)) <= MIN_JUMP):
            jumped_W = self._find_jumped(error_W)
            if any_true(jumped_W):  # averages and trust would follow slowly; intervals follow by themselves
                self._mixture._forget(jumped_W)
        super()._track_error(error_W)

    def _find_warming_up(self, error_W: Array) -> Mask:
        """Return who turned out much faster than forecast while it still warmed up."""
        young_W = (self.state["compared"] < WARM_UP_REPORTS) & (self.state["forgotten"] < WARM_UP_REPORTS)
        # False for a first report: no forecast yet (NaN).
        return np.asarray(young_W & ((error_W > np.log(1.2)) | (error_W < -np.log(2.0))))

    def _find_jumped(self, error_W: Array) -> Mask:
        """Return whose speed has jumped; keep who was far off, to which side, and beyond which bound."""
        before_W = self.state["far"]
        # A worker without errors to compare with (NaN) has not jumped.
        beyond_W = np.where(before_W == 0, np.maximum(MIN_JUMP, 6.0 * self.state["scale"]), np.abs(before_W))
        far_W = np.where(np.abs(error_W) > beyond_W, np.sign(error_W) * beyond_W, 0.0)
        jumped_W = np.asarray(far_W * before_W > 0)
        self._unconfirmed_rise_W = (far_W > 0.0) & ~jumped_W & (self.state["compared"] >= WARM_UP_REPORTS)
        far_W = np.where(np.isnan(error_W), before_W, np.where(jumped_W, 0.0, far_W))
        self.state["far"], self._no_large_errors = far_W, not any_true(far_W)
        return jumped_W

    def _forget(self, reset_W: Mask) -> None:
        count_W = self.state["forgotten"] + reset_W
        super()._forget(reset_W)
        self.state["forgotten"] = count_W


class HeadStartMixture(Mixture):
    """A mixture that trusts its last expert from the start, because that one was fitted to other fleets.

    It learns nothing from the next report of workers that are hidden.
    """

    hidden_W: Mask | None = None

    def update_from_report(self, report: Report, speed_W: Array, covariates_WD: Array) -> None:
        if self.hidden_W is not None and any_true(self.hidden_W):
            report, speed_W = hide_workers(report, self.hidden_W), np.where(self.hidden_W, np.nan, speed_W)
        super().update_from_report(report, speed_W, covariates_WD)

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        rows = super().initial_state(num_workers)
        # regret of 9: the uncorrected network starts with about 40% of the weight
        rows["regret"][:, -1] += 9.0
        return rows
