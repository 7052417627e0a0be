"""What networks share: training options, training windows, the layers that serve, and the base class. Without torch.

Axes: N examples or windows, F inputs of the network, H hidden units, R references, T iterations, W workers,
D covariates.
"""

from __future__ import annotations

import copy
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline._require import require
from paceline.predictors.fitting import FitOptions, FitProgress, TraceSummary
from paceline.predictors.fleet import FleetPredictor, load_finite, validated_covariate_names
from paceline.predictors.protocol import MAX_SPEED, MIN_SPEED

if TYPE_CHECKING:
    from paceline.datasets import Trace


@dataclass(frozen=True, kw_only=True)
class Training:
    """Options of a network's training.

    Parameters
    ----------
    epochs
        Most passes over the examples.
    patience
        Training stops after this many passes without a better validation loss, and the best weights are kept.
    batch_size
        Examples per optimizer step. ``None`` makes about a thousand steps a pass, of 256 to 4,096 examples: more steps
        would take longer and find nothing better.
    learning_rate, weight_decay
        Options of AdamW; the learning rate falls to zero along a half cosine.
    validation
        Share of each trace, at its end, that is held out to decide when to stop, in (0, 1).
    seed
        Seed of the initial weights and of the order of examples. The global random state is never touched.
    """

    epochs: int = 60
    patience: int = 10
    batch_size: int | None = None
    learning_rate: float = 4e-3
    weight_decay: float = 0.3
    validation: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "batch_size"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0.0 < self.validation < 1.0:
            raise ValueError(f"validation must lie in (0, 1), got {self.validation}")

    def batch_size_for(self, examples: int) -> int:
        """Return the examples in a step, given the examples in a pass.

        >>> Training().batch_size_for(1_400_000), Training(batch_size=64).batch_size_for(1_400_000)
        (1400, 64)
        """
        return self.batch_size or min(max(examples // 1000, 256), 4096)


Columns = Mapping[str, NDArray[Any]]
"""Columns of training examples by name: ``inputs`` ``[N, F]``, ``targets`` ``[N]``, ``validates`` ``[N]`` of bool, and
what else the loss takes."""


def residual_layer(xp: Any, weights: Mapping[str, Any], num_past: int, inputs: Any) -> Any:
    """Return a linear forecast plus a network's correction of it, ``[N]``, with the functions of numpy or of torch.

    The linear path sees the first inputs, as many as it has weights. The network sees its forecast and the first
    ``num_past`` inputs, each as it is and by its arcsinh, which keeps small changes apart where one is large, and what
    the linear path does not see.
    """
    linear = weights["linear"]
    expected = inputs[:, : len(linear)] @ linear
    inputs_and_forecast = xp.concatenate([inputs[:, :num_past], expected[:, None]], axis=1)
    seen = xp.concatenate([inputs_and_forecast, xp.arcsinh(inputs_and_forecast), inputs[:, len(linear) :]], axis=1)
    hidden = xp.tanh(seen @ weights["w1"] + weights["b1"])
    return expected + seen @ weights["direct"] + hidden @ weights["w2"] + weights["b2"]


def gated_layer(weights: Mapping[str, Array], inputs: Array, references: Array, unit: Array) -> Array:
    """Return the change that a gated network expects, ``[N]``, in the unit of the references.

    It is ``sum_r softmax_r(gates) * reference_r + head_1 + unit * head_2``, of one tanh layer; the softmax has one more
    gate, fixed at zero, whose reference is no change. Inputs at the end that are left out count as 0.
    """
    hidden = inputs @ weights["w1"][: inputs.shape[1]]
    hidden += weights["b1"]
    output = np.tanh(hidden, out=hidden) @ weights["w2"]
    output += weights["b2"]
    # No maximum is subtracted, as a softmax usually does: outputs of a tanh layer are bounded.
    gates = np.exp(output[:, :-2])
    chosen = np.add.reduce(gates * references, axis=1) / (1.0 + np.add.reduce(gates, axis=1))
    return np.asarray(chosen + output[:, -2] + unit * output[:, -1])


WindowArray = NDArray[np.void]
"""Windows as records: a field for each column of the examples, in single precision, and ``source``, their trace."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Training windows of many traces, in their order; ``trace_names`` are the traces, by the records' ``source``."""

    records: WindowArray
    trace_names: Sequence[str]

    def width(self, column: str) -> int:
        """Return the length of the last axis of a column."""
        return int(self.records.dtype[column].shape[-1])

    def __len__(self) -> int:
        return len(self.records)

    @property
    def num_validation_windows(self) -> int:
        """Windows in all that validate."""
        return int(self.records["validates"].sum()) if len(self) else 0


def collect_windows(
    traces: Iterable[Trace],
    summary: TraceSummary,
    fit_options: FitOptions,
    iter_columns: Callable[[Trace], Iterable[Columns]],
) -> Windows:
    """Return the windows of all traces, of very many a random sample: those of two million speeds.

    ``iter_columns`` yields those of a trace.
    """
    # Two million take at most a gigabyte, and more no longer change what a network of some thousand weights learns.
    share = 2_000_000 / max(summary.num_speeds, 1)
    rng = np.random.default_rng(0)
    trace_names: list[str] = []
    blocks: list[WindowArray] = []
    record_dtype: np.dtype[np.void] | None = None
    total, began = len(summary.num_iterations), time.perf_counter()
    for done, trace in enumerate(traces, 1):
        trace_names.append(trace.meta.get("file", trace.name))
        for part in iter_columns(trace):
            if record_dtype is None:
                kinds = {name: (np.float32, column.shape[1:]) for name, column in part.items()}
                columns = [(name, *of) for name, of in (kinds | {"validates": (np.bool_, ())}).items()]
                # Aligned: numpy copies numbers that are not several times as slowly.
                record_dtype = np.dtype([*columns, ("source", np.int32)], align=True)
            records = np.empty(len(part["validates"]), dtype=record_dtype)
            for name, column in part.items():
                records[name] = column
            records["source"] = done - 1
            blocks.append(records if share >= 1.0 else records[rng.random(len(records)) < share])
        fit_options.progress(FitProgress("windows", done, total, done / (time.perf_counter() - began)))
    windows = Windows(np.concatenate(blocks) if blocks else np.empty(0, dtype=[]), trace_names)
    if windows.num_validation_windows in (0, len(windows)):
        if fit_options.held_out is not None and max(summary.num_iterations) > 10:
            raise ValueError(
                f"{len(fit_options.held_out)} of {len(summary.workers)} workers are held out, which leaves no complete "
                "window to fit to, or none to validate on: hold out another share, or use longer traces"
            )
        more = ", ..." if total > 10 else ""
        shown = f"{list(summary.num_iterations[: 9 if more else 10])}{more}"
        raise ValueError(f"traces of {shown} iterations are too short to fit: use longer ones")
    return windows


WorkerStates = dict[str, Array]

LOG_SPEED_RANGE = (np.log(MIN_SPEED), np.log(MAX_SPEED))
"""The least and the greatest log speed that a network forecasts."""


class Network(FleetPredictor):
    """A predictor with weights that torch fits; its inputs hold covariates in deviations from their mean."""

    needs_shared_covariates: ClassVar[bool] = True
    """Whether it can only read covariates that all fitted traces have."""

    def __init__(self, covariates: Sequence[str] | None) -> None:
        super().__init__()
        self.covariates = None if covariates is None else validated_covariate_names(covariates)
        self.weights_: dict[str, Array] = {}
        self.covariate_names_: tuple[str, ...] = self.covariates or ()
        self.covariate_mean_ = np.zeros(len(self.covariate_names_))
        self.covariate_scale_ = np.ones(len(self.covariate_names_))

    def fit_streamed(self, traces: Iterable[Trace], fit_options: FitOptions) -> Self:
        """Fit the network to traces that may be read more than once and never all at once. Needs torch."""
        require("torch", needed_by=f"{type(self).__name__}.fit", extra="torch")
        summary = fit_options.summarize(traces)
        if not fit_options.warm_start:
            self.covariate_names_ = summary.select_covariates(self.covariates, self.needs_shared_covariates)
            self.covariate_mean_, self.covariate_scale_ = summary.mean_and_scale(self.covariate_names_)
            self.weights_ = {}
        windows = collect_windows(traces, summary, fit_options, partial(self._make_examples, fit_options))
        self.weights_ = self._fit_weights(windows, fit_options)
        self.reset(self.workers)
        return self

    @abstractmethod
    def _make_examples(self, fit_options: FitOptions, trace: Trace) -> Iterator[Columns]:
        """Pass a trace through the serving code, and yield the examples that it makes, part by part."""

    @abstractmethod
    def _fit_weights(self, windows: Windows, fit_options: FitOptions) -> dict[str, Array]:
        """Return the weights fitted to these windows, beginning with those that there are."""

    def replay_trace(self, trace: Trace) -> Iterator[tuple[WorkerStates, Array, Array]]:
        """Yield every iteration in which it would have forecast this trace, on inputs as it sees them in serving.

        Each comes with the workers' state before it, the covariates at its start, and its measured log speeds.
        """
        served = copy.copy(self)
        served.weights_ = {}  # inputs do not depend on them
        served.reset(trace.workers)
        covariates_TWD = trace.covariates_named(served.covariate_names)
        for k, log_speed_W in enumerate(np.log(trace.speed)):
            covariates_WD = served._validated_covariates(None if covariates_TWD is None else covariates_TWD[k])
            yield served.state, covariates_WD, log_speed_W
            served.state = served._advance(served.state, log_speed_W, covariates_WD)

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        self.state = self._advance(self.state, np.log(speed_W), covariates_WD)

    def forecast_log_speed(self, covariates_WD: Array, horizon: int) -> Array:
        worker_states = self.state
        for _ in range(horizon - 1):  # further ahead, its own forecast is fed back and the covariates stay
            worker_states = self._advance(
                worker_states, self._next_log_speed(worker_states, covariates_WD), covariates_WD
            )
        return self._next_log_speed(worker_states, covariates_WD)

    @abstractmethod
    def _next_log_speed(self, worker_states: WorkerStates, covariates_WD: Array) -> Array:
        """Return the log of the next speed."""

    @abstractmethod
    def _advance(self, worker_states: WorkerStates, log_speed_W: Array, covariates_WD: Array) -> WorkerStates:
        """Return the state one iteration later, after these log speeds (NaN where there is none)."""

    def fitted_state(self) -> dict[str, NDArray[Any]]:
        return {
            **self.weights_,
            "covariate_names": np.array(self.covariate_names_, dtype=np.str_),
            "covariate_mean": self.covariate_mean_,
            "covariate_scale": self.covariate_scale_,
        }

    def load_fitted_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.covariate_names_ = tuple(map(str, state.get("covariate_names", self.covariate_names_)))
        count = len(self.covariate_names_)
        self.covariate_mean_ = load_finite(state, "covariate_mean", np.zeros(count))
        self.covariate_scale_ = load_finite(state, "covariate_scale", np.ones(count))
        weights = [name for name in state if not name.startswith("covariate_")]
        self.weights_ = {name: load_finite(state, name, state[name]) for name in weights}
