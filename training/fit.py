"""Fit a predictor to recorded traces."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterable
from typing import TypeVar

from paceline.datasets import Trace
from paceline.predictors import Predictor

P = TypeVar("P", bound=Predictor)

logger = logging.getLogger(__name__)


def fit(predictor: P, traces: Iterable[Trace]) -> P:
    """Return a copy of the predictor, fitted to these traces; the original is unchanged.

    Parameters
    ----------
    predictor
        Any predictor; its own ``fit`` method learns.
    traces
        Recorded traces, with speeds.

    Raises
    ------
    ValueError
        If there is no trace, a trace has no speeds at all, or measured speeds and speeds derived from a model of
        resource usage are mixed.

    Examples
    --------
    >>> from paceline.predictors import EWMA
    >>> fit(EWMA(), [Trace(samples=[[8, 8]], seconds=[[1, 2]])]).smoothing
    0.2
    """
    traces = list(traces)
    _check(traces)
    began = time.perf_counter()
    fitted = copy.deepcopy(predictor).fit(traces)
    logger.info(
        "fitted %s to %s in %.1f s",
        type(predictor).__name__,
        ", ".join(trace.name for trace in traces),
        time.perf_counter() - began,
    )
    return fitted


def _check(traces: list[Trace]) -> None:
    if not traces:
        raise ValueError("traces must hold at least one trace to fit, got none")
    for trace in traces:
        if not (trace.speed > 0).any():
            raise ValueError(f"trace {trace.name!r} has no speed to fit: all its samples or seconds are missing or 0")
    derived = [trace.name for trace in traces if "derived" in trace.meta]
    if derived and len(derived) < len(traces):
        raise ValueError(
            f"traces {derived} have speeds derived from resource usage and the others have measured ones; "
            "fit the two kinds separately"
        )
