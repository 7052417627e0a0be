"""Fitting ARIMA with covariates: conditional sum of squares by Gauss-Newton, or statsmodels' likelihood.

Several series may share one set of coefficients, and any number of sets is fitted at once, such as one per worker.
Axes: T iterations, N series, G groups, D covariates (and a constant), K coefficients, P and Q lags, S starts.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, field
from typing import Any

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
    fits, loss_G = fit_css_groups(value_TN, covariates_TND, order, np.zeros(value_TN.shape[1], dtype=np.int64))
    return fits[0], float(loss_G[0])


def fit_css_groups(
    value_TN: Array, covariates_TND: Array, order: Order, group_N: NDArray[np.int64]
) -> tuple[list[Coefficients], Array]:
    """Return the coefficients of each group of series, and the mean square of its innovations, all fitted at once.

    ``group_N`` holds each series' group, numbered from 0; everything else is as in :func:`fit_css`.
    """
    p, d, q = order
    # A value counts only if it was measured. The first innovations do not count either: zeros stand for the values
    # before the series, so those innovations are far off.
    counts_TN = np.isfinite(value_TN)[d:]
    counts_TN[: max(p, LONG_AR_LAGS)] = False
    wanted = covariates_TND.shape[2] + p + q
    fewest = int(np.bincount(group_N, counts_TN.sum(axis=0)).min())
    if fewest <= wanted:
        raise ValueError(
            f"ARIMA{order} needs more than {wanted} speeds after the first {d + max(p, LONG_AR_LAGS)} to be "
            f"fitted, got {fewest}; fit it to longer traces, or choose a smaller order"
        )
    # Bridge before differencing: a difference across a gap would be NaN and widen the gap.
    bridged_TNK = _fill_gaps(np.concatenate([value_TN[..., None], covariates_TND], axis=2), np.isnan(value_TN))
    bridged_TNK = np.diff(bridged_TNK, d, axis=0)
    panel = _Panel(bridged_TNK[..., 0], bridged_TNK[..., 1:], counts_TN, group_N, p, q)
    at_GK, loss_G = panel.fit_groups()
    parts = (np.split(at_K, np.cumsum([covariates_TND.shape[2], p])) for at_K in at_GK)
    return [Coefficients(covariates, ar, ma) for covariates, ar, ma in parts], loss_G


@dataclass(frozen=True, eq=False)
class _Panel:
    """Differenced series and covariates, which innovations count, the group of each series, and the orders p and q."""

    value_TN: Array
    covariates_TND: Array
    is_scored_TN: NDArray[np.bool_]
    group_N: NDArray[np.int64]
    p: int
    q: int

    def fit_groups(self) -> tuple[Array, Array]:
        """Return the best coefficients and losses, by Gauss-Newton steps with damping where they overshoot."""
        at_GK, loss_G = self.initial_coefficients()
        damping_G = np.full(len(at_GK), 1e-4)  # as a share of the curvature
        going = np.arange(len(at_GK) if at_GK.shape[1] else 0)  # a random walk has no coefficients
        for _ in range(30):  # most fits need fewer than ten
            if not len(going):
                break
            # Only groups that still improve are computed: most end within a few steps.
            panel, loss = self.select_groups(going), loss_G[going]
            candidate_GK = panel.gauss_newton_step(at_GK[going], damping_G[going])
            candidate_loss_G = panel.loss(panel.innovations(candidate_GK))
            better_G = candidate_loss_G < loss
            at_GK[going[better_G]], loss_G[going[better_G]] = candidate_GK[better_G], candidate_loss_G[better_G]
            # Levenberg-Marquardt: after progress trust the quadratic model more, after an overshoot much less.
            damping_G[going] *= np.where(better_G, 0.1, 100.0)
            fell_G = loss - candidate_loss_G > 1e-5 * loss
            going = going[np.where(better_G, fell_G, damping_G[going] < 1e3)]
        return at_GK, loss_G

    def select_groups(self, groups: NDArray[np.int64]) -> _Panel:
        """Return the series of these groups, with the groups renumbered from 0."""
        place_G = np.full(int(self.group_N.max()) + 1, -1)
        place_G[groups] = np.arange(len(groups))
        chosen = np.flatnonzero(place_G[self.group_N] >= 0)
        parts = (self.value_TN[:, chosen], self.covariates_TND[:, chosen], self.is_scored_TN[:, chosen])
        return _Panel(*parts, place_G[self.group_N[chosen]], self.p, self.q)

    def split(self, coefficients_GK: Array) -> tuple[Array, Array, Array]:
        """Return the coefficients of covariates, past values and past innovations, of each series."""
        at_NK = coefficients_GK[self.group_N]
        covariates = self.covariates_TND.shape[2]
        return at_NK[:, :covariates], at_NK[:, covariates : covariates + self.p], at_NK[:, covariates + self.p :]

    def regression_errors(self, covariates_ND: Array) -> Array:
        """Return what the covariates do not explain, ``[T, N]``."""
        error_TN = self.value_TN.copy()
        for d, weight_N in enumerate(covariates_ND.T):
            error_TN -= weight_N * self.covariates_TND[:, :, d]
        return error_TN

    def innovations(self, coefficients_GK: Array) -> Array:
        covariates_ND, ar_NP, ma_NQ = self.split(coefficients_GK)
        return _invert_moving_average(_whiten(self.regression_errors(covariates_ND), ar_NP), ma_NQ)

    def loss(self, innovation_TN: Array) -> Array:
        square_N = np.square(innovation_TN * self.is_scored_TN).sum(axis=0)
        return self.sum_by_group(square_N) / self.sum_by_group(self.is_scored_TN.sum(axis=0).astype(np.float64))

    def sum_by_group(self, values_N: Array) -> Array:
        """Return the sums over the series of each group."""
        total_G = np.zeros((int(self.group_N.max()) + 1, *values_N.shape[1:]))
        np.add.at(total_G, self.group_N, values_N)
        return total_G

    def bound_roots(self, coefficients_GK: Array) -> Array:
        """Return the coefficients with roots moved inside the bounds within which the model forgets.

        A moving-average root nearer to 1 would never forget what a jump made obsolete.
        """
        covariates_GD, ar_GP, ma_GQ = np.split(
            coefficients_GK, np.cumsum([self.covariates_TND.shape[2], self.p]), axis=1
        )
        return np.concatenate([covariates_GD, -_shrink_roots(-ar_GP, 0.99), _shrink_roots(ma_GQ, 0.95)], axis=1)

    def gauss_newton_step(self, coefficients_GK: Array, damping_G: Array) -> Array:
        """Return the coefficients after one damped Gauss-Newton step on the derivatives of the innovations."""
        covariates_ND, ar_NP, ma_NQ = self.split(coefficients_GK)
        error_TN = self.regression_errors(covariates_ND)
        innovation_TN = _invert_moving_average(_whiten(error_TN, ar_NP), ma_NQ)
        columns = [
            _invert_moving_average(_whiten(column_TN, ar_NP), ma_NQ)
            for column_TN in np.moveaxis(self.covariates_TND, 2, 0)
        ]
        columns += _lagged_panels(_invert_moving_average(error_TN, ma_NQ), self.p)
        columns += _lagged_panels(_invert_moving_average(innovation_TN, ma_NQ), self.q)
        return self.bound_roots(
            coefficients_GK + _solve_damped(*self.normal_equations(columns, innovation_TN), damping_G)
        )

    def normal_equations(self, columns: list[Array], target_TN: Array) -> tuple[Array, Array]:
        """Return the sums of products, over the values that count, of inputs with each other and with the target."""
        count, series = len(columns), len(self.group_N)
        counted = [column_TN * self.is_scored_TN for column_TN in columns]
        each_NKK, target_NK = np.empty((series, count, count)), np.empty((series, count))
        for i, one_TN in enumerate(counted):
            target_NK[:, i] = np.einsum("tn,tn->n", one_TN, target_TN)
            for j in range(i + 1):
                each_NKK[:, i, j] = each_NKK[:, j, i] = np.einsum("tn,tn->n", one_TN, counted[j])
        return self.sum_by_group(each_NKK), self.sum_by_group(target_NK)

    def regress(self, columns: list[Array], target_TN: Array) -> Array:
        return _solve_damped(*self.normal_equations(columns, target_TN), np.zeros(int(self.group_N.max()) + 1))

    def initial_coefficients(self) -> tuple[Array, Array]:
        """Return the best of several starts for each group (none, one or both kinds of memory), and the losses."""
        covariates_GD = self.regress(list(np.moveaxis(self.covariates_TND, 2, 0)), self.value_TN)
        error_TN = self.regression_errors(covariates_GD[self.group_N])
        groups = len(covariates_GD)
        ar_GP = self.regress(_lagged_panels(error_TN, self.p), error_TN)
        starts = [np.zeros((groups, self.p + self.q)), np.concatenate([ar_GP, np.zeros((groups, self.q))], axis=1)]
        if self.q:
            long = _lagged_panels(error_TN, LONG_AR_LAGS)
            explained = zip(long, self.regress(long, error_TN)[self.group_N].T, strict=True)
            innovation_TN = error_TN - sum(lag_TN * weight_N for lag_TN, weight_N in explained)
            both = [*_lagged_panels(error_TN, self.p), *_lagged_panels(innovation_TN, self.q)]
            starts.append(self.regress(both, error_TN))
            # With every other value missing, no memory is a saddle: no lag of one is ever seen, and a fit would stay.
            starts.append(np.zeros((groups, self.p + self.q)))
            # differenced speeds mostly have a negative moving average
            starts[-1][:, self.p] = -0.5
        # The loss has several minima with moving averages, so the best of several starts is taken for each group.
        at_SGK = np.stack([self.bound_roots(np.concatenate([covariates_GD, start], axis=1)) for start in starts])
        loss_SG = np.stack([self.loss(self.innovations(at_GK)) for at_GK in at_SGK])
        best_G = loss_SG.argmin(axis=0)
        return at_SGK[best_G, np.arange(groups)], loss_SG.min(axis=0)


def corrected_aic(loss: float, values: int, coefficients: int) -> float:
    """Return Akaike's criterion of a least-squares fit, corrected for few values."""
    k = coefficients + 1
    # A constant series has a loss of zero, whose logarithm would be -inf.
    return values * float(np.log(max(loss, 1e-300))) + 2.0 * k + 2.0 * k * (k + 1) / max(values - k - 1, 1)


def fit_likelihood(value_T: Array, covariates_TD: Array, order: Order) -> Coefficients:
    """Return statsmodels' maximum likelihood fit; a column of ones among the covariates stands for the constant."""
    require("statsmodels", needed_by='ARIMA(method="likelihood")', extra="arima")
    from statsmodels.tsa.arima import model as reference

    exog = covariates_TD if covariates_TD.shape[1] else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the only one that matters, non-convergence, is read from the result
        result = reference.ARIMA(value_T, exog=exog, order=order, trend="n").fit()
    if not result.mle_retvals["converged"]:
        logger.warning(
            "the likelihood of ARIMA%s did not converge, so its last coefficients are used; fit it to longer traces, "
            "or choose a smaller order",
            order,
        )
    covariates, ar, ma = np.split(np.asarray(result.params)[:-1], np.cumsum([covariates_TD.shape[1], order[0]]))
    return Coefficients(covariates, ar, ma)


# -- what the fits are made of -----------------------------------------------------------------------------------


def _solve_damped(curvature_GKK: Array, slope_GK: Array, damping_G: Array) -> Array:
    """Return the solution of each group's damped normal equations.

    A tiny ridge keeps the system regular: a constant covariate, say, gets a coefficient near zero.
    """
    diagonal_GK = np.einsum("gkk->gk", curvature_GKK)
    ridge_GK = 1e-12 * diagonal_GK.max(axis=1, keepdims=True, initial=0.0) + 1e-300
    added_GK = damping_G[:, None] * diagonal_GK + ridge_GK
    damped_GKK = curvature_GKK + added_GK[:, :, None] * np.eye(added_GK.shape[1])
    return np.asarray(np.linalg.solve(damped_GKK, slope_GK[..., None])[..., 0])


def _whiten(panel_TN: Array, ar_NP: Array) -> Array:
    """Return what past values do not explain, ``[T, N]``."""
    whitened_TN = panel_TN.copy()
    for i, ar_N in enumerate(ar_NP.T):
        whitened_TN[i + 1 :] -= ar_N * panel_TN[: -i - 1]
    return whitened_TN


def _invert_moving_average(panel_TN: Array, ma_NQ: Array) -> Array:
    """Return the innovations that a moving average turns into this panel: all series at once, in doubling lags."""
    forgotten_TN = panel_TN
    # Doubling lags need log2(T) steps over whole panels, where the recursion would need T steps in Python.
    for root_N in _inverse_roots(ma_NQ).T:  # 1 / (1 - r B) = (1 + r B) (1 + r^2 B^2) (1 + r^4 B^4) ...
        forgotten_TN, lag, power_N = forgotten_TN.astype(root_N.dtype), 1, root_N
        # a past innovation of a smaller share is below the rounding error of float64
        while lag < len(panel_TN) and np.abs(power_N).max() > 1e-17:
            forgotten_TN[lag:] += power_N * forgotten_TN[:-lag]
            lag, power_N = 2 * lag, np.square(power_N)
    return np.real(forgotten_TN)


def _inverse_roots(coefficients_NK: Array) -> NDArray[Any]:
    """Return the inverse roots of each row's ``1 + c[0] z + c[1] z**2 ...``; complex if any of them is."""
    count = coefficients_NK.shape[1]
    if count < 2:
        return -coefficients_NK
    companion_NKK = np.zeros((len(coefficients_NK), count, count)) + np.eye(count, k=-1)
    companion_NKK[:, 0] = -coefficients_NK
    return np.linalg.eigvals(companion_NKK)


def _lagged_panels(panel_TN: Array, num_lags: int) -> list[Array]:
    """Return the panel one iteration later, two later, and so on."""
    return [np.concatenate([np.zeros_like(panel_TN[:lag]), panel_TN[:-lag]]) for lag in range(1, num_lags + 1)]


def _shrink_roots(coefficients_GK: Array, largest: float) -> Array:
    """Scale the coefficients of ``1 + c[0] z + c[1] z**2 ...`` so that no inverse root is larger than ``largest``."""
    size_G = np.abs(_inverse_roots(coefficients_GK)).max(axis=1, initial=0.0)
    # Multiplying coefficient k by s**k multiplies every inverse root by s.
    shrunk_G1 = np.minimum(1.0, largest / np.maximum(size_G, largest))[:, None]
    return np.asarray(coefficients_GK * shrunk_G1 ** np.arange(1, coefficients_GK.shape[1] + 1))


def _fill_gaps(panel_TNK: Array, missing_TN: NDArray[np.bool_]) -> Array:
    """Return the panel with the last value held in gaps, and the first one before it.

    No later value enters: the fit would learn to read a straight line off. Covariates are bridged wherever the values
    are: a bridged value beside a measured covariate would look like a jump.
    """
    import pandas as pd

    known_TNK = np.where(missing_TN[..., None], np.nan, panel_TNK)
    bridged = pd.DataFrame(known_TNK.reshape(len(known_TNK), -1)).ffill().bfill().fillna(0.0)
    return bridged.to_numpy().reshape(known_TNK.shape)
