"""What is known of one quantity of every client, such as its speed: a log level that follows its reports.

A client may be silent for hundreds of rounds between two reports, so its level is that of a local-level Kalman filter:
the longer ago it was measured, the more a new report counts. Axes: N rows, one for each known client; W clients of
one round; D device types, of which the first is "not known".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes

NEVER = -1
"""The round of a measurement that never was."""

ERROR_SMOOTHING = 0.2
"""Weight of the newest squared error in a client's spread: it reports rarely, so a fifth, not a twentieth."""

FIRST_DOUBT = 4.0
"""Variance of a client's first report over that of later ones: in a first round it imports, compiles and warms up."""

Rows = NDArray[np.intp]


class Source(IntEnum):
    """What a forecast rests on."""

    OWN = 0
    DEVICE = 1
    FLEET = 2
    NOTHING = 3
    SILENCE = 4


class Levels:
    """Forecasts of one positive quantity for every row, in a handful of arrays.

    A client that was never measured is forecast at the geometric mean of its device type, or of all clients where that
    type was never measured either. Those means are kept up to date with each report, so a forecast costs no look at
    the other rows.

    Parameters
    ----------
    smoothing
        Weight of the newest report of a client that reports every round, in (0, 1]. One that was silent for longer
        is corrected by more.
    prior
        The forecast before anybody was measured.

    Notes
    -----
    The local-level model of A. C. Harvey, "Forecasting, Structural Time Series Models and the Kalman Filter", 1989,
    section 2.3, in the log. ``doubt`` is the level's variance over that of a report; it grows by
    ``smoothing**2 / (1 - smoothing)`` a round, for which the gain of gapless reports settles at ``smoothing``.

    Examples
    --------
    >>> levels = Levels(smoothing=0.5, prior=1.0)
    >>> row, device = np.array([0, 1]), np.array([0, 0])
    >>> levels.grow(2)
    >>> levels.learn(row[:1], np.array([100.0]), device[:1], round_index=0)
    >>> levels.forecast(row, device)[0]
    array([100., 100.])
    """

    def __init__(self, smoothing: float, prior: float) -> None:
        self.smoothing = smoothing
        self.prior = prior
        self._level_N: Array = np.empty(0)
        self._doubt_N: Array = np.empty(0)
        self._error_N: Array = np.empty(0)
        self._ceiling_N: Array = np.empty(0)
        self._when_N: Sizes = np.empty(0, dtype=np.int64)
        self._sum_D: Array = np.zeros(1)
        self._count_D: Array = np.zeros(1)

    def grow(self, count: int) -> None:
        """Make room for ``count`` rows; those there keep what was learnt."""
        more = count - len(self._level_N)
        if not more:
            return  # appending nothing would still copy every row
        self._level_N = np.append(self._level_N, np.full(more, np.nan))
        self._doubt_N = np.append(self._doubt_N, np.full(more, np.nan))
        self._error_N = np.append(self._error_N, np.full(more, np.nan))
        self._ceiling_N = np.append(self._ceiling_N, np.full(more, np.inf))
        self._when_N = np.append(self._when_N, np.full(more, NEVER))

    def learn(self, rows: Rows, value_W: Array, device_W: Sizes, *, round_index: int) -> None:
        """Learn the values that these rows reported; all positive and finite, no row twice."""
        newest_W, level_W = np.log(value_W), self._level_N[rows]
        first_W = np.isnan(level_W)
        error_W = np.where(first_W, 0.0, newest_W - level_W)
        gap_W = np.where(first_W, 1, np.maximum(round_index - self._when_N[rows], 1))
        doubt_W = np.where(first_W, np.inf, self._doubt_N[rows]) + gap_W * self._growth
        gain_W = np.where(np.isinf(doubt_W), 1.0, 1.0 - 1.0 / (doubt_W + 1.0))
        self._set(rows, np.where(first_W, newest_W, level_W + gain_W * error_W), device_W)
        # The variance after a report is the gain itself, in units of a report's variance.
        self._doubt_N[rows] = np.where(first_W, FIRST_DOUBT, gain_W)
        before_W, squared_W = self._error_N[rows], np.square(error_W)
        error_W = np.where(np.isnan(before_W), squared_W, before_W + ERROR_SMOOTHING * (squared_W - before_W))
        self._error_N[rows] = np.where(first_W, np.nan, error_W)
        self._when_N[rows] = round_index
        self._ceiling_N[rows] = np.inf

    def cap(self, rows: Rows, most_W: Array) -> None:
        """Forecast these rows at no more than this until they answer again.

        It is what is known of one that did not answer in time. Its level and the means of others stay as they are, for
        it may as well have been switched off.
        """
        self._ceiling_N[rows] = np.minimum(self._ceiling_N[rows], most_W)

    def lift(self, rows: Rows) -> None:
        """Forget the most that these rows could be: they answered."""
        self._ceiling_N[rows] = np.inf

    def forget(self, rows: Rows, device_W: Sizes) -> None:
        """Forget these rows, so that others may take their place."""
        self._set(rows, np.full(len(rows), np.nan), device_W)
        self._doubt_N[rows] = self._error_N[rows] = np.nan
        self._ceiling_N[rows] = np.inf
        self._when_N[rows] = NEVER

    def move(self, rows: Rows, before_W: Sizes, after_W: Sizes) -> None:
        """Count these rows with another device type from now on."""
        level_W = self._level_N[rows].copy()
        self._set(rows, np.full(len(rows), np.nan), before_W)
        self._set(rows, level_W, after_W)

    def forecast(self, rows: Rows, device_W: Sizes) -> tuple[Array, Array, Sizes]:
        """Return value, relative spread (infinite where never compared) and ``Source`` of each row, ``[W]``.

        A row of -1 is a client that is not known; its device type may be.
        """
        known_W = rows >= 0
        level_W = np.where(known_W, self._level_N[rows], np.nan)
        mean_W, source_W = self._means(device_W)
        own_W = np.isfinite(level_W)
        spread_W = np.where(known_W, np.sqrt(self._error_N[rows]), np.nan)
        ceiling_W = np.where(known_W, self._ceiling_N[rows], np.inf)
        # The prior is no knowledge: where that is all there is, a ceiling would turn it into some.
        ceiling_W = np.where(own_W | (source_W != Source.NOTHING), ceiling_W, np.inf)
        value_W = np.exp(np.where(own_W, level_W, mean_W))
        source_W = np.where(own_W, Source.OWN, source_W)
        return (
            np.minimum(value_W, ceiling_W),
            np.where(np.isfinite(spread_W), spread_W, np.inf),
            np.where(ceiling_W < value_W, Source.SILENCE, source_W),
        )

    def mean(self) -> float:
        """Return the geometric mean over all rows that were measured; NaN if there are none."""
        count = self._count_D.sum()
        return float(np.exp(self._sum_D.sum() / count)) if count else float("nan")

    def state_dict(self, rows: Rows) -> dict[str, NDArray[np.generic]]:
        """Return what was learnt of these rows, in their order."""
        return {
            "level": self._level_N[rows],
            "doubt": self._doubt_N[rows],
            "error": self._error_N[rows],
            "ceiling": self._ceiling_N[rows],
            "when": self._when_N[rows],
            # Summed again they would differ in the last bit, and so might a plan.
            "sum": self._sum_D.copy(),
            "count": self._count_D.copy(),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Take over what ``state_dict`` returned; row 0 is its first."""
        self._level_N = np.array(state["level"], dtype=np.float64)
        self._doubt_N = np.array(state["doubt"], dtype=np.float64)
        self._error_N = np.array(state["error"], dtype=np.float64)
        self._ceiling_N = np.array(state["ceiling"], dtype=np.float64)
        self._when_N = np.array(state["when"], dtype=np.int64)
        self._sum_D = np.array(state["sum"], dtype=np.float64)
        self._count_D = np.array(state["count"], dtype=np.float64)

    # -- what it is made of --------------------------------------------------------------------------------------

    @property
    def _growth(self) -> float:
        """What a round without a report adds to the doubt; at a smoothing of 1 only the newest report counts."""
        return self.smoothing**2 / (1.0 - self.smoothing) if self.smoothing < 1.0 else np.inf

    def _set(self, rows: Rows, level_W: Array, device_W: Sizes) -> None:
        """Change levels, and the sums from which the means of the device types come."""
        devices = max(int(device_W.max(initial=0)) + 1, len(self._sum_D))
        more = devices - len(self._sum_D)
        self._sum_D, self._count_D = np.append(self._sum_D, np.zeros(more)), np.append(self._count_D, np.zeros(more))
        for sign, values_W in ((-1.0, self._level_N[rows]), (1.0, level_W)):
            known_W = np.isfinite(values_W)
            self._count_D += sign * np.bincount(device_W[known_W], minlength=devices)
            self._sum_D += sign * np.bincount(device_W[known_W], values_W[known_W], minlength=devices)
        self._sum_D[self._count_D == 0] = 0.0  # what rounding leaves behind must not grow
        self._level_N[rows] = level_W

    def _means(self, device_W: Sizes) -> tuple[Array, Sizes]:
        """Return the mean log level of each one's device type, or of all, and which of them it is."""
        total = self._count_D.sum()
        fleet = self._sum_D.sum() / total if total else np.log(self.prior)
        there_W = np.minimum(device_W, len(self._sum_D) - 1)
        # Clients whose type is not known have nothing in common: index 0 is no type.
        typed_W = (device_W > 0) & (device_W < len(self._sum_D))
        count_W = np.where(typed_W, self._count_D[there_W], 0.0)
        mean_W = np.where(count_W > 0, self._sum_D[there_W] / np.maximum(count_W, 1.0), fleet)
        source_W = np.where(count_W > 0, Source.DEVICE, Source.FLEET if total else Source.NOTHING)
        return mean_W, source_W
