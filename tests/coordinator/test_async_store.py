"""What a store gathers: nothing is lost to a narrow type, and what is refused leaves no trace."""

import numpy as np
import pytest

from paceline.coordinator.asynchronous import SGD
from paceline.coordinator.asynchronous.rules import Adaptive, Constant
from paceline.coordinator.asynchronous.store import NEVER_PULLED, OVERFLOWS, LocalStore

HALF = np.float16


def store_of(compensation=None, rate=1.0):
    return LocalStore(np.zeros(2, dtype=np.float32), SGD(rate), compensation)


def test_gradients_in_half_precision_are_summed_in_that_of_the_parameters():
    store = store_of()
    for ticket, value in enumerate((60_000.0, 40_000.0)):
        assert not store.take("a", ticket, np.full(2, value, HALF), weight=8.0)
        store.keep()
    store.step(1.0, 0)
    assert store.parameters == pytest.approx([-50_000.0] * 2)


def test_a_gradient_in_half_precision_is_not_lost_to_a_small_learning_rate():
    store = store_of(rate=1e-5)
    assert not store.take("a", 0, np.full(2, 1e-4, HALF), weight=1.0)
    store.step(1.0, 0)
    assert store.parameters == pytest.approx([-1e-9] * 2, rel=1e-3)


def test_a_gradient_in_half_precision_is_compensated_in_that_of_the_parameters():
    store = store_of(Constant(2.0))
    store.lend("a", 0)
    assert not store.take("a", 0, np.full(2, 300.0, HALF), weight=1.0), "its square is above 65,504"


def taken(store, ticket, value):
    store.lend("a", ticket)
    return store.take("a", ticket, np.full(2, value, np.float32), weight=1.0)


def test_what_overflows_when_it_is_compensated_is_not_remembered():
    store, spared = store_of(Adaptive(), rate=0.1), store_of(Adaptive(), rate=0.1)
    for ticket, value in enumerate((1.0, 1e30, 2.0, 3.0)):
        for each in (store, spared):
            if each is spared and value == 1e30:
                continue
            wrong = taken(each, ticket, value)
            assert wrong == (OVERFLOWS if value == 1e30 else "")
            if not wrong:
                each.step(1.0, 0)
    assert (store.parameters == spared.parameters).all()


def test_leaving_out_a_step_that_was_never_read_takes_back_nothing_older():
    store, spared = store_of(Adaptive(), rate=0.1), store_of(Adaptive(), rate=0.1)
    for each in (store, spared):
        taken(each, 0, 1.0)
        each.step(1.0, 0)
    assert store.take("a", 7, np.ones(2, np.float32), weight=1.0) == NEVER_PULLED
    store.undo()
    for each in (store, spared):
        each.lend("a", 1)
        each.lend("b", 2)
        each.take("b", 2, np.ones(2, np.float32), weight=1.0)
        each.step(1.0, 0)
        each.take("a", 1, np.ones(2, np.float32), weight=1.0)
        each.step(1.0, 0)
    assert (store.parameters == spared.parameters).all()
