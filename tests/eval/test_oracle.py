"""The oracle of a replay: batches of the true speeds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.eval.replay.synchronous_schemes import Oracle
from paceline.predictors import Curves

TIMES = st.floats(0.1, 4.0)


@given(*(st.tuples(TIMES, TIMES) for _ in range(4)))
def test_with_curves_it_finds_the_least_longest_time_of_those_scaled_by_the_speeds(speed, floor, slope, intercept):
    usual = Curves(*(np.array(each) for each in (floor, slope, intercept)), np.full(2, np.inf))
    oracle = Oracle(np.array([speed]), usual)
    oracle.reset(["a", "b"], 12)

    def longest(first):
        sizes_W = np.array([first, 12 - first])
        return float((np.maximum(usual.floor, usual.intercept + usual.slope * sizes_W) / np.array(speed)).max())

    first, _ = oracle.sizes(0, None)
    np.testing.assert_allclose(longest(first), min(longest(k) for k in range(1, 12)), rtol=1e-9)
