"""Running medians of speeds, shortened at both ends, one window at a time."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.report.run_page import _smooth

VALUES = st.one_of(st.floats(0.1, 9.0), st.just(float("nan")))


@given(
    st.integers(1, 3).flatmap(
        lambda workers: st.lists(st.lists(VALUES, min_size=workers, max_size=workers), min_size=1, max_size=9)
    ),
    st.sampled_from([1, 3, 5]),
)
def test_each_value_is_the_median_of_the_known_ones_around_it(values, window):
    values = np.array(values)
    half = window // 2
    with np.errstate(all="ignore"):
        found = _smooth(np.where(np.isnan(values), 1.0, values), window)
    filled = np.where(np.isnan(values), 1.0, values)
    expected = [np.median(filled[max(k - half, 0) : k + half + 1], axis=0) for k in range(len(filled))]
    np.testing.assert_allclose(found, expected)
