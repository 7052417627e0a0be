"""The fit of a client's time against its samples, from sums alone. Axis: W clients."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.federated.clients import APART, MEMORY, MOMENTS, NOISE, Clients, Following, State, _fit


def moments_of(x, y):
    """Return the moments after these reports, of which the past fades."""
    moment = np.zeros(6)
    for one, other in zip(x, y, strict=True):
        moment = MEMORY * moment + [1.0, one, other, one * one, one * other, other * other]
    return moment


@given(st.integers(3, 30), st.floats(-1.0, 2.0), st.floats(0.0, 3.0), st.floats(0.0, 1.5), st.integers(0, 999))
@settings(max_examples=200)
def test_the_fit_from_sums_is_the_regression_on_the_reports_that_fade(count, slope, noise, apart, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(3.0, apart, count)
    y = slope * x + rng.normal(0.5, noise, count)
    fitted, error, are_apart = (float(each[0]) for each in _fit(moments_of(x, y)[:, None]))
    weight = MEMORY ** np.arange(count - 1, -1, -1.0)
    middle, height = np.average(x, weights=weight), np.average(y, weights=weight)
    spread = np.sum(weight * (x - middle) ** 2)
    if abs(spread / weight.sum() - APART**2) < 1e-6:
        return
    assert bool(are_apart) == (spread / weight.sum() > APART**2)
    if not are_apart:
        assert fitted == 0.0
        return
    wanted = np.sum(weight * (x - middle) * (y - height)) / spread
    rest = np.sum(weight * (y - height - wanted * (x - middle)) ** 2) / max(weight.sum() - 2.0, 1.0)
    assert fitted == pytest.approx(wanted, abs=1e-6)
    assert error == pytest.approx(np.sqrt(max(rest, NOISE**2) / spread), rel=1e-5)


def test_nobody_is_found_before_its_fourth_report_of_a_test_however_clear_the_fit():
    clients = Clients(1)
    clients.join(["a"], round_index=0)
    clients.column("state")[:] = State.TESTED
    following, row = Following(clients, again=10), np.array([0])
    for report in range(1, 5):
        size = np.array([20.0 if report % 2 else 10.0])
        found, cleared = following.learn(row, size, 1e4 * size**-3, size, 16.0)
        assert (found.tolist(), cleared.tolist()) == ([0] if report == 4 else [], [])
        assert following.state(row).tolist() == [State.FLAT if report == 4 else State.TESTED]


@pytest.mark.parametrize(
    ("turn", "is_suspected"), [(-42, False), (-41, True), (-2, True), (-1, False), (2, False), (3, True)]
)
def test_one_that_was_tested_rests_for_a_while_and_then_a_fit_may_test_it_again_until_its_turns_count_anew(
    turn, is_suspected
):
    clients = Clients(1)
    clients.join(["a"], round_index=0)
    x = np.log([10.0, 40.0, 10.0, 40.0, 10.0, 40.0])
    for name, value in zip(MOMENTS, moments_of(x, np.zeros(6)), strict=True):
        clients.column(name)[:] = value
    clients.column("turn")[:] = turn
    following, row = Following(clients, again=10), np.array([0])
    following.learn(row, np.array([10.0]), np.ones(1), np.array([10.0]), 40.0)
    assert (following.state(row)[0] == State.TESTED) == is_suspected
    assert clients.column("turn").tolist() == [0 if is_suspected else turn + 1]
