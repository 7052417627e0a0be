"""Validate what is evaluated: recorded jobs, and the forecasts made for them. Axes: T iterations, W workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from paceline._arrays import Array
from paceline.datasets import Trace
from paceline.predictors import Predictor
from paceline.predictors.adopted import Adopted


def by_name(traces: Iterable[Trace] | Trace) -> dict[str, Trace]:
    """Return the traces by name; refuse two traces of one name, which tables would merge.

    Raises
    ------
    TypeError
        If one is not a trace.
    ValueError
        If two traces have the same name.

    Examples
    --------
    >>> list(by_name([Trace([[8]], [[1]], meta={"job": "digits"}), Trace([[8]], [[1]])]))
    ['digits', 'trace']
    """
    jobs: dict[str, Trace] = {}
    for trace in [traces] if isinstance(traces, Trace) else traces:
        require_trace(trace)
        if trace.name in jobs:
            raise ValueError(f"traces must have different names, got {trace.name!r} twice: set meta['job']")
        jobs[trace.name] = trace
    return jobs


def require_trace(trace: object) -> None:
    """Raise an error unless this is a trace in memory."""
    if not isinstance(trace, Trace):
        raise TypeError(
            f"a recorded job must be a Trace, got an object of {type(trace).__name__}: "
            "paceline.datasets.read_traces reads a file, and Trace.from_frame makes one of a frame"
        )


def require_warmup(warmup: int, trace: Trace) -> None:
    """Raise an error unless the warm-up leaves an iteration of the trace."""
    if not 0 <= warmup < len(trace):
        raise ValueError(
            f"warmup must be at least 0 and below the {len(trace)} iterations of trace {trace.name!r}, got {warmup}"
        )


def require_forecasts(
    predictor: Predictor, speed_TW: Array, spread_TW: Array, workers: Sequence[str], first: int = 0
) -> None:
    """Raise an error unless every forecast is a finite speed above 0, with a spread that is a number.

    Parameters
    ----------
    predictor
        Who made the forecasts: the error names it.
    speed_TW, spread_TW
        Forecast speeds in samples/s, and their relative standard deviations, ``[T, W]``.
    workers
        The fleet.
    first
        Number of the first forecast's iteration.

    Raises
    ------
    ValueError
        If one is not; the message says of which worker and iteration.

    Examples
    --------
    >>> from paceline.predictors import EWMA
    >>> require_forecasts(EWMA(), np.array([[90.0, np.nan]]), np.array([[0.1, 0.1]]), ["a", "b"], first=7)
    Traceback (most recent call last):
    ValueError: EWMA forecast nan samples/s for worker b in iteration 7: a forecast must be a finite speed above 0 for
    every worker, before its first report and in gaps too
    """
    named = type(predictor.predictor if isinstance(predictor, Adopted) else predictor).__name__
    for values_TW, right_TW, name, requirement in (
        (speed_TW, np.isfinite(speed_TW) & (speed_TW > 0), "{:g} samples/s", "a finite speed above 0"),
        (spread_TW, spread_TW >= 0, "a spread of {:g}", "a spread of at least 0, infinite where nothing is known,"),
    ):
        if not right_TW.all():
            t, w = (int(axis[0]) for axis in np.nonzero(~right_TW))
            raise ValueError(
                f"{named} forecast {name.format(values_TW[t, w])} for worker {workers[w]} in iteration {first + t}: a "
                f"forecast must be {requirement} for every worker, before its first report and in gaps too"
            )
