"""Clients that train by epochs: found, tested, and given steps of their own."""

import logging

import numpy as np
import pytest
from federated_rounds import LAWS, balancer_of, fleets, names_of, played
from hypothesis import given
from hypothesis import strategies as st

from paceline.coordinator.federated import FederatedBalancer, Reason, RoundReport


def lived(kinds, speeds, noise=0.1, rounds=60, seed=0, data=320.0, per_round=None, warm=1.0, **options):
    """Let clients train by steps or by epochs, noisily, some each round; return balancer, sizes, plans and replies."""
    balancer, rng = FederatedBalancer(batch=32, local_steps=10, **options), np.random.default_rng(seed)
    names, sizes, plans, cold = names_of(len(kinds)), [], [], np.full(len(kinds), warm)
    for _ in range(rounds):
        chosen = np.sort(rng.choice(len(kinds), per_round or len(kinds), replace=False))
        plan = balancer.plan([names[i] for i in chosen])
        asked = chosen[plan.participating]
        samples = plan.sizes[plan.participating] * plan.local_steps
        work = np.where([kinds[i] == "epochs" for i in asked], data, samples)
        seconds = work / np.asarray(speeds)[asked] * np.exp(noise * rng.standard_normal(len(asked))) * cold[asked]
        cold[asked] = 1.0
        balancer.observe(
            plan, RoundReport(clients=[names[i] for i in asked], samples=samples, seconds=seconds, waited=1e-9)
        )
        sizes.append(dict(zip(plan.clients, plan.sizes.tolist(), strict=True)))
        plans.append(plan)
    return balancer, sizes, plans


@pytest.mark.parametrize("noise", [0.05, 0.2])
@pytest.mark.parametrize("count", [2, 6])
@pytest.mark.slow
def test_epoch_clients_do_not_run_away(count, noise):
    for seed in range(2):
        _, sizes, _ = lived(["epochs"] * count, [100.0] * count, noise, rounds=100, seed=seed)
        late = np.array([list(each.values()) for each in sizes[-40:]])
        assert np.median(late.max(axis=1) / late.min(axis=1)) <= 4
        assert late.max() <= 3 * 32


@pytest.mark.parametrize("warm", [1.0, 3.0])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.slow
def test_epoch_clients_are_found(seed, warm):
    rng = np.random.default_rng(seed)
    kinds = ["epochs", "epochs", *["steps"] * 6]
    speeds = [20.0, 300.0, *np.exp(rng.uniform(np.log(40), np.log(250), 6))]
    _, _, plans = lived(kinds, speeds, 0.03 + 0.02 * seed, rounds=40, seed=seed, warm=warm)
    flat = {name for plan in plans for name in plan.clients if "does not follow its batch" in plan.why(name)}
    assert flat <= {"c0", "c1"}
    # By noise one test in some passes; the next comes much later.
    assert "c1" in flat
    assert "c0" in flat or warm > 1.0


@pytest.mark.slow
def test_epoch_client_is_logged_and_returns(caplog):
    kinds = ["epochs", *["steps"] * 5]
    with caplog.at_level(logging.WARNING, "paceline.federated"):
        balancer, _, plans = lived(kinds, [20.0] + [100.0] * 5, noise=0.05)
    assert caplog.text.count("the time of c0 does not follow the batch, which stays at the mean") == 1
    plan = balancer.plan(names_of(6))
    assert "c0 gets 32 samples a step and is not balanced: its time, 15.8 s, does not follow" in plan.why("c0")
    assert plan.seconds[0] == pytest.approx(16.0, rel=0.1)
    assert any("to see whether its time follows its batch" in plan.why("c0") for plan in plans)
    again = FederatedBalancer(batch=32, local_steps=10)
    again.load_state_dict(balancer.state_dict())
    with caplog.at_level(logging.WARNING, "paceline.federated"):
        played(again, [20.0] + [100.0] * 5, [0.0] * 6, rounds=40)
    assert "the time of c0 follows the batch by now" in caplog.text
    assert again.plan(names_of(6)).sizes[0] == 8


@pytest.mark.slow
def test_epoch_client_and_the_deadline():
    balancer, _, _ = lived(["epochs", *["steps"] * 5], [20.0] + [100.0] * 5, noise=0.05)
    for deadline, asked in ((30.0, True), (8.0, False)):
        hurried = FederatedBalancer(batch=32, local_steps=10, deadline=deadline)
        hurried.load_state_dict(balancer.state_dict())
        plan = hurried.plan(names_of(6))
        assert plan.participating[0] == asked
        assert (plan.reasons[0] == Reason.LEFT_OUT) == (not asked)


@pytest.mark.slow
@LAWS
@given(fleets, st.floats(0.2, 5.0), st.integers(20, 5000), st.integers(0, 9))
def test_local_epochs_set_the_steps(fleet, epochs, mean, seed):
    speed, comm = np.array(fleet).T
    data = np.random.default_rng(seed).integers(mean, 2 * mean, len(fleet))
    balancer = balancer_of(local_steps=None, local_epochs=epochs, batch=8)
    balancer.join(names_of(len(fleet)), data=data)
    plan = played(balancer, speed, comm, rounds=2)
    wanted = epochs * data.mean() / 8
    assert balancer.local_steps == 0, "those of a round are its plan's"
    assert plan.local_steps == max(round(wanted), 1)
    one_more = (plan.sizes + 1) * plan.local_steps / speed + comm
    free = plan.sizes < plan.upper
    assert np.all(one_more[free] >= plan.makespan * (1 - 1e-9) - 1e-5) or np.all(
        plan.sizes[plan.seconds == plan.makespan] == 1
    )


def test_local_epochs_use_known_data():
    balancer = balancer_of(local_steps=None, local_epochs=1, batch=8)
    balancer.join(["a", "b"], data=[80, 240])
    assert [balancer.plan(names).local_steps for names in (["a", "x"], ["a", "b", "x", "y"])] == [10, 20]


def test_wrong_local_epochs_are_refused():
    with pytest.raises(ValueError, match="local_epochs needs to know how many samples clients hold"):
        balancer_of(local_steps=None, local_epochs=1).plan(["a", "b"])
    for options in ({"local_epochs": 1}, {"local_steps": None}):
        with pytest.raises(ValueError, match="give local_steps or local_epochs"):
            balancer_of(**options)
    with pytest.raises(ValueError, match="local_epochs must be above 0"):
        balancer_of(local_steps=None, local_epochs=-1.0)
