"""The parts of neural predictors that need no torch: training options, examples, and the layers that serve.

Axes: N examples, F inputs of the network, H hidden units, R references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array


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

    def batch_of(self, examples: int) -> int:
        """Return the examples in a step, given the examples in a pass.

        >>> Training().batch_of(1_400_000), Training(batch_size=64).batch_of(1_400_000)
        (1400, 64)
        """
        return self.batch_size or min(max(examples // 1000, 256), 4096)


@dataclass(frozen=True, eq=False)
class Examples:
    """Training examples of a network: inputs ``[N, F]``, targets ``[N]``, and which rows validate, ``[N]`` of bool."""

    inputs: Array
    targets: Array
    validates: NDArray[np.bool_]

    @classmethod
    def chosen(cls, rows: NDArray[np.bool_], *columns: NDArray[Any]) -> Self:
        """Return examples of these columns, in the order of the fields, where ``rows`` is true."""
        return cls(*(columns if rows.all() else (column[rows] for column in columns)))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the examples of all parts, one after the other."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))


@dataclass(frozen=True, eq=False)
class GateExamples(Examples):
    """Examples of a gated network: also its references ``[N, R]`` and the unit of its second head ``[N]``.

    References, units and targets are differences from the last log speed, in running scales.
    """

    references: Array
    unit: Array


STEPS = 64
"""Length of the sequences that recurrent networks are trained on."""


@dataclass(frozen=True, eq=False)
class Sequences:
    """Training sequences of a recurrent network: inputs ``[N, STEPS, F]``, targets ``[N, STEPS]``, and which validate.

    A missing target is NaN; such a step only advances the state.
    """

    inputs: Array
    targets: Array
    validates: NDArray[np.bool_]

    @classmethod
    def cut(cls, inputs: Array, targets: Array, validation: float) -> Self:
        """Cut one worker's inputs ``[T, F]`` and targets ``[T]`` into sequences; the last share of them validates."""
        first = int((1.0 - validation) * len(targets))
        parts = [(begin, min(begin + STEPS, first), False) for begin in range(0, first, STEPS)]
        parts += [(begin, begin + STEPS, True) for begin in range(first, len(targets), STEPS)]
        cut_inputs = np.zeros((len(parts), STEPS, inputs.shape[1]))
        cut_targets = np.full((len(parts), STEPS), np.nan)
        for n, (begin, end, _) in enumerate(parts):
            length = len(targets[begin:end])
            cut_inputs[n, :length], cut_targets[n, :length] = inputs[begin:end], targets[begin:end]
        return cls(cut_inputs, cut_targets, np.array([validates for _, _, validates in parts], dtype=bool))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the sequences of all parts, one after the other."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))


def residual_layer(xp: Any, weights: Mapping[str, Any], past: int, inputs: Any) -> Any:
    """Return a linear forecast plus a network's correction of it, ``[N]``, with the functions of numpy or of torch.

    The linear path sees the first inputs, as many as it has weights. The network sees its forecast and the first
    ``past`` inputs, each as it is and by its arcsinh, which keeps small changes apart where one is large, and what
    the linear path does not see.
    """
    linear = weights["linear"]
    expected = inputs[:, : len(linear)] @ linear
    inputs_and_forecast = xp.concatenate([inputs[:, :past], expected[:, None]], axis=1)
    seen = xp.concatenate([inputs_and_forecast, xp.arcsinh(inputs_and_forecast), inputs[:, len(linear) :]], axis=1)
    hidden = xp.tanh(seen @ weights["w1"] + weights["b1"])
    return expected + seen @ weights["direct"] + hidden @ weights["w2"] + weights["b2"]


def gated_layer(weights: Mapping[str, Array], inputs: Array, references: Array, unit: Array) -> Array:
    """Return the change that a gated network expects, ``[N]``, in the unit of the references.

    Gates and heads are outputs of one tanh layer; inputs at the end that are left out count as 0. The change is
    ``sum_r softmax_r(gates) * reference_r + head_1 + unit * head_2``; the softmax has one more gate, fixed at zero,
    whose reference is no change.
    """
    hidden = inputs @ weights["w1"][: inputs.shape[1]]
    hidden += weights["b1"]
    output = np.tanh(hidden, out=hidden) @ weights["w2"]
    output += weights["b2"]
    # No maximum is subtracted, as a softmax usually does: outputs of a tanh layer are bounded.
    gates = np.exp(output[:, :-2])
    chosen = np.add.reduce(gates * references, axis=1) / (1.0 + np.add.reduce(gates, axis=1))
    return np.asarray(chosen + output[:, -2] + unit * output[:, -1])
