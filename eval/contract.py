"""Refuse forecasts that break a predictor's contract: scores would leave them out, and flatter it. Axes: T, W."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline._arrays import Array
from paceline.predictors import Predictor
from paceline.predictors.adopted import Adopted


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
    for values_TW, right_TW, said, must in (
        (speed_TW, np.isfinite(speed_TW) & (speed_TW > 0), "{:g} samples/s", "a finite speed above 0"),
        (spread_TW, spread_TW >= 0, "a spread of {:g}", "a spread of at least 0, infinite where nothing is known,"),
    ):
        if not right_TW.all():
            t, w = (int(axis[0]) for axis in np.nonzero(~right_TW))
            raise ValueError(
                f"{named} forecast {said.format(values_TW[t, w])} for worker {workers[w]} in iteration {first + t}: a "
                f"forecast must be {must} for every worker, before its first report and in gaps too"
            )
