"""NARX: a nonlinear autoregression on past speeds and on past and current covariates.

Axes: W workers, D covariates, P speed lags, Q covariate lags, F inputs of the network, L inputs of the linear path
and of a worker's correction, T iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from paceline._arrays import Array
from paceline.predictors.fitting import FitOptions
from paceline.predictors.fleet import require_int
from paceline.predictors.linear import example_penalty, rls_step, running_scale, target_change
from paceline.predictors.network import (
    LOG_SPEED_RANGE,
    Columns,
    Network,
    Training,
    Windows,
    WorkerStates,
    residual_layer,
)

if TYPE_CHECKING:
    from paceline.datasets import Trace


SMOOTHINGS = np.array([0.4, 0.1, 0.02])
"""Weights of the newest iteration in a worker's averages of log speed and of covariates."""

RIDGE_STRENGTHS = (100.0, 10_000.0)
"""How strongly the linear path is shrunk, in windows; validation chooses. Less than 100 makes it worse where the second
half of a trace is unlike the first."""

CORRECTION_VARIANCES = (0.01, 0.05)
"""How far a worker is expected to differ from the network, as variances of its correction's weights: of past speeds, in
running scales, and of covariates, in standard deviations. A third of the first is worse on most sets."""

DEFAULT_TRAINING = Training()


class ExpectedChange(NamedTuple):
    """The next change of log speed, in running scales: the network's, and each worker's correction of it."""

    network_W: Array
    inputs_WL: Array
    unbounded_W: Array
    correction_W: Array


class NARX(Network):
    """Nonlinear autoregressive network with exogenous inputs: the speed predictor of LB-BSP.

    A linear path forecasts the change of log speed, in absolute terms, because a covariate takes a share of the speed:
    from the last ``lags`` speeds, from averages of the speed and of each covariate at three rates, and from the newest
    change of each covariate. A tanh layer, with a direct path beside it, corrects that forecast. Two tapped delay lines
    feed it, of the last ``lags`` speeds and of the covariates sampled now and at the last ``covariate_lags``
    boundaries. Its output, and past speeds as it sees them, are in units of each worker's own running scale, so one
    network, fitted over all workers, serves workers of any speed.

    The linear path is fitted in closed form, and the network to what it leaves. A network without the path is fitted
    too, and is what serves unless the path is clearly better on the part of the traces that validates. Before the fit,
    the forecast is the last speed.

    While it serves, each worker learns a linear correction of the network by recursive least squares, since one network
    for all cannot know that a covariate slows one worker more than another. The correction counts as far as it has
    made that worker's recent forecasts better.

    Parameters
    ----------
    lags
        Number of past speeds it sees, at least 1.
    covariate_lags
        Number of past boundaries whose covariates it sees in addition to the current one, at least 1.
    hidden
        Units of the tanh layer.
    covariates
        Names of the covariates to use; ``None`` takes all that the fitted traces share, ``()`` uses none.
    training
        How the network is trained.

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
        covariate_lags: int = 2,
        hidden: int = 16,
        covariates: Sequence[str] | None = None,
        training: Training = DEFAULT_TRAINING,
    ) -> None:
        for name, value in (("lags", lags), ("covariate_lags", covariate_lags), ("hidden", hidden)):
            require_int(name, value, minimum=1)
        super().__init__(covariates)
        self.lags = lags
        self.covariate_lags = covariate_lags
        self.hidden = hidden
        self.training = training
        self._cached: tuple[Array, Array, ExpectedChange] | None = None

    def _fit_weights(self, windows: Windows, fit_options: FitOptions) -> dict[str, Array]:
        from paceline.predictors.torch_fit import fit_residual

        fitted = partial(fit_residual, windows, self.lags - 1, self.hidden, self.training, fit_options)
        if self.weights_:
            return fitted(self.weights_["linear"], self.weights_)
        tapped = (self.covariate_lags + 1) * len(self.covariate_names_)
        prior_L = np.zeros(windows.width("inputs") - tapped)
        prior_L[self.lags - 1] = -0.5  # halfway from the last speed to its fastest average
        paths = [fit_linear_path(windows, prior_L, strength) for strength in RIDGE_STRENGTHS]
        linear = min(
            paths, key=lambda path_L: huber_loss(windows, lambda inputs_NF: inputs_NF[:, : len(path_L)] @ path_L)
        )
        alone, with_path = fitted(np.zeros_like(linear)), fitted(linear)
        # keep the linear path only if it takes away 3% of the validation loss: it assumes that speeds return
        # to their means
        gains = self._validation_loss(windows, with_path) < 0.97 * self._validation_loss(windows, alone)
        return with_path if gains else alone

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        covariates, variance_L = len(self.covariate_names_), self._correction_variance()
        return {
            "log_speed": np.full((num_workers, self.lags), np.nan),
            "scale": np.full(num_workers, np.nan),
            "seen": np.zeros(num_workers),
            "averages": np.zeros((num_workers, 1 + covariates, len(SMOOTHINGS))),
            "past_covariates": np.zeros((num_workers, self.covariate_lags, covariates)),
            "correction": np.zeros((num_workers, len(variance_L))),
            "covariance": np.tile(np.diag(variance_L), (num_workers, 1, 1)),
            "loss_saved": np.zeros(num_workers),
        }

    def _correction_variance(self) -> Array:
        """Return the variance of each weight of a correction before it learns, ``[L]``."""
        past, driven = self.lags - 1 + len(SMOOTHINGS), (len(SMOOTHINGS) + 1) * len(self.covariate_names_)
        return np.repeat(CORRECTION_VARIANCES, [past, driven])

    def _advance(self, worker_states: WorkerStates, log_speed_W: Array, covariates_WD: Array) -> WorkerStates:
        """Return the state one iteration later; a worker that did not report keeps its past speeds and averages."""
        standard_WD = self._standardize_covariates(worker_states, covariates_WD)
        change_W = np.abs(log_speed_W - worker_states["log_speed"][:, 0])
        # The newest change weighs 5% in a worker's running scale.
        smoothed_W = worker_states["scale"] + 0.05 * (change_W - worker_states["scale"])
        # Plain means at first: until a worker has reported so often, the newest report counts as much as each before.
        rate_WS = np.maximum(SMOOTHINGS, 1.0 / (worker_states["seen"][:, None] + 1.0))
        newest_WV = np.concatenate([log_speed_W[:, None], standard_WD], axis=1)
        later = {
            "log_speed": np.concatenate([log_speed_W[:, None], worker_states["log_speed"][:, :-1]], axis=1),
            "scale": np.where(np.isfinite(smoothed_W), smoothed_W, change_W),
            "seen": worker_states["seen"] + 1.0,
            "averages": worker_states["averages"]
            + rate_WS[:, None] * (newest_WV[:, :, None] - worker_states["averages"]),
        }
        seen_W = np.isfinite(log_speed_W)
        if not seen_W.all():
            for name, new in later.items():
                later[name] = np.where(seen_W.reshape(-1, *[1] * (new.ndim - 1)), new, worker_states[name])
        past_WQD = np.concatenate([standard_WD[:, None], worker_states["past_covariates"][:, :-1]], axis=1)
        return worker_states | later | {"past_covariates": past_WQD}

    def _next_log_speed(self, worker_states: dict[str, Array], covariates_WD: Array) -> Array:
        last_W = worker_states["log_speed"][:, 0]
        if not self.weights_:
            return last_W
        expected = self._expect_change(worker_states, covariates_WD)
        # the odds of the corrected forecast against the network's alone
        share_W = 1.0 / (1.0 + np.exp(-worker_states["loss_saved"]))
        change_W = expected.network_W + share_W * expected.correction_W
        return np.asarray(np.clip(last_W + running_scale(worker_states) * change_W, *LOG_SPEED_RANGE))

    def _expect_change(self, worker_states: WorkerStates, covariates_WD: Array) -> ExpectedChange:
        """Return the next change of log speed, cached from the forecast until its iteration is learned."""
        cached = self._cached
        if cached is None or cached[0] is not worker_states["log_speed"] or cached[1] is not covariates_WD:
            inputs_WF = self._inputs(worker_states, covariates_WD)
            network_W = residual_layer(np, self.weights_, self.lags - 1, inputs_WF)
            inputs_WL = self._correction_inputs(inputs_WF, running_scale(worker_states))
            sum_W = (inputs_WL * worker_states["correction"]).sum(axis=1)
            # at most 10 running scales, whatever a worker has learned
            expected = ExpectedChange(network_W, inputs_WL, sum_W, np.clip(sum_W, -10.0, 10.0))
            cached = self._cached = (worker_states["log_speed"], covariates_WD, expected)
        return cached[2]

    def _correction_inputs(self, inputs_WF: Array, scale_W: Array) -> Array:
        """Return past speeds in running scales, at most 5, and covariates in standard deviations, at most 4."""
        past = self.lags - 1 + len(SMOOTHINGS)
        inputs_WL = inputs_WF[:, : past + (len(SMOOTHINGS) + 1) * len(self.covariate_names_)].copy()
        np.clip(inputs_WL[:, :past], -5.0, 5.0, out=inputs_WL[:, :past])
        inputs_WL[:, past:] = np.clip(inputs_WL[:, past:] * scale_W[:, None], -4.0, 4.0)
        return inputs_WL

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        log_speed_W = np.log(speed_W)
        if self.weights_:
            self._learn_correction(log_speed_W, covariates_WD)
        self.state = self._advance(self.state, log_speed_W, covariates_WD)

    def _learn_correction(self, log_speed_W: Array, covariates_WD: Array) -> None:
        """Learn what the network missed, and whether the correction was right; a silent worker learns nothing."""
        worker_states, expected = self.state, self._expect_change(self.state, covariates_WD)
        missed_W = target_change(worker_states, log_speed_W, running_scale(worker_states)) - expected.network_W
        saved_W = huber(missed_W) - huber(missed_W - expected.correction_W)
        before_W = worker_states["loss_saved"]
        worker_states["loss_saved"] = np.where(np.isfinite(saved_W), 0.99 * before_W + saved_W, before_W)
        error_W = missed_W - expected.unbounded_W
        rls_step(
            worker_states["correction"],
            worker_states["covariance"],
            expected.inputs_WL,
            error_W,
            example_penalty(error_W, expected.inputs_WL, expected.inputs_WL.shape[1]),
            max_trace=float(self._correction_variance().sum()),
        )

    def _inputs(self, worker_states: dict[str, Array], covariates_WD: Array) -> Array:
        """Return what the linear path sees, all of it in running scales, then the covariates now and in the past."""
        log_speed_WP, past_WQD, count = worker_states["log_speed"], worker_states["past_covariates"], len(covariates_WD)
        standard_WD, last_W1 = self._standardize_covariates(worker_states, covariates_WD), log_speed_WP[:, :1]
        above_WVS = np.concatenate([last_W1, standard_WD], axis=1)[:, :, None] - worker_states["averages"]
        moves = (last_W1 - log_speed_WP[:, 1:], above_WVS.reshape(count, -1), standard_WD - past_WQD[:, 0])
        moves_WL = np.concatenate(moves, axis=1) / running_scale(worker_states)[:, None]
        moves_WL[np.isnan(moves_WL)] = 0.0  # not known yet
        past_WP = moves_WL[:, : self.lags - 1 + len(SMOOTHINGS)]
        # at most 20 running scales from the last, the most that a single jump is at first
        np.clip(past_WP, -20.0, 20.0, out=past_WP)
        return np.concatenate([moves_WL, standard_WD, past_WQD.reshape(count, -1)], axis=1)

    def _standardize_covariates(self, worker_states: WorkerStates, covariates_WD: Array) -> Array:
        """Return the covariates in deviations from their mean; a missing one keeps its previous value."""
        if not self.covariate_names_:
            return covariates_WD
        # clipped at 10 standard deviations: the network was not fitted farther out
        standard_WD = np.clip((covariates_WD - self.covariate_mean_) / self.covariate_scale_, -10.0, 10.0)
        return np.where(np.isnan(standard_WD), worker_states["past_covariates"][:, 0], standard_WD)

    def _make_examples(self, fit_options: FitOptions, trace: Trace) -> Iterator[Columns]:
        roles = fit_options.window_roles(trace, self.training.validation)
        for (used_W, validates), replayed in zip(roles, self.replay_trace(trace), strict=True):
            worker_states, covariates_WD, log_speed_W = replayed
            target_W = target_change(worker_states, log_speed_W, running_scale(worker_states))
            usable_W = used_W & np.isfinite(target_W)
            columns = {"inputs": self._inputs(worker_states, covariates_WD), "targets": target_W}
            columns["validates"] = np.full(len(usable_W), validates)
            yield {name: column[usable_W] for name, column in columns.items()}

    def _validation_loss(self, windows: Windows, weights: Mapping[str, Array]) -> float:
        return huber_loss(windows, partial(residual_layer, np, weights, self.lags - 1))


def huber(error: Array) -> Array:
    """Return half the square of errors up to 1, and the size of larger ones, less one half."""
    size = np.abs(error)
    return np.where(size < 1.0, np.square(size) / 2.0, size - 0.5)


def huber_loss(windows: Windows, forecast: Callable[[Array], Array]) -> float:
    """Return the mean Huber loss of forecasts from inputs ``[N, F]``, over the windows that validate."""
    losses = []
    for inputs_NF, targets_N in _iter_blocks(windows, for_validation=True):
        losses.append(huber(forecast(inputs_NF) - targets_N))
    return float(np.concatenate(losses).mean())


def fit_linear_path(windows: Windows, prior_L: Array, strength: float) -> Array:
    """Return the robust ridge regression of the targets on the first inputs, over the windows that do not validate.

    It is shrunk toward a prior, as by so many windows.
    """
    weights_L = prior_L
    for bound in (np.inf, 3.0, 3.0, 3.0):  # errors beyond 3 running scales count linearly
        gram_LL, moment_L = strength * np.eye(len(prior_L)), strength * prior_L
        for inputs_NF, targets_N in _iter_blocks(windows, for_validation=False):
            inputs_NL = inputs_NF[:, : len(prior_L)]
            error_N = np.abs(targets_N - inputs_NL @ weights_L)
            weighted_NL = inputs_NL * np.minimum(1.0, bound / np.maximum(error_N, 1e-9))[:, None]
            gram_LL += weighted_NL.T @ inputs_NL
            moment_L += weighted_NL.T @ targets_N
        weights_L = np.asarray(np.linalg.solve(gram_LL, moment_L), dtype=np.float64)
    return weights_L


def _iter_blocks(windows: Windows, for_validation: bool) -> Iterator[tuple[Array, Array]]:
    """Yield the inputs and targets of those windows that validate, or of the others, block by block."""
    records = windows.records
    # A window that is not finite is left to the training, which names the trace that it comes from.
    row_N = np.flatnonzero((records["validates"] == for_validation) & np.isfinite(records["inputs"]).all(axis=1))
    for begin in range(0, len(row_N), 4096):
        chosen = records[row_N[begin : begin + 4096]]
        yield chosen["inputs"].astype(np.float64), chosen["targets"].astype(np.float64)
