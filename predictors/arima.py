"""ARIMA with covariates: a regression on the covariates whose errors are an ARIMA, served by a Kalman filter.

Axes: T iterations, W workers, N fitted series, D covariates, S states.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline._runtime import map_calls
from paceline.predictors.arima_fit import Coefficients, Order, corrected_aic, fit_css, fit_likelihood
from paceline.predictors.fitting import FitOptions
from paceline.predictors.fleet import FleetPredictor, require_int, validated_covariate_names
from paceline.predictors.protocol import MAX_SPEED, MAX_VALUE, MIN_SPEED

if TYPE_CHECKING:
    from paceline.datasets import Trace


@dataclass(frozen=True, eq=False)
class StateSpace:
    """ARIMA in Harvey's form: first the states that differencing removed, then the states of the ARMA.

    The value is ``design . state``; the next state is ``transition @ state + selection * innovation``.
    """

    transition_WSS: Array
    selection_WS: Array
    design_S: Array
    initial_covariance_WSS: Array
    """Covariance of the first state: stationary for the ARMA, diffuse for the rest."""

    def filter_step(self, state_WS: Array, covariance_WSS: Array, value_W: Array) -> tuple[Array, Array]:
        """Return the next state and its covariance after this value; NaN means no value, so only time passes."""
        seen_W = np.isfinite(value_W)
        value_covariance_WS = covariance_WSS @ self.design_S
        variance_W = value_covariance_WS @ self.design_S
        gain_WS = np.where(seen_W[:, None], value_covariance_WS / variance_W[:, None], 0.0)
        innovation_W = np.where(seen_W, value_W - state_WS @ self.design_S, 0.0)
        known_WSS = covariance_WSS - gain_WS[:, :, None] * value_covariance_WS[:, None, :]
        moved_WSS = self.transition_WSS @ known_WSS @ self.transition_WSS.transpose(0, 2, 1)
        noise_WSS = self.selection_WS[:, :, None] * self.selection_WS[:, None, :]
        return self._advance(state_WS + gain_WS * innovation_W[:, None]), moved_WSS + noise_WSS

    def forecast(self, state_WS: Array, horizon: int) -> Array:
        """Return the value expected ``horizon`` iterations ahead; at 1 it is the iteration of this state."""
        for _ in range(horizon - 1):
            state_WS = self._advance(state_WS)
        return np.asarray(state_WS @ self.design_S)

    def _advance(self, state_WS: Array) -> Array:
        return np.asarray((self.transition_WSS @ state_WS[:, :, None])[:, :, 0])


def count_states(order: Order) -> int:
    """Return the number of states of an ARIMA of this order (p, d, q)."""
    p, d, q = order
    return d + max(p, q + 1)


def make_state_space(ar_WP: Array, ma_WQ: Array, num_differences: int) -> StateSpace:
    """Return the state spaces of ARIMA models of one order, one for each row of coefficients.

    The signs are those of statsmodels: ``y[t] = ar . y[t-1, ...] + e[t] + ma . e[t-1, ...]``.
    """
    count, p, q = len(ar_WP), ar_WP.shape[1], ma_WQ.shape[1]
    size = count_states((p, num_differences, q))
    transition_WSS = np.zeros((count, size, size))
    transition_WSS[:, :num_differences, : num_differences + 1] = np.triu(
        np.ones((num_differences, num_differences + 1))
    )
    transition_WSS[:, num_differences : num_differences + p, num_differences] = ar_WP
    transition_WSS[:, range(num_differences, size - 1), range(num_differences + 1, size)] = 1.0
    selection_WS = np.zeros((count, size))
    selection_WS[:, num_differences] = 1.0
    selection_WS[:, num_differences + 1 : num_differences + 1 + q] = ma_WQ
    initial_covariance_WSS = np.zeros((count, size, size))
    # as unknown as statsmodels' approximate diffuse start, in units of the innovations' variance
    initial_covariance_WSS[:, range(num_differences), range(num_differences)] = 1e6
    initial_covariance_WSS[:, num_differences:, num_differences:] = _stationary_covariance(
        transition_WSS[:, num_differences:, num_differences:], selection_WS[:, num_differences:]
    )
    design_S = (np.arange(size) <= num_differences).astype(np.float64)
    return StateSpace(transition_WSS, selection_WS, design_S, initial_covariance_WSS)


def _stationary_covariance(transition_WSS: Array, selection_WS: Array) -> Array:
    """Solve ``covariance = T covariance T' + R R'`` for each worker, as one linear system of S * S unknowns."""
    count, size = selection_WS.shape
    # vec(T C T') = (T kron T) vec(C) turns the matrix equation into an ordinary linear system.
    kron = np.einsum("wij,wkl->wikjl", transition_WSS, transition_WSS).reshape(count, size**2, size**2)
    noise = np.einsum("wi,wj->wij", selection_WS, selection_WS).reshape(count, size**2, 1)
    return np.asarray(np.linalg.solve(np.eye(size**2) - kron, noise).reshape(count, size, size))


CLIP_RANGE = (-10.0, 10.0)
"""Standard deviations at which covariates are clipped."""

POOLED_KEY = ""
"""Key of the coefficients for unknown workers: no worker can have an empty name."""


class ARIMA(FleetPredictor):
    """Autoregression and moving average of the differenced speeds, after a regression on the covariates.

    ``fit`` learns coefficients for each worker by name, and common ones for unknown workers. A Kalman filter serves
    them and skips gaps. Before the fit it is an ARIMA(0,1,1) with the moving-average coefficient -0.7, which equals an
    EWMA of weight 0.3.

    Parameters
    ----------
    order
        Autoregressive lags p, differences d and moving-average lags q; ``None`` chooses p and q up to 2, at one
        difference, by the corrected AIC over all workers (no p, q up to 1, and a warning where most speeds follow a
        gap). Without differences (d = 0) forecasts revert to the mean of the fitted trace, even if the speed has
        settled elsewhere, or of the speeds so far for a worker that was not fitted.
    covariates
        Names of the covariates to use; ``None`` takes all that the fitted traces share, ``()`` uses none.
    method
        ``"css"``, the conditional sum of squares, or ``"likelihood"``, statsmodels' maximum likelihood on the worker's
        longest trace. The common coefficients always come from css.
    log_speed
        Whether it models the log speed, so that forecasts are positive and noise is relative.

    Notes
    -----
    The model is that of statsmodels' ``ARIMA(exog=...)``. The state space is that of A. C. Harvey, *Forecasting,
    structural time series models and the Kalman filter*, 1989; the fit's start is that of E. J. Hannan and
    J. Rissanen, "Recursive estimation of mixed autoregressive-moving average order", Biometrika 69, 1982.

    Examples
    --------
    >>> from paceline.datasets import Trace
    >>> from paceline.predictors import ARIMA
    >>> rng = np.random.default_rng(0)
    >>> noise_TW = rng.normal(size=(500, 1))
    >>> speed_TW = 100 + np.cumsum(noise_TW, axis=0) - 0.6 * np.cumsum(np.vstack([[[0]], noise_TW[:-1]]), axis=0)
    >>> model = ARIMA(order=(0, 1, 1), log_speed=False)
    >>> model = model.fit([Trace(samples=np.ones((500, 1)), seconds=1 / speed_TW, workers=["a"])])
    >>> model.coefficients_["a"].ma.round(2)
    array([-0.62])
    """

    skipped_checks: ClassVar[Mapping[str, str]] = {
        "a_missing_report_changes_nothing": "its Kalman filter lets time pass for a silent worker: the state moves on"
    }

    def __init__(
        self,
        order: Sequence[int] | None = None,
        covariates: Sequence[str] | None = None,
        method: str = "css",
        log_speed: bool = True,
    ) -> None:
        if order is not None:
            order = _validate_order(order)
        if method not in {"css", "likelihood"}:
            raise ValueError(f"method must be 'css' or 'likelihood', got {method!r}")
        super().__init__()
        self.order = order
        self.covariates = None if covariates is None else validated_covariate_names(covariates)
        self.method = method
        self.log_speed = log_speed
        # until fitted, a local level that forecasts like an EWMA of weight 0.3: order (0, 1, 1)
        self.order_ = (0, 1, 1)
        self.covariate_names_: tuple[str, ...] = self.covariates or ()
        count = len(self.covariate_names_)
        self.covariate_mean_, self.covariate_scale_ = np.zeros(count), np.ones(count)
        any_range_2D = np.tile(np.array(CLIP_RANGE)[:, None], count)
        unfitted = Coefficients(np.zeros(count), np.zeros(0), np.array([-0.7]), range_2D=any_range_2D)
        self.coefficients_: dict[str, Coefficients] = {POOLED_KEY: unfitted}
        self._fleet_models: tuple[tuple[str, ...], _FleetModels] | None = None

    def rename(self, old: str, new: str) -> None:
        """Rename a worker; it keeps its place, its model and its state."""
        super().rename(old, new)
        self.coefficients_[new] = self._coefficients_of(old)

    # -- serving -------------------------------------------------------------------------------------------------

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        size = count_states(self.order_)
        return {
            "state": np.zeros((num_workers, size)),
            "covariance": np.full((num_workers, size, size), np.nan),
            "covariates": np.full((num_workers, len(self.covariate_names_)), np.nan),
            "seen": np.zeros(num_workers),
            "mean": np.zeros(num_workers),
        }

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        models, rows = self._stack_fleet_models(), self.state
        standard_WD = self._standardize_covariates(covariates_WD, models.range_2WD)
        value_W = np.log(speed_W) if self.log_speed else speed_W
        error_W = value_W - (standard_WD * models.covariates_WD).sum(axis=1)
        seen_W = np.isfinite(error_W)
        rows["seen"] = rows["seen"] + seen_W
        rows["mean"] = rows["mean"] + np.where(seen_W, error_W - rows["mean"], 0.0) / np.maximum(rows["seen"], 1.0)
        # NaN marks a new worker: its start depends on its coefficients, which `initial_state` does not know.
        covariance_WSS = np.where(np.isnan(rows["covariance"]), models.space.initial_covariance_WSS, rows["covariance"])
        rows["state"], rows["covariance"] = models.space.filter_step(
            rows["state"], covariance_WSS, error_W - self._worker_constants(models)
        )
        rows["covariates"] = standard_WD

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        models = self._stack_fleet_models()
        effect_W = (self._standardize_covariates(covariates_WD, models.range_2WD) * models.covariates_WD).sum(axis=1)
        regular_W = self._worker_constants(models) + effect_W
        value_W = regular_W + models.space.forecast(self.state["state"], horizon)
        # a long trend would overflow
        speed_W = np.exp(np.clip(value_W, np.log(MIN_SPEED), np.log(MAX_SPEED))) if self.log_speed else value_W
        return np.where(self.state["seen"] > 0, speed_W, np.nan)

    def _standardize_covariates(self, covariates_WD: Array, range_2WD: Array) -> Array:
        """Return the covariates in standard deviations, within the range that the worker was fitted to.

        A coefficient means nothing far outside it. A missing covariate keeps its last value, or its mean at first.
        """
        standard_WD = np.clip((covariates_WD - self.covariate_mean_) / self.covariate_scale_, *range_2WD)
        last_WD = np.nan_to_num(self.state["covariates"], nan=0.0)
        return np.where(np.isfinite(standard_WD), standard_WD, last_WD)

    def _worker_constants(self, models: _FleetModels) -> Array:
        return np.where(np.isnan(models.constant_W), self.state["mean"], models.constant_W)

    def _coefficients_of(self, worker: str) -> Coefficients:
        return self.coefficients_.get(worker, self.coefficients_[POOLED_KEY])

    def _stack_fleet_models(self) -> _FleetModels:
        """Return the stacked models of the fleet, cached until the fleet changes."""
        if self._fleet_models is None or self._fleet_models[0] != self.workers:
            fits = list(map(self._coefficients_of, self.workers))
            models = _FleetModels(
                make_state_space(np.stack([f.ar for f in fits]), np.stack([f.ma for f in fits]), self.order_[1]),
                np.stack([fit.covariates for fit in fits]),
                np.array([fit.constant for fit in fits]),
                np.stack([fit.range_2D for fit in fits], axis=1),
            )
            self._fleet_models = (self.workers, models)
        return self._fleet_models[1]

    # -- fitting -------------------------------------------------------------------------------------------------

    def fit_streamed(self, traces: Iterable[Trace], fit_options: FitOptions) -> Self:
        """Fit each worker, and all of them together, with all speeds in memory.

        A warm start keeps the order, the scale of covariates, and the coefficients of workers not in these traces.
        """
        summary = fit_options.summarize(traces)
        traces = list(fit_options.drop_held_out(traces))
        if not traces:
            raise ValueError("traces must hold at least one worker that is not held out, got none: hold out fewer")
        if not fit_options.warm_start:
            self.covariate_names_ = summary.select_covariates(self.covariates, shared_only=True)
            self.covariate_mean_, self.covariate_scale_ = summary.mean_and_scale(self.covariate_names_)
        names, value_TN, covariates_TND = self._build_panel(traces)
        sparse = _warn_if_sparse(value_TN)
        earlier = self.coefficients_ if fit_options.warm_start else {}
        if not fit_options.warm_start:
            # sparse speeds say nothing of autoregression, but a local level's coefficient shows at any distance; all
            # are differenced, because speeds jump and settle at new levels
            orders: list[Order] = [(p, 1, q) for p in range(3) for q in range(3)]
            speeds = int(np.isfinite(value_TN).sum())

            def criterion(order: Order) -> float:
                fit, loss = fit_css(value_TN, covariates_TND, order)
                return corrected_aic(loss, speeds, len(fit.vector))

            self.order_ = self.order or min(orders[:2] if sparse else orders, key=criterion)
        differences = self.order_[1]
        pooled, _ = fit_css(*_center_series(value_TN, covariates_TND, differences), self.order_)
        constant = 0.0 if differences else np.nan
        pooled = replace(pooled, constant=constant, range_2D=_covariate_range(covariates_TND))
        self.coefficients_ = earlier | {POOLED_KEY: pooled}
        # workers with fewer than 10 speeds per coefficient use the coefficients fitted to all workers
        speeds_N, needed = np.isfinite(value_TN).sum(axis=0), 10 * (len(pooled.vector) + 1)
        owned = {name: [n for n, other in enumerate(names) if other == name] for name in dict.fromkeys(names)}
        owned = {name: columns for name, columns in owned.items() if speeds_N[columns].sum() >= needed}
        self._fit_workers(owned, value_TN, covariates_TND)
        # The order may have changed, and with it the number of states in every row.
        self._fleet_models = None
        self.reset(self.workers)
        return self

    def _fit_workers(self, columns_by_worker: Mapping[str, list[int]], value_TN: Array, covariates_TND: Array) -> None:
        """Fit each worker to its own series, with a constant unless differencing removes it."""
        count = covariates_TND.shape[2]
        if not self.order_[1]:
            covariates_TND = np.concatenate([covariates_TND, np.ones((*value_TN.shape, 1))], axis=2)
        fit_one = fit_likelihood if self.method == "likelihood" else fit_css
        calls = [(value_TN[:, n], covariates_TND[:, n], self.order_) for n in columns_by_worker.values()]
        fits = map_calls(fit_one, calls)
        for (name, columns), (fit, _) in zip(columns_by_worker.items(), fits, strict=True):
            range_2D = _covariate_range(covariates_TND[:, columns, :count])
            constant = float(fit.covariates[count:].sum())
            self.coefficients_[name] = Coefficients(fit.covariates[:count], fit.ar, fit.ma, constant, range_2D)

    def _build_panel(self, traces: list[Trace]) -> tuple[list[str], Array, Array]:
        """Return the workers, values and standardized covariates of all traces side by side; short ones end in gaps."""
        import pandas as pd

        names = [worker for trace in traces for worker in trace.workers]
        longest = max(len(trace) for trace in traces)
        value_TN = np.full((longest, len(names)), np.nan)
        covariates_TND = np.zeros((longest, len(names), len(self.covariate_names_)))
        start = 0
        for trace in traces:
            columns = slice(start, start := start + len(trace.workers))
            value_TN[: len(trace), columns] = np.log(trace.speed) if self.log_speed else trace.speed
            if not self.covariate_names_:
                continue
            # the covariates of each iteration as the serving code would have seen them: the last known ones
            raw_TWD = np.asarray(trace.covariates_named(self.covariate_names_))
            known_TWD = np.where(np.abs(raw_TWD) < MAX_VALUE, raw_TWD, np.nan)
            standard_TWD = (known_TWD - self.covariate_mean_) / self.covariate_scale_
            clipped = pd.DataFrame(standard_TWD.reshape(len(trace), -1)).clip(*CLIP_RANGE)
            covariates_TND[: len(trace), columns] = clipped.ffill().fillna(0.0).to_numpy().reshape(raw_TWD.shape)
        return names, value_TN, covariates_TND

    # -- saving --------------------------------------------------------------------------------------------------

    def fitted_state(self) -> dict[str, NDArray[Any]]:
        fits = self.coefficients_.values()
        return {
            "order": np.array(self.order_),
            "covariate_names": np.array(self.covariate_names_, dtype=np.str_),
            "covariate_mean": self.covariate_mean_,
            "covariate_scale": self.covariate_scale_,
            "fitted": np.array(list(self.coefficients_), dtype=np.str_),
            "constant": np.array([fit.constant for fit in fits]),
            "covariates": np.stack([fit.covariates for fit in fits]),
            "ar": np.stack([fit.ar for fit in fits]),
            "ma": np.stack([fit.ma for fit in fits]),
            "ranges": np.stack([fit.range_2D for fit in fits]),
        }

    def load_fitted_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        if not state:  # a state without fitted parameters keeps the present ones, as in all predictors
            return
        self.order_ = _validate_order(state["order"])
        self.covariate_names_ = tuple(map(str, state["covariate_names"]))
        self.covariate_mean_ = np.array(state["covariate_mean"])
        self.covariate_scale_ = np.array(state["covariate_scale"])
        saved = (state[name] for name in ("fitted", "covariates", "ar", "ma", "constant", "ranges"))
        self.coefficients_ = {
            str(name): Coefficients(np.array(covariates), np.array(ar), np.array(ma), float(constant), np.array(ranges))
            for name, covariates, ar, ma, constant, ranges in zip(*saved, strict=True)
        }
        self._fleet_models = None


def _validate_order(order: Sequence[int] | NDArray[np.int64]) -> Order:
    if len(order) != 3:
        raise ValueError(f"order must be three numbers (p, d, q), or None, got {order}")
    # the start of the filter takes memory with the fourth power of the order
    p, d, q = (require_int("order", number, minimum=0, maximum=32) for number in order)
    return p, d, q


@dataclass(frozen=True, eq=False)
class _FleetModels:
    """The models of a fleet; an unfitted constant is NaN."""

    space: StateSpace
    covariates_WD: Array
    constant_W: Array
    range_2WD: Array


def _covariate_range(covariates_TND: Array) -> Array:
    """Return the least and the greatest of each covariate, ``[2, D]``."""
    return np.stack([covariates_TND.min(axis=(0, 1)), covariates_TND.max(axis=(0, 1))])


def _warn_if_sparse(value_TN: Array) -> bool:
    """Return whether too few speeds follow one of the iteration before, as is needed to learn lags; if so, warn."""
    known_TN = np.isfinite(value_TN)
    follow = int((known_TN[1:] & known_TN[:-1]).sum())
    speeds = int(known_TN.sum()) - int(known_TN.any(axis=0).sum())  # the first of a worker follows none
    if follow >= 0.5 * speeds:
        return False
    warnings.warn(
        f"only {follow} of {speeds} speeds directly follow a speed from the previous iteration (at least half must), "
        "so ARIMA cannot learn lags; if only every N-th iteration was logged, number the logged ones 0, 1, 2, ...",
        stacklevel=2,
    )
    return True


def _center_series(value_TN: Array, covariates_TND: Array, num_differences: int) -> tuple[Array, Array]:
    """Subtract each series' own level unless differencing does: series share coefficients, but not a level."""
    if num_differences:
        return value_TN, covariates_TND
    count_N = np.maximum(np.isfinite(value_TN).sum(axis=0), 1)
    return value_TN - np.nansum(value_TN, axis=0) / count_N, covariates_TND - covariates_TND.mean(axis=0)
