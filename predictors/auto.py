"""Auto: what to take when nothing is known of the fleet yet. It needs no fitting."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._arrays import Array
from paceline.predictors.calibrated import Calibrated
from paceline.predictors.mixture import Mixture
from paceline.predictors.networks.gated import GatedNARX
from paceline.predictors.rls import RLS

SIMPLE = ("last-value", "ewma:smoothing=0.5", "ewma:smoothing=0.25", "ewma:smoothing=0.1", "ewma:smoothing=0.03")
"""The simple predictors it asks. Huber's EWMA and the running median beside them made it slower, and hardly better."""

HEAD_START = 18.0
"""Regret that the network begins with: it has about three quarters of the trust until others have deserved more."""


class Auto(Calibrated):
    """The library's default: simple predictors, RLS and the shipped GatedNARX, mixed by what each deserves.

    It serves any fleet from the first report on, without fitting: RLS learns each worker while it serves, and the
    network was fitted before, to other jobs. Each worker comes to trust the expert that deserves it, and quantiles are
    kept true. Fitting is optional: it lets the network go on learning from your traces (that needs torch), and tells
    RLS where new workers start.

    Parameters
    ----------
    drivers
        Names of the drivers that RLS learns to use, whatever they mean. The network reads those it knows besides.

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

    def __init__(self, drivers: Sequence[str] = ()) -> None:
        self.drivers = tuple(drivers)
        experts = (*SIMPLE, RLS(drivers=self.drivers), GatedNARX(pretrained=True))
        super().__init__(_HeadStart(experts))


class _HeadStart(Mixture):
    """A mixture that trusts its last expert from the start, as the one that has seen other fleets before."""

    def _fresh(self, count: int) -> dict[str, Array]:
        rows = super()._fresh(count)
        rows["regret"][:, -1] += HEAD_START
        return rows
