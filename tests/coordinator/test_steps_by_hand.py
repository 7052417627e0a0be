"""Steps of plain descent with momentum, and the sizes of clients that are tested, against their definitions."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.coordinator.asynchronous import SGD, EpochSampler, Outcome, Server, scheme
from paceline.coordinator.federated import FederatedBalancer
from paceline.coordinator.federated.following import Following, State


@given(
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    gradients=st.lists(st.lists(st.floats(-4, 4), min_size=3, max_size=3), min_size=1, max_size=6),
    factor=st.floats(0.1, 2.0),
    falls=st.booleans(),
)
def test_a_step_adds_the_gradient_to_the_momentum_and_takes_the_rate_of_what_was_applied(
    momentum, gradients, factor, falls
):
    rate = (lambda applied: 0.5 / (1 + applied)) if falls else 0.125
    optimiser, parameters, expected, kept = SGD(rate, momentum=momentum), np.ones(3), [1.0] * 3, [0.0] * 3
    for number, gradient in enumerate(gradients):
        optimiser.step(parameters, np.array(gradient), factor, applied=10 * number)
        now = 0.5 / (1 + 10 * number) if falls else 0.125
        kept = [momentum * old + factor * one for old, one in zip(kept, gradient, strict=True)]
        expected = [old - now * step for old, step in zip(expected, kept, strict=True)]
        np.testing.assert_allclose(parameters, expected, atol=1e-12)
        state = optimiser.state_dict()
        assert list(state) == (["momentum"] if momentum else [])
        if momentum:
            np.testing.assert_allclose(state["momentum"], kept, atol=1e-12)
            resumed = SGD(rate, momentum=momentum)
            resumed.load_state_dict(state)
            state["momentum"][:] = 99.0
            np.testing.assert_allclose(resumed.state_dict()["momentum"], kept, atol=1e-12)


def test_what_is_no_rate_and_no_momentum_is_refused():
    for rate in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="rate must be above 0 and finite"):
            SGD(rate)
    for momentum in (-0.1, 1.0):
        with pytest.raises(ValueError, match=r"momentum must lie in \[0, 1\)"):
            SGD(0.1, momentum=momentum)
    assert SGD(0.1, momentum=0.0).momentum == 0.0


@given(
    batch=st.integers(1, 40),
    least=st.integers(1, 50),
    again=st.integers(2, 6),
    clients=st.lists(
        st.tuples(st.sampled_from(list(State)), st.integers(0, 12), st.sampled_from([1.0, 3.0, 8.5, 40.0, 77.0])),
        min_size=1,
        max_size=6,
    ),
)
def test_clients_under_test_get_half_or_twice_their_batch_in_turn_and_flat_ones_half_of_all_now_and_then(
    batch, least, again, clients
):
    columns = {"turn": [turn for _, turn, _ in clients], "base": [base for *_, base in clients]}
    following = SimpleNamespace(
        state=lambda rows: np.array([state for state, *_ in clients]),
        clients=SimpleNamespace(taken=lambda name, rows: np.array(columns[name], dtype=float)),
        again=again,
    )
    expected = []
    for state, turn, base in clients:
        size = np.nan
        if state is State.TESTED:
            size = base if turn % 2 else np.floor(base / 2 if base > batch else base * 2)
        elif state is State.FLAT:
            size = float(max(batch // 2, 1)) if turn % again == again - 1 else float(batch)
        expected.append(max(size, min(least, batch)))
    np.testing.assert_array_equal(Following.sizes(following, np.arange(len(clients)), batch, least), expected)


@pytest.mark.parametrize("name", ["data", "memory"])
def test_an_amount_below_0_is_refused_whoever_has_it(name):
    for given_ in ([8.0, -1.0], [-1.0, 8.0], [8.0, float("nan")], [8.0], [[8.0, 8.0]]):
        with pytest.raises(ValueError, match=f"{name} must have one number for each of the 2 clients, not negative"):
            FederatedBalancer(batch=8, local_steps=1).join(["a", "b"], **{name: given_})
    FederatedBalancer(batch=8, local_steps=1).join(["a", "b"], **{name: [0.0, 8.0]})


@pytest.mark.parametrize("pushes", [0, 1, 5])
@pytest.mark.parametrize("workers", ["ab", "abcd"])
def test_a_step_that_is_given_up_is_lost_as_long_as_the_others_pushed_meanwhile(pushes, workers):
    server = Server(
        np.zeros(2), SGD(0.1), scheme("asp", len(workers)), EpochSampler(900, seed=0), batch=4, workers=workers
    )

    def push():
        pulled = server.pull("b")
        server.push("b", pulled.stamp, np.ones(2), len(pulled.drawn), seconds=1.0)

    push()
    assert server.fleet.pushes == 1
    server.pull("a")
    for _ in range(pushes):
        push()
    assert server.fleet.pushes == 1 + pushes
    assert server.fleet.lost == 0.0
    server.fleet.give_up(server.fleet.members["a"].step)
    assert server.fleet.lost == pushes / len(workers)


@pytest.mark.parametrize("copy", [True, False])
def test_a_server_works_in_the_array_given_only_if_it_is_not_to_copy(copy):
    given_ = np.ones(3)
    server = Server(given_, SGD(0.5), scheme("asp", 1), EpochSampler(40), batch=4, workers=["a"], copy=copy)
    pulled = server.pull("a")
    server.push("a", pulled.stamp, np.ones(3), len(pulled.drawn))
    assert server.parameters.tolist() == [0.5] * 3
    assert given_.tolist() == ([1.0] * 3 if copy else [0.5] * 3)


def test_the_time_of_a_gradient_that_is_refused_is_booked_as_such():
    server = Server(np.ones(2), SGD(0.5), scheme("asp", 1), EpochSampler(40), batch=4, workers=["a"])
    for seconds in (3.0, 0.5):
        pulled = server.pull("a")
        verdict = server.push("a", pulled.stamp, np.full(2, np.nan), len(pulled.drawn), seconds=seconds)
    assert verdict.outcome is Outcome.REFUSED
    account = server.ledger.accounts["a"]
    assert account.seconds == {Outcome.REFUSED: 3.5}
    assert account.samples == {Outcome.REFUSED: 8}
    assert account.steps == {Outcome.REFUSED: 2}
