"""Clients whose time does not follow their batch: those that train by epochs, whatever batch they are given.

Such a client seems the faster, the larger its batch, and balancing would drive its batch to a bound. A fit of its time
against its samples raises the suspicion. That is not a proof: under balancing the time of a client whose speed drifts
stays the same too, as its batch follows. So a suspect is tested, with batches that differ by a factor of two.

Axes: W clients of one round; 6 moments.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from paceline._arrays import Array, Mask, Sizes
from paceline.coordinator.federated.clients import MOMENTS, Clients, Rows

MEMORY = 0.9
"""Weight of the past in the fit at each report: about the last ten count."""

FOLLOWS, SUSPECT = 0.1, 0.5
"""Share of a change of the batch, in the log, that the time follows at least; and below which it is tested.

Steps that cost as much besides their samples as nine batches follow by a tenth.
"""

APART = 0.1
"""Deviation of the batches, in the log, from which on a fit says anything."""

NOTICEABLE = 1.3
"""Factor between a client's batch and the mean batch, either way, from which a wrong fit does noticeable harm."""

CONTRAST = 2.0
"""Factor between the two batches of a test, towards the mean batch."""

SURE, NOISE = 1.64, 0.1
"""The slope of a fit is below or above a limit if it is by this many deviations; times deviate by so much at least."""

FEWEST, MOST = 4, 8
"""Reports before a client may be suspected or found not to follow, and after which a test is over."""

RARELY = 5
"""Factor by which a client whose batch hardly moves is tested more seldom than one whose time seems not to follow."""


class State(IntEnum):
    """State of knowledge about whether a client's time follows its batch."""

    TRUSTED = 0
    TESTED = 1
    FLAT = 2


class Following:
    """The fit of time against samples for every client, and what follows from it.

    Parameters
    ----------
    clients
        Known clients; the fits are kept in their columns.
    again
        Reports after which a client whose time follows may be tested again, and one whose time does not is.
    """

    def __init__(self, clients: Clients, again: int) -> None:
        self.clients = clients
        self.again = again

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
        newest_6W = np.stack([np.ones(len(rows)), x_W, y_W, x_W * x_W, x_W * y_W, y_W * y_W])
        moment_6W = MEMORY * self._without_warm_up(rows, x_W) + newest_6W
        slope_W, error_W, apart_W = _fit(moment_6W)
        most_W, least_W = slope_W + SURE * error_W, slope_W - SURE * error_W
        column = self.clients.column
        state_W, turn_W = column("state")[rows], column("turn")[rows] + 1
        trusted_W, tested_W = state_W == State.TRUSTED, state_W == State.TESTED
        astray_W = np.abs(np.log(size_W / batch))
        fits_ill_W = apart_W & (most_W < SUSPECT) & (astray_W >= np.log(NOTICEABLE))
        # Where the batch hardly moves no fit means anything: a client far from the mean is tested all the same, rarely.
        unknown_W = ~apart_W & (astray_W >= np.log(CONTRAST))
        due_W, rested_W = turn_W >= FEWEST, turn_W >= self.again - RARELY * self.again
        suspect_W = trusted_W & ((fits_ill_W & (due_W | ((turn_W < 0) & rested_W))) | (unknown_W & due_W))
        over_W = tested_W & (turn_W >= MOST)
        cleared_W = ~trusted_W & ((least_W > FOLLOWS) | (over_W & ((slope_W > FOLLOWS) | ~apart_W)))
        found_W = tested_W & ~cleared_W & (over_W | (apart_W & (turn_W >= FEWEST) & (most_W < FOLLOWS)))
        column("base")[rows[suspect_W]] = size_W[suspect_W]
        changes = [suspect_W, cleared_W, found_W]
        column("state")[rows] = np.select(changes, [State.TESTED, State.TRUSTED, State.FLAT], state_W)
        column("turn")[rows] = np.select(changes, [0, -RARELY * self.again, 0], turn_W)
        # Only what is tried from here on is a test.
        for moment, sum_W, newest_W in zip(MOMENTS, moment_6W, newest_6W, strict=True):
            column(moment)[rows] = np.where(suspect_W, newest_W, sum_W)
        return rows[found_W], rows[cleared_W & (state_W == State.FLAT)]

    def state(self, rows: Rows) -> Sizes:
        """Return the `State` of each, ``[W]``; a row of -1 is a client that is not known."""
        return self.clients.taken("state", rows).astype(np.int64)

    def sizes(self, rows: Rows, batch: int, least: int) -> Array:
        """Return the batches of clients that are not balanced now, ``[W]``; NaN for all others."""
        state_W, turn_W, base_W = self.state(rows), self.clients.taken("turn", rows), self.clients.taken("base", rows)
        towards_W = np.where(base_W > batch, base_W / CONTRAST, base_W * CONTRAST)
        tested_W = np.where(turn_W % 2 == 0, np.floor(towards_W), base_W)
        flat_W = np.where(turn_W % self.again == self.again - 1, max(batch / CONTRAST, 1.0), float(batch))
        fixed_W = np.select([state_W == State.TESTED, state_W == State.FLAT], [tested_W, np.floor(flat_W)], np.nan)
        size_W: Array = np.maximum(fixed_W, min(least, batch))
        return size_W

    def seconds(self, rows: Rows) -> Array:
        """Return the usual time of clients whose time does not follow their batch, ``[W]``; NaN for all others."""
        flat_W = self.state(rows) == State.FLAT
        count_W, seconds_W = self.clients.taken("fit_count", rows), self.clients.taken("fit_y", rows)
        return np.where(flat_W, np.exp(seconds_W / np.where(flat_W, count_W, 1.0)), np.nan)

    def _without_warm_up(self, rows: Rows, x_W: Array) -> Array:
        """Return the moments so far, ``[6, W]``, less a first report before a larger batch.

        A client that imported and compiled then seems not to follow.
        """
        moment_6W = np.stack([self.clients.column(moment)[rows] for moment in MOMENTS])
        second_W = (moment_6W[0] == 1) & (self.clients.column("state")[rows] == State.TRUSTED)
        return np.where(second_W & (x_W > moment_6W[1]), 0.0, moment_6W)


def _fit(moment_6W: Array) -> tuple[Array, Array, Mask]:
    """Return the slope of the log time over the log samples, its deviation, and who has batches apart, ``[W]``."""
    count_W, x_W, y_W, xx_W, xy_W, yy_W = moment_6W
    sxx_W, sxy_W, syy_W = xx_W - x_W * x_W / count_W, xy_W - x_W * y_W / count_W, yy_W - y_W * y_W / count_W
    apart_W: Mask = sxx_W > APART**2 * count_W
    slope_W = np.where(apart_W, sxy_W / np.where(apart_W, sxx_W, 1.0), 0.0)
    rest_W = np.maximum(syy_W - slope_W * sxy_W, 0.0) / np.maximum(count_W - 2.0, 1.0)
    error_W = np.sqrt(np.maximum(rest_W, NOISE**2) / np.where(apart_W, sxx_W, 1e-9))
    return slope_W, error_W, apart_W
