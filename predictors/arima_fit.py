"""Fitting ARIMA with covariates: conditional sum of squares by Gauss-Newton, or statsmodels' likelihood.

Several series may share one set of coefficients.
Axes: T iterations, N series, D covariates (and a constant), K coefficients, P and Q lags, L lags, M values that count.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline._require import require

Order = tuple[int, int, int]

LONG_AR_LAGS = 8
"""Lags of the autoregression whose residuals approximate the innovations at the start (Hannan and Rissanen).

Every fit leaves out this many iterations at the start, so that fits of different orders compare on the same values.
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Coefficients:
    """One fitted ARIMA: coefficients of the covariates, of past values and of past innovations."""

    covariates: Array
    ar: Array
    ma: Array
    constant: float = 0.0
    """NaN if it is each worker's own mean."""
    range_2D: Array = field(default_factory=lambda: np.zeros((2, 0)))
    """The least and the greatest of each covariate that it was fitted to, in deviations."""

    @property
    def vector(self) -> Array:
        """The fitted coefficients in one vector: of covariates, past values and past innovations."""
        return np.concatenate([self.covariates, self.ar, self.ma])


def fit_css(value_TN: Array, covariates_TND: Array, order: Order) -> tuple[Coefficients, float]:
    """Return the coefficients with the least sum of squared innovations, and the mean of those squares.

    Values and innovations before the first iteration count as zero. In a gap (NaN) of the values the last value holds,
    and so do the covariates beside it; the innovations of a gap do not count.
    """
    p, d, q = order
    # A value counts only if it was measured. The first innovations do not count either: zeros stand for the values
    # before the series, so those innovations are far off.
    counts_TN = np.isfinite(value_TN)[d:]
    counts_TN[: max(p, LONG_AR_LAGS)] = False
    wanted = covariates_TND.shape[2] + p + q
    if counts_TN.sum() <= wanted:
        raise ValueError(
            f"ARIMA{order} needs more than {wanted} speeds after the first {d + max(p, LONG_AR_LAGS)} to be "
            f"fitted, got {counts_TN.sum()}; fit it to longer traces, or choose a smaller order"
        )
    # Bridge before differencing: a difference across a gap would be NaN and widen the gap.
    bridged_TNK = _fill_gaps(np.concatenate([value_TN[..., None], covariates_TND], axis=2), np.isnan(value_TN))
    bridged_TNK = np.diff(bridged_TNK, d, axis=0)
    at_K, loss = _Panel(bridged_TNK[..., 0], bridged_TNK[..., 1:], np.flatnonzero(counts_TN), p, q).fit()
    covariates, ar, ma = np.split(at_K, np.cumsum([covariates_TND.shape[2], p]))
    return Coefficients(covariates, ar, ma), loss


@dataclass(frozen=True, eq=False)
class _Panel:
    """Differenced series and covariates, the flat places of the innovations that count, and the orders p and q."""

    value_TN: Array
    covariates_TND: Array
    counted_M: NDArray[np.intp]
    p: int
    q: int

    def fit(self) -> tuple[Array, float]:
        """Return the best coefficients and their loss, by Gauss-Newton steps with damping where they overshoot."""
        at_K, loss = self.initial_coefficients()
        damping = 1e-4  # as a share of the curvature
        for _ in range(30 if len(at_K) else 0):  # most fits need fewer than ten, and a random walk none
            candidate_K = self.gauss_newton_step(at_K, damping)
            candidate_loss, before = self.loss(candidate_K), loss
            # Levenberg-Marquardt: after progress trust the quadratic model more, after an overshoot much less.
            if candidate_loss < before:
                at_K, loss, damping = candidate_K, candidate_loss, 0.1 * damping
                if before - loss <= 1e-5 * before:
                    break
            elif (damping := 100.0 * damping) >= 1e3:
                break
        return at_K, loss

    def split(self, coefficients_K: Array) -> list[Array]:
        """Return the coefficients of covariates, past values and past innovations."""
        return np.split(coefficients_K, np.cumsum([self.covariates_TND.shape[2], self.p]))

    def innovations(self, coefficients_K: Array) -> Array:
        covariates_D, ar_P, ma_Q = self.split(coefficients_K)
        return _filter(self.value_TN - self.covariates_TND @ covariates_D, ar_P, ma_Q)

    def loss(self, coefficients_K: Array) -> float:
        return float(np.square(self.innovations(coefficients_K).take(self.counted_M)).mean())

    def bound_roots(self, coefficients_K: Array) -> Array:
        """Return the coefficients with roots moved inside the bounds within which the model forgets.

        A moving-average root nearer to 1 would never forget what a jump made obsolete.
        """
        covariates_D, ar_P, ma_Q = self.split(coefficients_K)
        return np.concatenate([covariates_D, -_shrink_roots(-ar_P, 0.99), _shrink_roots(ma_Q, 0.95)])

    def gauss_newton_step(self, coefficients_K: Array, damping: float) -> Array:
        """Return the coefficients after one damped Gauss-Newton step on the derivatives of the innovations."""
        covariates_D, ar_P, ma_Q = self.split(coefficients_K)
        error_TN = self.value_TN - self.covariates_TND @ covariates_D
        innovation_TN = _filter(error_TN, ar_P, ma_Q)
        columns_TNK = [
            _filter(self.covariates_TND, ar_P, ma_Q),
            _lagged_panels(_filter(error_TN, (), ma_Q), self.p),
            _lagged_panels(_filter(innovation_TN, (), ma_Q), self.q),
        ]
        return self.bound_roots(coefficients_K + self.regress(columns_TNK, innovation_TN, damping))

    def regress(self, columns_TNK: list[Array], target_TN: Array, damping: float = 0.0) -> Array:
        """Return the damped least squares regression of the target on these columns, over the values that count.

        A tiny ridge keeps the system regular: a constant covariate, say, gets a coefficient near zero.
        """
        columns_MK = np.concatenate(columns_TNK, axis=2).reshape(target_TN.size, -1).take(self.counted_M, axis=0)
        curvature_KK = columns_MK.T @ columns_MK
        diagonal_K = curvature_KK.diagonal()
        ridge_K = damping * diagonal_K + 1e-12 * diagonal_K.max(initial=0.0) + 1e-300
        slope_K = columns_MK.T @ target_TN.take(self.counted_M)
        return np.asarray(np.linalg.solve(curvature_KK + np.diag(ridge_K), slope_K), dtype=np.float64)

    def initial_coefficients(self) -> tuple[Array, float]:
        """Return the best of several starts (none, one or both kinds of memory), and its loss."""
        covariates_D = self.regress([self.covariates_TND], self.value_TN)
        error_TN = self.value_TN - self.covariates_TND @ covariates_D
        past_TNP = _lagged_panels(error_TN, self.p)
        ar_P, none_Q = self.regress([past_TNP], error_TN), np.zeros(self.q)
        starts = [np.zeros(self.p + self.q), np.concatenate([ar_P, none_Q])]
        if self.q:
            long_TNL = _lagged_panels(error_TN, LONG_AR_LAGS)
            innovation_TN = error_TN - long_TNL @ self.regress([long_TNL], error_TN)
            starts.append(self.regress([past_TNP, _lagged_panels(innovation_TN, self.q)], error_TN))
            # With every other value missing, no memory is a saddle: no lag of one is ever seen, and a fit would stay.
            # Differenced speeds mostly have a negative moving average.
            starts.append(np.concatenate([np.zeros(self.p), [-0.5], none_Q[1:]]))
        # The loss has several minima with moving averages, so the best of several starts is taken.
        bounded = [self.bound_roots(np.concatenate([covariates_D, start])) for start in starts]
        losses = list(map(self.loss, bounded))
        best = int(np.argmin(losses))
        return bounded[best], losses[best]


def corrected_aic(loss: float, values: int, coefficients: int) -> float:
    """Return Akaike's criterion of a least-squares fit, corrected for few values."""
    k = coefficients + 1
    # A constant series has a loss of zero, whose logarithm would be -inf.
    return values * float(np.log(max(loss, 1e-300))) + 2.0 * k + 2.0 * k * (k + 1) / max(values - k - 1, 1)


def fit_likelihood(value_TN: Array, covariates_TND: Array, order: Order) -> tuple[Coefficients, float]:
    """Return statsmodels' maximum likelihood fit of the longest series, and the mean square of its innovations.

    A column of ones among the covariates stands for the constant.
    """
    require("statsmodels", needed_by='ARIMA(method="likelihood")', extra="arima")
    from statsmodels.tsa.arima import model as reference

    longest, count = int(np.isfinite(value_TN).sum(axis=0).argmax()), covariates_TND.shape[2]
    exog = covariates_TND[:, longest] if count else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the only one that matters, non-convergence, is read from the result
        result = reference.ARIMA(value_TN[:, longest], exog=exog, order=order, trend="n").fit()
    if not result.mle_retvals["converged"]:
        logger.warning(
            "the likelihood of ARIMA%s did not converge, so its last coefficients are used; fit it to longer traces, "
            "or choose a smaller order",
            order,
        )
    covariates, ar, ma = np.split(np.asarray(result.params)[:-1], np.cumsum([count, order[0]]))
    return Coefficients(covariates, ar, ma), float(result.mse)


# -- what the fits are made of -----------------------------------------------------------------------------------


def _filter(panel: Array, ar_P: Sequence[float] | Array, ma_Q: Array) -> Array:
    """Return the innovations of which this ARMA makes the panel, along its first axis; zeros stand before it."""
    from scipy.signal import lfilter

    if not panel.size:  # no covariates
        return panel
    # With a last coefficient of 0, scipy takes its loop in C even where there is no moving average.
    return np.asarray(lfilter([1.0, *np.negative(ar_P)], [1.0, *ma_Q, 0.0], panel, axis=0), dtype=np.float64)


def _lagged_panels(panel_TN: Array, num_lags: int) -> Array:
    """Return the panel one iteration later, two later, and so on, ``[T, N, lags]``."""
    lagged_TNL = np.zeros((*panel_TN.shape, num_lags))
    for lag in range(1, num_lags + 1):
        lagged_TNL[lag:, :, lag - 1] = panel_TN[:-lag]
    return lagged_TNL


def _shrink_roots(coefficients_K: Array, largest: float) -> Array:
    """Scale the coefficients of ``1 + c[0] z + c[1] z**2 ...`` so that no inverse root is larger than ``largest``."""
    size = np.abs(np.roots([1.0, *coefficients_K])).max(initial=largest)
    # Multiplying coefficient k by s**k multiplies every inverse root by s.
    return np.asarray(coefficients_K * (largest / size) ** np.arange(1, len(coefficients_K) + 1))


def _fill_gaps(panel_TNK: Array, missing_TN: NDArray[np.bool_]) -> Array:
    """Return the panel with the last value held in gaps, and the first one before it.

    No later value enters: the fit would learn to read a straight line off. Covariates are bridged wherever the values
    are: a bridged value beside a measured covariate would look like a jump.
    """
    import pandas as pd

    known_TNK = np.where(missing_TN[..., None], np.nan, panel_TNK)
    bridged = pd.DataFrame(known_TNK.reshape(len(known_TNK), -1)).ffill().bfill().fillna(0.0)
    return bridged.to_numpy().reshape(known_TNK.shape)
