"""Fitting ARIMA with drivers: conditional sum of squares by Gauss-Newton, or statsmodels' likelihood.

Several series are fitted to one set of coefficients at once; one worker is a panel of one series.
Axes: T iterations, N series, D drivers (and a constant), K coefficients, P and Q lags.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.predictors.extras import require

Array = NDArray[np.float64]
Order = tuple[int, int, int]

LARGEST_AR_ROOT, LARGEST_MA_ROOT = 0.99, 0.95
"""Where a conditional fit stops: a moving average nearer to 1 would remember for good what a jump made obsolete."""

STEPS = 30
"""Gauss-Newton steps at most; most fits need fewer than ten."""

LONG_AUTOREGRESSION = 8
"""Lags of the autoregression whose residuals stand for the innovations at the start (Hannan and Rissanen).

As many iterations are left out of every fit, so that fits of different orders are compared on the same values.
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Coefficients:
    """One fitted ARIMA: those of the drivers, of the past values and of the past innovations."""

    drivers: Array
    ar: Array
    ma: Array

    @property
    def vector(self) -> Array:
        """All of them in one vector, in this order."""
        return np.concatenate([self.drivers, self.ar, self.ma])

    def stepped(self, step_K: Array) -> Coefficients:
        """Return those a step further, with the roots pulled back to where the model forgets."""
        drivers, ar, ma = np.split(self.vector + step_K, np.cumsum([len(self.drivers), len(self.ar)]))
        return Coefficients(drivers, -_bounded(-ar, LARGEST_AR_ROOT), _bounded(ma, LARGEST_MA_ROOT))


def fit_css(value_TN: Array, drivers_TND: Array, order: Order) -> tuple[Coefficients, float]:
    """Return the coefficients with the least sum of squared innovations, and the mean of those squares.

    Values and innovations before the first iteration are taken to be zero. A gap (NaN) in the values is bridged by
    a straight line, as are the drivers beside it, and its innovations do not count.

    Raises
    ------
    ValueError
        If there are fewer values than the fit has coefficients.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> value_TN = np.zeros((2000, 1))
    >>> for t in range(1, 2000):
    ...     value_TN[t] = 0.7 * value_TN[t - 1] + rng.normal()
    >>> fit_css(value_TN, np.zeros((2000, 1, 0)), (1, 0, 0))[0].ar.round(2)
    array([0.7])
    """
    p, d, q = order
    counts_TN = np.isfinite(value_TN)[d:]
    counts_TN[: max(p, LONG_AUTOREGRESSION)] = False
    wanted = drivers_TND.shape[2] + p + q
    if counts_TN.sum() <= wanted:
        raise ValueError(
            f"ARIMA{order} needs more than {wanted} speeds after the first {d + max(p, LONG_AUTOREGRESSION)} to be "
            f"fitted, got {int(counts_TN.sum())}; fit longer traces, or give a smaller order"
        )
    bridged_TNK = _bridged(np.concatenate([value_TN[..., None], drivers_TND], axis=2), np.isnan(value_TN))
    bridged_TNK = np.diff(bridged_TNK, d, axis=0)
    panel = _Panel(bridged_TNK[..., 0], bridged_TNK[..., 1:], counts_TN)
    best = min(panel.starts(p, q), key=panel.loss)
    loss = panel.loss(best)
    for _ in range(STEPS if wanted else 0):  # a random walk has no coefficients
        better, improved = panel.improved(best, loss)
        converged = loss - improved <= 1e-9 * loss
        best, loss = better, improved
        if converged:
            break
    return best, loss


@dataclass(frozen=True, eq=False)
class _Panel:
    """Differenced series and drivers, and which innovations count."""

    value_TN: Array
    drivers_TND: Array
    counts_TN: NDArray[np.bool_]

    def errors(self, at: Coefficients) -> Array:
        """What the drivers do not explain."""
        return np.asarray(self.value_TN - self.drivers_TND @ at.drivers)

    def innovations(self, at: Coefficients) -> Array:
        return _filtered([1.0, *-at.ar], [1.0, *at.ma], self.errors(at))

    def loss(self, at: Coefficients) -> float:
        return float(np.mean(np.square(self.innovations(at)[self.counts_TN])))

    def improved(self, at: Coefficients, loss: float) -> tuple[Coefficients, float]:
        """Return the coefficients after one Gauss-Newton step, halved until the loss falls, and their loss."""
        step_K = _least_squares(self.slopes(at), -self.innovations(at)[self.counts_TN])
        for _ in range(12):
            candidate = at.stepped(step_K)
            candidate_loss = self.loss(candidate)
            if candidate_loss < loss:
                return candidate, candidate_loss
            step_K = step_K / 2.0
        return at, loss

    def slopes(self, at: Coefficients) -> Array:
        """Return the derivatives of the innovations that count by each coefficient."""
        whitened_TND = _filtered([1.0, *-at.ar], [1.0, *at.ma], self.drivers_TND)
        value_TN = _filtered([1.0], [1.0, *at.ma], self.errors(at))
        innovation_TN = _filtered([1.0], [1.0, *at.ma], self.innovations(at))
        past = [_delayed(value_TN, i + 1) for i in range(len(at.ar))]
        past += [_delayed(innovation_TN, j + 1) for j in range(len(at.ma))]
        columns = [whitened_TND[..., k] for k in range(whitened_TND.shape[2])] + past
        return -np.stack([column[self.counts_TN] for column in columns], axis=1).reshape(-1, len(columns))

    def starts(self, p: int, q: int) -> list[Coefficients]:
        """Return coefficients to start from: no memory at all, autoregression alone, and both."""
        flat = self.drivers_TND[self.counts_TN]
        drivers = _least_squares(flat, self.value_TN[self.counts_TN])
        none = Coefficients(drivers, np.zeros(p), np.zeros(q))
        error_TN = self.errors(none)
        ar = none.stepped(np.concatenate([0 * drivers, self._regressed(_lags(error_TN, p), error_TN), np.zeros(q)]))
        if not q:
            return [none, ar]
        long_TNL = _lags(error_TN, LONG_AUTOREGRESSION)
        innovation_TN = error_TN - long_TNL @ self._regressed(long_TNL, error_TN)
        both = np.concatenate([_lags(error_TN, p), _lags(innovation_TN, q)], axis=2)
        return [none, ar, none.stepped(np.concatenate([0 * drivers, self._regressed(both, error_TN)]))]

    def _regressed(self, inputs_TNK: Array, target_TN: Array) -> Array:
        return _least_squares(inputs_TNK[self.counts_TN], target_TN[self.counts_TN])


def corrected_aic(loss: float, values: int, coefficients: int) -> float:
    """Return Akaike's criterion, corrected for few values, of a fit by least squares; the variance counts as one.

    >>> corrected_aic(1.0, values=100, coefficients=1)
    4.123711340206185
    """
    k = coefficients + 1
    return values * float(np.log(max(loss, 1e-300))) + 2.0 * k + 2.0 * k * (k + 1) / max(values - k - 1, 1)


def fit_likelihood(value_T: Array, drivers_TD: Array, order: Order) -> Coefficients:
    """Return statsmodels' maximum likelihood fit; its constant, if there is no differencing, stands last.

    Raises
    ------
    ImportError
        If statsmodels is missing.
    """
    require("statsmodels", needed_by='ARIMA(method="likelihood")', extra="arima")
    from statsmodels.tsa.arima import model as reference

    exog = drivers_TD if drivers_TD.shape[1] else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what matters of them is in the result
        result = reference.ARIMA(value_T, exog=exog, order=order, trend="n").fit()
    if not result.mle_retvals["converged"]:
        logger.warning("the likelihood of ARIMA%s did not converge; the last coefficients are used", order)
    drivers, ar, ma = np.split(np.asarray(result.params)[:-1], np.cumsum([drivers_TD.shape[1], order[0]]))
    return Coefficients(drivers, ar, ma)


# -- what the fits are made of -----------------------------------------------------------------------------------


def _least_squares(inputs: Array, target: Array) -> Array:
    """Return the least-squares solution, the smallest where several are as good."""
    return np.asarray(np.linalg.lstsq(inputs, target)[0], dtype=np.float64)


def _filtered(numerator: list[float], denominator: list[float], panel: Array) -> Array:
    from scipy.signal import lfilter

    if not panel.size or len(numerator) == len(denominator) == 1:
        return panel
    return np.asarray(lfilter(numerator, denominator, panel, axis=0))


def _delayed(panel: Array, lag: int) -> Array:
    return np.concatenate([np.zeros_like(panel[:lag]), panel[: len(panel) - lag]])


def _lags(panel_TN: Array, count: int) -> Array:
    return np.stack([_delayed(panel_TN, i + 1) for i in range(count)] or [panel_TN], axis=2)[..., :count]


def _bounded(coefficients: Array, largest: float) -> Array:
    """Shrink the roots of ``1 + c[0] z + c[1] z**2 ...`` so that none of their inverses is larger than this."""
    size = max(np.abs(np.roots([1.0, *coefficients])), default=0.0)
    return coefficients * min(1.0, largest / max(size, largest)) ** np.arange(1, len(coefficients) + 1)


def _bridged(panel_TNK: Array, missing_TN: NDArray[np.bool_]) -> Array:
    """Return the panel with straight lines across gaps, held before the first value and after the last.

    The drivers are bridged where the values are: a value without its driver's effect would look like a jump.
    """
    bridged_TNK = panel_TNK.copy()
    times = np.arange(len(panel_TNK))
    for n in np.flatnonzero(missing_TN.any(axis=0)):
        known = np.flatnonzero(~missing_TN[:, n])
        for k in range(panel_TNK.shape[2]):
            bridged_TNK[:, n, k] = np.interp(times, known, panel_TNK[known, n, k]) if len(known) else 0.0
    return bridged_TNK
