"""Clients that train by epochs: found, and tested now and then."""

import logging

import numpy as np
import pytest
from federated_rounds import names_of, played

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
    assert caplog.text.count("the time of c0 does not depend on the batch size, which stays at the mean") == 1
    plan = balancer.plan(names_of(6))
    assert "c0 gets 32 samples a step and is not balanced: its time, 15.8 s, does not follow" in plan.why("c0")
    assert plan.seconds[0] == pytest.approx(16.0, rel=0.1)
    assert any("to see whether its time follows its batch" in plan.why("c0") for plan in plans)
    again = FederatedBalancer(batch=32, local_steps=10)
    again.load_state_dict(balancer.state_dict())
    with caplog.at_level(logging.WARNING, "paceline.federated"):
        played(again, [20.0] + [100.0] * 5, [0.0] * 6, rounds=40)
    assert "the time of c0 now depends on the batch size" in caplog.text
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
