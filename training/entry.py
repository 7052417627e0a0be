"""Entries of a registry: where a model comes from, and how good it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from paceline.training.sources import Fact


@dataclass(frozen=True)
class Score:
    """Scores of one predictor, relative to the last value: see :func:`paceline.eval.leaderboard`."""

    predictor: str
    rmse: float
    mae: float
    coverage: float
    overhead: float


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on traces that it was not fitted to.

    Parameters
    ----------
    data
        The traces.
    model
        The model's scores.
    baselines
        Scores of simple predictors on the same traces.
    worst
        The workers it forecasts worst, as ``trace/worker``, with their RMSE over the last value's.
    speed_up, regret
        Of a replay: how much faster jobs are than with equal batches, and how much longer than with hindsight.
    """

    data: tuple[Fact, ...]
    model: Score
    baselines: tuple[Score, ...]
    worst: tuple[tuple[str, float], ...]
    speed_up: float
    regret: float

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """Return the evaluation that was stored as JSON."""
        return cls(
            data=tuple(Fact(**fact) for fact in stored["data"]),
            model=Score(**stored["model"]),
            baselines=tuple(Score(**score) for score in stored["baselines"]),
            worst=tuple((str(name), float(ratio)) for name, ratio in stored["worst"]),
            speed_up=float(stored["speed_up"]),
            regret=float(stored["regret"]),
        )


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One model of a registry.

    Parameters
    ----------
    name, kind, configuration
        Its name, its class, and its class with all arguments.
    digest
        The SHA-256 of its file.
    made, command, start
        When and how it was made, and the model that its fit started from.
    data
        The traces it was fitted to.
    evaluation
        How good it is, if that was measured.
    """

    name: str
    kind: str
    configuration: str
    digest: str
    made: str
    command: str
    start: str = ""
    data: tuple[Fact, ...] = ()
    evaluation: Evaluation | None = None

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """Return the entry that was stored as JSON."""
        data = tuple(Fact(**fact) for fact in stored["data"])
        evaluation = None if stored["evaluation"] is None else Evaluation.of(stored["evaluation"])
        return cls(**{**stored, "data": data, "evaluation": evaluation})
