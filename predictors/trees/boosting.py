"""Boosting: regression trees over past speeds and covariates, the strong tabular baseline.

Axes: T iterations, W workers, D covariates, P past speeds, Q past boundaries, S smoothings, F inputs of the trees.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline._require import require
from paceline.predictors.fitting import Fitting, as_traces
from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.ranges import covariate_names, require_int
from paceline.predictors.report import FASTEST, SLOWEST
from paceline.predictors.trees.forest import MAX_STEPS, Trees

if TYPE_CHECKING:
    from paceline.datasets import Trace


SMOOTHINGS = np.array([0.5, 0.25, 0.1, 0.03])
"""Smoothings of the averages of log speed that the trees see in addition to the last speeds."""

SCALE_SMOOTHING, SMALLEST_SCALE = 0.05, 1e-3
"""Weight of the newest change in a worker's running scale, and the least scale in log speed."""


log = logging.getLogger(__name__)


class Boosting(FleetPredictor):
    """Gradient boosted trees on differences of log speed and on covariates, one model over all workers.

    The trees see how far past speeds and their averages are from the last speed, in units of the worker's own running
    scale, and the covariates now and at past boundaries. They forecast how far the next speed is from the last one.
    Before the fit, the forecast is the last speed.

    Parameters
    ----------
    lags
        Number of past speeds it sees, at least 2.
    covariate_lags
        Number of past boundaries whose covariates it sees in addition to the current one, at least 0.
    trees, leaves, learning_rate
        Number of trees, the most leaves per tree, and the factor that shrinks each tree's contribution.
    covariates
        Names of the covariates to use; ``None`` takes all that the fitted traces share, ``()`` uses none.

    Raises
    ------
    ValueError
        If a number is out of range, or the traces to fit are too short or lack a covariate.

    Notes
    -----
    Fitted by scikit-learn's histogram gradient boosting (Ke et al., LightGBM, 2017); served without scikit-learn.

    Examples
    --------
    A worker alternates between 100 and 50 samples/s, a pattern that the last value always misses:

    >>> from paceline.datasets import Trace
    >>> from paceline.predictors import Boosting, Report
    >>> trace = Trace(samples=[[100]] * 200, seconds=[[1 + k % 2] for k in range(200)])
    >>> model = Boosting().fit([trace])
    >>> model.reset(["a"])
    >>> for k in range(21):
    ...     model.observe(Report(samples=[100], seconds=[1 + k % 2]))
    >>> model.predict().speed.round()
    array([50.])
    """

    def __init__(
        self,
        lags: int = 8,
        covariate_lags: int = 4,
        trees: int = 150,
        leaves: int = 15,
        learning_rate: float = 0.05,
        covariates: Sequence[str] | None = None,
    ) -> None:
        for name, value, low in (("lags", lags, 2), ("covariate_lags", covariate_lags, 0), ("trees", trees, 1)):
            require_int(name, value, low)
        require_int("leaves", leaves, minimum=2, maximum=MAX_STEPS)
        if not 0.0 < learning_rate <= 1.0:
            raise ValueError(f"learning_rate must lie in (0, 1], got {learning_rate}")
        super().__init__()
        self.lags = lags
        self.covariate_lags = covariate_lags
        self.trees = trees
        self.leaves = leaves
        self.learning_rate = learning_rate
        self.covariates = None if covariates is None else covariate_names(covariates)
        self.covariate_names_: tuple[str, ...] = self.covariates or ()
        self.trees_: Trees | None = None

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """The covariates it reads: those chosen, or those it was fitted with."""
        return self.covariate_names_

    # -- fitting -------------------------------------------------------------------------------------------------

    def fit(self, traces: Trace | Iterable[Trace]) -> Self:
        """Fit the trees to all workers of these traces. Needs scikit-learn. A fleet being served is reset."""
        return self.fit_streamed(as_traces(traces), Fitting())

    def fit_streamed(self, traces: Iterable[Trace], fitting: Fitting) -> Self:
        """Fit the trees to a stream; of many examples to a random part. A warm start adds trees to the earlier ones."""
        require("sklearn", needed_by="Boosting.fit", extra="boosting")
        from sklearn.ensemble import HistGradientBoostingRegressor

        survey, rng = fitting.surveyed(traces), np.random.default_rng(0)
        if not fitting.warm:
            self.covariate_names_, self.trees_ = survey.shared_covariates(self.covariates), None
        # scikit-learn holds all examples in memory, and 2 million decide every split
        share = 2_000_000 / max(survey.speeds, 1)
        if share < 1.0:
            log.warning("Boosting is fitted to a random %.3g of the %d speeds", share, survey.speeds)
        parts = [_sampled(self._examples(trace), share, rng) for trace in fitting.without_held_out(traces)]
        inputs_NF, target_N = (np.concatenate(column) for column in zip(*parts, strict=True))
        if len(target_N) < 50:
            raise ValueError(f"traces must hold at least 50 changes of speed to fit, got {len(target_N)}")
        self._require_known(inputs_NF)
        model = HistGradientBoostingRegressor(
            max_iter=self.trees,
            max_leaf_nodes=self.leaves,
            learning_rate=self.learning_rate,
            early_stopping=False,  # pyright: ignore[reportArgumentType]  # the default is a string; a bool is allowed
            random_state=0,
        )
        earlier = self.trees_
        # least squares would follow outliers: clip targets at 8 scales
        target_N = np.clip(target_N, -8.0, 8.0)
        # Boosting goes on where it ended: further trees are fitted to what the earlier ones leave.
        fresh = Trees.of(model.fit(inputs_NF, target_N if earlier is None else target_N - earlier(inputs_NF)))
        self.trees_ = fresh if earlier is None else earlier.followed_by(fresh)
        self.reset(self.workers)
        return self

    def _require_known(self, inputs_NF: Array) -> None:
        """Refuse an input that no example knows: scikit-learn fails at it without naming it."""
        names = [
            *(f"the speed {k + 1} reports ago" for k in range(1, self.lags)),
            *(f"the average with smoothing {smoothing}" for smoothing in SMOOTHINGS),
            *(f"{name} now" for name in self.covariate_names_),
            *(f"{name} with a lag of {k + 1}" for k in range(self.covariate_lags) for name in self.covariate_names_),
        ]
        unknown_F = np.flatnonzero(np.isnan(inputs_NF).all(axis=0))
        if missing := [names[f] for f in unknown_F]:
            raise ValueError(
                f"traces must hold every input of the trees at least once, but no worker's reports hold {missing[0]}"
                f"{f' nor {len(missing) - 1} other inputs' if len(missing) > 1 else ''}: "
                f"take fewer lags than {self.lags}, fewer covariate_lags than {self.covariate_lags}, or other "
                f"covariates"
            )

    def _examples(self, trace: Trace) -> tuple[Array, Array]:
        """Pass the trace through the serving code, so that fitting and serving see the same inputs."""
        served = copy.copy(self)
        served.reset(trace.workers)
        covariates_TWD = trace.covariates_named(self.covariate_names_)
        inputs, targets = [], []
        for k, speed_W in enumerate(trace.speed):
            covariates_WD = served._covariate_rows(None if covariates_TWD is None else covariates_TWD[k])
            rows = served.state
            target_W = (np.log(speed_W) - rows["log_speed"][:, 0]) / _scale(rows)
            usable_W = np.isfinite(target_W) & np.isfinite(rows["scale"])
            inputs.append(_inputs(rows, covariates_WD)[usable_W])
            targets.append(target_W[usable_W])
            served.update(speed_W, covariates_WD)
        return np.concatenate(inputs), np.concatenate(targets)

    # -- serving -------------------------------------------------------------------------------------------------

    def initial_state(self, count: int) -> dict[str, Array]:
        return {
            "log_speed": np.full((count, self.lags), np.nan),
            "averages": np.full((count, len(SMOOTHINGS)), np.nan),
            "scale": np.full(count, np.nan),
            "past_covariates": np.full((count, self.covariate_lags, len(self.covariate_names_)), np.nan),
        }

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        self.state |= _shifted(self.state, np.log(speed_W), covariates_WD)

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        rows = dict(self.state)
        for _ in range(horizon - 1):  # further ahead, its own forecast is fed back and the covariates stay
            rows |= _shifted(rows, self._next_log_speed(rows, covariates_WD), covariates_WD)
        return np.asarray(np.exp(self._next_log_speed(rows, covariates_WD)))

    def _next_log_speed(self, rows: Mapping[str, Array], covariates_WD: Array) -> Array:
        last_W = rows["log_speed"][:, 0]
        if self.trees_ is None:
            return last_W
        change_W = _scale(rows) * self.trees_(_inputs(rows, covariates_WD))
        return np.asarray(np.clip(last_W + change_W, np.log(SLOWEST), np.log(FASTEST)))

    # -- saving --------------------------------------------------------------------------------------------------

    def fitted_state(self) -> dict[str, NDArray[Any]]:
        trees = {} if self.trees_ is None else self.trees_.arrays()
        return {**trees, "covariate_names": np.array(self.covariate_names_, dtype=np.str_)}

    def load_fitted_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.covariate_names_ = tuple(map(str, state.get("covariate_names", self.covariate_names_)))
        trees = {name: value for name, value in state.items() if name != "covariate_names"}
        self.trees_ = Trees.from_arrays(trees) if trees else self.trees_


def _sampled(examples: tuple[Array, Array], share: float, rng: np.random.Generator) -> tuple[Array, Array]:
    if share >= 1.0:
        return examples
    sampled_N = rng.random(len(examples[1])) < share
    return examples[0][sampled_N], examples[1][sampled_N]


def _scale(rows: Mapping[str, Array]) -> Array:
    return np.asarray(np.fmax(rows["scale"], SMALLEST_SCALE))


def _inputs(rows: Mapping[str, Array], covariates_WD: Array) -> Array:
    """Return the inputs of the trees, ``[W, F]``; unknown inputs are NaN, for which the trees have a branch."""
    references_WR = np.concatenate([rows["log_speed"][:, 1:], rows["averages"]], axis=1)
    deviations_WR = (references_WR - rows["log_speed"][:, :1]) / _scale(rows)[:, None]
    past_WF = rows["past_covariates"].reshape(len(covariates_WD), -1)
    return np.concatenate([deviations_WR, covariates_WD, past_WF], axis=1)


def _shifted(rows: Mapping[str, Array], log_speed_W: Array, covariates_WD: Array) -> dict[str, Array]:
    """Return the state one iteration later; a worker that did not report keeps its past speeds."""
    seen_W1 = np.isfinite(log_speed_W)[:, None]
    lags_WP, past_WQD = rows["log_speed"], rows["past_covariates"]
    change_W = np.abs(log_speed_W - lags_WP[:, 0])
    newest_WQD = np.concatenate([covariates_WD[:, None], past_WQD], axis=1)
    return {
        "log_speed": np.where(seen_W1, np.concatenate([log_speed_W[:, None], lags_WP[:, :-1]], axis=1), lags_WP),
        "averages": _smoothed(rows["averages"], log_speed_W[:, None], SMOOTHINGS),
        "scale": _smoothed(rows["scale"], change_W, np.array(SCALE_SMOOTHING)),
        "past_covariates": newest_WQD[:, : past_WQD.shape[1]],
    }


def _smoothed(average: Array, newest: Array, smoothing: Array) -> Array:
    """Move averages towards the newest values; the first value becomes the average, and NaN changes nothing."""
    moved = np.where(np.isnan(average), newest, average + smoothing * (newest - average))
    return np.where(np.isnan(newest), average, moved)
