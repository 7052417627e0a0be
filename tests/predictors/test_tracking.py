"""The quantiles of Calibrated are those of a slow tracker, written once more from the words of its documentation."""

import math
from statistics import NormalDist, median

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.predictors import Calibrated, Report
from paceline.predictors.calibrated import LEVELS

SIZES = st.sampled_from([1.0, 1.0, 1.0, 0.0, 0.5, 2.0, 11.9, 12.1, 30.0])
ERRORS = st.lists(st.tuples(SIZES, st.sampled_from([-1, 1, 1, np.nan])), min_size=15, max_size=60)
NORMAL = [math.sqrt(math.pi / 2) * NormalDist().inv_cdf(level) for level in LEVELS]


class Tracker:
    """One worker's quantiles: multiples of the running size of its errors."""

    def __init__(self):
        self.multiples, self.scale, self.compared = list(NORMAL), None, 0
        self.recent, self.quantiles = [], [math.nan] * len(LEVELS)

    def learn(self, error):
        if math.isnan(error):
            return
        size = max(abs(error), 1e-4)
        self.restart(error, size)
        rate = max(0.02, 8 / (8 + self.compared))
        self.move(error)
        self.scale = size if self.scale is None else self.scale + rate * (min(size, 10 * self.scale) - self.scale)
        self.compared += 1
        self.quantiles = [self.scale * (1 + 3 / (1 + self.compared)) * multiple for multiple in self.multiples]

    def move(self, error):
        if not math.isnan(self.quantiles[0]):
            stated = zip(self.multiples, LEVELS, self.quantiles, strict=True)
            self.multiples = sorted(multiple + 0.15 * (level - (error <= q)) for multiple, level, q in stated)

    def restart(self, error, size):
        """Start afresh if three of four errors, the newest among them, are huge, and not all to one side."""
        last, self.recent = [error, *self.recent], [error, *self.recent][:3]
        if self.scale is None or self.compared < 20 or not size > 12 * self.scale:
            return
        above, below = (sum(side * one > 12 * self.scale for one in last) for side in (1, -1))
        if above and below and above + below >= 3:
            self.multiples, self.scale, self.compared = list(NORMAL), median(map(abs, last)), 5


@pytest.mark.slow
@settings(max_examples=30)
@given(ERRORS, st.integers(15, 25), st.lists(st.sampled_from([-1.0, 1.0, np.nan]), min_size=7, max_size=7))
@example([(1.0, 1)] * 15, 20, [1.0, np.nan, np.nan, -1.0, 1.0, 1.0, 1.0])
@example([], 18, [1.0, -1.0, 1.0, np.nan, np.nan, np.nan, np.nan])
def test_quantiles_are_those_of_a_slow_tracker(errors, usual, sides):
    """Usual errors first; then some of a size just within and just beyond what restarts the intervals."""
    errors = [*((1.0, (-1) ** k) for k in range(usual)), *errors, *((400.0, side) for side in sides), *errors]
    model, slow = Calibrated("ewma:smoothing=1e-300"), Tracker()  # forecasts the first speed for ever
    model.reset(["a", "b"])
    model.observe(Report([1.0, 1.0], [1.0, 1.0]))
    for size, sign in errors:
        error = 0.01 * size * sign
        model.observe(Report([1.0, 1.0], [np.exp(-error), 1.0]))
        slow.learn(error)
        np.testing.assert_allclose(model.state["quantiles"][0], slow.quantiles, rtol=1e-6, atol=1e-9)
    assert model.state["compared"][0] == slow.compared
