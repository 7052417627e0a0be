"""Recurrent networks over past speeds and covariates: the baselines of the LB-BSP paper.

Axes: T iterations, W workers, D covariates, F inputs of a cell, H hidden units, G gates of a cell times H.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from paceline._arrays import Array
from paceline.predictors.fitting import FitOptions
from paceline.predictors.fleet import require_int
from paceline.predictors.linear import running_scale
from paceline.predictors.network import LOG_SPEED_RANGE, Columns, Network, Training, Windows, WorkerStates

if TYPE_CHECKING:
    from paceline.datasets import Trace


SEQUENCE_LENGTH = 64
"""Length of the sequences that recurrent networks are trained on."""

DEFAULT_TRAINING = Training(epochs=60, batch_size=16, learning_rate=5e-3, weight_decay=1e-2)


class RecurrentPredictor(Network):
    """Base class of recurrent predictors: a hidden state per worker that every report advances, and a linear output.

    The cell sees the newest change of log speed in the worker's running scale, and the covariates at the boundary
    before the iteration to forecast. The output is the next change, in the same scale.
    """

    cells: int = 1
    """State vectors per cell: 1 for the output, or 2 if there is also a memory, as in an LSTM."""

    def __init__(
        self, hidden: int = 16, covariates: Sequence[str] | None = None, training: Training = DEFAULT_TRAINING
    ) -> None:
        require_int("hidden", hidden, minimum=1)
        super().__init__(covariates)
        self.hidden = hidden
        self.training = training

    @abstractmethod
    def step_cell(self, inputs_WF: Array, state_WH: Array) -> Array:
        """Return the state after one more step."""

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        return {
            "log_speed": np.full(num_workers, np.nan),
            "change": np.zeros(num_workers),
            "scale": np.full(num_workers, np.nan),
            "state": np.zeros((num_workers, self.cells * self.hidden)),
            "last_covariates": np.zeros((num_workers, len(self.covariate_names_))),
        }

    def _next_log_speed(self, worker_states: WorkerStates, covariates_WD: Array) -> Array:
        if not self.weights_:
            return worker_states["log_speed"]
        state_WH = self.step_cell(self._inputs(worker_states, covariates_WD), worker_states["state"])
        step_W = state_WH[:, : self.hidden] @ self.weights_["out"] + self.weights_["out_bias"]
        # The newest change plus 5 running scales: the forecast can still return after a jump of any size.
        scale_W = running_scale(worker_states)
        max_step_W = np.abs(worker_states["change"]) / scale_W + 5.0
        change_W = scale_W * np.clip(step_W, -max_step_W, max_step_W)
        return np.clip(worker_states["log_speed"] + change_W, *LOG_SPEED_RANGE)

    def _inputs(self, worker_states: WorkerStates, covariates_WD: Array) -> Array:
        """Return the cell's inputs at the boundary before the next iteration, ``[W, F]``."""
        change_W = np.arcsinh(worker_states["change"] / running_scale(worker_states))
        return np.concatenate([change_W[:, None], self._standardize_covariates(worker_states, covariates_WD)], axis=1)

    def _standardize_covariates(self, worker_states: WorkerStates, covariates_WD: Array) -> Array:
        # clipped at 4 standard deviations: the network was not fitted farther out
        standard_WD = np.clip((covariates_WD - self.covariate_mean_) / self.covariate_scale_, -4.0, 4.0)
        return np.where(np.isnan(standard_WD), worker_states["last_covariates"], standard_WD)

    def _advance(self, worker_states: WorkerStates, log_speed_W: Array, covariates_WD: Array) -> WorkerStates:
        """Return the state one iteration later; a worker without a log speed (NaN) keeps its state."""
        change_W = log_speed_W - worker_states["log_speed"]
        # The newest change weighs 5% in a worker's running scale, and counts for at most 5 scales.
        bounded_W = np.minimum(np.abs(change_W), 5.0 * running_scale(worker_states))
        smoothed_W = worker_states["scale"] + 0.05 * (bounded_W - worker_states["scale"])
        later = {
            "log_speed": log_speed_W,
            "change": np.where(np.isnan(change_W), 0.0, change_W),
            "scale": np.where(np.isnan(worker_states["scale"]), np.abs(change_W), smoothed_W),
        }
        if self.weights_:
            later["state"] = self.step_cell(self._inputs(worker_states, covariates_WD), worker_states["state"])
        for name, new in later.items():
            seen_W = np.isfinite(log_speed_W if new.ndim == 1 else log_speed_W[:, None])
            later[name] = np.where(seen_W, new, worker_states[name])
        return worker_states | later | {"last_covariates": self._standardize_covariates(worker_states, covariates_WD)}

    def _fit_weights(self, windows: Windows, fit_options: FitOptions) -> dict[str, Array]:
        from paceline.predictors.torch_fit import fit_recurrent

        return fit_recurrent(type(self).__name__, windows, self.hidden, self.training, fit_options, self.weights_)

    def _make_examples(self, fit_options: FitOptions, trace: Trace) -> Iterator[Columns]:
        """Yield the sequences of inputs and targets of each worker's cell."""
        inputs, targets = [], []
        for worker_states, covariates_WD, log_speed_W in self.replay_trace(trace):
            inputs.append(self._inputs(worker_states, covariates_WD))
            change_W = (log_speed_W - worker_states["log_speed"]) / running_scale(worker_states)
            targets.append(np.where(np.isfinite(worker_states["scale"]), change_W, np.nan))
        reported_TW = np.isfinite(trace.speed)  # only reports advance the state, so gaps are left out
        inputs_TWF, targets_TW = np.array(inputs), np.array(targets)
        held_out = fit_options.held_out
        for w, worker in enumerate(trace.workers):
            seen_T = reported_TW[:, w]
            cut = _cut_into_sequences(inputs_TWF[seen_T, w], targets_TW[seen_T, w], self.training.validation)
            used = np.isfinite(cut["targets"]).any(axis=1)  # an empty sequence adds nothing to fitting or validation
            if held_out is not None:
                used &= cut["validates"] == (worker in held_out)
            yield {name: column[used] for name, column in cut.items()}

    def _gates(self, inputs_WF: Array, output_WH: Array) -> Array:
        weights = self.weights_
        from_inputs_WG = inputs_WF @ weights["weight_ih"] + weights["bias_ih"]
        return from_inputs_WG + (output_WH @ weights["weight_hh"] + weights["bias_hh"])


def _cut_into_sequences(inputs_TF: Array, targets_T: Array, validation: float) -> Columns:
    """Cut one worker's inputs and targets into sequences; the last share of them validates."""
    first = int((1.0 - validation) * len(targets_T))
    parts = [(begin, min(begin + SEQUENCE_LENGTH, first)) for begin in range(0, first, SEQUENCE_LENGTH)]
    parts += [(begin, begin + SEQUENCE_LENGTH) for begin in range(first, len(targets_T), SEQUENCE_LENGTH)]
    inputs = np.zeros((len(parts), SEQUENCE_LENGTH, inputs_TF.shape[1]))
    targets = np.full((len(parts), SEQUENCE_LENGTH), np.nan)
    for n, (begin, end) in enumerate(parts):
        length = len(targets_T[begin:end])
        inputs[n, :length], targets[n, :length] = inputs_TF[begin:end], targets_T[begin:end]
    validates = np.array([begin >= first for begin, _ in parts], dtype=bool)
    return {"inputs": inputs, "targets": targets, "validates": validates}


class SimpleRNN(RecurrentPredictor):
    """Elman's recurrent network: one tanh layer that sees its own last output.

    Parameters
    ----------
    hidden
        Units of the layer.
    covariates
        Names of the covariates to use; ``None`` takes all that the fitted traces share, ``()`` uses none.
    training
        How it is trained.

    Notes
    -----
    A baseline of Chen et al., arXiv 1806.02508; J. L. Elman, Finding structure in time, Cognitive Science 14, 1990.

    Examples
    --------
    >>> from paceline.predictors import Report, SimpleRNN
    >>> model = SimpleRNN(hidden=8)
    >>> model.reset(["a"])
    >>> model.observe(Report(samples=[32], seconds=[0.25]))
    >>> model.predict().speed
    array([128.])
    """

    def step_cell(self, inputs_WF: Array, state_WH: Array) -> Array:
        return np.tanh(self._gates(inputs_WF, state_WH))


class LSTM(RecurrentPredictor):
    """Long short-term memory: a recurrent network with a memory that gates write, forget and read.

    Its parameters are those of :class:`SimpleRNN`.

    Notes
    -----
    A baseline of Chen et al., arXiv 1806.02508; S. Hochreiter and J. Schmidhuber, Long short-term memory, Neural
    Computation 9, 1997, in torch's form.

    Examples
    --------
    >>> from paceline.predictors import LSTM, Report
    >>> model = LSTM(hidden=8)
    >>> model.reset(["a"])
    >>> model.observe(Report(samples=[32], seconds=[0.25]))
    >>> model.predict().speed
    array([128.])
    """

    cells = 2

    def step_cell(self, inputs_WF: Array, state_WH: Array) -> Array:
        output_WH, memory_WH = np.split(state_WH, 2, axis=1)
        write_WH, forget_WH, new_WH, read_WH = np.split(self._gates(inputs_WF, output_WH), 4, axis=1)
        memory_WH = _sigmoid(forget_WH) * memory_WH + _sigmoid(write_WH) * np.tanh(new_WH)
        return np.concatenate([_sigmoid(read_WH) * np.tanh(memory_WH), memory_WH], axis=1)


def _sigmoid(values: Array) -> Array:
    # As a tanh, which does not overflow where exp(-values) would.
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * values))
