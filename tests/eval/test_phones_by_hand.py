"""Lines of phones and slowdowns of recorded workers, by hand."""

import numpy as np
import pandas as pd
import pytest

from paceline.datasets import Trace
from paceline.eval.replay.federated import population as populations
from paceline.eval.replay.federated import slowdown_of

NAN = float("nan")


def test_slowdowns_are_cut_to_the_shortest_recording():
    one = Trace([[1.0, 1.0, 1.0]] * 4, [[1.0, 2.0, NAN], [2.0, NAN, NAN], [4.0, 4.0, NAN], [2.0, 3.0, NAN]])
    other = Trace([[1.0]] * 5, [[5.0], [1.0], [1.0], [1.0], [1.0]])
    assert slowdown_of([one, other]) == pytest.approx(np.array([[0.5, 2 / 3, 5], [1, 4 / 3, 1], [2, 1, 1]]))
    with pytest.raises(ValueError, match="traces must hold a worker with a speed, got none"):
        slowdown_of([])


def test_a_line_of_a_phone_needs_two_batches_of_the_full_layer(tmp_path, monkeypatch):
    full = "in 1000, out 1000, steps 10"
    rows = [(full, 1, 1.0), (full, 3, 2.0), (full, 5, 3.0), ("in 1, out 1, steps 10", 1, 9.0)]
    monkeypatch.setattr(
        populations, "read_profiles", lambda file, kind: pd.DataFrame(rows, columns=["held", "batch", "seconds"])
    )
    assert populations._curve(tmp_path) == pytest.approx((0.5, 0.5))
    rows[0] = (full, 1, 0.1)
    intercept, slope = populations._curve(tmp_path)
    assert (intercept, slope) == (0.0, pytest.approx((3.0 - 0.1) / 4))
    del rows[1:3]
    with pytest.raises(ValueError, match="holds no curve of the full-size layer 'in 1000, out 1000, steps 10'"):
        populations._curve(tmp_path)
