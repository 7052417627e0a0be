"""Federated clients come and go; metrics, and arguments that are refused."""

import pytest
from federated_rounds import balancer_of, played

from paceline.coordinator.federated import ForecastSource, RoundReport


def test_clients_come_and_go():
    balancer = balancer_of()
    played(balancer, [100.0, 50.0], [0.0, 0.0])
    balancer.leave("c1")
    assert balancer.clients == ["c0"]
    plan = balancer.plan(["c0", "c1"])
    assert plan.source.tolist() == [ForecastSource.CLIENT, ForecastSource.FLEET]
    with pytest.raises(ValueError, match="client 'c1' is not known"):
        balancer.leave("c1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch must be at least 1"),
        ({"local_steps": 0}, "local_steps must be at least 1"),
        ({"min_batch": 40}, "min_batch must lie between 1 and the batch of 32, got 40"),
        ({"largest_multiple": 0.5}, "largest_multiple must be at least 1"),
        ({"risk": 3.0}, "risk must lie in"),
        ({"max_speed_ratio": 1.0}, "max_speed_ratio must be above 1"),
        ({"deadline": -1.0}, "deadline must be a positive number of seconds"),
        ({"try_again": 0}, "try_again must be at least 1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        balancer_of(**options)


def test_wrong_clients_and_reports_are_refused():
    balancer = balancer_of()
    with pytest.raises(ValueError, match="no duplicates"):
        balancer.plan(["a", "a"])
    with pytest.raises(ValueError, match="must not repeat an id"):
        RoundReport(clients=["a", "a"], samples=[1, 1], seconds=[1, 1])
    with pytest.raises(ValueError, match="seconds must have one entry for each of the 1 clients"):
        RoundReport(clients=["a"], samples=[1], seconds=[1, 1])
    with pytest.raises(ValueError, match="data must have one number of at least 0 for each of the 1 clients"):
        balancer.join(["a"], data=[-1.0])
    with pytest.raises(ValueError, match="must not repeat an id"):
        balancer.join(["a", "a"], devices=["x", "y"])
    with pytest.raises(ValueError, match="must come from state_dict"):
        balancer.load_state_dict({})


def test_round_as_an_iteration():
    plan = played(balancer_of(), [100.0, 50.0], [1.0, 0.5])
    asked = plan.as_plan()
    assert asked.sizes.tolist() == (plan.sizes * 5).tolist()
    assert asked.forecast.curves.seconds(asked.sizes) == pytest.approx(plan.seconds)
    assert asked.workers == ("c0", "c1")
    assert (asked.why, asked.iteration, asked.acted, asked.gain) == (plan.summary, 1, True, 0.0)
