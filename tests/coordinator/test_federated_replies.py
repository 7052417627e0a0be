"""Replies of federated clients: silence, lies, lack of memory, and what is learned from them."""

import logging

import numpy as np
import pytest
from federated_rounds import LAWS, balancer_of, names_of, played, same
from hypothesis import given
from hypothesis import strategies as st

from paceline.coordinator.federated import FederatedBalancer, ForecastSource, Reason, RoundReport


def test_out_of_memory_caps_a_client():
    balancer = balancer_of()
    plan = balancer.plan(["a", "b"])
    balancer.observe(
        plan, RoundReport(clients=["a", "b"], samples=[0, 160], seconds=[np.nan, 1.0], out_of_memory=[1, 0])
    )
    assert balancer.plan(["a", "b"]).sizes[0] <= 0.8 * 32


def test_empty_round_is_counted():
    balancer = balancer_of(deadline=1.0, try_again=2)
    asked = []
    for _ in range(4):
        plan = played(balancer, [1.0, 1.0], [0.0, 0.0])
        asked.append(int(plan.participating.sum()))
    assert asked == [0, 0, 2, 0]
    assert balancer.rounds == 4
    assert balancer.plan(names_of(2)).summary.startswith("No client is asked")
    assert balancer.plan(names_of(2)).makespan == 0.0
    with pytest.raises(ValueError, match="no client is asked in this round: No client is asked"):
        balancer.plan(names_of(2)).as_plan()


def test_silence_caps_the_forecast():
    balancer = balancer_of(deadline=8.0)
    played(balancer, [100.0, 100.0], [0.0, 0.0])
    for _ in range(2):
        plan = balancer.plan(["c0", "c1"])
        balancer.observe(plan, RoundReport(clients=["c0"], samples=[160], seconds=[1.6], waited=8.0))
    plan = balancer.plan(["c0", "c1"])
    assert plan.speed[1] <= 32 * 5 / 8.0
    assert plan.sizes[1] < plan.sizes[0]
    assert plan.why("c1").endswith("It has not replied for 2 rounds.")
    assert played(balancer, [100.0, 100.0], [0.0, 0.0]).speed[1] == pytest.approx(100.0)


@pytest.mark.parametrize("lie", [1e9, 1e-9, np.nan, np.inf, -5.0, 0.0])
def test_implausible_speed_is_ignored(lie, caplog):
    balancer = balancer_of(max_speed_ratio=100.0)
    names = names_of(4)
    for _ in range(3):
        plan = balancer.plan(names)
        samples = plan.sizes * 5
        with np.errstate(divide="ignore"):
            seconds = np.where(np.arange(4) == 3, np.divide(samples, lie), samples / 100.0)
        with caplog.at_level(logging.WARNING, "paceline.federated"):
            balancer.observe(plan, RoundReport(clients=names, samples=samples, seconds=seconds))
    plan = balancer.plan(names)
    assert plan.sizes.tolist() == [32, 32, 32, 32]
    if lie in (1e9, 1e-9):
        assert "c3 reported" in caplog.text
        assert "a speed that cannot be" in plan.why("c3")


def test_plausible_lie_costs_at_most_the_largest_batch():
    balancer = balancer_of(max_speed_ratio=100.0, largest_multiple=3.0)
    plan = played(balancer, [100.0, 100.0, 100.0, 5000.0], [0.0] * 4)
    assert plan.sizes.tolist() == [11, 11, 10, 96]


def test_computing_longer_than_the_round_is_ignored():
    balancer = balancer_of()
    plan = balancer.plan(["a", "b"])
    report = RoundReport(clients=["a", "b"], samples=[160, 160], seconds=[1.0, 50.0], elapsed=[2.0, 2.0])
    balancer.observe(plan, report)
    assert balancer.plan(["a", "b"]).sizes.tolist() == [32, 32]


def test_confirmed_stall_is_accepted():
    for elapsed, expected in ((None, 0), ([2.0, 2.0, 9000.0], 1)):
        balancer = balancer_of(max_speed_ratio=100.0)
        plan = balancer.plan(["a", "b", "c"])
        report = RoundReport(clients=plan.clients, samples=[160] * 3, seconds=[1.6, 1.6, 8999.0], elapsed=elapsed)
        balancer.observe(plan, report)
        assert (balancer.plan(["c"]).source[0] == ForecastSource.CLIENT) == expected


def test_rest_of_the_round_trip_is_communication():
    balancer = balancer_of()
    plan = balancer.plan(["a"])
    balancer.observe(plan, RoundReport(clients=["a"], samples=[160], seconds=[1.0], elapsed=[4.0]))
    assert balancer.plan(["a"]).comm_seconds.tolist() == [pytest.approx(3.0)]


def test_absurd_communication_is_ignored():
    balancer = balancer_of(max_speed_ratio=100.0)
    plan = balancer.plan(["a", "b", "c"])
    report = RoundReport(clients=["a", "b", "c"], samples=[160] * 3, seconds=[1.6] * 3, comm_seconds=[1.0, 1e9, 1.0])
    balancer.observe(plan, report)
    assert balancer.plan(["a", "b", "c"]).comm_seconds == pytest.approx([1.0] * 3)


def test_reply_of_an_unasked_client_is_refused():
    balancer = balancer_of()
    plan = balancer.plan(["a"])
    before = balancer.state_dict()
    with pytest.raises(ValueError, match="b replied but were not asked in this round"):
        balancer.observe(plan, RoundReport(clients=["a", "b"], samples=[1, 1], seconds=[1.0, 1.0]))
    assert all(same(before[name], after) for name, after in balancer.state_dict().items())


@pytest.mark.slow
@LAWS
@given(
    silences=st.lists(
        st.lists(st.sampled_from(["time", "no time", "silent", "error"]), min_size=3, max_size=3), max_size=8
    ),
    deadline=st.sampled_from([None, 4.0]),
)
def test_reply_ends_the_cap_of_silence(silences, deadline):
    balancer, names = FederatedBalancer(batch=32, local_steps=5, deadline=deadline), names_of(4)
    last = ["never"] * 3
    for said in [["time"] * 3, *silences]:
        plan = balancer.plan(names)
        told = [i for i in range(4) if plan.participating[i] and (i == 3 or said[i] != "silent")]
        samples = plan.sizes[told] * 5
        seconds = [n / 100.0 if i == 3 or said[i] == "time" else np.nan for i, n in zip(told, samples, strict=True)]
        failed = [i < 3 and said[i] == "error" for i in told]
        balancer.observe(
            plan,
            RoundReport(clients=[names[i] for i in told], samples=samples, seconds=seconds, failed=failed, waited=40.0),
        )
        last = [said[i] if plan.participating[i] and said[i] != "error" else last[i] for i in range(3)]
    plan = balancer.plan(names)
    for i in range(3):
        held = plan.source[i] == ForecastSource.SILENCE
        assert held == (last[i] == "silent")
        assert held == ("at most, for it did not reply" in plan.why(names[i]) or plan.reasons[i] == Reason.TRIED_AGAIN)
        if not held:
            assert plan.speed[i] == pytest.approx(100.0)


def test_client_without_times_is_sized_as_unseen():
    balancer = FederatedBalancer(batch=32, local_steps=5)
    played(balancer, [100.0, 100.0], [0.0, 0.0])
    names = names_of(3)
    plan = balancer.plan(names)
    balancer.observe(plan, RoundReport(clients=names[:2], samples=[160, 160], seconds=[1.6, 1.6], waited=60.0))
    held = balancer.plan(names)
    assert held.sizes[2] == 8
    assert "at most, for it did not reply in the time that was waited" in held.why("c2")
    balancer.observe(held, RoundReport(clients=names, samples=held.sizes * 5, seconds=[1.0, 1.0, np.nan], waited=60.0))
    assert balancer.plan(names).sizes[2] > 24
    assert "did not reply" not in balancer.plan(names).why("c2")


@pytest.mark.slow
@LAWS
@given(share=st.floats(0.35, 0.99), count=st.integers(1, 8), per_round=st.integers(1, 8), replies=st.booleans())
def test_short_deadline_is_met_in_the_end(share, count, per_round, replies):
    speed, deadline = 100.0, share * 32 * 10 / 100.0
    balancer, rng, in_time = (
        FederatedBalancer(batch=32, local_steps=10, deadline=deadline),
        np.random.default_rng(0),
        [],
    )
    names = names_of(count)
    for _ in range(12):
        chosen = sorted(rng.permutation(count)[:per_round])
        plan = balancer.plan([names[i] for i in chosen])
        samples = plan.sizes * 10
        there = [i for i in range(len(chosen)) if plan.participating[i] and samples[i] / speed <= deadline]
        balancer.observe(
            plan,
            RoundReport(
                clients=[plan.clients[i] for i in there],
                samples=samples[there],
                seconds=samples[there] / speed if replies else np.full(len(there), np.nan),
                waited=deadline,
            ),
        )
        in_time.append(len(there))
    assert sum(in_time[:4]) > 0
    assert sum(n > 0 for n in in_time[3:]) >= (8 if replies else 1)


def test_batches_halve_while_no_client_replies():
    balancer = FederatedBalancer(batch=32, local_steps=10, deadline=2.0)
    plan = balancer.plan(["a", "b"])
    balancer.observe(plan, RoundReport(clients=[], samples=[], seconds=[], waited=2.0))
    plan = balancer.plan(["a", "b"])
    assert plan.sizes.tolist() == [16, 16]
    assert plan.why("a").startswith(
        "a gets 16 samples a step: no client has reported yet; as no client has replied so far, it is less than the "
        "mean batch."
    )
