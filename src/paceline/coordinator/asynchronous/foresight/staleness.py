"""Staleness: forecast from speeds before a push, measured after it; and stragglers by either.

Axis: W workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array, Mask, Sizes

SPREADS, LEAST_SPREAD = 3.0, 0.5
"""A straggler is staler than the median by this many spreads, and by this share of the median.

Three are the usual limit for outliers. The share is ours: it keeps a fleet whose staleness hardly spreads from calling
its last member a straggler.
"""

NORMAL = 1.4826
"""A normal distribution's standard deviation, over its median absolute deviation."""

COVERAGE, STEP = 0.9, 0.05
"""Share of pushes for which the upper limit is to hold, and its move after each push, as a share of the forecast."""


def expected_staleness(seconds: Array) -> Array:
    """Return how many pushes of others come while each worker is at a step, ``[W]``.

    E[tau_i] = sum over j != i of t_i / t_j, with t the time from pull to push: in the time t_i worker j pushes
    t_i / t_j times in the mean, if it does not wait for others (renewal argument).

    >>> expected_staleness(np.array([1.0, 1.0, 4.0]))
    array([1.25, 1.25, 8.  ])
    """
    expected_W: Array = seconds * (1.0 / seconds).sum() - 1.0
    return np.maximum(expected_W, 0.0)


def straggler_bound(staleness: Array) -> float:
    """Return the staleness above which a worker is a straggler: from the fleet's median and spread.

    The spread is that of the fresher half of the fleet, so that it tells the usual noise even where every second
    worker is a straggler. Workers of unknown staleness, NaN, are left out; the bound is infinite below two workers.

    >>> straggler_bound(np.array([3.0, 3.1, 2.9, 12.0])).__round__(2)
    4.57
    >>> straggler_bound(np.array([0.2, np.nan]))
    inf
    """
    known = staleness[np.isfinite(staleness)]
    if len(known) < 2:
        return math.inf
    median = float(np.median(known))
    fresher = known[known <= median]
    spread = NORMAL * float(np.median(np.abs(fresher - np.median(fresher))))
    return median + max(SPREADS * spread, LEAST_SPREAD * median, 1.0)


def stragglers(staleness: Array) -> Mask:
    """Return a mask of the stragglers, ``[W]``.

    >>> stragglers(np.array([3.0, 3.1, 2.9, 12.0]))
    array([False, False, False,  True])
    """
    with np.errstate(invalid="ignore"):
        found: Mask = staleness > straggler_bound(staleness)
    return found


@dataclass
class Calibration:
    """Forecast staleness beside the actual one, over all pushes: whether it is right, and how far it may be off.

    Parameters
    ----------
    pushes
        Pushes that had a forecast.
    forecast, actual
        Their means, in versions.
    absolute_error
        The mean distance between the two.
    margin
        What is added to a forecast to get its upper limit, as a share of one more than the forecast. It moves up after
        a push beyond the limit and down after others, in the ratio that stands still where the limit holds as often as
        it is to (Gibbs and Candes, NeurIPS 2021).
    covered
        Share of the pushes within the limit as it stood before them.

    Examples
    --------
    >>> seen = Calibration()
    >>> for actual in (3, 4, 5):
    ...     seen.note(forecast=4.0, actual=actual)
    >>> seen.forecast, seen.actual, round(seen.absolute_error, 2)
    (4.0, 4.0, 0.67)
    """

    pushes: int = 0
    forecast: float = 0.0
    actual: float = 0.0
    absolute_error: float = 0.0
    margin: float = 0.5
    covered: float = 0.0

    def note(self, forecast: float, actual: int) -> None:
        """Take in a push whose staleness had been forecast."""
        within = actual <= self.upper(forecast)
        self.pushes += 1
        share = 1 / self.pushes
        self.forecast += share * (forecast - self.forecast)
        self.actual += share * (actual - self.actual)
        self.absolute_error += share * (abs(forecast - actual) - self.absolute_error)
        self.covered += share * (within - self.covered)
        self.margin = max(self.margin + STEP * (COVERAGE - within), 0.0)

    def upper(self, forecast: float) -> float:
        """Return the staleness that a push with this forecast is not to exceed in nine cases of ten."""
        return forecast + self.margin * (forecast + 1.0)


@dataclass(frozen=True, kw_only=True)
class StalenessReport:
    """Staleness of one worker: measured from versions, and forecast from speeds.

    Parameters
    ----------
    worker
        Its name.
    size, batch
        Samples of its next step, and of a full batch.
    staleness, expected
        Smoothed and forecast staleness, in versions; NaN where it is not known.
    bound, expected_bound
        Limits of smoothed and of forecast staleness, above which the worker is a straggler.

    Examples
    --------
    >>> seen = {"staleness": 9.0, "expected": 20.1, "bound": 4.6, "expected_bound": 4.9}
    >>> print(StalenessReport(worker="g3", size=4, batch=32, **seen).why)
    g3 is a straggler: its pushes have been 9 versions stale, where 4.6 are the limit of the usual; its next push is
    expected to be 20 versions stale; it takes 4 of 32 samples
    """

    worker: str
    size: int
    batch: int
    staleness: float
    expected: float
    bound: float
    expected_bound: float

    @property
    def is_straggler(self) -> bool:
        """True if the worker is a straggler by its measured staleness or by its forecast staleness."""
        return self.staleness > self.bound or self.expected > self.expected_bound

    @property
    def why(self) -> str:
        """Sentence that says how stale the worker is, and how many samples it takes."""
        kind = f"{self.worker} is {'a straggler' if self.is_straggler else 'no straggler'}"
        parts = []
        if math.isfinite(self.staleness):
            limit = f", where {self.bound:.2g} are the limit of the usual" if math.isfinite(self.bound) else ""
            parts.append(f"its pushes have been {self.staleness:.2g} versions stale{limit}")
        if math.isfinite(self.expected):
            parts.append(f"its next push is expected to be {self.expected:.2g} versions stale")
        parts.append(f"it takes {self.size} of {self.batch} samples")
        return f"{kind}: {'; '.join(parts)}"


def staleness_reports(
    workers: Sequence[str], sizes: Sizes, batch: int, staleness: Array, expected: Array
) -> list[StalenessReport]:
    """Return the staleness report of every worker; sizes, smoothed and forecast staleness are ``[W]``.

    >>> seen = staleness_reports(["a", "b"], np.array([8, 8]), 8, np.array([0.5, 4.0]), np.array([np.nan, np.nan]))
    >>> [one.is_straggler for one in seen]
    [False, True]
    """
    bound, expected_bound = straggler_bound(staleness), straggler_bound(expected)
    rows = zip(workers, sizes.tolist(), staleness.tolist(), expected.tolist(), strict=True)
    return [
        StalenessReport(
            worker=worker,
            size=size,
            batch=batch,
            staleness=seen,
            expected=forecast,
            bound=bound,
            expected_bound=expected_bound,
        )
        for worker, size, seen, forecast in rows
    ]
