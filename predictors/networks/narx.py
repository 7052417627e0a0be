"""NARX: a nonlinear autoregression on past speeds and on past and current covariates.

Axes: W workers, D covariates, P speed lags, Q covariate lags, F inputs of the network, T iterations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Self

import numpy as np

from paceline._arrays import Array
from paceline._require import require
from paceline.predictors.fitting import Fitting, Survey
from paceline.predictors.networks.delay_lines import Rows, situations
from paceline.predictors.networks.network import Network
from paceline.predictors.networks.neural import Examples, Training, tanh_layer
from paceline.predictors.networks.training_passes import collected, require_both
from paceline.predictors.ranges import whole
from paceline.predictors.report import FASTEST, SLOWEST

if TYPE_CHECKING:
    from paceline.datasets import Trace


SCALE_SMOOTHING = 0.05
"""Weight of the newest change in a worker's running scale."""

SMALLEST_SCALE = 1e-3
"""Least running scale: a worker's log speed is taken to change by at least this much between iterations."""

FARTHEST = 10.0
"""A covariate counts as at most this many standard deviations from its mean: farther out, NARX was never fitted."""

LOG_SPEEDS = (np.log(SLOWEST), np.log(FASTEST))


class NARX(Network):
    """Nonlinear autoregressive network with exogenous inputs: the speed predictor of LB-BSP.

    Two tapped delay lines, of the last ``lags`` speeds and of the covariates sampled now and at the last
    ``covariate_lags`` boundaries, feed one tanh layer and a direct linear path beside it. Inputs and output are
    differences of log speed from the last one, in units of each worker's own running scale, so one network, fitted over
    all workers, serves workers of any speed. Past speeds enter twice: as they are, and by their arcsinh, which keeps
    small changes apart where one is large. Before the fit, the forecast is the last speed.

    Parameters
    ----------
    lags
        Number of past speeds it sees, at least 1.
    covariate_lags
        Number of past boundaries whose covariates it sees in addition to the current one, at least 0.
    hidden
        Units of the tanh layer.
    covariates
        Names of the covariates to use; ``None`` takes all that the fitted traces share, ``()`` uses none.
    training
        How the network is trained.

    Raises
    ------
    ValueError
        If a number is out of range, or the traces to fit are too short or lack a covariate.

    Notes
    -----
    ``v[k] = F(v[k-1], ..., v[k-p]; c[k], ..., c[k-q])`` is the model of Chen et al., arXiv 1806.02508. Lags, scaling
    and training are this library's own, because the paper does not give them.

    Examples
    --------
    >>> from paceline.predictors import NARX, Report
    >>> model = NARX(lags=4)
    >>> model.reset(["a"])
    >>> model.observe(Report(samples=[32], seconds=[0.25]))
    >>> model.predict().speed
    array([128.])
    """

    def __init__(
        self,
        lags: int = 12,
        covariate_lags: int = 12,
        hidden: int = 16,
        covariates: Sequence[str] | None = None,
        training: Training | None = None,
    ) -> None:
        for name, value, least in (("lags", lags, 1), ("covariate_lags", covariate_lags, 0), ("hidden", hidden, 1)):
            whole(name, value, least)
        super().__init__(covariates)
        self.lags = lags
        self.covariate_lags = covariate_lags
        self.hidden = hidden
        self.training = training or Training()

    def fit_streamed(self, traces: Iterable[Trace], fitting: Fitting) -> Self:
        """Fit the network to traces that may be read more than once and never all at once. Needs torch."""
        require("torch", needed_by="NARX.fit", extra="torch")
        survey = fitting.surveyed(traces)
        if not fitting.warm:
            self.covariate_names_ = survey.shared_covariates(self.covariates)
            self.covariate_mean_, self.covariate_scale_ = survey.mean_and_scale(self.covariate_names_)
            self.weights_ = {}
        # Measured inputs first: an unfitted network's own forecasts would be useless inputs to learn from.
        for closed_loop in sorted({1, self.training.closed_loop}):
            self._fit_weights(traces, survey, fitting, closed_loop)
        self.reset(self.workers)
        return self

    def _fit_weights(self, traces: Iterable[Trace], survey: Survey, fitting: Fitting, closed_loop: int) -> None:
        from paceline.predictors.networks.torch_fit import fit_tanh_layer

        windows = collected(traces, survey, fitting, partial(self._examples, fitting, closed_loop), closed_loop)
        require_both(windows, fitting, survey, f"{self.lags} lags")
        self.weights_ = fit_tanh_layer(windows, self.lags - 1, self.hidden, self.training, fitting, self.weights_)

    # -- serving -------------------------------------------------------------------------------------------------

    def initial_state(self, count: int) -> dict[str, Array]:
        return {
            "log_speed": np.full((count, self.lags), np.nan),
            "scale": np.full(count, np.nan),
            "past_covariates": np.full((count, self.covariate_lags, len(self.covariate_names_)), np.nan),
        }

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        self.state |= self._moved(self.state, np.log(speed_W), covariates_WD)

    def _moved(self, rows: Rows, log_speed_W: Array, covariates_WD: Array) -> Rows:
        return rows | _shifted(rows, log_speed_W, covariates_WD)

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        rows = self.state
        for _ in range(horizon - 1):  # further ahead, its own forecast is fed back and the covariates stay
            rows = self._moved(rows, self._next_log_speed(rows, covariates_WD), covariates_WD)
        return np.exp(self._next_log_speed(rows, covariates_WD))

    def _next_log_speed(self, rows: dict[str, Array], covariates_WD: Array) -> Array:
        last_W = rows["log_speed"][:, 0]
        if not self.weights_:
            return last_W
        inputs_WF = self._inputs(rows, covariates_WD)
        if inputs_WF.shape[1] < len(self.weights_["w1"]):  # networks that earlier versions fitted see these alone
            inputs_WF = np.concatenate([inputs_WF, _deviations(rows)], axis=1)
        change_W = _scale(rows) * tanh_layer(self.weights_, inputs_WF)
        return np.asarray(np.clip(last_W + change_W, *LOG_SPEEDS))

    def _inputs(self, rows: dict[str, Array], covariates_WD: Array) -> Array:
        # arcsinh is linear for usual changes and logarithmic for jumps: a jump alone does not saturate the tanh layer.
        changes_WP = np.arcsinh(_deviations(rows))
        if not self.covariate_names_:
            return changes_WP
        covariates_WQD = np.concatenate([_filled(rows, covariates_WD)[:, None], rows["past_covariates"]], axis=1)
        standard = np.clip((covariates_WQD - self.covariate_mean_) / self.covariate_scale_, -FARTHEST, FARTHEST)
        standard_WI = np.nan_to_num(standard.reshape(len(changes_WP), -1), copy=False, nan=0.0)
        return np.concatenate([changes_WP, standard_WI], axis=1)

    # -- fitting -------------------------------------------------------------------------------------------------

    def _examples(self, fitting: Fitting, closed_loop: int, trace: Trace) -> Iterator[Examples]:
        roles = list(fitting.roles(trace, self.training.validation))
        for k, rows, covariates_WD, log_speed_W in situations(self, trace, closed_loop):
            used_W, validates = roles[k]
            target_W = (log_speed_W - rows["log_speed"][:, 0]) / _scale(rows)
            usable_W = used_W & np.isfinite(target_W) & np.isfinite(rows["scale"])
            inputs_WF = self._inputs(rows, covariates_WD)
            yield Examples.chosen(usable_W, inputs_WF, target_W, np.full(len(usable_W), validates))


def _scale(rows: dict[str, Array]) -> Array:
    return np.fmax(rows["scale"], SMALLEST_SCALE)  # the least for one not known yet: fmax ignores NaN


def _deviations(rows: dict[str, Array]) -> Array:
    """Return by how many running scales the earlier log speeds differ from the last; 0 where one is not known."""
    lags_WP = rows["log_speed"]
    deviations_WP = (lags_WP[:, 1:] - lags_WP[:, :1]) / _scale(rows)[:, None]
    return np.where(np.isnan(deviations_WP), 0.0, deviations_WP)


def _filled(rows: dict[str, Array], covariates_WD: Array) -> Array:
    """Return the covariates now; a missing one keeps its value of the previous boundary."""
    if not rows["past_covariates"].shape[1]:
        return covariates_WD
    return np.where(np.isfinite(covariates_WD), covariates_WD, rows["past_covariates"][:, 0])


def _shifted(rows: dict[str, Array], log_speed_W: Array, covariates_WD: Array) -> dict[str, Array]:
    """Return the state one iteration later; a worker that did not report keeps its past speeds."""
    seen_W = np.isfinite(log_speed_W)
    lags_WP = rows["log_speed"]
    moved_WP = np.concatenate([log_speed_W[:, None], lags_WP[:, :-1]], axis=1)
    change_W = np.abs(log_speed_W - lags_WP[:, 0])
    smoothed_W = rows["scale"] + SCALE_SMOOTHING * (change_W - rows["scale"])
    scale_W = np.where(np.isfinite(smoothed_W), smoothed_W, change_W)
    past_WQD = np.concatenate([_filled(rows, covariates_WD)[:, None], rows["past_covariates"][:, :-1]], axis=1)
    return {
        "log_speed": moved_WP if seen_W.all() else np.where(seen_W[:, None], moved_WP, lags_WP),
        "scale": np.where(np.isfinite(change_W), scale_W, rows["scale"]),
        "past_covariates": past_WQD[:, : rows["past_covariates"].shape[1]],
    }
