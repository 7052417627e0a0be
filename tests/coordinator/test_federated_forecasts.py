"""Forecasts of federated clients: seen, seldom seen, and never seen."""

import numpy as np
import pytest
from federated_rounds import LAWS, balancer_of, names_of, played
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.federated import FederatedBalancer, ForecastSource, RoundReport
from paceline.coordinator.federated.rounds import caution_of
from paceline.predictors import EWMA, BatchTime, LocalLevel, Report


@pytest.mark.slow
def test_a_predictor_of_curves_sizes_by_the_fixed_cost_of_a_step():
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


def test_what_is_no_predictor_is_refused():
    with pytest.raises(TypeError, match=r"got the name 'ewma': paceline.predictors.named\('ewma'\) makes one"):
        FederatedBalancer(batch=32, local_steps=5, predictor="ewma")
    balancer = balancer_of()
    played(balancer, [10.0], [1.0])
    with pytest.raises(ValueError, match="the state of EWMA's workers must hold"):
        balancer_of(predictor=EWMA()).load_state_dict(balancer.state_dict())


def test_an_unseen_client_of_a_type_that_differs_gets_less_than_one_of_a_type_that_does_not():
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


@pytest.mark.slow
@settings(max_examples=30, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.floats(10.0, 1000.0), st.floats(0.05, 1.0)), min_size=2, max_size=40), st.integers(0, 99))
def test_caution_makes_rounds_of_uncertain_clients_shorter_and_never_much_longer(fleet, seed):
    speed, spread = np.array(fleet).T
    true = speed * np.exp(spread * np.random.default_rng(seed).standard_normal((4000, len(fleet))))

    def mean_log_time(counted):
        return np.log((counted / true).max(axis=1) / counted.sum()).mean()

    cautious = mean_log_time(speed / caution_of(speed, spread, 1.0))
    tried = [mean_log_time(speed * np.exp(-z * spread)) for z in np.linspace(0.0, 4.0, 41)]
    assert cautious <= min(tried) + 0.08
    assert np.array_equal(caution_of(speed, spread, 0.0), np.ones(len(fleet)))


def test_rounds_follow_speeds_that_change():
    balancer = balancer_of(predictor=LocalLevel(0.5), risk=0.0)
    played(balancer, [100.0, 100.0], [0.0, 0.0], rounds=3)
    plan = played(balancer, [100.0, 50.0], [0.0, 0.0], rounds=4)
    assert plan.speed[1] == pytest.approx(50.0, rel=0.06)
    assert plan.sizes.tolist() == [42, 22]


def log_level_after(gap, smoothing):
    """Return the log level after 30 reports of 1 sample/s, a gap, and one of e samples/s."""
    model = LocalLevel(smoothing)
    model.reset(["rare"])
    for k in range(30 + gap):
        last = k == 29 + gap
        model.observe(Report(samples=[1.0 if k < 30 or last else np.nan], seconds=[np.exp(-1.0) if last else 1.0]))
    return np.log(model.predict().speed[0])


@LAWS
@given(st.floats(0.2, 1.0))
def test_the_gain_of_a_client_that_reports_each_round_settles_at_the_smoothing(smoothing):
    assert log_level_after(1, smoothing) == pytest.approx(smoothing, rel=0.06)


def test_a_slow_first_round_is_soon_forgotten():
    balancer = balancer_of()
    played(balancer, [5.0, 20.0], [0.0] * 2)  # one imports and compiles in its first round
    plan = played(balancer, [100.0, 100.0], [0.0] * 2, rounds=2)
    assert plan.speed.min() > 75.0


@pytest.mark.slow
@LAWS
@given(st.floats(0.1, 0.9), st.integers(1, 60))
def test_a_report_after_a_long_gap_counts_for_more(smoothing, gap):
    assert log_level_after(gap, smoothing) < log_level_after(gap + 10, smoothing) < 1.0


def test_an_unseen_client_is_sized_like_others_of_its_device_type():
    balancer = balancer_of()
    balancer.join(["c0", "c1", "new"], devices=["tablet", "phone", "phone"])
    played(balancer, [300.0, 30.0], [0.5, 2.0])
    plan = balancer.plan(["c0", "c1", "new", "stranger"])
    assert plan.source.tolist() == [ForecastSource.OWN, ForecastSource.OWN, ForecastSource.DEVICE, ForecastSource.FLEET]
    assert plan.speed[2] == pytest.approx(30.0)
    assert plan.comm_seconds[2] == pytest.approx(2.0)
    assert plan.speed[3] == pytest.approx(np.sqrt(300.0 * 30.0))
    assert "as others of its device type" in plan.why("new")


@pytest.mark.slow
@LAWS
@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "play", "device"]), st.integers(0, 5)), max_size=40))
def test_means_of_device_types_stay_those_of_their_clients(events):
    balancer = balancer_of(most_clients=4)
    for k, (event, i) in enumerate(events):
        name = f"c{i}"
        if event == "leave" and name in balancer:
            balancer.leave(name)
        elif event == "device":
            balancer.join([name], devices=[f"d{i % 2}"])
        elif event == "play":
            played(balancer, [10.0 * (i + 1) + k], [1.0 + i], names=[name])
    plan = balancer.plan([*balancer.clients, "stranger"])
    own = plan.source == ForecastSource.OWN
    if own.any():
        expected = np.exp(np.log(plan.speed[own]).mean())
        assert plan.speed[-1] == pytest.approx(expected, rel=1e-9)
    else:
        assert plan.source[-1] == ForecastSource.NOTHING


def test_no_more_device_types_are_kept_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr("paceline.coordinator.federated.clients.MOST_DEVICES", 3)
    balancer = balancer_of()
    balancer.join(names_of(5), devices=[f"made-up-{i}" for i in range(5)])
    played(balancer, [10.0, 20.0, 30.0], [0.0] * 3)
    assert balancer.plan(["c1", "c4"]).source.tolist() == [ForecastSource.OWN, ForecastSource.FLEET]
    assert len(balancer.state_dict()["clients/devices"]) == 3
