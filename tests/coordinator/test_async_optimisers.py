"""Descent and compensations: what a step does to each number, and what they remember."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.asynchronous import SGD, optimizer
from paceline.coordinator.asynchronous.rules import Adaptive, AdaptiveCompensator, Constant


@settings(max_examples=30)
@given(count=st.integers(1, 11), block=st.integers(1, 5), momentum=st.sampled_from([0.0, 0.5]))
def test_a_step_is_the_same_however_many_numbers_are_worked_on_at_a_time(count, block, momentum):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(optimizer, "BLOCK", block)
        descent, row, kept = SGD(0.25, momentum), np.arange(float(count)), np.zeros(count)
        for number in range(3):
            gradient = np.arange(count) - 2.0 * number
            before = gradient.copy()
            kept = momentum * kept + 0.5 * gradient
            expected = row - 0.25 * kept
            descent.step(row, gradient, 0.5, 0)
            assert row.tolist() == expected.tolist()
            assert gradient.tolist() == before.tolist()


def test_more_numbers_than_fit_one_block_are_all_moved():
    count = 2 * optimizer.BLOCK + 1
    row = np.zeros(count, dtype=np.float32)
    SGD(0.5, 0.5).step(row, np.ones(count, np.float32), 1.0, 0)
    assert (row == -0.5).all()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_what_a_step_takes_is_rounded_to_the_kind_of_the_parameters(momentum):
    rng = np.random.default_rng(3)
    row, kept = rng.normal(size=500).astype(np.float32), np.zeros(500, np.float32)
    descent = SGD(0.1, momentum)
    for _ in range(3):
        gradient = rng.normal(size=500)
        if momentum:
            kept = kept * np.float32(momentum) + (gradient * 0.7).astype(np.float32)
            expected = row - (kept * np.float32(0.1)).astype(np.float32)
        else:
            expected = row - (gradient * (0.1 * 0.7)).astype(np.float32)
        descent.step(row, gradient, 0.7, 0)
        assert (row.dtype, row.tolist()) == (np.float32, expected.tolist())


def test_descent_has_no_momentum_unless_told_and_shows_its_settings_alone():
    descent = SGD(0.1)
    assert (descent.momentum, descent.is_linear, descent.state_dict()) == (0.0, True, {})
    with_momentum = SGD(0.1, 0.9)
    with_momentum.step(np.zeros(1), np.ones(1), 1.0, 0)
    assert repr(with_momentum) == "SGD(rate=0.1, momentum=0.9)"
    with_momentum.load_state_dict({})
    assert with_momentum.state_dict() == {}
    with pytest.raises(TypeError, match="positional argument"):
        SGD(0.1, 0.9, np.ones(1))


# -- compensations -------------------------------------------------------------------------------------------------


def test_the_strengths_of_the_paper_are_those_of_a_rule_that_is_told_none():
    assert (Constant().strength, Adaptive().strength, Adaptive().memory) == (0.04, 2.0, 0.95)


def test_a_constant_compensation_has_no_state_and_undoes_nothing():
    rule = Constant(2.0).start()
    assert rule.compensated("a", np.array([3.0, -1.0]), np.array([1.5, 1.0]), np.array([1.0, 2.0])).tolist() == [12, -3]
    rule.undo()
    rule.load_state_dict({"a": np.ones(1)})
    assert rule.state_dict() == {}


def test_a_resumed_compensation_does_not_undo_what_came_before_its_state():
    rule = Adaptive(2.0, 0.5).start()
    for value in (1.0, 3.0):
        rule.compensated("a", np.array([value]), np.ones(1), np.ones(1))
    state = rule.state_dict()
    rule.compensated("a", np.array([9.0]), np.ones(1), np.ones(1))
    rule.load_state_dict(state)
    rule.undo()
    assert {name: value.tolist() for name, value in rule.state_dict().items()} == {"a": [0.5 * 0.5 + 0.5 * 9.0]}


def test_compensators_share_no_squares_and_show_no_more_than_those():
    one, other = AdaptiveCompensator(Adaptive()), AdaptiveCompensator(Adaptive())
    one.compensated("a", np.ones(1), np.ones(1), np.ones(1))
    assert (list(one.squares), other.squares) == (["a"], {})
    assert repr(other) == "AdaptiveCompensator(rule=Adaptive(strength=2.0, memory=0.95), squares={})"
    with pytest.raises(TypeError, match="positional argument"):
        AdaptiveCompensator(Adaptive(), {}, ("a", None))
