"""A model of the cost of samples that is saved after any iteration goes on as if nothing had happened."""

import numpy as np
import pytest

from paceline.coordinator.balanced.work import REFIT, WorkModel, WorkStatus

ITERATIONS = 44


def same(one, other):
    """Compare two states, array by array."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.parametrize("alike", [False, True])
def test_it_goes_on_exactly_from_any_iteration(alike):
    chance, model, saved = np.random.default_rng(0), WorkModel(2), []
    rows = [chance.uniform(1, 9, (2, 1)) * ([1, 1] if alike else chance.uniform(1, 2, 2)) for _ in range(ITERATIONS)]
    for features in rows:
        saved.append(model.state_dict())
        model.observe(features, 0.3 + features @ [0.3, 0.7])
    end = model.state_dict()
    assert model.status is (WorkStatus.ALIKE if alike else WorkStatus.LEARNED)
    for begin in (0, 7, 9, 23, 43):
        resumed = WorkModel(2)
        resumed.load_state_dict(saved[begin])
        same(resumed.state_dict(), saved[begin])
        for features in rows[begin:]:
            resumed.observe(features, 0.3 + features @ [0.3, 0.7])
        same(resumed.state_dict(), end)


def test_a_state_without_its_next_fit_fits_at_the_next_multiple():
    model = WorkModel(2)
    for seen in range(30):
        state = {name: value for name, value in model.state_dict().items() if name != "fits"}
        resumed = WorkModel(2)
        resumed.load_state_dict(state)
        assert resumed.state_dict()["fits"].tolist() == [(seen // REFIT + 1) * REFIT, REFIT]
        model.observe(np.ones((2, 2)), np.ones(2))
