"""Forecasts of federated clients: seen, seldom seen, and never seen."""

import numpy as np
import pytest
from federated_rounds import LAWS, balancer_of, names_of, played
from hypothesis import given
from hypothesis import strategies as st

from paceline.coordinator.federated import FederatedBalancer, ForecastSource, RoundReport
from paceline.predictors import EWMA, BatchTime, LocalLevel


@pytest.mark.slow
def test_curves_size_by_the_fixed_cost():
    intercept, slope = np.array([0.1, 0.4, 0.2]), np.array([0.01, 0.01, 0.02])
    ends = {}
    for predictor in (None, BatchTime()):
        balancer = balancer_of(predictor=predictor, risk=0.0)
        rng = np.random.default_rng(0)
        for number in range(16):
            plan = balancer.plan(names_of(3))
            tried = np.maximum(plan.sizes + rng.integers(-8, 9, 3), 1) if number < 12 else plan.sizes
            report = RoundReport(clients=plan.clients, samples=tried * 5, seconds=5 * (intercept + slope * tried))
            balancer.observe(plan, report)
        plan = balancer.plan(names_of(3))
        took = 5 * (intercept + slope * plan.sizes)
        ends[predictor is None] = took.max() / np.median(took)
        if predictor is not None:
            assert plan.seconds == pytest.approx(took, rel=0.02)
    assert ends[False] < 1.03 < ends[True]


def test_wrong_predictor_is_refused():
    with pytest.raises(TypeError, match=r"got the name 'ewma': paceline.predictors.named\('ewma'\) creates one"):
        FederatedBalancer(batch=32, local_steps=5, predictor="ewma")
    balancer = balancer_of()
    played(balancer, [10.0], [1.0])
    with pytest.raises(ValueError, match="the state of EWMA's workers must hold"):
        balancer_of(predictor=EWMA()).load_state_dict(balancer.state_dict())


def test_uncertain_device_type_gets_less():
    balancer = balancer_of()
    speed = np.array([90.0, 100.0, 110.0, 100.0, 20.0, 500.0, 100.0, 100.0])
    balancer.join(names_of(10), devices=[*["even"] * 4, *["uneven"] * 4, "even", "uneven"])
    played(balancer, speed, np.zeros(8), rounds=6)
    plan = balancer.plan(["c0", "c1", "c2", "c3", "c8", "c9"])
    assert plan.spread[4] < 0.7 < 1.0 < plan.spread[5]
    assert plan.speed[4:] == pytest.approx(100.0, rel=0.05)
    assert plan.sizes[5] < 0.7 * plan.sizes[4] < plan.sizes[:4].max()
    assert "a smaller batch, as its speed may differ" in plan.why("c9")
    assert balancer.plan(["c8"]).sizes.tolist() == [32]


def test_rounds_follow_changing_speeds():
    balancer = balancer_of(predictor=LocalLevel(0.5), risk=0.0)
    played(balancer, [100.0, 100.0], [0.0, 0.0], rounds=3)
    plan = played(balancer, [100.0, 50.0], [0.0, 0.0], rounds=4)
    assert plan.speed[1] == pytest.approx(50.0, rel=0.06)
    assert plan.sizes.tolist() == [42, 22]


def test_slow_first_round_is_soon_forgotten():
    balancer = balancer_of()
    played(balancer, [5.0, 20.0], [0.0] * 2)  # one imports and compiles in its first round
    plan = played(balancer, [100.0, 100.0], [0.0] * 2, rounds=2)
    assert plan.speed.min() > 75.0


def test_unseen_client_is_sized_by_its_device():
    balancer = balancer_of()
    balancer.join(["c0", "c1", "new"], devices=["tablet", "phone", "phone"])
    played(balancer, [300.0, 30.0], [0.5, 2.0])
    plan = balancer.plan(["c0", "c1", "new", "stranger"])
    assert plan.source.tolist() == [
        ForecastSource.CLIENT,
        ForecastSource.CLIENT,
        ForecastSource.DEVICE,
        ForecastSource.FLEET,
    ]
    assert plan.speed[2] == pytest.approx(30.0)
    assert plan.comm_seconds[2] == pytest.approx(2.0)
    assert plan.speed[3] == pytest.approx(np.sqrt(300.0 * 30.0))
    assert "as others of its device type" in plan.why("new")


@pytest.mark.slow
@LAWS
@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "play", "device"]), st.integers(0, 5)), max_size=40))
def test_unseen_client_gets_the_mean_of_all(events):
    balancer = balancer_of()
    for k, (event, i) in enumerate(events):
        name = f"c{i}"
        if event == "leave" and name in balancer:
            balancer.leave(name)
        elif event == "device":
            balancer.join([name], devices=[f"d{i % 2}"])
        elif event == "play":
            played(balancer, [10.0 * (i + 1) + k], [1.0 + i], names=[name])
    plan = balancer.plan([*balancer.clients, "stranger"])
    own = plan.source == ForecastSource.CLIENT
    if own.any():
        expected = np.exp(np.log(plan.speed[own]).mean())
        assert plan.speed[-1] == pytest.approx(expected, rel=1e-9)
    else:
        assert plan.source[-1] == ForecastSource.NOTHING
