"""GatedNARX: a network that chooses for each worker which of its past speeds to trust, and corrects them.

Axes: W workers, D covariates, F inputs of the network, H hidden units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, anywhere
from paceline.predictors.fitting import Fitting, Survey
from paceline.predictors.networks import gated_memory
from paceline.predictors.networks.network import LOG_SPEEDS, Network, Rows, scale_of
from paceline.predictors.networks.neural import GateExamples, Training, gated_layer
from paceline.predictors.networks.training_windows import collected
from paceline.predictors.ranges import require_int

if TYPE_CHECKING:
    from paceline.datasets import Trace


DEFAULT = Training(epochs=40, batch_size=1024, learning_rate=5e-3, weight_decay=1e-2)


class GatedNARX(Network):
    """NARX whose forecast is a choice among past speeds and averages, plus a correction: exact after any spike.

    In log speed the forecast is ``last + sum_r gate_r * (reference_r - last) + scale * head_1 + unit * head_2``. The
    gates (a softmax) and heads come from one tanh layer. Its inputs are how far lags and averages are from the last
    speed, in the worker's running scale, how its changes correlate with earlier ones and with its covariates (driving
    factors), and the covariates now and in the past. Only ratios of speeds enter, so one network, fitted over all
    workers, serves workers of any speed and noise, even those it was not fitted to. The network sees which covariates
    are missing. Before the fit, the forecast is the last speed.

    Parameters
    ----------
    hidden
        Units of the tanh layer.
    covariate_lags
        Number of past boundaries whose covariates it sees in addition to the current one, at least 1.
    covariates
        Names of the covariates to use; ``None`` takes all that any fitted trace has, ``()`` uses none.
    pretrained
        Start with the network that comes with the library: it serves any fleet without fitting, and ``fit`` continues
        from it. Its own numbers of hidden units and covariates override the arguments.
    training
        How the network is trained.

    Raises
    ------
    ValueError
        If a number is out of range, or the traces to fit are too short or lack a covariate.

    Examples
    --------
    A worker that was never seen before has one slow iteration; the forecast returns to its usual speed:

    >>> from paceline.predictors import GatedNARX, Report
    >>> model = GatedNARX(pretrained=True)
    >>> model.reset(["a"])
    >>> for seconds in (0.50, 0.52, 0.49, 0.51, 0.50, 0.48, 0.51, 0.50, 5.0):
    ...     model.observe(Report(samples=[64], seconds=[seconds]))
    >>> bool(model.predict().speed[0] > 100)
    True
    """

    shipped_as: ClassVar[str] = "gated-narx"
    """Name of the file whose network ``pretrained`` starts with."""

    def __init__(
        self,
        hidden: int = 16,
        covariate_lags: int = 5,
        covariates: Sequence[str] | None = None,
        pretrained: bool = False,
        training: Training = DEFAULT,
    ) -> None:
        for name, value in (("hidden", hidden), ("covariate_lags", covariate_lags)):
            require_int(name, value, minimum=1)
        super().__init__(covariates)
        self.hidden = hidden
        self.covariate_lags = covariate_lags
        self.pretrained = pretrained
        self.training = training
        self._answer: tuple[Array, Array, Array] | None = None
        self._scaled: tuple[Array, Array, tuple[Array, Array]] | None = None
        if pretrained:
            self.load_fitted_state(_shipped(self.shipped_as))

    # -- serving -------------------------------------------------------------------------------------------------

    def initial_state(self, count: int) -> dict[str, Array]:
        return gated_memory.fresh(count, len(self.covariate_names_), self.covariate_lags)

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        return np.exp(self.forecast_log_speed(covariates_WD, horizon))

    def forecast_log_speed(self, covariates_WD: Array, horizon: int) -> Array:
        return self._answered(covariates_WD) if horizon == 1 else self._log_speed_ahead(covariates_WD, horizon)

    def _answered(self, covariates_WD: Array) -> Array:
        """Return the log of the next speed, cached for these covariates until the next report."""
        answer, memory_WM = self._answer, self.state["memory"]
        if answer is None or answer[0] is not memory_WM or answer[1] is not covariates_WD:
            answer = self._answer = (memory_WM, covariates_WD, self._next_log_speed(self.state, covariates_WD))
        return answer[2]

    def _next_log_speed(self, rows: Rows, covariates_WD: Array) -> Array:
        last_W = rows["memory"][:, 0]
        if not self.weights_:
            return last_W
        inputs_WF, references_WR, unit_W = gated_memory.inputs_of(rows, *self._standard(rows, covariates_WD))
        change_W = gated_layer(self.weights_, inputs_WF, references_WR, unit_W)
        expected_W = last_W + scale_of(rows) * change_W
        return np.asarray(np.minimum(np.maximum(expected_W, LOG_SPEEDS[0]), LOG_SPEEDS[1]))

    def _standard(self, rows: Rows, covariates_WD: Array) -> tuple[Array, Array]:
        """Return covariates to serve with, as `_newly_scaled` does; none where no covariate was ever known."""
        scaled, past_WQ = self._scaled, rows["past_covariates"]
        # The forecast asked for the same, and learning asks again.
        if scaled is None or scaled[0] is not past_WQ or scaled[1] is not covariates_WD:
            standard = self._newly_scaled(rows, covariates_WD)
            if not anywhere(standard[1]):
                standard = (covariates_WD[:, :0], covariates_WD[:, :0])
            scaled = self._scaled = (past_WQ, covariates_WD, standard)
        return scaled[2]

    def _newly_scaled(self, rows: Rows, covariates_WD: Array) -> tuple[Array, Array]:
        """Return the covariates in deviations, the last (or 0) where one is missing, and which were ever known."""
        standard_WD = (covariates_WD - self.covariate_mean_) / self.covariate_scale_
        # clipped at 4 standard deviations: the network was not fitted farther out
        standard_WD = np.minimum(np.maximum(standard_WD, -4.0), 4.0)
        missing_WD = np.isnan(standard_WD)
        if not anywhere(missing_WD):
            return standard_WD, np.ones_like(standard_WD)
        before_WD = rows["past_covariates"][:, : len(self.covariate_names_)]
        known_WD = np.where(missing_WD, rows["known_before"], 1.0)
        return np.where(missing_WD, before_WD, standard_WD), known_WD

    def _moved(self, rows: Rows, log_speed_W: Array, covariates_WD: Array) -> Rows:
        """Return the state one iteration later, after these log speeds (NaN where there is none)."""
        return gated_memory.moved(rows, log_speed_W, *self._standard(rows, covariates_WD))

    # -- fitting -------------------------------------------------------------------------------------------------

    def fit_streamed(self, traces: Iterable[Trace], fitting: Fitting) -> Self:
        """Fit the network to traces that may be read more than once and never all at once. Needs torch."""
        return super().fit_streamed(traces, replace(fitting, warm=fitting.warm or self.pretrained))

    def _chosen_covariates(self, survey: Survey) -> tuple[str, ...]:
        return survey.any_covariates(self.covariates)

    def _fit_weights(self, traces: Iterable[Trace], survey: Survey, fitting: Fitting) -> None:
        from paceline.predictors.networks.torch_fit import fit_gates

        windows = collected(traces, survey, fitting, partial(self._examples, fitting))
        columns_DF = gated_memory.covariate_columns(len(self.covariate_names_), self.covariate_lags)
        # a fifth of the learning rate when training continues from fitted weights
        rate = (0.2 if self.weights_ else 1.0) * self.training.learning_rate
        training = replace(self.training, learning_rate=rate)
        self.weights_ = fit_gates(windows, columns_DF, self.hidden, training, fitting, self.weights_)

    def _examples(self, fitting: Fitting, trace: Trace) -> Iterator[GateExamples]:
        roles = list(fitting.roles(trace, self.training.validation))
        for k, rows, covariates_WD, log_speed_W in self.situations(trace):
            used_W, validates = roles[k]
            target_W = (log_speed_W - rows["memory"][:, 0]) / scale_of(rows)
            usable_W = used_W & np.isfinite(target_W) & np.isfinite(rows["scale"])
            inputs_WF, references_WR, unit_W = gated_memory.inputs_of(rows, *self._newly_scaled(rows, covariates_WD))
            validates_W = np.full(len(usable_W), validates)
            yield GateExamples.chosen(usable_W, inputs_WF, target_W, validates_W, references_WR, unit_W)


@cache
def _shipped(name: str) -> dict[str, NDArray[Any]]:
    """Return the fitted parameters of a network that comes with the library."""
    import json

    from safetensors import safe_open

    # Cached by the decorator: every Auto starts from these arrays, and `load_fitted_state` copies them.
    with safe_open(Path(__file__).parent / "fitted" / f"{name}.safetensors", framework="numpy") as file:
        about = json.loads((file.metadata() or {})["paceline"])
        learned: dict[str, NDArray[Any]] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    return learned | {key: np.array(value, dtype=np.str_) for key, value in about["text"].items()}
