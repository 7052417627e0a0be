"""A store: which parameters it takes, what a step does to them, and what is left when it is over."""

import numpy as np
import pytest

from paceline.coordinator.asynchronous import SGD
from paceline.coordinator.asynchronous.rules import Adaptive, Constant
from paceline.coordinator.asynchronous.store import NEVER_PULLED, OVERFLOWS, LocalStore, WeightedMean, part


class Noted(SGD):
    """Keeps what each step was given."""

    def step(self, parameters, gradient, factor, applied):
        steps = self.__dict__.setdefault("steps", [])
        steps.append((gradient.tolist(), gradient.dtype, factor, applied))
        super().step(parameters, gradient, factor, applied)


@pytest.mark.parametrize(
    "row", [np.zeros((2, 1)), np.zeros(2, int), np.zeros(2, np.float16), np.array([0.0, np.nan]), np.float64(1.0)]
)
def test_only_one_row_of_finite_floats_is_kept(row):
    with pytest.raises(ValueError, match="parameters must be one row of finite float32 or float64, got"):
        LocalStore(row, SGD(0.1), None)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_store_steps_along_the_weighted_mean_times_a_scale_in_the_kind_of_its_parameters(kind):
    given_, descent = np.zeros(2, kind), Noted(0.5)
    store = LocalStore(given_, descent, None)
    for ticket, (value, weight) in enumerate(((1.0, 1.0), (5.0, 3.0))):
        assert store.take("a", ticket, np.full(2, value, kind), weight) == ""
        store.keep()
    store.step(0.5, 7)
    assert store.take("b", 9, np.full(2, 2.0, kind), 8.0) == ""
    store.step(2.0, 8, 0.25)
    assert store.take("b", 9, np.full(2, 3.0, kind), 8.0) == ""
    store.step(1.0, 9, scale=1.0)
    assert descent.steps == [
        ([4.0, 4.0], kind, 0.5, 7),
        ([0.5, 0.5], kind, 2.0, 8),
        ([3.0, 3.0], kind, 1.0, 9),
    ]
    assert store.parameters.tolist() == [-1.0 - 0.5 - 1.5] * 2
    assert store.parameters.dtype == kind
    assert given_.tolist() == [0.0, 0.0]


def test_a_store_works_in_the_array_given_if_it_is_told_to():
    given_ = np.ones(2)
    store = LocalStore(given_, SGD(0.5), None, copy=False)
    store.take("a", 0, np.ones(2), 1.0)
    store.step(1.0, 0)
    assert given_.tolist() == [0.5, 0.5]
    store.parameters[:] = 9.0
    lent = store.lend("a", 1)
    assert (lent.tolist(), lent.flags.writeable) == ([0.5, 0.5], False)
    state = store.state_dict()
    state["parameters"] = state["parameters"] + 1.0
    store.load_state_dict(state)
    assert (given_.tolist(), lent.tolist()) == ([1.5, 1.5], [1.5, 1.5])


def test_a_resumed_store_forgets_what_was_gathered_and_lent():
    store = LocalStore(np.zeros(1), SGD(1.0), Constant(1.0))
    state = store.state_dict()
    store.lend("a", 0)
    store.lend("a", 1)
    store.take("a", 0, np.array([8.0]), 1.0)
    store.keep()
    store.load_state_dict(state)
    assert store.take("a", 1, np.ones(1), 1.0) == NEVER_PULLED
    store.lend("a", 2)
    assert store.take("a", 2, np.array([2.0]), 1.0) == ""
    store.step(1.0, 0)
    assert store.parameters.tolist() == [-2.0]
    assert store.take("a", 2, np.ones(1), 1.0) == NEVER_PULLED, "a step is pushed once"


def test_a_step_that_is_forgotten_was_never_pulled():
    store = LocalStore(np.zeros(1), SGD(1.0), Constant(1.0))
    store.lend("a", 0)
    store.forget(0)
    store.forget(5)
    assert store.take("a", 0, np.ones(1), 1.0) == NEVER_PULLED


@pytest.mark.parametrize("kind", [Constant, Adaptive])
@pytest.mark.parametrize("moved", [0.0, 1.0])
def test_what_overflows_is_refused_without_a_warning(kind, moved):
    store = LocalStore(np.zeros(1), SGD(1.0), kind())
    store.lend("a", 0)
    store._parameters_P += moved
    assert store.take("a", 0, np.array([1e300]), 1.0) == OVERFLOWS
    state = store.state_dict()
    assert {name: value.tolist() for name, value in state.items()} == {"parameters": [moved]}


def test_a_state_holds_what_optimizer_and_compensation_remember_and_fits_no_other_shape():
    store = LocalStore(np.zeros(1), SGD(1.0, momentum=0.5), Adaptive(2.0, 0.5))
    store.lend("w/1", 0)
    store.take("w/1", 0, np.array([2.0]), 1.0)
    store.step(1.0, 0)
    state = store.state_dict()
    wanted = {"parameters": [-2.0], "optimizer/momentum": [2.0], "compensation/w/1": [2.0]}
    assert {name: value.tolist() for name, value in state.items()} == wanted
    again = LocalStore(np.ones(1), SGD(1.0, momentum=0.5), Adaptive(2.0, 0.5))
    again.load_state_dict(state)
    assert {name: value.tolist() for name, value in again.state_dict().items()} == wanted
    plain = LocalStore(np.ones(1), SGD(1.0), None)
    plain.load_state_dict(state)
    assert plain.parameters.tolist() == [-2.0]
    longer = LocalStore(np.ones(2), SGD(1.0, 0.5), None)
    with pytest.raises(ValueError, match=r"parameters of the shape \(1,\), this server those of \(2,\): build it for"):
        longer.load_state_dict(state)
    assert longer.state_dict().keys() == {"parameters"}


def test_what_is_left_out_leaves_no_trace_in_a_store():
    for compensation in (None, Adaptive(2.0, 0.5)):
        store = LocalStore(np.zeros(1), SGD(1.0), compensation)
        store.lend("a", 0)
        store.lend("b", 1)
        store.take("a", 0, np.ones(1), 1.0)
        store.keep()
        store.take("b", 1, np.full(1, 5.0), 1.0)
        store.undo()
        store.undo()
        store.step(1.0, 0)
        assert store.parameters.tolist() == [-1.0]
        assert ("compensation/b" in store.state_dict(), "compensation/a" in store.state_dict()) == (
            False,
            compensation is not None,
        )


def test_a_mean_of_one_is_that_one_and_no_weight_at_all_leaves_the_sum():
    gathered, row = WeightedMean(), np.array([3.0])
    gathered.add(row, 0.25)
    assert gathered.mean() is row, "it is neither copied nor changed"
    gathered.clear()
    for weight in (0.0, 0.0):
        gathered.add(np.array([3.0]), weight)
        gathered.keep()
        gathered.keep()
    assert gathered.mean().tolist() == [0.0]
    gathered.clear()
    gathered.add(np.array([8.0]), 1.0)
    gathered.keep()
    gathered.add(np.array([2.0]), 2.0)
    assert gathered.mean().tolist() == [4.0]


def test_a_part_of_a_state_is_what_stands_under_its_whole_name():
    state = {"a/b": 1, "ab/b": 2, "a/b/c": 3, "a": 4, "b/a/b": 5}
    assert part(state, "a") == {"b": 1, "b/c": 3}
    assert part(state, "b") == {"a/b": 5}
