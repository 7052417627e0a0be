"""Clients whose time does not follow their batch: those that train by epochs, whatever batch they are given.

Such a client seems the faster, the larger its batch, and balancing would drive its batch to a bound. A fit of its time
against its samples raises the suspicion. It is no proof: under balancing the time of a client whose speed drifts stays
the same too, as its batch follows. So a suspect is tested, with batches that differ by a factor of two.

Axes: N rows, one for each known client; W clients of one round; 6 moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Mask, Sizes
from paceline.coordinator.federated.levels import Rows

MEMORY = 0.9
"""Weight of the past in the fit at each report: about the last ten count."""

FOLLOWS, SUSPECT = 0.1, 0.5
"""Share of a change of the batch, in the log, that the time follows at least; and below which it is tested.

Steps that cost as much besides their samples as nine batches follow by a tenth.
"""

APART = 0.1
"""Deviation of the batches, in the log, from which on a fit says anything."""

NOTICEABLE = 1.3
"""Who gets less than this many times the mean batch, or the mean over it, has not been led astray yet."""

CONTRAST = 2.0
"""Factor between the two batches of a test, towards the mean batch."""

SURE, NOISE = 1.64, 0.1
"""The slope of a fit is below or above a limit if it is by this many deviations; times deviate by so much at least."""

FEWEST, MOST = 4, 8
"""Reports before a client may be suspected or found not to follow, and after which a test is over."""

RARELY = 5
"""How many times as seldom a client is tested whose batch hardly moves as one whose time seems not to follow."""


class State(IntEnum):
    """What is known of whether a client's time follows its batch."""

    TRUSTED = 0
    TESTED = 1
    FLAT = 2


class Following:
    """The fit of time against samples for every row, and what follows from it.

    Parameters
    ----------
    again
        Reports after which a client whose time follows may be tested again, and one whose time does not is.
    """

    def __init__(self, again: int) -> None:
        self.again = again
        self._moment_6N: Array = np.zeros((6, 0))
        self._state_N: Sizes = np.empty(0, dtype=np.int64)
        self._turn_N: Sizes = np.empty(0, dtype=np.int64)
        self._base_N: Array = np.empty(0)

    def grow(self, count: int) -> None:
        """Make room for ``count`` rows."""
        more = count - len(self._state_N)
        if more:
            self._moment_6N = np.append(self._moment_6N, np.zeros((6, more)), axis=1)
            self._state_N = np.append(self._state_N, np.zeros(more, dtype=np.int64))
            self._turn_N = np.append(self._turn_N, np.zeros(more, dtype=np.int64))
            self._base_N = np.append(self._base_N, np.zeros(more))

    def forget(self, rows: Rows) -> None:
        """Forget these rows."""
        self._moment_6N[:, rows], self._state_N[rows], self._turn_N[rows], self._base_N[rows] = 0.0, 0, 0, 0.0

    def learn(self, rows: Rows, samples_W: Array, seconds_W: Array, size_W: Array, batch: float) -> tuple[Rows, Rows]:
        """Learn what these rows took; return those whose time does not follow, and those whose does again, as news.

        Parameters
        ----------
        rows
            None twice.
        samples_W, seconds_W
            Of all local steps, positive and finite.
        size_W, batch
            What each was given in a step, and the mean of all that were asked.
        """
        x_W, y_W = np.log(samples_W), np.log(seconds_W)
        self._forget_warming_up(rows, x_W)
        newest_6W = np.stack([np.ones(len(rows)), x_W, y_W, x_W * x_W, x_W * y_W, y_W * y_W])
        self._moment_6N[:, rows] = MEMORY * self._moment_6N[:, rows] + newest_6W
        self._turn_N[rows] += 1
        slope_W, error_W, apart_W = self._fit(rows)
        most_W, least_W = slope_W + SURE * error_W, slope_W - SURE * error_W
        state_W, turn_W = self._state_N[rows], self._turn_N[rows]
        trusted_W, tested_W = state_W == State.TRUSTED, state_W == State.TESTED
        astray_W = np.abs(np.log(size_W / batch))
        fits_ill_W = apart_W & (most_W < SUSPECT) & (astray_W >= np.log(NOTICEABLE))
        # Where the batch hardly moves no fit says anything: who is far from the mean is tested all the same, rarely.
        unknown_W = ~apart_W & (astray_W >= np.log(CONTRAST))
        due_W, rested_W = turn_W >= FEWEST, turn_W >= self.again - RARELY * self.again
        suspect_W = trusted_W & ((fits_ill_W & (due_W | ((turn_W < 0) & rested_W))) | (unknown_W & due_W))
        over_W = tested_W & (turn_W >= MOST)
        cleared_W = ~trusted_W & ((least_W > FOLLOWS) | (over_W & ((slope_W > FOLLOWS) | ~apart_W)))
        found_W = tested_W & ~cleared_W & (over_W | (apart_W & (turn_W >= FEWEST) & (most_W < FOLLOWS)))
        self._moment_6N[:, rows[suspect_W]] = newest_6W[:, suspect_W]  # only what is tried from here on is a test
        self._base_N[rows[suspect_W]] = size_W[suspect_W]
        for changed_W, state, turn in (
            (suspect_W, State.TESTED, 0),
            (cleared_W, State.TRUSTED, -RARELY * self.again),
            (found_W, State.FLAT, 0),
        ):
            self._state_N[rows[changed_W]], self._turn_N[rows[changed_W]] = state, turn
        return rows[found_W], rows[cleared_W & (state_W == State.FLAT)]

    def state(self, rows: Rows) -> Sizes:
        """Return the `State` of each, ``[W]``; a row of -1 is a client that is not known."""
        return np.where(rows >= 0, self._state_N[rows], State.TRUSTED)

    def sizes(self, rows: Rows, batch: int, least: int) -> Array:
        """Return the batch of those that are not balanced now, ``[W]``; NaN for all others."""
        state_W, turn_W, base_W = self.state(rows), self._turn_N[rows], self._base_N[rows]
        towards_W = np.where(base_W > batch, base_W / CONTRAST, base_W * CONTRAST)
        tested_W = np.where(turn_W % 2 == 0, np.floor(towards_W), base_W)
        flat_W = np.where(turn_W % self.again == self.again - 1, max(batch / CONTRAST, 1.0), float(batch))
        fixed_W = np.select([state_W == State.TESTED, state_W == State.FLAT], [tested_W, np.floor(flat_W)], np.nan)
        size_W: Array = np.maximum(fixed_W, min(least, batch))
        return size_W

    def seconds(self, rows: Rows) -> Array:
        """Return the usual time of those whose time does not follow their batch, ``[W]``; NaN for all others."""
        flat_W = self.state(rows) == State.FLAT
        with np.errstate(invalid="ignore", divide="ignore"):
            usual_W = np.exp(self._moment_6N[2, rows] / self._moment_6N[0, rows])
        return np.where(flat_W, usual_W, np.nan)

    def state_dict(self, rows: Rows) -> dict[str, NDArray[np.generic]]:
        """Return what was learnt of these rows, in their order."""
        return {
            "moments": self._moment_6N[:, rows].T,
            "state": self._state_N[rows],
            "turn": self._turn_N[rows],
            "base": self._base_N[rows],
        }

    def load_state_dict(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Take over what ``state_dict`` returned; row 0 is its first."""
        self._moment_6N = np.array(state["moments"], dtype=np.float64).reshape(-1, 6).T.copy()
        self._state_N = np.array(state["state"], dtype=np.int64)
        self._turn_N = np.array(state["turn"], dtype=np.int64)
        self._base_N = np.array(state["base"], dtype=np.float64)

    # -- what it is made of --------------------------------------------------------------------------------------

    def _forget_warming_up(self, rows: Rows, x_W: Array) -> None:
        """Forget a first report before a larger batch: a client that imported and compiled then seems not to follow."""
        count_W, before_W, *_ = self._moment_6N[:, rows]
        second_W = (count_W == 1) & (self._state_N[rows] == State.TRUSTED)
        self._moment_6N[:, rows[second_W & (x_W > before_W)]] = 0.0

    def _fit(self, rows: Rows) -> tuple[Array, Array, Mask]:
        """Return the slope of the log time over the log samples, its deviation, and who has batches apart, ``[W]``."""
        count_W, x_W, y_W, xx_W, xy_W, yy_W = self._moment_6N[:, rows]
        sxx_W, sxy_W, syy_W = xx_W - x_W * x_W / count_W, xy_W - x_W * y_W / count_W, yy_W - y_W * y_W / count_W
        apart_W: Mask = sxx_W > APART**2 * count_W
        slope_W = np.where(apart_W, sxy_W / np.where(apart_W, sxx_W, 1.0), 0.0)
        rest_W = np.maximum(syy_W - slope_W * sxy_W, 0.0) / np.maximum(count_W - 2.0, 1.0)
        error_W = np.sqrt(np.maximum(rest_W, NOISE**2) / np.where(apart_W, sxx_W, 1e-9))
        return slope_W, error_W, apart_W
