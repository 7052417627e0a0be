"""GatedNARX: a network that chooses for each worker which of its past speeds to trust, and corrects them.

Axes: W workers, D covariates, M remembered log speeds and averages, S smoothings, R references, E echoes,
F inputs of the network, H hidden units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, all_finite, any_true
from paceline.predictors.fitting import FitOptions
from paceline.predictors.fleet import require_int
from paceline.predictors.linear import running_scale
from paceline.predictors.network import LOG_SPEED_RANGE, Columns, Network, Training, Windows, WorkerStates, gated_layer

if TYPE_CHECKING:
    from paceline.datasets import Trace


LAGS, SMOOTHINGS = 8, np.array([0.5, 0.25, 0.1, 0.03])
"""Number of past log speeds, and smoothings of the averages of log speed, in a worker's memory."""

NUM_PAST_SPEEDS = LAGS - 1 + len(SMOOTHINGS)
"""Number of remembered log speeds other than the last one."""

SCALE_SMOOTHING, MAX_CHANGE = 0.05, 5.0
"""Weight of the newest change in a worker's running scale, and the most scales it counts for."""

NUM_PAST_CHANGES = 4
"""Past changes that the newest one is compared with: noise reverts at once, a random walk does not."""


def gate_inputs(worker_states: WorkerStates, standard_WD: Array, known_WD: Array) -> tuple[Array, Array, Array]:
    """Return inputs ``[W, F]``, references ``[W, R]`` and the second head's unit ``[W]``, in running scales.

    ``standard_WD`` are the covariates now, in deviations, 0 where unknown; ``known_WD`` says which are known. Without
    columns, as where no covariate was ever known, the inputs that covariates make are left out: all would be 0.
    """
    memory_WM, scale_W = worker_states["memory"], running_scale(worker_states)
    covariates = standard_WD.shape[1]
    past_WQ = worker_states["past_covariates"] if covariates else standard_WD
    begin = NUM_PAST_SPEEDS + 2 + NUM_PAST_CHANGES
    inputs_WF = np.empty((len(memory_WM), begin + 4 * covariates + past_WQ.shape[1]), order="F")
    # Column-major arrays and in-place results: with short rows of many workers this is several times faster.
    off_WM = (memory_WM[:, 1:] - memory_WM[:, :1]) / scale_W[:, None]
    # arcsinh is linear for usual changes and logarithmic for jumps, so no jump saturates the tanh layer.
    np.arcsinh(off_WM, out=inputs_WF[:, :NUM_PAST_SPEEDS])
    inputs_WF[:, NUM_PAST_SPEEDS] = np.log(scale_W) + 2.5
    inputs_WF[:, NUM_PAST_SPEEDS + 1] = 3.0 / np.sqrt(worker_states["seen"] + 1.0)
    np.divide(
        worker_states["echoes"][:, 1:], worker_states["echoes"][:, :1], out=inputs_WF[:, NUM_PAST_SPEEDS + 2 : begin]
    )
    if covariates:
        effect_WD = worker_states["together"] / worker_states["covariate_moves"]
        move_WD = standard_WD - past_WQ[:, :covariates]
        driven = (standard_WD, known_WD, effect_WD, effect_WD * move_WD, past_WQ)
        np.concatenate(driven, axis=1, out=inputs_WF[:, begin:])
    # gates choose from lags 2, 3, 4 and 6, and the averages
    references_WR = off_WM[:, [0, 1, 2, 4, 7, 8, 9, 10]]
    # the second head is in log speed, because a covariate takes a share of the speed; at most 2 scales
    return inputs_WF, references_WR, np.minimum(0.2 / scale_W, 2.0)


def covariate_columns(covariates: int, covariate_lags: int) -> Array:
    """Return which inputs are derived from which covariate, ``[D, F]`` of 0 and 1."""
    of_speeds = np.zeros((covariates, NUM_PAST_SPEEDS + 2 + NUM_PAST_CHANGES))
    return np.concatenate([of_speeds, np.tile(np.eye(covariates), 4 + covariate_lags)], axis=1)


def advance_memory(
    worker_states: WorkerStates, log_speed_W: Array, standard_WD: Array, known_WD: Array
) -> WorkerStates:
    """Return the memory one iteration later; for a worker without a log speed (NaN) only the covariates move."""
    memory_WM, seen_W, covariates = worker_states["memory"], worker_states["seen"], standard_WD.shape[1]
    # Every entry is computed for all workers first, and restored below for those without a log speed.
    # Averages of new workers are plain means at first; without new workers there is a shorter way to the same result.
    settled = np.minimum.reduce(seen_W) >= 1.0 / SMOOTHINGS[-1]
    if not settled:  # the first log speed fills the whole memory
        memory_WM = np.where(seen_W[:, None] == 0, log_speed_W[:, None], memory_WM)
    line_WE = np.empty((len(memory_WM), NUM_PAST_CHANGES + 2), order="F")
    line_WE[:, 0] = log_speed_W
    line_WE[:, 1:] = memory_WM[:, : NUM_PAST_CHANGES + 1]
    change_WE = line_WE[:, :-1] - line_WE[:, 1:]
    scale_W1 = running_scale(worker_states)[:, None]
    bounded_WE = np.minimum(np.maximum(change_WE / scale_W1, -MAX_CHANGE), MAX_CHANGE)
    newest_W1 = bounded_WE[:, :1]
    later = {
        "memory": _push_log_speeds(memory_WM, None if settled else seen_W, log_speed_W),
        "scale": _update_scale(worker_states, np.abs(newest_W1 * scale_W1)[:, 0], settled, change_WE[:, 0]),
        "seen": seen_W + 1.0,
        "echoes": _smooth(worker_states["echoes"], newest_W1 * bounded_WE),
    }
    if covariates:
        move_WD = standard_WD - worker_states["past_covariates"][:, :covariates]
        later["together"] = _smooth(worker_states["together"], newest_W1 * move_WD)
        later["covariate_moves"] = _smooth(worker_states["covariate_moves"], np.square(move_WD) + 0.3)
    if not all_finite(log_speed_W):
        reported_W = np.isfinite(log_speed_W)
        for name, new in later.items():
            later[name] = np.where(reported_W if new.ndim == 1 else reported_W[:, None], new, worker_states[name])
    if covariates:
        later["past_covariates"] = np.concatenate(
            [standard_WD, worker_states["past_covariates"][:, :-covariates]], axis=1
        )
        later["known_before"] = known_WD
    return worker_states | later


def _push_log_speeds(memory_WM: Array, seen_W: Array | None, log_speed_W: Array) -> Array:
    """Return the memory with these log speeds in front; averages start as plain means."""
    moved_WM = np.empty_like(memory_WM)
    moved_WM[:, 0] = log_speed_W
    moved_WM[:, 1:LAGS] = memory_WM[:, : LAGS - 1]
    averages_WS = memory_WM[:, LAGS:]
    rate = SMOOTHINGS if seen_W is None else np.maximum(SMOOTHINGS, 1.0 / (seen_W[:, None] + 1.0))
    moved_WM[:, LAGS:] = averages_WS + rate * (log_speed_W[:, None] - averages_WS)
    return moved_WM


def _update_scale(worker_states: WorkerStates, bounded_W: Array, is_settled: np.bool_, change_W: Array) -> Array:
    """Return the running mean of the bounded sizes of changes; NaN before the second log speed."""
    scale_W, seen_W = worker_states["scale"], worker_states["seen"]
    if is_settled:
        return scale_W + SCALE_SMOOTHING * (bounded_W - scale_W)
    rate_W = np.maximum(SCALE_SMOOTHING, 1.0 / np.maximum(seen_W, 1.0))
    later_W = scale_W + rate_W * (bounded_W - scale_W)
    return np.where(seen_W == 1, np.abs(change_W), np.where(seen_W == 0, np.nan, later_W))


def _smooth(average: Array, newest: Array) -> Array:
    return average + 0.03 * (newest - average)


DEFAULT_TRAINING = Training(epochs=40, batch_size=1024, learning_rate=5e-3, weight_decay=1e-2)


class GatedNARX(Network):
    """NARX whose forecast is a choice among past speeds and averages, plus a correction: exact after any spike.

    In log speed the forecast is ``last + sum_r gate_r * (reference_r - last) + scale * head_1 + unit * head_2``. The
    gates (a softmax) and heads come from one tanh layer. Its inputs are how far lags and averages are from the last
    speed, in the worker's running scale, how its changes correlate with earlier ones and with its covariates, and the
    covariates now and in the past, or that they are missing. Only ratios of speeds enter, so one network serves workers
    of any speed and noise. Before the fit, the forecast is the last speed.

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

    needs_shared_covariates = False

    def __init__(
        self,
        hidden: int = 16,
        covariate_lags: int = 5,
        covariates: Sequence[str] | None = None,
        pretrained: bool = False,
        training: Training = DEFAULT_TRAINING,
    ) -> None:
        for name, value in (("hidden", hidden), ("covariate_lags", covariate_lags)):
            require_int(name, value, minimum=1)
        super().__init__(covariates)
        self.hidden = hidden
        self.covariate_lags = covariate_lags
        self.pretrained = pretrained
        self.training = training
        self._cached_forecast: tuple[Array, Array, Array] | None = None
        self._cached_standardized: tuple[Array, Array, tuple[Array, Array]] | None = None
        if pretrained:
            self.load_fitted_state(_load_shipped_state())

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        covariates = len(self.covariate_names_)
        return {
            "memory": np.full((num_workers, LAGS + len(SMOOTHINGS)), np.nan),
            "scale": np.full(num_workers, np.nan),
            "seen": np.zeros(num_workers),
            "echoes": np.tile(np.eye(1, NUM_PAST_CHANGES + 1)[0], (num_workers, 1)),
            "past_covariates": np.zeros((num_workers, self.covariate_lags * covariates)),
            "known_before": np.zeros((num_workers, covariates)),
            "together": np.zeros((num_workers, covariates)),
            # so that a few moves of a covariate say little about its effect
            "covariate_moves": np.full((num_workers, covariates), 0.3),
        }

    def forecast_log_speed(self, covariates_WD: Array, horizon: int) -> Array:
        if horizon > 1:
            return super().forecast_log_speed(covariates_WD, horizon)
        # cached for these covariates until the next report
        answer, memory_WM = self._cached_forecast, self.state["memory"]
        if answer is None or answer[0] is not memory_WM or answer[1] is not covariates_WD:
            answer = self._cached_forecast = (memory_WM, covariates_WD, self._next_log_speed(self.state, covariates_WD))
        return answer[2]

    def _next_log_speed(self, worker_states: WorkerStates, covariates_WD: Array) -> Array:
        last_W = worker_states["memory"][:, 0]
        if not self.weights_:
            return last_W
        inputs_WF, references_WR, unit_W = gate_inputs(
            worker_states, *self._standardize_covariates(worker_states, covariates_WD)
        )
        change_W = gated_layer(self.weights_, inputs_WF, references_WR, unit_W)
        expected_W = last_W + running_scale(worker_states) * change_W
        return np.asarray(np.minimum(np.maximum(expected_W, LOG_SPEED_RANGE[0]), LOG_SPEED_RANGE[1]))

    def _standardize_covariates(self, worker_states: WorkerStates, covariates_WD: Array) -> tuple[Array, Array]:
        """Return covariates as `_compute_standardized` does; none where none was ever known. Learning asks again."""
        scaled, past_WQ = self._cached_standardized, worker_states["past_covariates"]
        if scaled is None or scaled[0] is not past_WQ or scaled[1] is not covariates_WD:
            standard = self._compute_standardized(worker_states, covariates_WD)
            if not any_true(standard[1]):
                standard = (covariates_WD[:, :0], covariates_WD[:, :0])
            scaled = self._cached_standardized = (past_WQ, covariates_WD, standard)
        return scaled[2]

    def _compute_standardized(self, worker_states: WorkerStates, covariates_WD: Array) -> tuple[Array, Array]:
        """Return the covariates in deviations, the last (or 0) where one is missing, and which were ever known."""
        standard_WD = (covariates_WD - self.covariate_mean_) / self.covariate_scale_
        # clipped at 4 standard deviations: the network was not fitted farther out
        standard_WD = np.minimum(np.maximum(standard_WD, -4.0), 4.0)
        missing_WD = np.isnan(standard_WD)
        if not any_true(missing_WD):
            return standard_WD, np.ones_like(standard_WD)
        before_WD = worker_states["past_covariates"][:, : len(self.covariate_names_)]
        known_WD = np.where(missing_WD, worker_states["known_before"], 1.0)
        return np.where(missing_WD, before_WD, standard_WD), known_WD

    def _advance(self, worker_states: WorkerStates, log_speed_W: Array, covariates_WD: Array) -> WorkerStates:
        return advance_memory(worker_states, log_speed_W, *self._standardize_covariates(worker_states, covariates_WD))

    def fit_streamed(self, traces: Iterable[Trace], fit_options: FitOptions) -> Self:
        return super().fit_streamed(traces, replace(fit_options, warm_start=fit_options.warm_start or self.pretrained))

    def _fit_weights(self, windows: Windows, fit_options: FitOptions) -> dict[str, Array]:
        from paceline.predictors.torch_fit import fit_gates

        columns_DF = covariate_columns(len(self.covariate_names_), self.covariate_lags)
        # a fifth of the learning rate when training continues from fitted weights
        rate = (0.2 if self.weights_ else 1.0) * self.training.learning_rate
        training = replace(self.training, learning_rate=rate)
        return fit_gates(windows, columns_DF, self.hidden, training, fit_options, self.weights_)

    def _make_examples(self, fit_options: FitOptions, trace: Trace) -> Iterator[Columns]:
        roles = fit_options.window_roles(trace, self.training.validation)
        for (used_W, validates), replayed in zip(roles, self.replay_trace(trace), strict=True):
            worker_states, covariates_WD, log_speed_W = replayed
            target_W = (log_speed_W - worker_states["memory"][:, 0]) / running_scale(worker_states)
            usable_W = used_W & np.isfinite(target_W) & np.isfinite(worker_states["scale"])
            standard = self._compute_standardized(worker_states, covariates_WD)
            inputs_WF, references_WR, unit_W = gate_inputs(worker_states, *standard)
            columns = {"inputs": inputs_WF, "targets": target_W, "references": references_WR, "unit": unit_W}
            columns["validates"] = np.full(len(usable_W), validates)
            yield {name: column[usable_W] for name, column in columns.items()}


@cache
def _load_shipped_state() -> dict[str, NDArray[Any]]:
    """Return the fitted parameters of the network that comes with the library; `load_fitted_state` copies them."""
    import json

    from safetensors import safe_open

    with safe_open(Path(__file__).parent / "fitted" / "gated-narx.safetensors", framework="numpy") as file:
        about = json.loads((file.metadata() or {})["paceline"])
        learned: dict[str, NDArray[Any]] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    return learned | {key: np.array(value, dtype=np.str_) for key, value in about["text"].items()}
