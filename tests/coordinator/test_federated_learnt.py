"""What a round teaches of each client: speeds, links, silence, memory and lies, in exact numbers."""

import logging
import math

import numpy as np
import pytest
from federated_rounds import names_of, played

from paceline.coordinator.federated import FederatedBalancer, ForecastSource, Reason, RoundReport
from paceline.coordinator.federated.client_table import Known
from paceline.predictors import LastValue

NAN, INF = math.nan, math.inf


class Noted(LastValue):
    """Keeps what it was told."""

    def observe(self, report):
        told = self.__dict__.setdefault("told", [])
        told.append((report.samples.tolist(), report.seconds.tolist()))
        super().observe(report)


def balancer_of(**options):
    return FederatedBalancer(**{"batch": 8, "local_steps": 5, "risk": 0.0, "predictor": LastValue(), **options})


def replied(balancer, names, **told):
    """Play a round in which those of the report's clients reply."""
    plan = balancer.plan(names)
    balancer.observe(plan, RoundReport(**told))
    return plan


def column(balancer, name):
    return dict(zip(balancer.clients, balancer.state_dict()[f"clients/{name}"].tolist(), strict=True))


def test_speeds_are_learnt_over_the_samples_of_a_step_and_links_as_one_model_each():
    balancer = balancer_of(predictor=Noted())
    told = {"samples": [40, 80, 1, 40], "seconds": [2.0, 1.0, NAN, 4.0], "comm_seconds": [0.5, 0.0, 3.0, NAN]}
    replied(balancer, "abcde", clients="bcda", **told)
    told = balancer._known.predictors["speed"].told[0], balancer._known.predictors["comm"].told[0]
    speeds = [[8.0, 8.0, 16.0, NAN, NAN], [0.8, 0.4, 0.2, NAN, NAN]]
    links = [[NAN, 1.0, 1.0, 1.0, NAN], [NAN, 0.5, 1e-6, 3.0, NAN]]
    np.testing.assert_allclose(told, [speeds, links])
    assert column(balancer, "computed") == {"a": 1, "b": 1, "c": 1, "d": 0, "e": 0}
    assert column(balancer, "communicated") == {"a": 0, "b": 1, "c": 1, "d": 1, "e": 0}
    plan = balancer.plan("abcde")
    assert plan.speed[:3] == pytest.approx([10.0, 20.0, 80.0])
    assert plan.comm_seconds[1:4] == pytest.approx([0.5, 1e-6, 3.0])
    assert plan.source.tolist() == [ForecastSource.OWN] * 3 + [ForecastSource.FLEET] * 2
    assert plan.speed[3:] == pytest.approx([16_000 ** (1 / 3)] * 2)


def test_before_any_reply_all_speeds_are_one_and_links_take_next_to_no_time():
    plan = balancer_of().plan(["a", "b"])
    assert (plan.speed.tolist(), plan.seconds) == (pytest.approx([1.0, 1.0]), pytest.approx([40.0, 40.0]))
    assert plan.comm_seconds.tolist() == pytest.approx([1e-6, 1e-6])
    assert (plan.spread.tolist(), plan.source.tolist()) == ([INF, INF], [ForecastSource.NOTHING] * 2)
    assert (plan.local_steps, plan.round_index, plan.is_reduced, plan.deadline) == (5, 0, False, None)
    assert (plan.caution.tolist(), plan.upper.tolist(), plan.makespan) == ([1.0, 1.0], [64.0, 64.0], plan.seconds[0])
    assert plan.reasons.tolist() == [Reason.BALANCED] * 2
    assert {plan.sizes.dtype, plan.silent.dtype, plan.rejected.dtype} == {np.dtype(np.int64)}
    with pytest.raises(ValueError, match="client 'z' was not chosen for this round of 2"):
        plan.why("z")


def test_silence_caps_a_speed_at_what_the_wait_allows_and_a_reply_lifts_the_cap():
    balancer = balancer_of()
    names = names_of(4)
    played(balancer, [100.0] * 4, [1.0, 1.0, 30.0, 1.0])
    plan = balancer.plan(names)
    told = {"clients": ["c3"], "samples": [40], "seconds": [0.4], "comm_seconds": [1.0]}
    balancer.observe(plan, RoundReport(**told, waited=21.0))
    most = plan.sizes * 5 / np.array([20.0, 20.0, 0.21, 1.0])
    assert list(column(balancer, "ceiling").values()) == pytest.approx([*most[:3], INF])
    assert column(balancer, "silent") == {"c0": 1, "c1": 1, "c2": 1, "c3": 0}
    again = balancer.plan(names)
    assert again.speed == pytest.approx([*most[:3], 100.0])
    assert again.source.tolist() == [ForecastSource.SILENCE] * 3 + [ForecastSource.OWN]
    # A longer wait lowers the cap; a shorter one, or none that is known, leaves it.
    for waited, share in ((0.0, 1.0), (NAN, 1.0), (2.0, 1.0), (81.0, 0.25)):
        balancer.observe(plan, RoundReport(**told, waited=waited))
        assert column(balancer, "ceiling")["c0"] == pytest.approx(share * most[0])
    for used, lifted in (({"failed": [1]}, False), ({"out_of_memory": [1]}, False), ({}, True)):
        balancer.observe(plan, RoundReport(clients=["c0"], samples=[40], seconds=[NAN], waited=NAN, **used))
        assert (column(balancer, "ceiling")["c0"] == INF) == lifted
    assert column(balancer, "ceiling")["c1"] == pytest.approx(0.25 * most[1])


def test_a_cap_says_nothing_of_one_of_whom_nothing_is_known():
    balancer = balancer_of()
    replied(balancer, "ab", clients=[], samples=[], seconds=[], waited=1e6)
    assert max(column(balancer, "ceiling").values()) < 1e-3
    plan = balancer.plan("ab")
    assert (plan.source.tolist(), plan.speed) == ([ForecastSource.NOTHING] * 2, pytest.approx([1.0, 1.0]))


def test_who_ran_out_of_memory_gets_four_fifths_of_that_batch_and_one_sample_at_least():
    balancer = balancer_of(batch=20, least=1)
    for size, fits in ((20, 16.0), (16, 12.8), (12, 9.6)):
        plan = replied(balancer, "ab", clients="ba", samples=[1, 1], seconds=[NAN, NAN], out_of_memory=[1, 0])
        assert plan.sizes[1] == size
        assert column(balancer, "fits") == {"a": INF, "b": pytest.approx(fits)}
    balancer.observe(
        balancer_of(batch=20).plan("ab"), RoundReport(clients="b", samples=[0], seconds=[1.0], out_of_memory=[1])
    )
    assert column(balancer, "fits")["b"] == pytest.approx(9.6), "a larger batch teaches nothing"
    one = balancer_of(batch=1)
    for _ in range(2):
        plan = replied(one, "a", clients="a", samples=[0], seconds=[NAN], out_of_memory=[1])
        assert (plan.sizes.tolist(), column(one, "fits")) == ([1], {"a": 1.0})


def test_lies_in_a_row_are_counted_logged_up_to_a_few_and_forgiven(caplog):
    balancer, names = balancer_of(plausible=10.0), names_of(9)
    played(balancer, [100.0] * 9, [0.0] * 9)
    for number in (1, 2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "paceline.federated"):
            replied(balancer, names, clients=names[::-1], samples=[40] * 9, seconds=[0.4, *[1e-3] * 7, NAN])
        assert column(balancer, "rejected") == dict(zip(names, [0, *[number] * 7, 0], strict=True))
        lines = [record.getMessage() for record in caplog.records]
        said = "reported 4e+04 samples/s, which cannot be; it is forecast without"
        assert lines == [f"round {number}: {name} {said}" for name in names[7 : 7 - len(lines) : -1]]
        assert 1 < len(lines) < 7
    plan = balancer.plan(names)
    assert plan.rejected.tolist() == [0, *[2] * 7, 0]
    assert plan.speed == pytest.approx([100.0] * 9)
    replied(balancer, names, clients=["c1", "c2"], samples=[40, 40], seconds=[0.4, NAN])
    assert [column(balancer, "rejected")[name] for name in ("c1", "c2", "c3")] == [0, 2, 2]


def test_a_reply_is_of_one_that_was_asked_and_nothing_else_is_learnt():
    balancer = balancer_of(deadline=10.0, plausible=1e9)
    played(balancer, [100.0, 0.01], [0.0, 0.0])
    plan = balancer.plan(["c0", "c1"])
    assert plan.asked.tolist() == [True, False]
    before = balancer.rounds
    for names in (["c1"], ["c0", "c1"], ["z"]):
        with pytest.raises(ValueError, match=rf"{names[-1]} replied but were not asked in this round"):
            balancer.observe(plan, RoundReport(clients=names, samples=[1] * len(names), seconds=[1.0] * len(names)))
    assert balancer.rounds == before
    assert plan.as_plan().workers == ("c0",)
    asked = plan.as_plan()
    assert asked.sizes.tolist() == [plan.sizes[0] * 5]
    assert asked.forecast.curves.seconds(asked.sizes) == pytest.approx(plan.seconds[:1])
    assert plan.seconds[0] < 1.0
    assert plan.why("c0").startswith(f"c0 gets {plan.sizes[0]} samples a step (100 % of the mean)")
    assert (plan.seconds[1], plan.speed[1]) == (0.0, pytest.approx(0.01))


def test_batches_are_halved_round_by_round_while_nobody_replies_and_whole_once_somebody_does():
    balancer = balancer_of(batch=32, least=3, deadline=9.0)
    sizes = []
    for _ in range(6):
        plan = replied(balancer, "ab", clients=[], samples=[], seconds=[])
        sizes.append((plan.sizes.tolist(), plan.is_reduced))
    assert sizes == [([n, n], n < 32) for n in (32, 16, 8, 4, 3, 3)]
    assert balancer.state_dict()["unanswered"].tolist() == 6
    replied(balancer, "ab", clients="a", samples=[1], seconds=[NAN])
    assert balancer.plan("ab").sizes.tolist() == [32, 32]
    assert balancer.state_dict()["unanswered"].tolist() == 0
    balancer._unanswered = 500
    assert balancer.plan("ab").sizes.tolist() == [3, 3]


def test_a_round_in_which_nobody_was_asked_is_no_round_without_an_answer():
    balancer = balancer_of(batch=32)
    balancer.join("ab", data=[0, 0])
    plan = replied(balancer, "ab", clients=[], samples=[], seconds=[], waited=9.0)
    assert not plan.asked.any()
    assert (balancer.rounds, balancer.state_dict()["unanswered"].tolist()) == (1, 0)


def test_what_is_said_of_clients_is_kept_until_it_is_said_anew():
    balancer = balancer_of()
    balancer.join([1, "b"], devices=["p", "q"], data=[3, 9], memory=[4, 5])
    balancer.join(["b", "c"], data=[1, 0])
    assert (balancer.clients, len(balancer), 1 in balancer, "z" in balancer) == (["1", "b", "c"], 3, True, False)
    assert column(balancer, "data") == {"1": 3.0, "b": 1.0, "c": 0.0}
    assert column(balancer, "memory") == {"1": 4.0, "b": 5.0, "c": INF}
    assert column(balancer, "device") == {"1": 1, "b": 2, "c": 0}
    with pytest.raises(ValueError, match="devices must have one entry for each of the 2 clients, got 1"):
        balancer.join(["x", "y"], devices=["p"])
    with pytest.raises(ValueError, match="clients must be at least one, and none twice, got 0 of 0 ids"):
        balancer.plan([])
    with pytest.raises(ValueError, match="clients must be at least one, and none twice, got 2 of 1 ids"):
        balancer.plan(["1", 1])
    assert "x" not in balancer
    balancer.leave(1)
    assert balancer.clients == ["b", "c"]


# -- both predictors -----------------------------------------------------------------------------------------------


def test_the_usual_is_the_geometric_mean_of_those_who_reported_and_the_usual_spread_a_fifth_until_one_is_known():
    known = Known(LastValue(), most=9, again=5)
    known.join("abc", 0)
    assert (math.isnan(known.usual("speed")), known.usual_spread()) == (True, 0.2)
    known.observe("speed", np.array([0, 2]), np.array([8.0, 8.0]), np.array([1.0, 4.0]))
    assert (known.usual("speed"), math.isnan(known.usual("comm"))) == (pytest.approx(4.0), True)
    assert known.usual_spread() == 0.2
    for seconds in (2.0, 1.0, 2.0):
        known.observe("speed", np.array([0]), np.array([8.0]), np.array([seconds]))
    assert known.usual("speed") == pytest.approx(math.sqrt(8.0))
    spread = known.predictors["speed"].predict().spread
    told = spread[[0, 2]][np.isfinite(spread[[0, 2]])]
    assert known.usual_spread() == pytest.approx(math.sqrt(np.mean(told**2)))
    assert known.join("ca", 1).tolist() == [2, 0]


def test_two_clients_of_a_round_may_be_named_before_anybody_is_known():
    known = Known(LastValue(), most=2, again=5)
    known.observe("comm", np.empty(0, np.intp), np.empty(0), np.empty(0))
    expected = known.expected("comm", np.array([-1, -1]), np.zeros(2, np.int64))
    assert expected.speed.tolist() == pytest.approx([1e6, 1e6])
    assert expected.curves.busy_seconds(np.ones(2)) == pytest.approx([1e-6, 1e-6])
    assert known.join(["a", "b"], 0).tolist() == [0, 1]
    assert known.join(["c"], 1).tolist() in ([1], [0])
    assert len(known.clients) == 2
    assert known.predictors["speed"].workers == known.predictors["comm"].workers == tuple(known.clients.names)
    state = known.state_dict()
    state["comm/workers"] = state["comm/workers"][::-1]
    with pytest.raises(ValueError, match="the state is not whole: the predictor of comm holds other clients"):
        Known(LastValue(), most=2, again=5).load_state_dict(state)


def test_a_wait_of_half_a_second_caps_too():
    balancer = balancer_of()
    names = names_of(2)
    played(balancer, [1000.0] * 2, [0.1] * 2)
    plan = balancer.plan(names)
    balancer.observe(plan, RoundReport(clients=[], samples=[], seconds=[], waited=0.5))
    most = plan.sizes * 5 / np.maximum(0.5 - plan.comm_seconds, 0.005)
    assert list(column(balancer, "ceiling").values()) == pytest.approx(most)
