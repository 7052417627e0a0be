"""Predictors by their names, for command lines and configuration files."""

from __future__ import annotations

import ast
import re
from inspect import signature

from paceline.predictors.arima import ARIMA
from paceline.predictors.auto import Auto
from paceline.predictors.barrier import BarrierHead
from paceline.predictors.batch_time import BatchTime
from paceline.predictors.boosting import Boosting
from paceline.predictors.calibrated import Calibrated
from paceline.predictors.changes import ChangePoint
from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.gated import GatedNARX
from paceline.predictors.mixture import Mixture
from paceline.predictors.narx import NARX
from paceline.predictors.recurrent import GRU, LSTM, SimpleRNN
from paceline.predictors.rls import RLS
from paceline.predictors.simple import EWMA, Holt, HuberEWMA, LastValue
from paceline.predictors.windows import MovingAverage, RunningMedian

KINDS: tuple[type[FleetPredictor], ...] = (
    LastValue,
    EWMA,
    HuberEWMA,
    Holt,
    MovingAverage,
    RunningMedian,
    ChangePoint,
    ARIMA,
    NARX,
    GatedNARX,
    BarrierHead,
    SimpleRNN,
    LSTM,
    GRU,
    Boosting,
    BatchTime,
    RLS,
    Mixture,
    Calibrated,
    Auto,
)

NAMES: tuple[str, ...] = tuple(
    re.sub("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", kind.__name__).lower() for kind in KINDS
)
"""The name of each kind as it is typed: ``huber-ewma`` for HuberEWMA."""


def named(text: str) -> FleetPredictor:
    """Return a new predictor from its name and, after a colon, its arguments.

    Upper and lower case, ``-`` and ``_`` are all the same.

    Raises
    ------
    ValueError
        If there is no such predictor or argument; the sentence lists those there are.

    Examples
    --------
    >>> named("last-value")
    LastValue()
    >>> named("ewma:smoothing=0.5")
    EWMA(smoothing=0.5)
    >>> named("narx:lags=4,drivers=()").lags
    4
    """
    name, _, arguments = text.partition(":")
    kinds = {_plain(kind.__name__): kind for kind in KINDS}
    kind = kinds.get(_plain(name))
    if kind is None:
        raise ValueError(f"there is no predictor {name!r}; there are {[k.__name__ for k in KINDS]}")
    values = _arguments(arguments)
    unknown = [argument for argument in values if argument not in signature(kind).parameters]
    if unknown:
        raise ValueError(f"{kind.__name__} has no argument {unknown}; it has {list(signature(kind).parameters)}")
    return kind(**values)


def _arguments(text: str) -> dict[str, object]:
    """Read ``lags=8,hidden=16``: names and plain values, nothing that runs."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if isinstance(call, ast.Call) and not call.args:
            return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords if word.arg}
    except (SyntaxError, ValueError):
        pass
    raise ValueError(f"{text!r} must be arguments like lags=8,hidden=16")


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
