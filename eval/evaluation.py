"""Measure a model for its card: beside baselines, on traces it was not fitted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paceline.datasets import Trace
from paceline.eval.leaderboard import Leaderboard, leaderboard
from paceline.eval.replay.synchronous import replay_all
from paceline.eval.replay.synchronous_schemes import Balanced
from paceline.predictors import EWMA, Auto, FleetPredictor
from paceline.training.entry import Evaluation, Score
from paceline.training.sources import Fact

MODEL = "this model"

WORST = 5
"""Workers listed as forecast worst."""


def evaluation(
    model: FleetPredictor, traces: Sequence[Trace], *, fitted_on: Sequence[Fact] = (), warmup: int = 50
) -> Evaluation:
    """Return how good a model is on these traces.

    Raises
    ------
    ValueError
        If it was fitted to one of them, which would flatter it, or a warm-up leaves nothing of a trace.

    Examples
    --------
    >>> from paceline.predictors import checks
    >>> evaluation(EWMA(smoothing=0.5), [checks.example_trace()]).model.rmse > 1
    True
    """
    data = unfitted(traces, fitted_on)
    board = leaderboard({MODEL: model, "ewma": EWMA(), "auto": Auto()}, traces, warmup=warmup)
    scores = {row["predictor"]: _score(row) for row in board.overall.to_dict("records")}
    mine = scores.pop(MODEL)
    replayed = replay_all({MODEL: Balanced(model)}, traces, warmup=warmup).overall.set_index("scheme")
    return Evaluation(
        data=data,
        model=mine,
        baselines=tuple(scores.values()),
        worst=_worst(board),
        speed_up=float(np.asarray(replayed.loc[MODEL, "speed-up"])),
        regret=float(np.asarray(replayed.loc[MODEL, "regret"])),
    )


def unfitted(traces: Sequence[Trace], fitted_on: Sequence[Fact], model: str = "the model") -> tuple[Fact, ...]:
    """Return the facts of traces to measure a model on; refuse those that it was fitted to.

    Raises
    ------
    ValueError
        If a trace has the digest of one that was fitted, whatever its name and format.

    Examples
    --------
    >>> one, other = Trace([[8]], [[1]], meta={"job": "monday"}), Trace([[8]], [[2]])
    >>> [fact.name for fact in unfitted([other], [Fact.of(one)])]
    ['trace']
    >>> unfitted([one], [Fact.of(one)])
    Traceback (most recent call last):
    ValueError: traces ['monday'] were fitted, and would flatter the model: evaluate it on others
    """
    data = tuple(Fact.of(trace, trace.meta.get("file", "")) for trace in traces)
    digests = {fact.digest for fact in fitted_on}
    if fitted := [fact.name for fact in data if fact.digest in digests]:
        raise ValueError(f"traces {fitted} were fitted, and would flatter {model}: evaluate it on others")
    return data


def _score(row: Mapping[Any, Any]) -> Score:
    columns = {str(key): value for key, value in row.items()}
    numbers = {name: float(str(columns[name])) for name in ("rmse", "mae", "coverage", "overhead")}
    return Score(str(columns["predictor"]), **numbers)


def _worst(board: Leaderboard) -> tuple[tuple[str, float], ...]:
    mine = board.workers[board.workers["predictor"] == MODEL].nlargest(WORST, "rmse")
    return tuple((f"{row.trace}/{row.worker}", float(str(row.rmse))) for row in mine.itertuples())
