"""The sequences that recurrent networks are trained on hold every step of a worker once, 64 at a time."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.predictors.networks.neural import Sequences


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.sampled_from([0.0, 0.2, 0.5, 0.99]))
def test_series_cut_into_64_step_sequences(length, validation):
    inputs, targets = np.arange(2.0 * length).reshape(length, 2) + 1.0, np.arange(1.0 * length)
    found, first = Sequences.cut(inputs, targets, validation), int((1.0 - validation) * length)
    expected = [(k, min(k + 64, first), False) for k in range(0, first, 64)]
    expected += [(k, min(k + 64, length), True) for k in range(first, length, 64)]
    assert found.inputs.shape == (len(expected), 64, 2)
    assert found.targets.shape == (len(expected), 64)
    assert found.validates.tolist() == [validates for *_, validates in expected]
    for row, (begin, end, _) in enumerate(expected):
        steps = end - begin
        assert found.inputs[row, :steps].tolist() == inputs[begin:end].tolist()
        assert found.targets[row, :steps].tolist() == targets[begin:end].tolist()
        assert not found.inputs[row, steps:].any()
        assert np.isnan(found.targets[row, steps:]).all()
    both = Sequences.joined([found, found])
    assert both.validates.tolist() == 2 * found.validates.tolist()
    assert both.inputs.tolist() == 2 * found.inputs.tolist()
