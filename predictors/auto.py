"""Auto: the predictor to take when nothing is known about the fleet yet. It needs no fitting."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._arrays import Array
from paceline.predictors.calibrated import Calibrated
from paceline.predictors.mixture import Mixture
from paceline.predictors.networks.gated import GatedNARX
from paceline.predictors.rls import RLS

SIMPLE = ("last-value", "ewma:smoothing=0.5", "ewma:smoothing=0.25", "ewma:smoothing=0.1", "ewma:smoothing=0.03")
"""Its simple experts. Huber's EWMA and the running median made it slower and hardly better, so they are left out."""

HEAD_START = 18.0
"""Regret that the network begins with: about three quarters of the trust, until other experts earn more."""


class Auto(Calibrated):
    """The library's default: a mixture of simple predictors, RLS and the shipped GatedNARX, with calibrated quantiles.

    It serves any fleet from the first report on, without fitting: RLS learns each worker while it serves, and the
    network was fitted to other jobs. For each worker, the experts that forecast it best gain the trust, and quantiles
    are corrected online. Fitting is optional: it trains the network further on your traces (which needs torch), and
    gives RLS its starting weights for new workers.

    Parameters
    ----------
    drivers
        Names of the drivers (driving factors, such as the CPU share) that RLS learns to use; they may mean anything.
        The network also reads those that it was fitted with.

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
    """A mixture that trusts its last expert from the start, because that one was fitted to other fleets."""

    def _fresh(self, count: int) -> dict[str, Array]:
        rows = super()._fresh(count)
        rows["regret"][:, -1] += HEAD_START
        return rows
